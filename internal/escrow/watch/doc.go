// Package watch reads the events of a chain, confirms them, and stores them step by step.
//
// # Confirmation
//
// Nodes return lists of logs that are empty, truncated or of another block, without an error. So a list counts only once it is confirmed:
// a second endpoint gave the same list for the same blocks, or the receipts of the blocks prove it by the receipts' root in a header that
// has the block's hash. Where two lists differ, the receipts of the blocks in which they differ decide, or else a third endpoint. An
// endpoint whose list was false is distrusted for eth_getLogs. Nothing is stored before that.
//
// With a single endpoint configured that can prove nothing, its lists count, and the reader reports it. With several of which one answers,
// they do not.
//
// # Limits of providers
//
// Each endpoint has the number of blocks of a query that it has answered lately. A refusal as too large halves it, or sets it to the
// number that the refusal suggests, and an answer doubles it. A single block that is too large cannot be narrowed: it is read by its
// receipts. An endpoint that refuses topics without contracts is asked for the factories and escrows, in chunks.
package watch
