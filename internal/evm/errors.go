package evm

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

var (
	// ErrNoEndpoint means that no endpoint was asked: each is on another chain, excluded, or rate-limited.
	ErrNoEndpoint = errors.New("no usable endpoint")
	// ErrStale means that a View's block is not, or no longer, on its endpoint's chain, or that the endpoint no longer
	// knows it. The caller must conclude nothing from it and take a new View.
	ErrStale = errors.New("the block is not on the endpoint's chain")
	// ErrInsufficientFunds means that the sender cannot pay for the call at any price asked.
	ErrInsufficientFunds = errors.New("insufficient funds")
	// ErrGasAllowance means that the call needs more gas than the node, or the sender's balance at that price, allows.
	ErrGasAllowance = errors.New("gas required exceeds the allowance")
	// ErrNonceUntraced means that the block in which a nonce was used holds neither a transaction of the account nor an
	// authorization of EIP-7702 that is known to have used it.
	ErrNonceUntraced = errors.New("no transaction used the nonce")
	// ErrNonceUnused means that the nonce is not used up to the View's block.
	ErrNonceUnused = errors.New("the nonce is not used")
	// ErrMissing means that the endpoint has no such block.
	ErrMissing = errors.New("no such block")
	// ErrTooLarge means that an answer exceeds [Config.MaxResponse]. It is wrapped in a *TransportError.
	ErrTooLarge = errors.New("the answer is too large")
)

// RPCError is a JSON-RPC error of an endpoint. Unless it is a Fault, another endpoint would return the same.
type RPCError struct {
	Endpoint string
	Method   string
	Code     int
	Message  string          // without keys of the endpoint's URL
	Data     json.RawMessage // as sent; nil if absent
	// Fault marks an error about the endpoint instead of the call: an internal error, missing state, or a method that
	// the provider's plan lacks. It is no answer: another endpoint may have one.
	Fault bool
}

// ErrorCode returns the code, as the errors of go-ethereum do.
func (e *RPCError) ErrorCode() int { return e.Code }

// ErrorData returns the data, nil if the node gave none.
func (e *RPCError) ErrorData() any {
	if e.Data == nil {
		return nil
	}
	return e.Data
}

func (e *RPCError) Error() string {
	return fmt.Sprintf("%s at %s: %s (code %d)", e.Method, e.Endpoint, e.Message, e.Code)
}

// TransportError means that an endpoint gave no usable answer.
type TransportError struct {
	Endpoint string
	// Sent is false if the request certainly did not reach the endpoint. Otherwise its outcome is unknown.
	Sent bool
	Err  error
}

func (e *TransportError) Error() string { return fmt.Sprintf("endpoint %s: %s", e.Endpoint, e.Err) }
func (e *TransportError) Unwrap() error { return e.Err }

// IsMissingMethod reports whether an endpoint does not support a method, or not on the current plan.
func IsMissingMethod(err error) bool {
	e, ok := errors.AsType[*RPCError](err)
	if !ok {
		return false
	}
	switch e.Code {
	case -32600, -32601, -32604: // as in notOffered
		return true
	}
	return false
}

// RateLimitError means that an endpoint executed nothing because of a rate limit.
type RateLimitError struct {
	Endpoint   string
	Method     string        // the limited method; empty if the limit is for all
	RetryAfter time.Duration // until this endpoint is asked again
	Reason     string
}

func (e *RateLimitError) Error() string {
	return fmt.Sprintf("endpoint %s: rate limited for %s: %s", e.Endpoint, e.RetryAfter.Round(time.Millisecond), e.Reason)
}

// LogsLimit is in what a query of logs is too large for an endpoint.
type LogsLimit int

// The limits of queries of logs.
const (
	LimitRange     LogsLimit = iota + 1 // the number of blocks
	LimitResults                        // the number of logs in them
	LimitSize                           // the bytes of the answer, also those of Config.MaxResponse
	LimitTime                           // the time that the endpoint gives a query
	LimitAddresses                      // the number of contracts
	LimitNoAddress                      // none: the endpoint refuses topics without contracts
)

func (l LogsLimit) String() string {
	switch l {
	case LimitRange:
		return "blocks"
	case LimitResults:
		return "logs"
	case LimitSize:
		return "bytes"
	case LimitTime:
		return "time"
	case LimitAddresses:
		return "contracts"
	case LimitNoAddress:
		return "no contract"
	}
	return fmt.Sprintf("limit %d", int(l))
}

// LogsLimitError means that a query of logs is too large for an endpoint. It is an answer: it does not count against the endpoint,
// which answers a smaller query.
type LogsLimitError struct {
	Endpoint string
	Limit    LogsLimit
	// Blocks is how many blocks, from the query's first one, the endpoint suggests; 0 if it suggests none, or not fewer than were
	// asked for. With LimitRange it holds for all queries, otherwise for these blocks. A query of a suggestion may be refused, too.
	Blocks uint64
	Err    error
}

func (e *LogsLimitError) Error() string {
	return fmt.Sprintf("endpoint %s: the query of logs is too large (%s): %s", e.Endpoint, e.Limit, e.Err)
}

func (e *LogsLimitError) Unwrap() error { return e.Err }

// WrongChainError means that an endpoint belongs to another chain than configured. It is not used.
type WrongChainError struct {
	Endpoint   string
	Want, Have uint64
}

func (e *WrongChainError) Error() string {
	return fmt.Sprintf("endpoint %s: chain id is %d, not %d", e.Endpoint, e.Have, e.Want)
}

// RevertError means that the contract, or the lack of one, reverted a call.
type RevertError struct {
	// Reason is readable: the text of Error(string), the meaning of a Panic(uint256), the selector of a custom error.
	// Empty if the contract gave none.
	Reason string
	// Data is what the contract returned; nil if the node does not report it.
	Data []byte
}

func (e *RevertError) Error() string {
	if e.Reason == "" {
		return "execution reverted"
	}
	return "execution reverted: " + e.Reason
}

func staleError(endpoint string, number uint64, hash common.Hash, why string) error {
	return fmt.Errorf("block %d %s at %s: %w: %s", number, hash.TerminalString(), endpoint, ErrStale, why)
}
