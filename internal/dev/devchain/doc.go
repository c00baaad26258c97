// Package devchain is an EVM chain for development and tests: go-ethereum's own node, transaction pool, EVM and
// JSON-RPC in this process, with a simulated beacon that seals blocks on demand or periodically.
//
// The chain is in memory and starts again at each [Open], with a new genesis block, so that a store that outlives it
// can detect the change. It has chain id 1337 and the rules of Osaka. No account is unlocked.
//
// It is assembled from the parts of go-ethereum's ethclient/simulated, and does not use that package. That package
// panics if a port is taken, and cannot listen on a port that the system picks. It also refuses to fork while
// transactions are in the pool, as they always are with a relayer.
//
// The supervisor runs it as a process of its own, and tests open it in theirs. It calls go-ethereum alone.
package devchain
