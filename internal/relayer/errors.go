package relayer

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// What callers branch on. Package api turns each into a status code.
var (
	// ErrNotFound: no such relayer or transaction.
	ErrNotFound = errors.New("not found")
	// ErrDisabled: the relayer is switched off, or its key was taken out. Nothing was stored.
	ErrDisabled = errors.New("relayer disabled")
	// ErrPaused: an operator has paused the relayer. Nothing was stored.
	ErrPaused = errors.New("relayer paused")
	// ErrSigningOff: the relayer signs no messages, by a setting, or since a signature could get around its list of receivers.
	ErrSigningOff = errors.New("relayer signs no messages")
	// ErrUnavailable: what is needed is away (the database, every node). Nothing was stored.
	ErrUnavailable = errors.New("relayer unavailable")
	// ErrUnknown: it may be done or not. Asking again with the same idempotency key tells.
	ErrUnknown = errors.New("outcome unknown")
	// ErrKeyReused: the idempotency key has been used with another body.
	ErrKeyReused = errors.New("idempotency key was used with another body")
	// ErrForgotten: the transaction of the idempotency key is final, and its history is not kept any more. Nothing was stored.
	ErrForgotten = errors.New("the idempotency key's transaction is final, and its history is gone")
)

// InvalidError is a request that is wrong in itself. Nothing was stored and no nonce was taken.
type InvalidError struct {
	Field   string // as the API names it; "" for the whole
	Problem string // what is wrong and how to mend it
}

func (e *InvalidError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// Invalidf makes an [InvalidError].
func Invalidf(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// LimitError is a limit that was met. Nothing was stored.
type LimitError struct {
	Limit string        // which: "global rate", "daily gas budget of trader", …
	After time.Duration // when it is worth trying again
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: try again in %v", e.Limit, e.After.Round(time.Millisecond))
}

// FundsError is a request that none of the keys which might send it can pay for. Nothing was stored.
type FundsError struct {
	Need *big.Int // wei
}

func (e *FundsError) Error() string {
	return fmt.Sprintf("no key can pay for it: value and gas may come to %s wei", e.Need)
}

// StateError is an operation that the transaction's state does not allow.
type StateError struct {
	Status Status
	Doing  string // "cancel", "replace", "bump"
	Why    string // "it is being canceled"; "" when it is the status
}

func (e *StateError) Error() string {
	if e.Why != "" {
		return e.Doing + ": " + e.Why
	}
	return fmt.Sprintf("%s: the transaction is %s", e.Doing, e.Status)
}

// RevertError is a transaction whose execution fails when it is tried out. Nothing was stored and no nonce was taken.
type RevertError struct {
	Reason string // decoded: a message, a panic's meaning, or a custom error's selector; "" when there is none
	Data   []byte // as the node gave it
}

func (e *RevertError) Error() string {
	if e.Reason == "" {
		return "execution would revert"
	}
	return "execution would revert: " + e.Reason
}
