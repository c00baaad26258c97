// Package coordinator is one node of the discovery cluster. It serves Raft and gRPC on one port, and runs the leader's
// work as a function exactly as long as the leadership lasts.
//
// cmd/rollcall runs it, and internal/cli restores snapshots with it. It calls fsm for the state, raftstore for the
// disk and clusterport for connections. The caller passes the leader's work as a function.
//
// # Who is authoritative
//
// The Raft log is authoritative. A node serves the directory only while it is an established leader. It then leads a
// term and has applied its leader-established entry of that term, which opens the epoch. It has also applied every
// earlier entry of the log, so the leader-established entry is the barrier too.
//
// # The states of a node
//
//	empty      no Raft state on disk; asks its peers whether the cluster exists, and founds one with all of them if not
//	joining    the cluster exists; the node has given up its vote and catches up
//	follower   answers Ping, stale lists and watches; names the leader in every refusal
//	leader     leads a term, epoch not committed yet: refuses writes with NotEstablished
//	established  serves; runs Config.Lead, the static fleet and the proposer, all under one context
//
// # Writes
//
// A write is validated in full, encoded once, and proposed together with other pending writes. One Raft entry carries
// many operations, each accepted or refused independently. The outcome is done, not done, or unknown. It is unknown if
// the leadership was lost or the time ran out while the write was in flight; the node reports that explicitly. A
// writer that repeats the write with the same sequence number gets the first answer.
//
// A registration that changes nothing is answered without an entry. The answer is a linearizable read: the state held
// the batch, and a quorum confirmed, after the request arrived, that no later term has begun ([confirmer]). The leader
// gives this answer only while no other write of the same owner is in flight, because that write could take effect
// after it.
//
// # Reads
//
// A linearizable list asks a quorum to confirm the term, then reads the current state. The state contains every write
// acknowledged before the request arrived. This leader acknowledges a write only after its state holds it, and the
// writes of earlier leaders precede the entry that established this one.
//
// # When something fails
//
//   - A lost quorum ends the leadership within the lease (200 ms by default).
//   - A failed disk ends the process with one line in the log.
//   - A leader whose pending writes do not commit for ten seconds ends its process too, because its heartbeats would keep a
//     better leader away. Causes are a hung disk, or a leadership transfer that never ends. The time restarts while the
//     commit waits for a follower that catches up.
//   - A node whose disk was wiped never votes on state that it has lost. It records that it waits for a vote, loses its
//     old vote, catches up, and gets the vote back. This holds across leader failures and restarts of the node.
//   - A leader that is lost within an import, or a caller that leaves, changes nothing before the import's last operation is
//     proposed. Then the outcome is unknown, and the directory is the former one or the imported one.
//   - A node that holds the log of another cluster, such as the one before a restore, cannot take part: Raft's connections
//     begin with the identity of the log.
//
// # What is not guaranteed
//
// Two of three nodes wiped at once stop the cluster. The third cannot lead alone, and the two do not found a new
// cluster, because founders wait for each other. An operator who excepts a founder ([Config].BootstrapWithout)
// guarantees that it holds no older cluster.
package coordinator
