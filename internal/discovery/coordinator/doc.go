// Package coordinator is one node of the discovery cluster: Raft and gRPC on one port, and the work of a leader
// as a function that runs exactly as long as the leadership.
//
// # Who is authoritative
//
// The Raft log. A node answers for the directory only while it is an established leader: it leads a term, and
// its leader-established entry of that term, which opens the epoch, has been applied here. Everything that
// entry follows in the log is applied by then too, so it is also the barrier.
//
// # The states of a node
//
//	empty      no Raft state on disk; asks its peers whether the cluster exists
//	joining    the cluster exists: has given up its vote and catches up
//	follower   answers Ping, stale lists and watches; names the leader in every refusal
//	leader     leads a term, epoch not committed yet: refuses writes with NotEstablished
//	established  serves; runs Config.Lead, the static fleet and the proposer, all under one context
//
// # Writes
//
// A write is validated in full, encoded once, and proposed together with the others that wait: one Raft entry
// carries many operations, each accepted or refused for itself. Its outcome is done, not done, or unknown (the
// leadership was lost, or time ran out, while it was on its way); unknown is said as such, and a writer that
// repeats it under the same sequence number gets the answer of the first.
//
// A registration that changes nothing is answered without an entry. That answer is a linearizable read: the
// state held the batch, and a quorum says, asked after the request came, that no later term has begun
// ([confirmer]). It is given only while no other write of the same owner is on its way, since that one could
// otherwise take effect after it.
//
// # Reads
//
// A linearizable list asks a quorum to confirm the term, then reads the present state. Whatever was acknowledged
// before the request came is in it: this leader acknowledges a write only after its state holds it, and the
// writes of earlier leaders stand before the entry that established this one.
//
// # When something fails
//
// A lost quorum ends the leadership within the lease (200 ms by default). A disk that fails ends the process
// with one line; so does a leader whose pending writes do not commit for ten seconds (a hung disk, a leadership
// transfer that never ends), because its heartbeats would otherwise keep a better leader away. A node whose
// disk was wiped never votes on what it has forgotten: it notes that it waits for a vote, loses the one it had,
// catches up, and gets it back, whichever leader dies meanwhile and however often it is restarted itself. A leader
// that dies or is cut off while it restores a snapshot moves its Raft state aside and comes back in the same way, since
// what it restored may be unknown to the others; until they have it, nobody is shown it. So does a follower that had
// installed the snapshot, once a leader that had not contradicts it.
//
// # What is not guaranteed
//
// Two of three nodes wiped at once stop the cluster: the third cannot lead alone, and they found no other while
// either has heard of it. Nodes that bootstrap while another one cannot be reached trust that it has nothing, after
// three seconds.
package coordinator
