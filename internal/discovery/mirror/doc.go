// Package mirror keeps Redis showing what the leading coordinator knows: which services are alive.
//
// # Who decides
//
// The directory says what exists, the leader's checks say what is alive, and Redis repeats both for readers. Nothing
// is ever decided by what stands in Redis, with one exception: a new leader that has not yet checked a service
// leaves it as it finds it. So a change of leaders shows no reader a gap.
//
// A Writer serves one epoch. It is told the desired state by Update and owns the whole conversation with Redis; what
// it knows of Redis is a copy of the sets as last written or read. Whatever goes wrong ends the same way: the sets
// are read again, the differences become due, and the next write makes them good. There is no separate path for
// recovery to be wrong in.
//
// # What stands in Redis
//
// Keys names it. A set <kind>:active a kind holds those up, and those not yet checked by this leader that were listed
// before (or are held by the director's guard). A hash a service says what was found. relayer:meta carries the fence:
// cluster, epoch, seq, leader, and beside them interval, updated_at and kinds, the kinds ever written, whose sets a
// later leader has to keep true also when its directory no longer has any of the kind. relayer:services lists the ids
// that have a hash, for the same reason.
//
// # The fence
//
// Each write is one Lua script, so that readers see all of it or nothing, and it goes through four gates before it
// changes anything:
//
//   - Token. (epoch, seq) must be above the one in meta, and the cluster the same. Once a new leader has claimed
//     (epoch, 0), which is the first thing it does, nothing that an older one has under way can land. A token equal
//     to meta's, of the same leader, has landed before: a connection may repeat a script, and is told that all is
//     well. The Writer itself never uses a token twice.
//   - Base. Meta must hold the token that the Writer believes it holds. So an emptied Redis, or one that failed over
//     to an older copy, is noticed by the next write, a second later at most, and is written in full.
//   - Confirmation. A quorum must have confirmed the leadership, asked no longer than Config.Lease ago. A write that
//     takes a service out asks again, after the check's result has come in: a leader that slept through its own
//     deposition, and woke with a verdict or a late timer, takes nobody out.
//   - Deadline. A script carries the end of that lease, in Redis's clock, and is refused after it. The leader may be
//     stopped, or the script may lie in the socket of a stopped Redis, between the question and the write. The
//     clocks are compared with each reply, counting the way back as if it took no time, so that the deadline errs on
//     the early side by up to one round trip.
//
// Heartbeats, which keep updated_at true while nothing changes, are writes like any other.
//
// # When a step fails
//
//   - The claim: tried again, before anything else is. Redis holding a higher epoch ends Run with *HigherEpochError,
//     and the next epoch must be above it. Redis belonging to another cluster ends it with *ForeignClusterError.
//   - A write without an answer: it may have landed, or land within its deadline. Its removals count as done, its
//     additions as not, and the sets are read again.
//   - Redis away: readers keep what they had, and updated_at ages. The Writer pauses longer and longer, to 5 s, asks
//     each half second whether Redis is back, and then brings it up to date.
//   - The fence holds back every write, since Redis or the quorum answers later than the lease: tried again, four times
//     a second. After three heartbeats it counts as Redis being away, and is said each minute.
//   - Redis emptied: one write puts back all that was listed, unknown services included.
//   - Someone else changes a set: each write learns the sizes and Audit compares the members; repaired and counted.
//   - The leader ends mid-write: scripts are atomic. Readers keep what they have until the next leader.
//
// # What is not guaranteed
//
// Redis replicates asynchronously. If it fails over to a copy from before a claim, the older leader's token counts
// again there, until the new leader's next write, a second at most. To do harm, that older leader must hold a
// quorum's confirmation from less than Lease ago, so it must have been deposed within the lease and not know it.
// The deadline relies on clocks: if Redis's is set back, or a failover to a server whose clock is behind goes unnoticed
// by the connection (a proxy in between, or sentinels), then the next write may land late by as much; and a virtual
// machine that is stopped may, on some systems, stop Redis's clock with it.
//
// Events reach those who listen at the moment, and what happened while Redis was away is merged: readers that must
// not miss a change read the set from time to time.
package mirror
