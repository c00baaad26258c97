package relayer

import (
	"context"
	"encoding/json"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Service is the relayer behind the API. Its methods are called concurrently. An id names the pool, or one of its keys; an
// unknown one is [ErrNotFound]. Errors are those of package relayer. The text of any other error is only logged.
type Service interface {
	// Relayers lists the pool, and then its keys in a fixed order.
	Relayers(ctx context.Context, offset, limit int) (page []Relayer, total int, err error)
	Relayer(ctx context.Context, id string) (Relayer, error)
	// Update applies a patch, completely or not at all.
	Update(ctx context.Context, id, caller string, p Patch) (Relayer, error)
	Status(ctx context.Context, id string, want StatusParts) (RelayerStatus, error)
	// Balance returns wei; a pool's is the sum of its keys'.
	Balance(ctx context.Context, id string) (*big.Int, error)

	// IdempotencyScope returns an opaque id of the store of a caller's idempotency keys, without the caller's name in
	// it. Relayers that return an equal one share these keys: a key that was used at one is used at the others. It is ""
	// before the pool is registered.
	IdempotencyScope(ctx context.Context, caller string) (string, error)
	// Submit stores a request durably, and returns its transaction. With an idempotency key that the caller has used before
	// it returns the earlier transaction, or [ErrKeyReused] if the hash differs. It must reject an expired request
	// itself, because a repeated one returns its transaction nevertheless.
	Submit(context.Context, Submission) (*Transaction, error)
	// Transactions lists transactions, the newest first.
	Transactions(ctx context.Context, id string, f Filter, offset, limit int) (page []*Transaction, total int, err error)
	Transaction(ctx context.Context, id string, tx uuid.UUID) (*Transaction, error)
	// TransactionByNonce returns a key's transaction; a pool has no nonces.
	TransactionByNonce(ctx context.Context, id string, nonce uint64) (*Transaction, error)
	// Replace requests other contents at the same nonce, Cancel a no-op.
	Replace(ctx context.Context, id string, tx uuid.UUID, caller string, r Request) (*Transaction, error)
	Cancel(ctx context.Context, id string, tx uuid.UUID, caller string) (*Transaction, error)
	// CancelPending cancels everything that is not mined. A transaction that could not be canceled is no error.
	CancelPending(ctx context.Context, id, caller string) (CancelResult, error)

	// Sign signs a message by EIP-191, SignTypedData the two hashes of EIP-712; v may be 0 or 1, or 27 or 28. A pool does
	// not sign.
	Sign(ctx context.Context, id, caller string, message []byte) ([65]byte, error)
	SignTypedData(ctx context.Context, id, caller string, domainSeparator, hashStruct common.Hash) ([65]byte, error)
	// RPC calls a node. params is a JSON array or null, or empty. The node's error is returned as an
	// [*RPCError], and so is a response that is too large.
	RPC(ctx context.Context, id, method string, params json.RawMessage) (json.RawMessage, error)

	// Health returns the last known state at once, because any client can request it.
	Health() Health
}

// Relayer is the pool, or one of its keys.
type Relayer struct {
	ID      string
	Name    string // the id by default
	Network string
	Address common.Address // zero for the pool
	// SignerID names the signer, never the key.
	SignerID       string
	Paused         bool
	Disabled       bool   // by the system
	DisabledReason string // such as "low balance"

	MinBalance *big.Int // wei; nil: none
	// GasPriceCap is in wei; nil: none.
	GasPriceCap        *big.Int
	WhitelistReceivers []common.Address // nil: any receiver
	EIP1559            bool
	IncludeRevertData  bool // in the status of a transaction that reverted
}

// RelayerStatus is a relayer's load and state. A pool's is the sum of its keys'.
type RelayerStatus struct {
	Balance          *big.Int  // wei; nil only if it was not requested
	Pending          uint64    // accepted and not mined
	LastConfirmed    time.Time // zero: none
	Disabled, Paused bool
	NextNonce        uint64 // 0 for a pool
}

// StatusParts are the requested parts of a [RelayerStatus]; the others may stay zero.
type StatusParts struct{ Balance, Pending, LastConfirmed bool }

// Submission is a request to have a transaction sent.
type Submission struct {
	RelayerID      string
	Caller         string // the name of the API key
	IdempotencyKey string // "" for none; scoped by caller
	// Scope is the idempotency scope that the caller requires, "" for any. With another scope Submit fails with
	// [ErrOtherScope].
	Scope string
	// BodyHash is equal for equivalent requests.
	BodyHash [32]byte
	Request  Request
}

// Filter restricts a list of transactions; empty fields match all.
type Filter struct {
	Statuses []Status
	Signed   *bool // with Statuses: only those that are signed, or not yet

	Method, Orderbook, Trader, RequestID, TraceID string
}

// CancelResult is the result of canceling all pending transactions.
type CancelResult struct{ Queued, Failed []uuid.UUID }

// Health reports whether the relayer can relay.
type Health struct {
	Ready      bool
	Reason     string // why it is not ready, or what is degraded
	Components []Component
	At         time.Time // when this was checked; now by default
}

// Component is a part of the relayer, or a dependency such as the database.
type Component struct {
	Name    string
	Problem string // "" if there is none
	// Degraded reports that the relayer relays despite the problem.
	Degraded bool
	// Info is a remark that is no problem; "" if there is none.
	Info string
}

// Patch is a change of a relayer; nil fields are kept.
type Patch struct {
	Name       *string // clients return it; it must be the current name
	Paused     *bool
	MinBalance struct {
		Set   bool
		Value *big.Int // wei; nil is the default
	}
}

// RPCTooLarge is the code of an [RPCError] for a response that is too large; geth uses the same.
const RPCTooLarge = -32003

// RPCError is the error of a call.
type RPCError struct {
	Code        int             `json:"code"`
	Message     string          `json:"message"`
	Description string          `json:"description"`
	Data        json.RawMessage `json:"data,omitempty"` // as the node returned it, such as a revert's data
}

func (e *RPCError) Error() string { return e.Message }
