// Package fsm is the replicated service directory: a pure state machine. Every coordinator applies the same Raft log
// to it, so every replica holds the same state. The machine uses no clock, network, randomness or logger. The leader
// stamps a command with the values it needs of them before it proposes it.
//
// # Authority
//
// The log is authoritative. A write names its owner, the owner's incarnation and sequence number, and the epoch that
// the writer received. The machine refuses three kinds of write:
//
//   - a write of another epoch ([StaleEpochError]),
//   - a write older than the owner's last one ([SupersededError]),
//   - a write that touches an entry of another owner ([ConflictError]).
//
// A refusal is a value, identical on every replica. It changes only the owner's sequence number. A write that repeats
// the owner's last sequence number gets the stored answer again, with at most the first hundred conflicts. A writer
// with an unknown outcome can therefore retry safely.
//
// The machine stores the hash of the last body with the answer. It refuses another body under the same number
// ([SequenceReusedError]), because the old answer would report that body as done. The leader stamps the hash into the
// entry, because only the leader can check that every voter reads one. The machine compares two writes only if both
// have a hash.
//
// # Epochs
//
// A leader's first entry opens an epoch: max(previous + 1, the entry's Raft term, the minimum that the entry
// requests). Epochs only grow, also across restored snapshots, because a restore is followed by an epoch above the
// previous one.
//
// # Imports
//
// An import replaces all services of the directory by those of a file. Its parts are staged by one operation each, which
// changes no service. One last operation applies all of them, so an import is done completely or not at all. At most one
// import is staged: the first part of another one replaces it, and a new epoch drops it. A snapshot contains it, because
// the entry that applies it may follow. An import never lowers an owner's fence, because a late write would become valid
// again. It raises the fence to an imported incarnation.
//
// # State
//
// [State] is immutable. The machine publishes a new state after each batch of log entries. Readers and snapshots may
// keep a state for any time without slowing Apply. States share trees by copy on write.
//
// A [Feed] delivers every change after its first state to one reader, in log order. It delivers a change only after
// the state with that change is published. The machine ends the feed with [ErrCompacted] when the reader falls further
// behind than the window, or when a snapshot replaces the directory. Such a reader retains no memory, even if idle. A reader that
// resumes by index gets all later changes or ErrCompacted. It also gets ErrCompacted if a restored snapshot has undone
// the history of that index.
//
// # Failure
//
// Apply panics with a [*DecodeError] if a log entry cannot be decoded, or holds an operation, field or enum value that
// this version does not support. It panics before it applies any entry of the batch, and the coordinator then ends the
// process. Skipping the entry would let replicas diverge, which is worse than downtime. A leader therefore proposes a
// new operation only when every voter reports a [CommandVersion] that supports it.
//
// The machine refuses a snapshot that is truncated, damaged, out of order or of another version, and keeps its
// directory. It does not write a snapshot of an inconsistent state.
//
// # Not guaranteed
//
// The machine does not repeat the leader's checks: that services are valid, that ids are distinct within a command,
// that only operators force, and that only operators write without a sequence number. A fence lasts for at least one
// epoch. A new epoch forgets long-idle owners without entries, and then only the epoch fences their old writes. Above
// 16,384 owners without entries, the machine forgets those with the oldest last write earlier.
package fsm
