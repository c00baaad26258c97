// Package watch reads the events of a chain, confirms them, and stores them step by step.
//
// # Confirmation
//
// Nodes return lists of logs that are empty, truncated or of another block, without an error. So a list counts only once it is confirmed:
// a second endpoint gave the same list for the same blocks, or the receipts of the blocks prove it by the receipts' root in a header that
// has the block's hash. Where two lists differ, the receipts of the blocks in which they differ decide, or else a third endpoint. An
// endpoint whose list was false is distrusted for eth_getLogs. Nothing is stored before that.
//
// Receipts prove the logs of a block, but neither that the block is on the chain, nor the hashes of its transactions. So a second endpoint must
// have the block, with the same list of transactions. Where a single endpoint proves a range, a second one must have its last block, too, to
// which the others lead by their parents: a node on a branch of its own would otherwise show that there are no events.
//
// With a single endpoint configured that can prove nothing, its lists count, and the reader reports it. With several of which one answers,
// they do not.
//
// Only logs of factories and escrows are compared and kept. Those of an escrow count from the block of its creation on, whatever the order of
// the logs in that block, and whatever range a query has. Within a block the place in an answer orders the logs. If chunks of contracts divide
// a block, the node's indexes do, or its receipts where the indexes decide nothing.
//
// # Limits of providers
//
// Each endpoint has the number of blocks of a query that it has answered lately. A refusal as too large halves it, or sets it to the
// number that the refusal suggests, and an answer doubles it. A refused range bounds the later ones for ten minutes. A single
// block that is too large cannot be narrowed: it is read by its receipts. An endpoint that refuses topics without contracts is asked for the
// factories and escrows, in chunks, and then for the escrows that the answers create.
//
// # Finality
//
// A block is final when two endpoints call it final and have it with the same hash. The stored final block is compared whenever finality
// moves: by the parents of the stored blocks, or else at the endpoints. An endpoint that contradicts it is excluded. If all of them do, three
// times, the chain is halted.
//
// # Instant delivery
//
// History is read in ranges up to the final block, as with finalized delivery. From there the process with the lease follows the head,
// block by block: each has the stored one before it as its parent. Heads come from a subscription, or from polls while it brings none.
//
// A block with events is stored once two endpoints have it and its logs are confirmed. A block whose header excludes the events is stored at
// once, although one endpoint may have made it up: nothing is published of it, and whatever follows must name its hash. Whenever finality is
// looked for, a second endpoint must have the newest stored block.
//
// Where a block does not follow the stored one, two endpoints must have other blocks than the stored ones before these are taken back. So an
// endpoint on a branch of its own changes nothing. Where they do not agree, the process waits: for some seconds that is no failure, because
// endpoints receive blocks one after the other. The blocks that were removed are stored as such, in a step of its own, before the next block
// is read, because the escrows that they created are none any more. They are stored again only if two endpoints have them.
//
// The process asks the endpoints for little: one list from each of two for a block that may have events, one header by poll if no
// subscription delivers, and a look for finality after ten intervals. Without a head for three intervals it looks at once, so that a process
// whose endpoints are away gives the lease back. So does one whose endpoints report heads for seconds and have no block after the stored one.
//
// # Lag
//
// The stored cursor and final block do not show the lag while no process reads, or while the one that reads finds no block. So each process
// asks its endpoints every two minutes which block should be stored, while the cursor does not move.
package watch
