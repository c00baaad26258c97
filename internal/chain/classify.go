package chain

import (
	"errors"
	"strings"
)

// Outcome of sending a transaction. Nodes tell why they refuse one in words only, each client in its own; the words
// are all in this file.
type Outcome int

// Outcomes. The node surely took the transaction with the first two, surely did not with the others but Unknown.
const (
	// Unknown is whatever does not say: a timeout, a connection that broke, 5xx, an answer that is not understood.
	// The node may have the transaction.
	Unknown Outcome = iota
	// Accepted into the pool.
	Accepted
	// AlreadyKnown is as good: the node has this very transaction.
	AlreadyKnown
	// NonceTooLow means that the nonce is mined, be it by this transaction or another: look.
	NonceTooLow
	// NonceTooHigh means that the node does not keep transactions whose predecessors it misses.
	NonceTooHigh
	// ReplacementUnderpriced means that the pool has another transaction of this nonce, whose fees this one does not
	// beat by enough.
	ReplacementUnderpriced
	// Underpriced means that the fees are below what the pool takes, now or ever.
	Underpriced
	// FeeCapTooLow means that the maximal fee is below the base fee.
	FeeCapTooLow
	// InsufficientFunds for gas, value and what the account has in the pool.
	InsufficientFunds
	// IntrinsicGas means that the gas limit is below what the transaction costs before it runs.
	IntrinsicGas
	// ExceedsBlockGas means that the gas limit is above what the node puts into a block, or one transaction.
	ExceedsBlockGas
	// TipAboveCap means that the maximal tip is above the maximal fee.
	TipAboveCap
	// PoolFull means that the pool has no room, at all or for this account. Later it may.
	PoolFull
	// WrongChain means that the signature is not one for this chain.
	WrongChain
	// Oversized means that the transaction has too many bytes.
	Oversized
	// RateLimited means that the endpoint did nothing, because it was asked too often.
	RateLimited
	// Refused for another reason that is going to stay.
	Refused
	// NotSent means that no endpoint could be reached.
	NotSent
)

var outcomeNames = map[Outcome]string{
	Unknown: "unknown", Accepted: "accepted", AlreadyKnown: "already known", NonceTooLow: "nonce too low",
	NonceTooHigh: "nonce too high", ReplacementUnderpriced: "replacement underpriced", Underpriced: "underpriced",
	FeeCapTooLow: "fee cap too low", InsufficientFunds: "insufficient funds", IntrinsicGas: "intrinsic gas too low",
	ExceedsBlockGas: "exceeds block gas", TipAboveCap: "tip above fee cap", PoolFull: "pool full",
	WrongChain: "wrong chain", Oversized: "oversized", RateLimited: "rate limited", Refused: "refused",
	NotSent: "not sent",
}

// String is lower-case words.
func (o Outcome) String() string { return outcomeNames[o] }

// Done says that the node has the transaction.
func (o Outcome) Done() bool { return o == Accepted || o == AlreadyKnown }

// Permanent says that sending the same bytes again is not going to help. It does not say that no node has them.
func (o Outcome) Permanent() bool {
	switch o {
	case IntrinsicGas, ExceedsBlockGas, TipAboveCap, WrongChain, Oversized, Refused:
		return true
	}
	return false
}

// Classify tells the outcome of sending a transaction from the error that it ended with, nil for none.
func Classify(err error) Outcome {
	if err == nil {
		return Accepted
	}
	if e, ok := errors.AsType[*RPCError](err); ok {
		if rateLimited(e) {
			return RateLimited
		}
		return match(sendRows, e, Unknown)
	}
	if isRateLimit(err) {
		return RateLimited
	}
	if e, ok := errors.AsType[*TransportError](err); ok && !e.Sent {
		return NotSent
	}
	if _, ok := errors.AsType[*WrongChainError](err); ok || errors.Is(err, ErrNoEndpoint) {
		return NotSent
	}
	return Unknown
}

// row recognises an error by a part of its message, in lower case, or by its code if the text is empty. The first row
// that fits decides.
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

const (
	gethPool   = "ethereum/go-ethereum core/txpool/errors.go"
	gethCore   = "ethereum/go-ethereum core/error.go"
	gethLegacy = "ethereum/go-ethereum core/txpool/legacypool/legacypool.go"
	gethAPI    = "ethereum/go-ethereum internal/ethapi/api.go"
	gethTypes  = "ethereum/go-ethereum core/types/transaction.go"
	gethSign   = "ethereum/go-ethereum core/types/transaction_signing.go"
)

