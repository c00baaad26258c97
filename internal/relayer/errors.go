package relayer

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// These are the errors that callers branch on. Package api maps each to a status code.
var (
	// ErrNotFound: no such relayer or transaction.
	ErrNotFound = errors.New("not found")
	// ErrDisabled: the relayer is switched off, or its key is disabled. Nothing was stored.
	ErrDisabled = errors.New("relayer disabled")
	// ErrPaused: an operator has paused the relayer. Nothing was stored.
	ErrPaused = errors.New("relayer paused")
	// ErrSigningOff: the relayer signs no messages, by a setting, or because a signature could bypass its list of
	// receivers.
	ErrSigningOff = errors.New("relayer signs no messages")
	// ErrUnavailable: a dependency (the database, every node) is unavailable. Nothing was stored.
	ErrUnavailable = errors.New("relayer unavailable")
	// ErrUnknown: the operation may have been done. A retry with the same idempotency key resolves it.
	ErrUnknown = errors.New("outcome unknown")
	// ErrKeyReused: the idempotency key has been used with another body.
	ErrKeyReused = errors.New("idempotency key was used with another body")
	// ErrOtherScope: the relayer's idempotency scope is not the one that the request requires. Nothing was stored.
	ErrOtherScope = errors.New("another idempotency scope")
	// ErrForgotten: the transaction of the idempotency key is final, and its history is not kept any more. Nothing was stored.
	ErrForgotten = errors.New("the idempotency key's transaction is final, and its history is gone")
)

// InvalidError reports an invalid request. Nothing was stored and no nonce was taken.
type InvalidError struct {
	Field   string // the API's name of it; "" for the whole
	Problem string // what is wrong, and how to correct it
}

func (e *InvalidError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// Invalidf returns an [InvalidError].
func Invalidf(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// LimitError reports that a limit was reached. Nothing was stored.
type LimitError struct {
	Limit string        // which: "global rate", "daily gas budget of trader", …
	After time.Duration // the time until a retry may succeed
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: try again in %v", e.Limit, e.After.Round(time.Millisecond))
}

// FundsError reports a request that no key allowed to send it can pay for. Nothing was stored.
type FundsError struct {
	Need *big.Int // wei
}

func (e *FundsError) Error() string {
	return fmt.Sprintf("no key can pay for it: value and gas may come to %s wei", e.Need)
}

// StateError reports an operation that the transaction's state does not allow.
type StateError struct {
	Status Status
	Doing  string // "cancel", "replace", "bump"
	Why    string // "it is being canceled"; "" if the status is the reason
}

func (e *StateError) Error() string {
	if e.Why != "" {
		return e.Doing + ": " + e.Why
	}
	return fmt.Sprintf("%s: the transaction is %s", e.Doing, e.Status)
}

// RevertError reports a transaction whose execution fails in a simulation. Nothing was stored and no nonce was taken.
type RevertError struct {
	Reason string // decoded: a message, a panic's meaning, or a custom error's selector; "" when there is none
	Data   []byte // as the node returned it
}

func (e *RevertError) Error() string {
	if e.Reason == "" {
		return "execution would revert"
	}
	return "execution would revert: " + e.Reason
}
