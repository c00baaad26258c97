package service

import (
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

// Chain is what a Pool needs of the nodes.
type Chain interface {
	EstimateGas(context.Context, evm.Message) (uint64, error)
	Fees(context.Context) (evm.Fees, error)
	Balances(context.Context, []common.Address) ([]*big.Int, error)
	// Counts are how many transactions of each address every endpoint reports.
	Counts(ctx context.Context, block common.Hash, addrs []common.Address) []evm.Counts
	Head() evm.Header
	Status() evm.Status
}

// RPCProxy are nodes that callers ask themselves.
type RPCProxy interface {
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	Balances(context.Context, []common.Address) ([]*big.Int, error)
}

// Guard judges requests by limits that are not the store's.
type Guard interface {
	// Admit lets a request in, or fails with a [relayer.LimitError] or a [relayer.InvalidError].
	Admit(ctx context.Context, caller string, r *relayer.Request) error
}

// Policies are the rules that every request has to keep.
type Policies struct {
	// MaxFee bounds the price of a unit of gas, wei; nil: nothing does.
	MaxFee *big.Int
	// MaxGas bounds a transaction's gas limit; 0: the block does.
	MaxGas uint64
	// MinBalance below which a key is disabled, wei, unless the key has its own; nil: none.
	MinBalance *big.Int
	// Receivers are who may be sent to, besides the keys themselves; then no contracts are created either, since those
	// could send to anybody. Nil: everybody.
	Receivers []common.Address
}

// Config of a Pool. Everything without a default is required.
type Config struct {
	ID     string
	Store  *store.Store
	Sender *sender.Sender
	Chain  Chain
	Ring   *signer.Ring
	Log    *slog.Logger
	Guard  Guard // default: admits everything
	// Funding are keys that fund the others; they are registered, and take nobody's transactions. None by default.
	Funding []common.Address

	// Metrics, by default unregistered.
	Metrics *Metrics

	Policies
	// Ready says why nothing may be sent on the chain; nil when it may. Default: it always may.
	Ready func() error
	// Rounds reports whether this process follows the chain, when a round of it last succeeded, and why the last one failed.
	// Default: rounds are not looked at.
	Rounds func() (following bool, succeeded time.Time, failure error)
	// RoundsWithin is how long rounds may fail, or no process follow the chain, until /health reports it. Default 20 s, four
	// terms of the process that follows.
	RoundsWithin time.Duration
	// RPCProxy answers callers' own questions to the chain. It should not be Chain: what they ask may be slow, or too
	// much, and must not make nodes look bad that transactions are sent through.
	RPCProxy RPCProxy
	// RevertData tells callers that the status of a transaction that reverted has the data.
	RevertData bool
	// Signing allows callers to have messages signed.
	Signing bool
	// Enabled is the kill switch: false refuses everything new.
	Enabled bool
	// Cap is how many transactions a key may have pending. Default 16, what geth guarantees an account in its pool.
	Cap int
	// Queue is how many may wait where no key has room; 0, the default: none.
	Queue int
	// Group bounds what one database transaction accepts. Default 256.
	Group int
	// DatabaseTimeout is how long a caller waits for the database. Default 10 s.
	DatabaseTimeout time.Duration
}
