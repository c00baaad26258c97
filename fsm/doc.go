// Package fsm is the replicated service directory: a pure state machine that every coordinator feeds with the
// same Raft log and that therefore holds the same state everywhere. It knows no clock, network, randomness or
// logger; the leader stamps what a command needs of them before it proposes it.
//
// # Authority
//
// The log decides. A write names its owner, the owner's incarnation and sequence number, and the epoch its
// writer believes in. The machine refuses a write of another epoch ([StaleEpochError]), one that a later write
// of the same owner has overtaken ([SupersededError]), and one that touches an entry somebody else holds
// ([ConflictError]). A refusal is a value, the same on every replica, and changes nothing but the owner's
// sequence number. A write that repeats the owner's last sequence number gets the answer it got before, of
// many conflicts the first hundred, so a writer that does not know its outcome repeats it without harm. The machine
// keeps the hash of the last body beside the answer, and refuses another body under the same number
// ([SequenceReusedError]): the old answer would report it as done. The leader stamps the hash into the entry, because
// only it knows whether every voter can read one; two writes are compared only where both have one.
//
// # Epochs
//
// A leader's first entry opens an epoch: max(previous + 1, the entry's Raft term, the least it asks for). Epochs
// only grow, also across restored snapshots, because a restore is followed by an epoch above the one before it.
//
// # State
//
// [State] is immutable. The machine publishes a new one after each batch of log entries; readers and snapshots
// keep the one they took for as long as they like, and nothing they do slows Apply. Trees are shared between
// states by copy on write.
//
// A [Feed] gives one reader every change after the state it began with, in the order of the log, never before the
// state that holds it is published. A reader that falls more than the window behind, one that stands still
// included, is cut with [ErrCompacted] and keeps nothing alive; so is every reader when a snapshot replaces the
// directory. A reader that resumes by index gets all changes since, or ErrCompacted, also when that index belongs to a
// past that a restored snapshot has undone.
//
// # Failure
//
// A log entry that cannot be decoded, or that holds an operation, field or enum value this version does not know,
// stops the replica: Apply panics with a [*DecodeError], which the coordinator turns into the end of the process,
// before anything of its batch is applied. Skipping it would let replicas differ, which is worse than being down.
// New operations are therefore proposed only when every voter reports a [CommandVersion] that knows them.
//
// A snapshot that is truncated, damaged, out of order or of another version is refused, and the directory stays
// what it was. One whose state contradicts itself is not written.
//
// # Not guaranteed
//
// The machine trusts the leader in what only the leader checks: that services are valid and their ids distinct in a
// command, that only operators force, that only operators write without a sequence number. A fence lasts for an
// epoch at least: when a new one opens, owners that own nothing are forgotten, and only the epoch their old writes
// carry refuses them then. So are, earlier, those that wrote the longest ago where there are more than 16,384.
package fsm
