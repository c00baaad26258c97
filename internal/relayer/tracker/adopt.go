package tracker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
)

// adopt recognises a transaction that does exactly what ours was to do. It is taken for ours, signed by a process whose
// record of it was lost: to send ours once more, under another nonce, would be the one mistake that nothing mends.
func (r *round) adopt(ctx context.Context, s ledger.Sought, used chain.Used) (bool, error) {
	params, err := json.Marshal([]any{used.TxHash})
	if err != nil {
		return false, err
	}
	answer, err := r.cfg.Chain.Call(ctx, "eth_getTransactionByHash", params)
	if err != nil {
		return false, err
	}
	theirs := new(types.Transaction)
	if err := json.Unmarshal(answer, theirs); err != nil {
		return false, fmt.Errorf("read transaction %s: %w", used.TxHash, err)
	}
	if theirs.Hash() != used.TxHash {
		return false, fmt.Errorf("read transaction %s: the node gave another one", used.TxHash)
	}
	ours, err := r.cfg.Ledger.Transaction(ctx, s.ID)
	if err != nil {
		return false, err
	}
	sameTo := (ours.To == nil) == (theirs.To() == nil) && (ours.To == nil || *ours.To == *theirs.To())
	if !sameTo || theirs.Value().Cmp(cmp.Or(ours.Value, new(big.Int))) != 0 || !bytes.Equal(theirs.Data(), ours.Data) {
		return false, nil
	}
	raw, err := theirs.MarshalBinary()
	if err != nil {
		return false, err
	}
	attempts, err := r.cfg.Ledger.Attempts(ctx, s.ID)
	if err != nil {
		return false, err
	}
	a := &relayer.Attempt{
		TxID: s.ID, Number: 1, From: s.Key, Nonce: s.Nonce, Purpose: relayer.PurposeSend, Hash: used.TxHash, Raw: raw,
		MaxFee: theirs.GasFeeCap(), MaxPriorityFee: theirs.GasTipCap(),
	}
	if n := len(attempts); n > 0 {
		a.Number = attempts[n-1].Number + 1
	}
	if _, err := r.cfg.Ledger.StoreAttempts(ctx, []*relayer.Attempt{a}); err != nil {
		return false, err
	}
	r.cfg.Log.Warn("a transaction that does the same stands at the nonce, and counts as ours",
		"tx", s.ID, "relayer", s.Key, "nonce", s.Nonce, "hash", used.TxHash)
	return true, nil
}
