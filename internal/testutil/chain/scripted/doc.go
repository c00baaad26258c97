// Package scripted serves chains of blocks that a test makes up, over HTTP and WebSocket. No transaction is executed: a test decides the logs
// of each, so a block may hold what no node in use makes, and a chain forks in no time. Headers have the hash, the receipts' root and the bloom
// of their content, as those of geth.
//
// A [Chain] has blocks, on any number of branches. Each [Node] shows it from one head, with one final block. A node knows the blocks that led
// to a head of its own at some time, and answers for no others.
//
// It serves what the escrow monitor calls: eth_chainId, eth_blockNumber, eth_syncing, eth_getBlockByNumber, eth_getBlockByHash, eth_getLogs,
// eth_getBlockReceipts, eth_getTransactionReceipt, and the subscription to newHeads. Package proxy makes faults.
//
// Tests of escrow/watch call it. It calls go-ethereum alone.
package scripted
