package service

import (
	"cmp"
	"context"
	"math/big"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

var errValueExceedsBalance = relayer.Invalidf("value", "is more than the relayer has")

// exceedsBalance reports whether a value is more than all that the richest key has, or the one that is asked: to wait for what is
// pending would be in vain. Where a balance is not known it is not.
func (p *Service) exceedsBalance(ctx context.Context, key common.Address, value *big.Int) bool {
	keys, err := p.keys(ctx)
	if err != nil || value == nil {
		return false
	}
	beyond := false
	for _, k := range keys {
		if key != (common.Address{}) && k.Address != key {
			continue
		}
		if k.Balance == nil || k.Balance.Cmp(value) >= 0 {
			return false
		}
		beyond = true
	}
	return beyond // also not while no key is registered
}

// richest is the key that owns most, as far as that is known, of those that get something new. Otherwise keys are alike.
func (p *Service) richest(ctx context.Context) (common.Address, error) {
	keys, err := p.keys(ctx)
	if err != nil {
		return common.Address{}, err
	}
	best, most := p.terms.Held[0], big.NewInt(-1) // where none gets anything, the store says so
	for _, k := range keys {
		owns := cmp.Or(k.Balance, new(big.Int))
		if k.Enabled && !k.Paused && !k.Funding && owns.Cmp(most) > 0 {
			best, most = k.Address, owns
		}
	}
	return best, nil
}

// checkFunds refuses a replacement that no key which may send it can pay for, as the store does with a submission. It never
// refuses what costs no more than before, and like the store it is a help, not a guarantee.
func (p *Service) checkFunds(ctx context.Context, was *relayer.Transaction, r *relayer.Request, reserve *big.Int) error {
	before, cost := relayer.Cost(was.Value, was.Reserve), relayer.Cost(r.Value, cmp.Or(reserve, was.Reserve))
	if cost.Cmp(before) <= 0 {
		return nil
	}
	funds, err := p.cfg.Store.Funds(ctx)
	if err != nil {
		return unavailable(err)
	}
	key, poor := was.OnlyKey(), false
	for _, f := range funds {
		if f.Key.Funding || key != (common.Address{}) && f.Key.Address != key {
			continue
		}
		if f.Key.Balance == nil {
			return nil // nobody has read it yet
		}
		left := new(big.Int).Set(f.Key.Balance)
		if was.Nonce != nil { // beside what else the key has pending, which what has no nonce waits for
			left.Sub(left, f.Pending).Add(left, before)
		}
		if left.Cmp(cost) >= 0 {
			return nil
		}
		poor = true
	}
	switch {
	case !poor:
		return nil
	case p.exceedsBalance(ctx, key, r.Value):
		return errValueExceedsBalance
	default:
		return &relayer.FundsError{Need: cost}
	}
}
