package dispatch

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotFound means that the client has no transaction with the id.
	ErrNotFound = errors.New("transaction not found")
	// ErrReused means that the client has used the id or idempotency key with another request, or with another id or key.
	ErrReused = errors.New("the transactionId or Idempotency-Key has been used with another request, or together with another name")
	// ErrNonceTaken means that another transaction that is not final has the forwarder nonce of the same signer.
	ErrNonceTaken = errors.New("another pending transaction has this nonce of the signer")
	// ErrUnavailable means that nothing was stored, because a dependency is away.
	ErrUnavailable = errors.New("not available")
	// ErrUnknown means that a request may have been stored or not.
	ErrUnknown = errors.New("outcome unknown")
)

// InvalidError is a request that cannot be accepted. Field names its member; empty if it is the whole request.
type InvalidError struct{ Field, Problem string }

// Invalidf returns an [*InvalidError].
func Invalidf(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

func (e *InvalidError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// LimitError is a request above a rate limit.
type LimitError struct {
	Limit string
	After time.Duration // until the next request may be accepted
}

func (e *LimitError) Error() string { return e.Limit + " exceeded" }
