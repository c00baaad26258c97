package service

import (
	"cmp"
	"context"
	"math/big"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

var errValueExceedsBalance = relayer.Invalidf("value", "is more than the relayer has")

// exceedsBalance reports whether a value is more than the whole balance of the given key, or of the richest key. Then
// waiting for pending transactions would not help. If a balance is missing, it returns false.
func (s *Service) exceedsBalance(ctx context.Context, key common.Address, value *big.Int) bool {
	keys, err := s.keys(ctx)
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
	return beyond // false also while no key is registered
}

// richest returns the usable key with the highest recorded balance, or the first key if none is usable.
func (s *Service) richest(ctx context.Context) (common.Address, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return common.Address{}, err
	}
	best, most := s.allocation.Held[0], big.NewInt(-1) // if no key is usable, the store returns the error
	for _, k := range keys {
		owns := cmp.Or(k.Balance, new(big.Int))
		if k.Enabled && !k.Paused && !k.Funding && owns.Cmp(most) > 0 {
			best, most = k.Address, owns
		}
	}
	return best, nil
}

// checkFunds rejects a replacement that no key allowed to send it can pay for, as the store does with a submission. It
// never rejects one that costs no more than before. Like the store's check it gives no guarantee.
func (s *Service) checkFunds(ctx context.Context, was *relayer.Transaction, r *relayer.Request, reserve *big.Int) error {
	before, cost := relayer.Cost(was.Value, was.Reserve), relayer.Cost(r.Value, cmp.Or(reserve, was.Reserve))
	if cost.Cmp(before) <= 0 {
		return nil
	}
	funds, err := s.cfg.Store.Funds(ctx)
	if err != nil {
		return unavailable(err)
	}
	key, poor := was.OnlyKey(), false
	for _, f := range funds {
		if f.Key.Funding || key != (common.Address{}) && f.Key.Address != key {
			continue
		}
		if f.Key.Balance == nil {
			return nil // the balance was not read yet
		}
		left := new(big.Int).Set(f.Key.Balance)
		if was.Nonce != nil { // subtract the key's other pending transactions; a queued transaction waits for those anyway
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
	case s.exceedsBalance(ctx, key, r.Value):
		return errValueExceedsBalance
	default:
		return &relayer.FundsError{Need: cost}
	}
}
