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
// sequence number. A write that repeats the owner's last sequence number gets the answer it got before, so a
// writer that does not know its outcome repeats it without harm.
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
// # Failure
//
// A log entry that cannot be decoded, or that holds an operation this version does not know, stops the replica:
// Apply panics with a [*DecodeError], which the coordinator turns into the end of the process. Skipping it would
// let replicas differ, which is worse than being down. New operations are therefore proposed only when every
// voter reports a [CommandVersion] that knows them.
package fsm
