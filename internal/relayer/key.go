package relayer

import (
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Key is the stored state of one of the pool's keys, without the private key.
type Key struct {
	ID      int64
	ChainID uint64
	Address common.Address `db:"-"`
	Pool    string

	Enabled        bool      // false: the system has disabled it, see DisabledReason
	DisabledReason string    // such as "low balance"
	DisabledUntil  time.Time // zero, or when it is checked again
	Checks         int       // checks that have left it disabled
	Funding        bool      // it funds the other keys, and sends no callers' transactions
	Paused         bool      // by an operator: it gets no new transactions
	Draining       bool      // paused until its transactions are final
	StuckSince     time.Time // zero unless its lowest nonce has waited too long; it gets no new transactions

	Generation   int    // generation of the chain that the nonces belong to: how often it had lost its history at ReadAt
	NextNonce    uint64 // the nonce of the next transaction
	PendingCount int    // nonces allocated and not mined
	LastError    string
	LastSeenAt   time.Time // when a process last registered it or read its balance
	Balance      *big.Int  `db:"-"` // wei, as last read; nil before
	MinBalance   *big.Int  `db:"-"` // wei; below it the key is disabled

	Compared   bool      // whether it was compared with the chain since a process last registered it
	ComparedAt time.Time `db:"-"` // when the round of the last comparison began; zero before
	ReadAt     time.Time // when this was read, by the database's clock
}

// NonceJump is the prefix of the DisabledReason of a key for which nodes report many more transactions than were allocated.
// Only an operator enables it again, with `rollcall keys resync`.
const NonceJump = "nonce jump"

// Usable reports whether the key may get new transactions, by its stored state.
func (k *Key) Usable() bool { return k.Enabled && !k.Paused && k.StuckSince.IsZero() }
