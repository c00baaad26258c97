package evm

import "strings"

// Nodes report errors as text, each client in its own words. All texts that any code depends on are in this file, with
// their sources.

// row recognizes an error by a part of its message, in lower case, or by its code if the text is empty. The first row
// that matches decides. So texts come before codes, which clients use for different errors. Longer texts come before
// those that they contain.
type row[T any] struct {
	text   string
	code   int
	means  T
	source string // repository and file, or page, that has these words
}

func match[T any](rows []row[T], e *RPCError, otherwise T) T {
	text := strings.ToLower(e.Message)
	for _, r := range rows {
		if r.text != "" && strings.Contains(text, r.text) || r.text == "" && e.Code == r.code {
			return r.means
		}
	}
	return otherwise
}

// Sources.
const (
	gethPool   = "ethereum/go-ethereum core/txpool/errors.go"
	gethCore   = "ethereum/go-ethereum core/error.go"
	gethLegacy = "ethereum/go-ethereum core/txpool/legacypool/legacypool.go"
	gethAPI    = "ethereum/go-ethereum internal/ethapi/api.go"
	gethRPC    = "ethereum/go-ethereum rpc/errors.go"
	gethBlocks = "ethereum/go-ethereum eth/api_backend.go"
	gethTypes  = "ethereum/go-ethereum core/types/transaction.go"
	gethSign   = "ethereum/go-ethereum core/types/transaction_signing.go"
	gethVM     = "ethereum/go-ethereum core/vm/errors.go"

	netherPool = "NethermindEth/nethermind src/Nethermind/Nethermind.TxPool/TxPoolErrorMessages.cs"
	netherTx   = "NethermindEth/nethermind src/Nethermind/Nethermind.Core/Messages/TxErrorMessages.cs"
	netherOld  = "NethermindEth/nethermind src/Nethermind/Nethermind.TxPool/AcceptTxResult.cs, before there was TxPoolErrorMessages.cs"

	besu     = "hyperledger/besu ethereum/api/src/main/java/org/hyperledger/besu/ethereum/api/jsonrpc/internal/response/RpcErrorType.java"
	erigon   = "erigontech/erigon txnprovider/txpool/txpoolcfg/txpoolcfg.go"
	erigonIn = "erigontech/erigon txnprovider/txpool/pool_txn_parser.go"
	reth     = "paradigmxyz/reth crates/rpc/rpc-eth-types/src/error/mod.rs"
	proxyd   = "ethereum-optimism/infra proxyd/backend.go"
	arbitrum = "smartcontractkit/chainlink core/chains/evm/client/errors.go, of the Arbitrum sequencer"
)

