// Package mirror keeps Redis equal to the leading coordinator's state: the services that are alive.
//
// The director writes with it; cmd/rollcall, admin and the development cluster configure and read it. It calls
// Redis through go-redis.
//
// # Who decides
//
// The directory defines which services exist, the leader's checks decide which are alive, and Redis publishes both to
// readers. Data in Redis decides nothing, with one exception: a new leader keeps the entry of a service that it has
// not checked yet. So a leader change is invisible to readers.
//
// A Writer serves one epoch. It receives the desired state by Update and does all communication with Redis. Its view
// of Redis is a copy of the sets as last written or read. Every failure is handled the same way: the Writer reads the
// sets again, queues the differences, and writes them. There is no separate recovery path.
//
// # Data in Redis
//
// Keys lists the names. There is one set <kind>:active per kind. It holds the services that are up. It also holds
// services that were listed before and that this leader has not checked yet, or that the director's guard holds. There
// is one hash per service with its last result. relayer:meta holds the fence: cluster, epoch, seq and leader. It also
// holds interval, updated_at and kinds. kinds are all kinds ever written, whose sets a later leader must maintain even
// if its directory has no service of the kind. relayer:services lists the ids that have a hash, for the same reason.
//
// # The fence
//
// Each write is one Lua script, so readers see all of it or nothing. It passes four checks before it changes anything:
//
//   - Token. (epoch, seq) must be above the one in meta, and the cluster the same. A new leader first claims
//     (epoch, 0). From then on no write of an older leader in flight can be applied. A token equal to meta's, of the same
//     leader, was applied before: a connection may repeat a script, and gets a success. The Writer itself never uses
//     a token twice.
//   - Base. Meta must hold the token that the Writer expects. So the next write, at most a second later, detects an
//     emptied Redis, or one that failed over to an older copy. The Writer then writes everything.
//   - Confirmation. A quorum must have confirmed the leadership, asked no longer than Config.Lease ago. A write that removes a
//     service asks again, after the check's result has arrived. So a leader that was paused while it was deposed, and
//     resumes with a verdict or a late timer, removes nothing.
//   - Deadline. A script carries the end of that lease, in Redis's clock, and is refused after it. Between the confirmation and
//     the write, the leader may be paused, or the script may be in the socket of a paused Redis. The clocks are compared
//     with each reply, ignoring the reply's travel time, so the deadline is early by up to one round trip.
//
// Heartbeats, which keep updated_at current while nothing changes, are writes like any other.
//
// # When a step fails
//
//   - The claim: retried before anything else. If Redis holds a higher epoch, Run ends with *HigherEpochError, and the next
//     epoch must be above it. If Redis belongs to another cluster, Run ends with *ForeignClusterError.
//   - A write without an answer: it may have been applied, or may be within its deadline. The Writer counts its removals as
//     done, its additions as not done, and reads the sets again.
//   - Redis away: readers keep the last state, and updated_at ages. The Writer retries with growing pauses, up to 5 s, probes
//     twice a second whether Redis is back, and then updates it.
//   - The fence holds back every write, because Redis or the quorum answers later than the lease: retried four times
//     a second. After three heartbeats this counts as Redis being away, and is logged every minute.
//   - Redis emptied: one write restores all that was listed, including unknown services.
//   - Another client changes a set: each write returns the sizes, and Audit compares the members. Differences are repaired and
//     counted.
//   - The leader ends during a write: scripts are atomic. Readers keep the last state until the next leader.
//
// # What is not guaranteed
//
// Redis replicates asynchronously. If it fails over to a copy from before a claim, the older leader's token is valid
// again. This lasts until the new leader's next write, at most a second. To do harm, that older leader must have a quorum's
// confirmation from less than Lease ago. So it must have been deposed within the lease, without having detected it.
//
// The deadline relies on clocks. The next write may be late if Redis's clock is set back, by as much. The same holds
// if a proxy or sentinels hide a failover to a server whose clock is behind. Some systems stop Redis's clock together
// with a stopped virtual machine.
//
// Only current subscribers receive events, and changes while Redis was away are merged. Readers that must not miss a
// change read the set periodically.
package mirror
