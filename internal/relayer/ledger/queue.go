package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Dispatch gives keys and nonces to what waits, the oldest first, at most limit of them, and returns those. An unknown
// outcome needs no resolving: what was claimed is found by Unsigned.
func (l *Ledger) Dispatch(ctx context.Context, terms Terms, limit int) ([]*relayer.Transaction, error) {
	var h hall
	var queue, seated []*relayer.Transaction
	err := l.transaction(ctx, func(b *pgx.Batch) error {
		h.lock(b, l, terms)
		// Locked, since a cancelation may take one out at this moment. Of each target only so many as it could take: those
		// that wait for one full key must not keep others from being seen.
		b.Queue(selectTransactions+` WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY target ORDER BY id) AS place
				FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL
					AND (valid_until IS NULL OR valid_until > now())) waiting
			WHERE place <= $3) AND open AND nonce IS NULL ORDER BY id LIMIT $4 FOR UPDATE`,
			l.ChainID, l.Pool, max(1, min(limit, terms.Cap*len(terms.Held))), limit*(len(terms.Held)+1)).Query(func(rows pgx.Rows) (err error) {
			queue, err = pgx.CollectRows(rows, scanTransaction)
			return err
		})
		if l.Budgets.Key != nil {
			h.lockTill(b, l, terms)
		}
		return nil
	}, func(b *pgx.Batch) error {
		clear(h.waiting) // the queue itself is what is seated
		for _, tx := range queue {
			s, err := h.seat(tx.Target, keyOf(tx, l.Pool), tx.Value, tx.Reserve)
			if err != nil || s == nil {
				continue
			}
			tx.From, tx.Nonce = s.address, new(h.give(s, tx.Value, tx.Reserve))
			if seated = append(seated, tx); len(seated) == limit {
				break
			}
		}
		if len(seated) == 0 {
			return nil
		}
		var ids [][16]byte
		var addresses []string
		var nonces []int64
		for _, tx := range seated {
			ids, addresses, nonces = append(ids, tx.ID), append(addresses, hexAddress(tx.From)), append(nonces, int64(*tx.Nonce))
		}
		b.Queue(`UPDATE relayer_txs t SET relayer_address = v.address, nonce = v.nonce, updated_at = now(),
				key_budget_day = CASE WHEN t.reserve_wei IS NOT NULL THEN $4::date END
			FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS v (id, address, nonce) WHERE t.id = v.id`, ids, addresses, nonces, h.till.today())
		h.store(b, l)
		return nil
	})
	if err != nil {
		if errors.Is(err, relayer.ErrUnknown) {
			return nil, fmt.Errorf("give out nonces: what was claimed is taken up later: %w", err)
		}
		return nil, fmt.Errorf("give out nonces: %w", err)
	}
	return slices.Clip(seated), nil
}

// Queued is how many wait for a key.
func (l *Ledger) Queued(ctx context.Context) (n int, err error) {
	err = l.db.QueryRow(ctx, `SELECT count(*) FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL`,
		l.ChainID, l.Pool).Scan(&n)
	return n, err
}
