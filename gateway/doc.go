// Package gateway is the client of a Rollcall service directory. It finds the leading coordinator, calls it, and keeps
// the services of a host or a process registered.
//
// [Client] finds the leader and calls it. [Gateway] uses a Client to keep the whole set of a [Source] registered. A
// process that registers only itself runs a Gateway over [Static].
//
// # Who leads
//
// A client accepts a coordinator as leader only if the coordinator itself claims to lead: its ping response names
// itself and carries the epoch that it has committed. A follower's response is only a hint. A client is in one of two
// states:
//
//   - following: a leader is confirmed. The client pings only the leader, every PingInterval, with PingTimeout for the
//     response. The state ends when a ping fails or names another node or an older epoch. It also ends when the
//     connection breaks, or when a refused call makes the leadership doubtful.
//   - discovering: the client pings all coordinators at once, in rounds DiscoveryInterval apart. A round ends when all
//     have responded or when its time is over, so a hanging node does not delay it further. Responses without a leader are
//     ignored. An address named in a response is pinged in the same round. Of the nodes that claim to lead, the one
//     with the highest epoch is accepted.
//
// The epoch never decreases: a client ignores a claim below the highest epoch that any node of the cluster has
// reported. The cluster is fixed as well. Its id is configured or taken from the first leader. The client ignores
// responses of another cluster, and logs them as errors, until the process restarts. If an operator founded the
// cluster again on purpose, the operator restarts every process with a client; a Gateway does not register until then.
//
// # What a write's outcome can be
//
// A call to the leader has one of three outcomes:
//
//   - done,
//   - refused: nothing was done, and another node may be called,
//   - unknown: the connection or the leadership was lost during the call.
//
// The client retries a write with a sequence number after an unknown outcome, with the same number and content, until
// a coordinator gives a definite answer. The directory applies it at most once. A write without a sequence number (an
// operator's) returns [UnknownOutcomeError].
//
// # What a Gateway keeps true
//
// The directory holds the set that the Source last defined. On each new leader or epoch the Gateway pulls the source
// and writes the result as one full set. The full set also removes the services that the source no longer defines. The
// Gateway repeats this every ResyncInterval, at no cost to the cluster if nothing changed. In between, a change of the
// source sends only the changed services. One write is in flight at a time; later changes are combined in the next
// write.
//
// Each start of a gateway is an incarnation, the wall clock in nanoseconds. The directory refuses writes of an
// incarnation older than the newest that it has recorded. If the directory refuses a gateway's very first write that
// way, the gateway's clock went back: the gateway takes the next number, once. If it refuses a gateway that it had
// accepted before, another process runs with the same id, and Run ends with [ClaimedError].
//
// # What is not guaranteed
//
// The directory lists defined services, not live ones: the entries of a gateway that dies are kept, and the leader's
// checks detect the failure. Two gateways cannot share a service id. The directory refuses that service of the second
// gateway, registers its others, and the gateway retries with each full set. A set cannot be split over several
// writes, so one gateway registers at most 10,000 services or 4 MiB.
package gateway
