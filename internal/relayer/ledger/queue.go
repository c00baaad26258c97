package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Dispatch gives keys and nonces to what waits, the oldest first, at most limit of them, and returns those. What no key can pay
// for at present is passed over. While it returns any there may be others. An unknown outcome needs no resolving: what
// was claimed is found by Unsigned.
func (l *Ledger) Dispatch(ctx context.Context, terms Terms, limit int) ([]*relayer.Transaction, error) {
	var h hall
	var queue, seated []*relayer.Transaction
	err := l.transaction(ctx, func(b *pgx.Batch) error {
		h.lock(b, l, terms)
		// Locked, since a cancelation may take one out at this moment. Only what a key could take by itself, and of each target
		// so many as there may be room for: what waits for a full key, or for ether, must not keep others from being seen.
		b.Queue(`WITH room AS (SELECT k.address, $6::text::numeric - coalesce(b.spent_wei, 0) AS budget,
				CASE WHEN k.balance_at > now() - $5::interval THEN k.balance_wei - k.committed_wei END AS free
			FROM relayer_keys k LEFT JOIN relayer_budgets b ON (b.chain_id, b.pool_id, b.day, b.scope, b.subject)
				= (k.chain_id, k.pool_id, (now() AT TIME ZONE 'utc')::date, 'key', k.address)
			WHERE k.chain_id = $1 AND k.pool_id = $2 AND k.address = ANY($7) AND k.pending_count < $8
				AND k.enabled AND NOT k.paused AND NOT k.funding AND k.stuck_since IS NULL)
			`+selectTransactions+` WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY target ORDER BY id) AS place
				FROM relayer_txs t WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL
					AND (valid_until IS NULL OR valid_until > now()) AND EXISTS (SELECT FROM room)
					AND EXISTS (SELECT FROM room WHERE t.target IN ($2, room.address)
						AND (room.free IS NULL OR room.free >= t.value_wei + coalesce(t.reserve_wei, 0))
						AND (room.budget IS NULL OR t.reserve_wei IS NULL OR room.budget >= t.reserve_wei))) waiting
			WHERE place <= $3) AND open AND nonce IS NULL ORDER BY id LIMIT $4 FOR UPDATE`,
			l.ChainID, l.Pool, max(1, min(limit, terms.Cap*len(terms.Held))), limit*(len(terms.Held)+1), balanceAge,
			decimal(l.Budgets.Key), hexAddresses(terms.Held), terms.Cap).Query(func(rows pgx.Rows) (err error) {
			queue, err = pgx.CollectRows(rows, scanTransaction)
			return err
		})
		if l.Budgets.Key != nil {
			h.lockTill(b, l, terms)
		}
		return nil
	}, func(b *pgx.Batch) error {
		if h.failedOver {
			return nil
		}
		for _, tx := range queue {
			s, err := h.best(tx.OnlyKey(), relayer.Cost(tx.Value, tx.Reserve), tx.Reserve)
			if err != nil || s == nil { // those before it have taken what there was
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
				key_budget_day = CASE WHEN t.reserve_wei IS NOT NULL THEN $4::date END, era = `+era("$5")+`
			FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS v (id, address, nonce) WHERE t.id = v.id`, ids, addresses, nonces, h.till.today(), l.ChainID)
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
