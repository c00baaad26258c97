package evm

import "errors"

// Outcome of sending a transaction. Nodes tell why they refuse one in words only, each client in its own; the
// words are all in classify.go.
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
	// PoolFull means that the pool has no room, at all or for this account, or takes nothing now. Later it may.
	PoolFull
	// WrongChain means that the signature is not one for this chain.
	WrongChain
	// Oversized means that the transaction has more bytes than the node takes.
	Oversized
	// RateLimited means that the endpoint did nothing, because it was asked too often.
	RateLimited
	// FeeCapExceeded means that the whole fee, the gas limit times the maximal fee, is above what the node's operator lets
	// anybody pay.
	FeeCapExceeded
	// Refused for another reason that is going to stay.
	Refused
	// NotSent means that no endpoint could be reached, or none offers to send.
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

// String is lower-case words.
func (o Outcome) String() string { return outcomeNames[o] }

// Done says that the node has the transaction.
func (o Outcome) Done() bool { return o == Accepted || o == AlreadyKnown }

// answersSend reports whether a refusal is about the transaction. Others are about the endpoint.
func answersSend(e *RPCError) bool {
	switch Classify(e) {
	case Unknown, NotSent:
		return false
	case RateLimited:
		return !rateLimited(e) // the rate of one sender
	}
	return true
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
