// Package events defines the events of factories and escrows: which logs are events, how they are decoded, which escrow each belongs to,
// and the message that consumers receive. It computes only: it reads no chain and no database.
//
// # Events
//
// A [Set] has the events of factories and those of escrows. A log is an event if its contract is a factory or an escrow, and the set has an
// event of that role with the log's topic0. Two events may have the same topic0: the number of indexed arguments decides. A log of a
// watched contract with a watched topic0 that no layout decodes is parked, see [Parked]; it does not stop others. So is one whose values
// share bytes, so that they take more than the log has: what a log decodes to is bounded by its size.
//
// An event of a factory belongs to the escrow that it names, and registers it. The constructor of an escrow emits before its factory
// does, in the same transaction, so [Match] finds the escrows of a block first.
//
// # Ids
//
// An event's [ID] is its chain, transaction, contract, topic0, and its place among the logs of that contract with that topic0 in the
// transaction, from 0. A reorganization changes none of them if the transaction does the same again. A log index is in no id: it counts
// the logs of the block, so another block gives the event another one. Logs that do not decode count for the place, so that the ids of
// others do not depend on this package.
package events