// sendRows are the refusals of eth_sendRawTransaction.
var sendRows = []row[Outcome]{
	{text: "already known", means: AlreadyKnown, source: gethPool},
	{text: "replacement transaction underpriced", means: ReplacementUnderpriced, source: gethPool},
	{text: "nonce too low", means: NonceTooLow, source: gethCore},
	{text: "nonce too high", means: NonceTooHigh, source: gethCore},
	{text: "nonce has max value", means: Refused, source: gethCore},

	{text: "transaction gas price below minimum", means: Underpriced, source: gethPool},
	{text: "transaction underpriced", means: Underpriced, source: gethPool},
	{text: "max fee per gas less than block base fee", means: FeeCapTooLow, source: gethCore},
	{text: "fee cap less than base fee", means: FeeCapTooLow, source: gethTypes},
	{text: "max priority fee per gas higher than max fee per gas", means: TipAboveCap, source: gethCore},
	{text: "max priority fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "max fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "exceeds the configured cap", means: Refused, source: gethAPI}, // tx fee (… ether)

	{text: "insufficient funds", means: InsufficientFunds, source: gethCore},
	{text: "intrinsic gas too low", means: IntrinsicGas, source: gethCore},
	{text: "insufficient gas for floor data gas cost", means: IntrinsicGas, source: gethCore},
	{text: "exceeds block gas limit", means: ExceedsBlockGas, source: gethPool},
	{text: "transaction gas limit too high", means: ExceedsBlockGas, source: gethCore},

	{text: "txpool is full", means: PoolFull, source: gethLegacy},
	{text: "out of capacity", means: PoolFull, source: gethPool},
	{text: "account limit exceeded", means: PoolFull, source: gethPool},
	{text: "in-flight transaction limit reached for delegated accounts", means: PoolFull, source: gethPool},
	{text: "gapped-nonce tx from delegated accounts", means: PoolFull, source: gethLegacy},
	{text: "future transaction tries to replace pending", means: PoolFull, source: gethLegacy},
	{text: "authority already reserved", means: PoolFull, source: gethLegacy},
	{text: "address already reserved", means: PoolFull, source: gethPool},

	{text: "oversized data", means: Oversized, source: gethPool},
	{text: "invalid sender", means: WrongChain, source: gethPool},
	{text: "invalid chain id for signer", means: WrongChain, source: gethSign},
	{text: "only replay-protected (eip-155) transactions allowed", means: WrongChain, source: gethAPI},
	{text: "invalid transaction v, r, s values", means: WrongChain, source: gethTypes},
	{text: "transaction type not supported", means: Refused, source: gethTypes},
	{text: "typed transaction too short", means: Refused, source: gethTypes},
	{text: "sender not an eoa", means: Refused, source: gethCore},
	{text: "max initcode size exceeded", means: Refused, source: "ethereum/go-ethereum core/vm/errors.go"},
	{text: "negative value", means: Refused, source: gethPool},
	{text: "rlp: ", means: Refused, source: "ethereum/go-ethereum rlp/decode.go"},
}

// limitRows are answers that an endpoint did nothing because it was asked too often.
var limitRows = []row[bool]{
	{code: -32005, means: true, source: "EIP-1474, limit exceeded"},
	{code: 429, means: true, source: "docs.alchemy.com, error reference"},
}

func rateLimited(e *RPCError) bool { return match(limitRows, e, false) }

// staleRows are answers that an endpoint does not know, or no longer counts as its own, the block that it was asked
// about, or has no state of it.
var staleRows = []row[bool]{
	{text: "hash is not currently canonical", means: true, source: "ethereum/go-ethereum eth/api_backend.go"},
	{text: "header for hash not found", means: true, source: "ethereum/go-ethereum eth/api_backend.go"},
	{text: "header not found", means: true, source: "ethereum/go-ethereum eth/api_backend.go"},
	{text: "block body not found", means: true, source: "ethereum/go-ethereum eth/api_backend.go"},
	{text: "header found, but block body is missing", means: true, source: "ethereum/go-ethereum eth/api_backend.go"},
}

func blockUnknown(e *RPCError) bool { return match(staleRows, e, false) }

// batchRows are answers to a call of a batch that is too big.
var batchRows = []row[bool]{
	{text: "batch too large", means: true, source: "ethereum/go-ethereum rpc/errors.go"},
	{text: "response too large", means: true, source: "ethereum/go-ethereum rpc/errors.go"},
}

func batchTooBig(e *RPCError) bool { return match(batchRows, e, false) }

// failure is what went wrong in a simulated call.
type failure int

const (
	failureOther failure = iota
	failureRevert
	failureFunds
	failureGas
)

// callRows are the refusals of eth_estimateGas and eth_call.
var callRows = []row[failure]{
	{text: "insufficient funds", means: failureFunds, source: gethCore},
	{text: "gas required exceeds allowance", means: failureGas, source: "ethereum/go-ethereum eth/gasestimator/gasestimator.go"},
	{text: "execution reverted", means: failureRevert, source: "ethereum/go-ethereum core/vm/errors.go"},
	{code: 3, means: failureRevert, source: "ethereum/go-ethereum internal/ethapi/errors.go"},
}

// unsupported says that the endpoint does not offer the method or this form of its parameters.
func unsupported(e *RPCError) bool {
	return e.Code == -32601 || e.Code == -32602 // JSON-RPC 2.0: method not found, invalid params
}
