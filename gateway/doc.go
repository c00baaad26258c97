// Package gateway is the client of a Rollcall service directory: it finds the leading coordinator, calls it,
// and keeps what a host or a process defines registered there.
//
// [Client] finds the leader and calls it. [Gateway] uses one to keep the whole set of a [Source] registered;
// a process that registers only itself runs a Gateway over [Static].
//
// # Who leads
//
// Only a coordinator's own word makes it the leader: its answer to a ping names itself and carries the epoch
// that it has committed. A follower's answer is a hint where to ask. A client is in one of two states:
//
//   - following: a leader is known. It alone is pinged, every Poll, with PingTimeout to answer. The state ends
//     when a ping fails, names somebody else or an older epoch, when the connection breaks, or when a call is
//     refused in a way that puts the leadership in doubt.
//   - looking: all coordinators are pinged at once, in rounds PollLeaderless apart. A round ends when all have
//     answered, or with its time: a node that hangs delays it by no more. Answers without a leader count for
//     nothing, an address named by one is asked in the same round, and of those that claim to lead the one with
//     the highest epoch wins.
//
// The epoch never goes backwards: a claim below the highest epoch that any node of the cluster has told is not
// believed. Nor does the cluster change: its id is remembered from the first leader (or given), and answers of
// another cluster are refused and logged as errors until the process is started again.
//
// # What a write's outcome can be
//
// A call to the leader ends in one of three ways. Done; refused, so that nothing happened and it may be
// repeated elsewhere; or unknown, when the connection or the leadership was lost while it was on its way. A
// write with a sequence number is repeated after an unknown outcome, with the same number and content, until
// somebody gives a definite answer: the directory applies it at most once. A write without one (an operator's)
// returns [UnknownOutcomeError].
//
// # What a Gateway keeps true
//
// The directory holds what the Source last defined. On each new leader or epoch the Gateway pulls the source
// and writes the result as one full set, which in the same step removes what it no longer defines; so it does
// every Reregister, which costs the cluster nothing when nothing changed. In between, a change of the source
// sends only what is new. One write is in flight at a time; changes that arrive meanwhile go together in the
// next.
//
// Each start of a gateway is an incarnation, the wall clock in nanoseconds, and the directory refuses writes
// from one older than it has seen. A gateway whose very first write is refused that way has a clock that went
// back: it takes the next number, once. One that had been accepted before has a living double with its id:
// Run ends with [ClaimedError].
//
// # What is not guaranteed
//
// The directory says what is defined, not what is alive: a gateway that dies leaves its entries, and the
// leader's checks find out. Two gateways defining the same service id do not share it: the second is refused
// that service (the others are registered) and asks again at each full set. A set cannot be split over several
// writes, so one gateway registers at most 10,000 services or 4 MiB.
package gateway