// sendRows are the errors of eth_sendRawTransaction. Where clients share geth's text, only geth is named.
var sendRows = []row[Outcome]{
	// Comes before "known transaction" below, which it contains.
	{text: "unknown transaction", means: Refused, source: erigonIn}, // … type

	// The node has it.
	{text: "already known", means: AlreadyKnown, source: gethPool}, // also Nethermind, Erigon, Reth
	{text: "known transaction", means: AlreadyKnown, source: besu},
	{text: "existing txn with same hash", means: AlreadyKnown, source: erigon},
	{text: "alreadyknown", means: AlreadyKnown, source: netherOld},

	// Nonces.
	{text: "nonce too low", means: NonceTooLow, source: gethCore}, // also Nethermind, Besu, Erigon, Reth, Arbitrum
	{text: "oldnonce", means: NonceTooLow, source: netherOld},
	{text: "invalid transaction nonce", means: NonceTooLow, source: arbitrum}, // or too high: look
	{text: "noncetoohigh: nonce exceeds max nonce", means: Refused, source: netherTx},
	{text: "nonce has max value", means: Refused, source: gethCore},
	{text: "nonce too high", means: NonceTooHigh, source: gethCore}, // also Nethermind, Besu, Reth, Arbitrum
	{text: "nonce too far in future", means: NonceTooHigh, source: netherPool},
	{text: "noncegap", means: NonceTooHigh, source: netherOld},
	{text: "noncetoofarinfuture", means: NonceTooHigh, source: netherOld},
	{text: "transaction nonce is too distant from current sender nonce", means: NonceTooHigh, source: besu},
	{text: "an invalid transaction with a lower nonce exists", means: NonceTooHigh, source: besu},

	// Fees.
	{text: "replacement transaction underpriced", means: ReplacementUnderpriced, source: gethPool}, // also all others
	{text: "could not replace existing tx", means: ReplacementUnderpriced, source: erigon},
	{text: "replaced by transaction with higher tip", means: ReplacementUnderpriced, source: erigon},
	{text: "replacementnotallowed", means: ReplacementUnderpriced, source: netherOld},
	{text: "max fee per gas less than block base fee", means: FeeCapTooLow, source: gethCore}, // also Reth, Arbitrum
	{text: "fee cap less than base fee", means: FeeCapTooLow, source: gethTypes},
	{text: "gas price below current base fee", means: FeeCapTooLow, source: besu},
	{text: "max priority fee per gas higher than max fee per gas", means: TipAboveCap, source: gethCore}, // also Reth
	{text: "max priority fee per gas exceeds max fee per gas", means: TipAboveCap, source: besu},
	{text: "invalidmaxpriorityfeepergas", means: TipAboveCap, source: netherTx},
	{text: "max priority fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "max fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "exceeds the configured cap", means: FeeCapExceeded, source: gethAPI}, // tx fee (… ether), --rpc.txfeecap; also Erigon, Reth
	{text: "transaction fee cap exceeded", means: FeeCapExceeded, source: besu},
	{text: "transaction gas price below minimum", means: Underpriced, source: gethPool},
	{text: "gas price below configured minimum gas price", means: Underpriced, source: besu},
	{text: "transaction priority fee below minimum required priority fee", means: Underpriced, source: reth},
	{text: "fee too low", means: Underpriced, source: erigon},
	{text: "feetoolow", means: Underpriced, source: netherOld}, // and FeeTooLowToCompete
	{text: "gas price too low", means: Underpriced, source: arbitrum},
	{text: "underpriced", means: Underpriced, source: gethPool}, // transaction …; Erigon: FEE_TOO_LOW: underpriced

	// Funds.
	{text: "insufficient funds", means: InsufficientFunds, source: gethCore}, // also Nethermind, Erigon, Reth
	{text: "insufficientfunds", means: InsufficientFunds, source: netherOld},
	{text: "upfront cost exceeds account balance", means: InsufficientFunds, source: besu},
	{text: "not enough funds for gas", means: InsufficientFunds, source: arbitrum},

	// Gas.
	{text: "intrinsic gas too low", means: IntrinsicGas, source: gethCore}, // also Nethermind, Reth
	{text: "insufficient gas for floor data gas cost", means: IntrinsicGas, source: gethCore},
	{text: "intrinsic gas exceeds gas limit", means: IntrinsicGas, source: besu},
	{text: "intrinsicgas", means: IntrinsicGas, source: erigon},
	{text: "exceeds block gas limit", means: ExceedsBlockGas, source: gethPool}, // also Besu, Reth
	{text: "gas limit too high", means: ExceedsBlockGas, source: gethCore},      // also Reth
	{text: "gas limit is too high", means: ExceedsBlockGas, source: erigon},
	{text: "exceeds max transaction gas limit", means: ExceedsBlockGas, source: reth},
	{text: "intrinsic gas too high", means: ExceedsBlockGas, source: reth},
	{text: "gas limit reached", means: ExceedsBlockGas, source: netherPool},
	{text: "gaslimitexceeded", means: ExceedsBlockGas, source: netherOld},
	{text: "txgaslimitcapexceeded", means: ExceedsBlockGas, source: netherTx},

	// Pool capacity.
	{text: "txpool is full", means: PoolFull, source: gethLegacy}, // also Reth
	{text: "sub-pool is full", means: PoolFull, source: erigon},   // pending, baseFee, queued
	{text: "sequencer pending tx pool full", means: PoolFull, source: arbitrum},
	{text: "queue full", means: PoolFull, source: arbitrum},
	{text: "out of capacity", means: PoolFull, source: gethPool},
	{text: "account limit exceeded", means: PoolFull, source: gethPool},
	{text: "in-flight transaction limit reached for delegated accounts", means: PoolFull, source: gethPool},
	{text: "gapped-nonce tx from delegated accounts", means: PoolFull, source: gethLegacy},
	{text: "delegation nonce gap", means: PoolFull, source: netherPool},
	{text: "delegation authority has pending transaction", means: PoolFull, source: netherPool},
	{text: "future transaction tries to replace pending", means: PoolFull, source: gethLegacy},
	{text: "authority already reserved", means: PoolFull, source: gethLegacy}, // also Erigon
	{text: "address already reserved", means: PoolFull, source: gethPool},     // also Reth
	{text: "pending transaction type conflict", means: PoolFull, source: netherPool},
	{text: "pendingtxsofconflictingtype", means: PoolFull, source: netherOld},
	{text: "spammer", means: PoolFull, source: erigon},
	{text: "node is syncing", means: PoolFull, source: netherPool},
	{text: "initial sync is still in progress", means: PoolFull, source: besu},
	{text: "transaction pool not enabled", means: PoolFull, source: besu},

	// Signatures.
	{text: "invalid sender", means: WrongChain, source: gethPool},   // also Erigon, Reth
	{text: "invalid chain id", means: WrongChain, source: gethSign}, // … for signer; also Erigon, Reth
	{text: "wrong chainid", means: WrongChain, source: besu},
	{text: "chainid is required", means: WrongChain, source: besu},
	{text: "chainid not supported", means: WrongChain, source: besu},
	{text: "invalidtxchainid", means: WrongChain, source: netherTx},
	{text: "only replay-protected (eip-155) transactions allowed", means: WrongChain, source: gethAPI},
	{text: "invalid transaction v, r, s values", means: WrongChain, source: gethTypes},
	{text: "invalid signature", means: WrongChain, source: besu},
	{text: "invalidtxsignature", means: WrongChain, source: netherTx},
	{text: "invalid transaction signature", means: WrongChain, source: reth},
	{text: "failed to recover sender", means: WrongChain, source: netherPool},
	{text: "failedtoresolvesender", means: WrongChain, source: netherOld},

	// Size.
	{text: "oversized data", means: Oversized, source: gethPool}, // also Erigon, Reth
	{text: "transaction too large", means: Oversized, source: netherPool},
	{text: "maxtxsizeexceeded", means: Oversized, source: netherOld},
	{text: "rlptoolong", means: Oversized, source: erigon},

	// The rate limit of one sender, which does not affect other senders through the same endpoint.
	{text: "sender is over rate limit", means: RateLimited, source: proxyd},

	// Permanent.
	{text: "transaction type not supported", means: Refused, source: gethTypes}, // also Reth
	{text: "unsupported transaction type", means: Refused, source: netherPool},
	{text: "invalidtxtype", means: Refused, source: netherTx},
	{text: "invalid transaction type", means: Refused, source: besu},
	{text: "fork supporting this transaction type is not activated yet", means: Refused, source: erigon},
	{text: "typed transaction too short", means: Refused, source: gethTypes},
	{text: "rlp: ", means: Refused, source: "ethereum/go-ethereum rlp/decode.go"},
	{text: "failed to decode signed transaction", means: Refused, source: reth},
	{text: "empty transaction data", means: Refused, source: reth},
	{text: "sender not an eoa", means: Refused, source: gethCore}, // also Nethermind
	{text: "sender is not an eoa", means: Refused, source: reth},
	{text: "senderiscontract", means: Refused, source: netherOld},
	{text: "sender account not authorized to send transactions", means: Refused, source: besu},
	{text: "forbidden sender address", means: Refused, source: arbitrum},
	{text: "invalid message format", means: Refused, source: arbitrum},
	{text: "execution reverted", means: Refused, source: arbitrum},       // simulated before it is sequenced
	{text: "max initcode size exceeded", means: Refused, source: gethVM}, // also Nethermind, Reth
	{text: "initcode too large", means: Refused, source: erigon},
	{text: "gas uint64 overflow", means: Refused, source: gethCore}, // also Reth
	{text: "gasuintoverflow", means: Refused, source: erigon},
	{text: "transaction cost overflow", means: Refused, source: netherPool},
	{text: "int256overflow", means: Refused, source: netherOld},
	{text: "negative value", means: Refused, source: gethPool}, // also Erigon, Reth
	{text: "plugin has marked the transaction as invalid", means: Refused, source: besu},
	{text: "transaction invalid", means: Refused, source: netherPool}, // followed by more, looked for above
	{code: -32601, means: NotSent, source: "JSON-RPC 2.0, method not found"},
}

