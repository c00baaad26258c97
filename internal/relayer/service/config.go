package service

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Chain is the part of the chain's client that a Service uses.
type Chain interface {
	EstimateGas(context.Context, evm.Message) (uint64, error)
	Fees(context.Context) (evm.Fees, error)
	Balances(context.Context, []common.Address) ([]*big.Int, error)
	// CountsWithin returns each endpoint's transaction counts of the addresses.
	CountsWithin(ctx context.Context, stragglers time.Duration, block common.Hash, addrs []common.Address) []evm.Counts
	Head() evm.Header
	Status() evm.Status
}

// RPCProxy sends callers' own requests to nodes.
type RPCProxy interface {
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	Balances(context.Context, []common.Address) ([]*big.Int, error)
}

// Guard checks requests against limits that the store does not enforce.
type Guard interface {
	// Admit accepts a request, or fails with a [relayer.LimitError] or a [relayer.InvalidError].
	Admit(ctx context.Context, caller string, r *relayer.Request) error
}

// Policies are the rules for every request.
type Policies struct {
	// MaxFee bounds the price of a unit of gas, wei; nil: no bound.
	MaxFee *big.Int
	// MaxGas bounds a transaction's gas limit; 0: only the block's gas limit does.
	MaxGas uint64
	// MaxData is the maximum size of a transaction's data, bytes. Default 127 KiB, the most that most nodes accept (geth:
	// txMaxSize), minus room for the envelope.
	MaxData int
	// MinBalance is the balance below which a key is disabled, wei, unless the key has its own; nil: none.
	MinBalance *big.Int
	// Receivers are the allowed recipients, besides the keys themselves. If set, no contracts are created either, because
	// those could send to any address. Nil: any recipient.
	Receivers []common.Address
}

// Config configures a Service. Every field without a default is required.
type Config struct {
	ID     string
	Store  *store.Store
	Sender *sender.Sender
	Chain  Chain
	Ring   *signer.Ring
	Log    *slog.Logger
	Guard  Guard // default: accepts everything
	// Funding are keys that fund the other keys. They are registered, and send no caller's transactions. None by default.
	Funding []common.Address

	// Metrics are unregistered by default.
	Metrics *Metrics

	Policies
	// Ready returns why nothing may be sent on the chain, or nil if sending is allowed. Default: always nil.
	Ready func() error
	// Rounds reports whether this process tracks the chain, when its last round succeeded, and why the last one failed.
	// Default: rounds are not checked.
	Rounds func() (following bool, succeeded time.Time, failure error)
	// RoundsWithin is how long rounds may fail, or no process track the chain, until /health reports it. Default 20 s, four
	// terms of the tracker's lease.
	RoundsWithin time.Duration
	// RPCProxy serves callers' own requests to the chain. It should not be Chain. Those requests may be slow or too many,
	// and must not degrade the health of nodes that transactions are sent through.
	RPCProxy RPCProxy
	// RevertData reports to callers that the status of a reverted transaction includes the data.
	RevertData bool
	// Signing allows callers to request message signatures.
	Signing bool
	// Enabled is the kill switch: false rejects every new request.
	Enabled bool
	// Cap is the maximum number of pending transactions per key. Default 16, the number that geth guarantees an account in
	// its pool.
	Cap int
	// Queue is the maximum number of queued transactions when no key has room. Default 0: none.
	Queue int
	// MaxNonceJump is the largest difference between endpoints' counts of a new key's transactions. Default 64.
	MaxNonceJump uint64
	// Group is the maximum number of transactions that one database transaction accepts. Default 256.
	Group int
	// DatabaseTimeout is how long a caller waits for the database. Default 10 s.
	DatabaseTimeout time.Duration
}

// Allocation returns the limits under which nonces are given out.
func (c *Config) Allocation() store.AllocationLimits {
	return store.AllocationLimits{Held: c.Ring.Addresses(), Cap: cmp.Or(c.Cap, 16), Queue: c.Queue}
}
