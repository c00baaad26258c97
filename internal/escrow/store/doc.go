// Package store keeps the escrow monitor's state of its chains in Postgres: the cursor, the escrows, the last message of each event, and
// the messages that are to be published, which are entries of package outbox.
//
// # A step
//
// [Store.Commit] stores one step of a chain in one transaction: blocks that were removed, blocks that became final, and new blocks with
// their events. A reorganization of very many events is stored in several. A transaction locks the chain's row and compares
// three things: the cursor, which must be the block that the step follows; the epoch of the watcher's lease; and that the chain is not halted.
// So of two processes that read the same blocks one stores them, a paused process that wakes stores nothing, and an operator's halt is final.
// Package events decides the messages.
//
// # What a start must repeat
//
// Factories, start block and set of events belong to the chain, not to a process: with others, events of earlier blocks would be missing.
// [Store.Register] refuses a start that differs from the stored ones.
package store