// limitRows are errors of an endpoint that executed nothing because of a rate limit.
var limitRows = []row[bool]{
	// Besu returns -32005 for these, too.
	{text: "exceeds block gas limit", means: false, source: besu},
	{text: "exceeds maximum rpc range limit", means: false, source: besu},
	{text: "number of requests exceeds max batch size", means: false, source: besu},
	{text: "sender is over rate limit", means: false, source: proxyd}, // no limit for other senders

	{text: "over rate limit", means: true, source: proxyd},
	{text: "backend is over capacity", means: true, source: proxyd},
	{text: "/second request limit reached", means: true, source: "QuickNode, code -32007, which is Besu's for an unauthorized sender"},
	{code: -32005, means: true, source: "EIP-1474, limit exceeded; docs.infura.io/api/networks/ethereum/how-to/avoid-rate-limiting"},
	{code: 429, means: true, source: "alchemy.com/docs/reference/throughput; quicknode.com/docs/ethereum/error-references"},
}

func rateLimited(e *RPCError) bool { return match(limitRows, e, false) }

// staleRows are errors of an endpoint that does not know the requested block, no longer has it on its chain, or has no
// state of it.
var staleRows = []row[bool]{
	{text: "is not currently canonical", means: true, source: gethBlocks}, // also Erigon
	{text: "header for hash not found", means: true, source: gethBlocks},
	{text: "header not found", means: true, source: gethBlocks},
	{text: "block body not found", means: true, source: gethBlocks},
	{text: "block body is missing", means: true, source: gethBlocks},
	{text: "block not found", means: true, source: reth}, // also Besu
	{text: "unknown block", means: true, source: besu},
	{text: "world state unavailable", means: true, source: besu},
	{text: "missing trie node", means: true, source: "ethereum/go-ethereum trie/errors.go"},
	{code: -32001, means: true, source: "EIP-1898, resource not found"},
}

