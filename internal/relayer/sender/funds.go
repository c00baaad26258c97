package sender

import (
	"context"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Unrecognized is the error of an attempt that nodes refused in words that are not recognized. A node may have it
// nevertheless.
const Unrecognized = "refused in unrecognized words"

// balanceLimit is how long balances may take that explain refusals.
const balanceLimit = 5 * time.Second

// explainRefusals makes a refusal in unrecognized words one for lack of funds, if the key's balance is below the cost of the
// attempt. No node accepts such an attempt, so the words do not matter.
func (s *Sender) explainRefusals(ctx context.Context, attempts []*relayer.Attempt, results []evm.Result) {
	var keys []common.Address
	for i, a := range attempts {
		if results[i].Unrecognized && !slices.Contains(keys, a.From) {
			keys = append(keys, a.From)
		}
	}
	if len(keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, balanceLimit)
	defer cancel()
	balances, err := s.cfg.Chain.Balances(ctx, keys)
	if err != nil {
		s.cfg.Log.Warn("balances not read, so that refusals stay unexplained", "count", len(keys), "err", err)
		return
	}
	for i, a := range attempts {
		if !results[i].Unrecognized {
			continue
		}
		if cost := costOf(a); cost != nil && balances[slices.Index(keys, a.From)].Cmp(cost) < 0 {
			results[i].Outcome, results[i].Reached, results[i].Unrecognized = evm.InsufficientFunds, true, false
		}
	}
}

// costOf returns the most that an attempt may cost its key; nil for bytes that cannot be read, which are never stored.
func costOf(a *relayer.Attempt) *big.Int {
	signed := new(types.Transaction)
	if signed.UnmarshalBinary(a.Raw) != nil {
		return nil
	}
	return signed.Cost()
}
