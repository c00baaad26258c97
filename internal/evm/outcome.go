package evm

import "errors"

// Outcome is the result of sending a transaction. Nodes report a refusal only as text, each client in its own words.
// All texts are in classify.go.
type Outcome int

// Outcomes. With Accepted and AlreadyKnown the node has the transaction. With all others but Unknown it certainly has
// not.
const (
	// Unknown covers a timeout, a broken connection, 5xx, and an unrecognized answer. The node may have the
	// transaction.
	Unknown Outcome = iota
	// Accepted means that the pool accepted the transaction.
	Accepted
	// AlreadyKnown is equivalent: the node has this very transaction.
	AlreadyKnown
	// NonceTooLow means that the nonce is mined, by this transaction or another. The caller must find out which.
	NonceTooLow
	// NonceTooHigh means that the node does not keep transactions after a nonce gap.
	NonceTooHigh
	// ReplacementUnderpriced means that the pool has another transaction of this nonce, and the new fees are not enough
	// higher.
	ReplacementUnderpriced
	// Underpriced means that the fees are below the pool's minimum, now or ever.
	Underpriced
	// FeeCapTooLow means that the maximal fee is below the base fee.
	FeeCapTooLow
	// InsufficientFunds means that the account cannot pay for gas, value and its transactions in the pool.
	InsufficientFunds
	// IntrinsicGas means that the gas limit is below the cost of the transaction before it runs.
	IntrinsicGas
	// ExceedsBlockGas means that the gas limit is above the node's limit for a block, or for one transaction.
	ExceedsBlockGas
	// TipAboveCap means that the maximal tip is above the maximal fee.
	TipAboveCap
	// PoolFull means that the pool has no room, at all or for this account, or accepts nothing now. A later attempt may
	// succeed.
	PoolFull
	// WrongChain means that the signature is not for this chain.
	WrongChain
	// Oversized means that the transaction has more bytes than the node accepts.
	Oversized
	// RateLimited means that the endpoint executed nothing because of a rate limit.
	RateLimited
	// FeeCapExceeded means that the whole fee, the gas limit times the maximal fee, is above the cap that the node's
	// operator configured.
	FeeCapExceeded
	// Refused means that the node rejected the transaction for another, permanent reason.
	Refused
	// NotSent means that no endpoint could be reached, or none supports sending.
	NotSent
)

var outcomeNames = map[Outcome]string{
	Unknown: "unknown", Accepted: "accepted", AlreadyKnown: "already known", NonceTooLow: "nonce too low",
	NonceTooHigh: "nonce too high", ReplacementUnderpriced: "replacement underpriced", Underpriced: "underpriced",
	FeeCapTooLow: "fee cap too low", InsufficientFunds: "insufficient funds", IntrinsicGas: "intrinsic gas too low",
	ExceedsBlockGas: "exceeds block gas", TipAboveCap: "tip above fee cap", PoolFull: "pool full",
	WrongChain: "wrong chain", FeeCapExceeded: "whole fee above cap", Oversized: "oversized", RateLimited: "rate limited", Refused: "refused",
	NotSent: "not sent",
}

// String returns the name in lower case.
func (o Outcome) String() string { return outcomeNames[o] }

// Done reports whether the node has the transaction.
func (o Outcome) Done() bool { return o == Accepted || o == AlreadyKnown }

// answersSend reports whether an error is about the transaction. Other errors are about the endpoint.
func answersSend(e *RPCError) bool {
	switch Classify(e) {
	case Unknown, NotSent:
		return false
	case RateLimited:
		return !rateLimited(e) // the rate of one sender
	}
	return true
}

// Classify returns the outcome for the error of a send; nil is Accepted.
func Classify(err error) Outcome {
	if err == nil {
		return Accepted
	}
	if e, ok := errors.AsType[*RPCError](err); ok {
		switch {
		case match(minedRows, e, false):
			return AlreadyKnown
		case isRevertData(revertData(e.Data)): // simulated before it is sequenced
			return Refused
		case rateLimited(e):
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
