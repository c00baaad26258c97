package upstream

import (
	"errors"
	"fmt"
	"time"
)

// These are the errors that callers branch on. Those of reads prove that the relayer itself answered.
var (
	// ErrNotFound: the relayer exists, and has no such transaction.
	ErrNotFound = errors.New("transaction not found")
	// ErrNoRelayer: there is no relayer with the id, or none at all. A cached [Info] is out of date.
	ErrNoRelayer = errors.New("no such relayer")
	// ErrOtherNetwork: there are relayers, and none of them has the network of the [Config], or the one of a cached [Info] has another
	// network now.
	ErrOtherNetwork = errors.New("another network")
	// ErrOtherHost: Config.Dial does not connect to the host of the URL, so that it gets neither the key nor a transaction.
	ErrOtherHost = errors.New("its host is not allowed")
	// ErrOtherScope: the relayer has another idempotency scope than the [Ref]. A cached [Info] is out of date.
	ErrOtherScope = errors.New("the relayer has another idempotency scope")
	// ErrTooLarge: the response exceeds the bound.
	ErrTooLarge = errors.New("the response is too large")
	// ErrTooMany: a lookup ended before it had read all transactions. It proves nothing.
	ErrTooMany = errors.New("too many transactions to look through")
	// ErrUnclear: the relayer has a transaction to the receiver whose value or data is missing or unreadable. A lookup proves nothing.
	ErrUnclear = errors.New("its value or data cannot be read")
)

// Error reports a call that failed.
type Error struct {
	Code   int    // the HTTP status; 0 without a response
	Reason string // bounded, without the URL and without secrets
	// RetryAfter is the pause that the relayer asked for, bounded; 0: none.
	RetryAfter time.Duration
	// Unknown reports that a call that changes something may have been done.
	Unknown bool

	// exhausted reports that this machine lacked a resource for the call.
	exhausted bool
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return e.Reason
	}
	return fmt.Sprintf("answered %d: %s", e.Code, e.Reason)
}
