package relayer

import (
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Key is one of the pool's keys, as the store knows it: everything but the key itself.
type Key struct {
	ID      int64
	ChainID uint64
	Address common.Address
	Pool    string

	Enabled        bool      // false: the system has taken it out, see DisabledReason
	DisabledReason string    // such as "low balance"
	DisabledUntil  time.Time // zero, or when it is looked into again
	Checks         int       // looks that have left it disabled
	Funding        bool      // it funds the others, and takes nobody's transactions
	Paused         bool      // by an operator: it gets nothing new
	Draining       bool      // paused until what it has is final
	StuckSince     time.Time // zero unless its lowest nonce has waited too long; it gets nothing new

	Era          int    // of the chain, which nonces are those of: how often it had lost its history when this was read
	NextNonce    uint64 // the one that the next transaction gets
	PendingCount int    // nonces claimed and not mined
	LastError    string
	LastSeenAt   time.Time // when a process last found the key well
	Balance      *big.Int  // wei, as last seen; nil before
	MinBalance   *big.Int  // wei; below it the key is disabled

	Compared   bool      // with the chain, since a process last registered it
	ComparedAt time.Time // when the round of the last comparison began; zero before
	ReadAt     time.Time // when this was read, by the database's clock
}

// NonceJump begins the DisabledReason of a key for which nodes report many more transactions than were given out. Only an
// operator enables it again, with `rollcall keys resync`.
const NonceJump = "nonce jump"

// Usable reports whether it may get something new, as far as the store knows.
func (k *Key) Usable() bool { return k.Enabled && !k.Paused && k.StuckSince.IsZero() }