func blockUnknown(e *RPCError) bool { return match(staleRows, e, false) }

// noTag reports whether the endpoint has no block of a tag, or does not support the tag. A plan limit and an internal error
// are neither: another endpoint may have the block.
func noTag(e *RPCError) bool { return blockUnknown(e) || unsupported(e) || match(tagRows, e, false) }

// tagRows are errors of an endpoint that does not support the tag of a block.
var tagRows = []row[bool]{
	{code: -32604, means: true, source: "EIP-1474, method not supported"},
	{code: -39001, means: true, source: "ethereum/execution-apis BlockTag, unknown block"},
}

// pendingRows are errors of an endpoint that has no pending state.
var pendingRows = []row[bool]{
	{text: "pending state is not available", means: true, source: gethBlocks},
	{text: "pending block is not available", means: true, source: gethBlocks},
	{code: -32602, means: true, source: "JSON-RPC 2.0, invalid params"},
}

func noPending(e *RPCError) bool { return match(pendingRows, e, false) || blockUnknown(e) }

// batchRows are errors for a call in a batch that is too big.
var batchRows = []row[bool]{
	{text: "batch too large", means: true, source: gethRPC},
	{text: "response too large", means: true, source: gethRPC}, // also proxyd
	{text: "number of requests exceeds max batch size", means: true, source: besu},
	{text: "too many rpc calls in batch request", means: true, source: proxyd},
}

