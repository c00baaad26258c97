package tracker

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// payload returns the contents and fees of signed bytes.
func payload(raw []byte) (*relayer.Request, error) {
	tx := new(types.Transaction)
	if err := tx.UnmarshalBinary(raw); err != nil {
		return nil, fmt.Errorf("read signed bytes: %w", err)
	}
	r := &relayer.Request{To: tx.To(), Value: tx.Value(), Data: tx.Data(), GasLimit: tx.Gas()}
	if tx.Type() == types.LegacyTxType {
		r.GasPrice = tx.GasPrice()
	} else {
		r.MaxFee, r.MaxPriorityFee = tx.GasFeeCap(), tx.GasTipCap()
	}
	return r, nil
}

// samePayload reports whether two signed attempts have the same contents, whatever their fees.
func samePayload(a, b []byte) (bool, error) {
	x, err := payload(a)
	if err != nil {
		return false, err
	}
	y, err := payload(b)
	if err != nil {
		return false, err
	}
	sameTo := (x.To == nil) == (y.To == nil) && (x.To == nil || *x.To == *y.To)
	return sameTo && x.Value.Cmp(y.Value) == 0 && bytes.Equal(x.Data, y.Data) && x.GasLimit == y.GasLimit, nil
}

// restore sets transactions' contents to those that were mined, because a replacement may lose to the attempt that it was
// to replace. It runs before they are recorded as mined, because that record is delivered to webhooks. If another
// replacement commits after sought was listed, [store.Store.RecordMined] leaves the transaction out.
func (r *round) restore(ctx context.Context, sought []store.MinedCandidate, found []store.Mined) error {
	several := map[uuid.UUID]bool{}
	for _, s := range sought {
		several[s.ID] = len(s.Hashes) > 1
	}
	var ids []uuid.UUID
	var hashes []common.Hash
	for _, m := range found {
		if several[m.TxID] {
			ids, hashes = append(ids, m.TxID), append(hashes, m.Hash)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	attempts, err := r.cfg.Store.ReplacedAttempts(ctx, ids, hashes)
	if err != nil {
		return err
	}
	for _, a := range attempts {
		mined, err := payload(a.Raw)
		if err != nil {
			return err
		}
		if err := r.cfg.Store.SetMinedPayload(ctx, a.TxID, mined); err != nil {
			return err
		}
	}
	return nil
}
