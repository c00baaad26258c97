package tracker

import (
	"bytes"
	"cmp"
	"context"
	"math/big"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// matchForeign recognizes a foreign transaction with exactly the contents of ours. It counts as ours, signed by a process
// whose record of it was lost. Sending ours again under another nonce would execute it twice, which cannot be undone. A
// block older than our row, or a hash that another row has, proves that the transaction is not ours.
func (r *round) matchForeign(ctx context.Context, s store.MinedCandidate, used evm.Used) (bool, error) {
	theirs, err := r.cfg.Chain.Transaction(ctx, used.TxHash)
	if err != nil {
		return false, err
	}
	ours, err := r.cfg.Store.Transaction(ctx, s.ID)
	if err != nil {
		return false, err
	}
	sameTo := (ours.To == nil) == (theirs.To() == nil) && (ours.To == nil || *ours.To == *theirs.To())
	if !sameTo || theirs.Value().Cmp(cmp.Or(ours.Value, new(big.Int))) != 0 || !bytes.Equal(theirs.Data(), ours.Data) {
		return false, nil
	}
	if mayBe, err := r.mayBeOurs(ctx, ours, used); err != nil || !mayBe {
		return false, err
	}
	raw, err := theirs.MarshalBinary()
	if err != nil {
		return false, err
	}
	attempts, err := r.cfg.Store.Attempts(ctx, s.ID)
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
	if _, err := r.cfg.Store.StoreAttempts(ctx, []*relayer.Attempt{a}); err != nil {
		return false, err
	}
	r.cfg.Log.Warn("a transaction that does the same stands at the nonce, and counts as ours",
		"tx", s.ID, "key", s.Key, "nonce", s.Nonce, "hash", used.TxHash)
	return true, nil
}

// mayBeOurs reports whether an identical transaction was mined after our row was accepted and belongs to no other row.
func (r *round) mayBeOurs(ctx context.Context, ours *relayer.Transaction, used evm.Used) (bool, error) {
	headers, err := r.view.Headers(ctx, used.BlockNumber, used.BlockNumber)
	if err != nil {
		return false, err
	}
	log := r.cfg.Log.With("tx", ours.ID, "key", ours.From, "hash", used.TxHash, "block", used.BlockNumber)
	if headers[0].Time.Before(ours.CreatedAt.Add(-r.cfg.AdoptMargin)) {
		log.Warn("identical transaction is older than ours and counts as foreign", "block_time", headers[0].Time, "accepted", ours.CreatedAt)
		return false, nil
	}
	other, err := r.cfg.Store.HasHash(ctx, used.TxHash, ours.ID)
	if err != nil {
		return false, err
	}
	if other {
		log.Warn("identical transaction belongs to another row and counts as foreign")
	}
	return !other, nil
}