func batchTooBig(e *RPCError) bool { return match(batchRows, e, false) }

// failure is the kind of error of a simulated call.
type failure int

const (
	failureOther failure = iota // an error of the node, not of the call
	failureRevert
	failureFunds
	failureGas
	failureCall // another error that every node would report
)

// callRows are the errors of eth_estimateGas and eth_call.
var callRows = []row[failure]{
	// The contract's own text follows these.
	{text: "execution reverted", means: failureRevert, source: gethVM}, // also Nethermind, Besu, Erigon, Reth
	{code: 3, means: failureRevert, source: "ethereum/go-ethereum internal/ethapi/errors.go"},

	{text: "insufficient funds", means: failureFunds, source: gethCore}, // also Nethermind, Erigon, Reth
	{text: "upfront cost exceeds account balance", means: failureFunds, source: besu},
	{text: "gas required exceeds allowance", means: failureGas, source: "ethereum/go-ethereum eth/gasestimator/gasestimator.go"},
	{text: "gas required exceeds", means: failureGas, source: reth},
	{code: -32015, means: failureRevert, source: "NethermindEth/nethermind issue 4761, execution error"},

	// Executions that end without a revert.
	{text: "out of gas", means: failureCall, source: gethVM},
	{text: "max call depth exceeded", means: failureCall, source: gethVM},
	{text: "insufficient balance for transfer", means: failureCall, source: gethVM},
	{text: "contract address collision", means: failureCall, source: gethVM},
	{text: "max code size exceeded", means: failureCall, source: gethVM},
	{text: "max initcode size exceeded", means: failureCall, source: gethVM},
	{text: "invalid jump destination", means: failureCall, source: gethVM},
	{text: "write protection", means: failureCall, source: gethVM},
	{text: "return data out of bounds", means: failureCall, source: gethVM},
	{text: "gas uint64 overflow", means: failureCall, source: gethVM},
	{text: "invalid code: must not begin with 0xef", means: failureCall, source: gethVM},
	{text: "nonce uint64 overflow", means: failureCall, source: gethVM},
	{text: "stack underflow", means: failureCall, source: gethVM},
	{text: "stack limit reached", means: failureCall, source: gethVM},
	{text: "invalid opcode", means: failureCall, source: gethVM},
	{text: "evm error", means: failureCall, source: reth},

	// Calls that cannot start.
	{text: "intrinsic gas too low", means: failureCall, source: gethCore},
	{text: "insufficient gas for floor data gas cost", means: failureCall, source: gethCore},
	{text: "intrinsic gas exceeds gas limit", means: failureCall, source: besu},
	{text: "exceeds block gas limit", means: failureCall, source: gethPool},
	{text: "sender not an eoa", means: failureCall, source: gethCore},
	{code: -32602, means: failureCall, source: "JSON-RPC 2.0, invalid params"},
}

// answersCall reports whether an error of a simulated call, or of one that a caller composed, is about that call.
func answersCall(e *RPCError) bool {
	return !rateLimited(e) && match(callRows, e, failureOther) != failureOther
}

// unsupported reports whether the endpoint does not support the method or this form of its parameters.
func unsupported(e *RPCError) bool {
	switch e.Code {
	case -32601, -32602: // JSON-RPC 2.0: method not found, invalid params
		return true
	}
	return false
}

// notOffered reports whether the endpoint does not support a method, or not on the current plan, until that is changed.
func notOffered(e *RPCError) bool {
	switch e.Code {
	case -32600, -32604: // JSON-RPC 2.0: invalid request, which providers return for a plan limit; EIP-1474: method not supported
		return true
	}
	return unsupported(e)
}
