package keymonitor

import (
	"math/big"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// These are the reasons for which the system disables a key. This package ignores keys disabled for another reason.
const (
	lowBalance     = "low balance"
	repeatedErrors = "repeated errors"
)

// maxCooldown bounds how long a key is disabled between two checks.
const maxCooldown = 30 * time.Minute

// evaluateBalance decides on a key in its current state; nil: no change. refused reports whether nodes still reject its
// pending transactions.
func (c *Config) evaluateBalance(k *relayer.Key, refused bool, now time.Time) *store.KeyStateChange {
	if k.Enabled {
		if below(k.Balance, k.MinBalance) {
			return &store.KeyStateChange{Reason: lowBalance}
		}
		return nil
	}
	again := &store.KeyStateChange{Enabled: true}
	switch {
	case k.DisabledReason == lowBalance:
		if k.Balance == nil || below(k.Balance, c.recovered(k.MinBalance)) {
			return &store.KeyStateChange{Reason: lowBalance}
		}
		return again
	case strings.HasPrefix(k.DisabledReason, repeatedErrors):
		switch {
		case now.Before(k.DisabledUntil):
			return nil
		case refused:
			return &store.KeyStateChange{Reason: k.DisabledReason, Until: now.Add(c.cooldown(k.Checks + 1))}
		case below(k.Balance, k.MinBalance):
			return &store.KeyStateChange{Reason: lowBalance}
		}
		return again
	default:
		return nil
	}
}

func below(balance, limit *big.Int) bool {
	return balance != nil && limit != nil && balance.Cmp(limit) < 0
}

// recovered returns the balance at which a key is enabled again.
func (c *Config) recovered(least *big.Int) *big.Int {
	if least == nil {
		return new(big.Int)
	}
	more := new(big.Int).Mul(least, big.NewInt(int64(c.Margin)))
	more.Add(more, big.NewInt(99)).Div(more, big.NewInt(100))
	return more.Add(more, least)
}

// cooldown returns how long a key stays disabled after so many checks without a change.
func (c *Config) cooldown(checks int) time.Duration {
	return min(c.Cooldown<<min(checks, 10), max(c.Cooldown, maxCooldown))
}

// countsAgainstKey reports whether an outcome is caused by the key, and counts against it (true) or for it (false). known
// is false for outcomes caused by the node or the transaction.
func countsAgainstKey(o evm.Outcome) (against, known bool) {
	switch o {
	case evm.InsufficientFunds, evm.WrongChain:
		return true, true
	case evm.Accepted, evm.AlreadyKnown:
		return false, true
	default:
		return false, false
	}
}
