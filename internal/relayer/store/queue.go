package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Dispatch allocates keys and nonces to queued transactions, the oldest first, at most limit, and returns those. It skips
// transactions that no key can pay for at present. If it returns any, there may be others. An unknown outcome needs no
// resolving: Unsigned finds the allocated rows.
func (s *Store) Dispatch(ctx context.Context, limits AllocationLimits, limit int) ([]*relayer.Transaction, error) {
	candidates, err := s.dispatchable(ctx, limits, limit)
	if err != nil || len(candidates) == 0 {
		return nil, err
	}
	var allocation keyAllocation
	var queue, seated []*relayer.Transaction
	err = s.transaction(ctx, func(b *pgx.Batch) error {
		allocation.lock(b, s, limits)
		// The candidates are locked and read again: another process may have dispatched them since, or a caller canceled
		// them.
		b.Queue(selectTransactions+` WHERE id = ANY($1) AND open AND nonce IS NULL AND (valid_until IS NULL OR valid_until > now())
			ORDER BY id FOR UPDATE`, candidates).Query(func(rows pgx.Rows) (err error) {
			queue, err = pgx.CollectRows(rows, scanTransaction)
			return err
		})
		if s.Budgets.Key != nil {
			allocation.lockBudgets(b, s, limits)
		}
		return nil
	}, func(b *pgx.Batch) error {
		if allocation.failedOver {
			return nil
		}
		for _, tx := range queue {
			key, err := allocation.pickKey(tx.OnlyKey(), relayer.Cost(tx.Value, tx.Reserve), tx.Reserve)
			if err != nil || key == nil { // earlier candidates have taken the room
				continue
			}
			tx.From, tx.Nonce = key.address, new(allocation.assignNonce(key, tx.Value, tx.Reserve))
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
				key_budget_day = CASE WHEN t.reserve_wei IS NOT NULL THEN $4::date END, generation = `+generationSQL("$5")+`
			FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS v (id, address, nonce) WHERE t.id = v.id`, ids, addresses, nonces, allocation.budgets.today(), s.ChainID)
		allocation.store(b, s)
		return nil
	}, nil)
	if err != nil {
		if errors.Is(err, relayer.ErrUnknown) {
			return nil, fmt.Errorf("give out nonces: what was claimed is taken up later: %w", err)
		}
		return nil, fmt.Errorf("give out nonces: %w", err)
	}
	return slices.Clip(seated), nil
}

// dispatchable lists queued transactions that a key could take at present, the oldest first. It lists as many per target as
// there may be room for. Transactions queued for a full key, or for ether, must not hide others. It reads no further for a
// target whose cheapest transaction no key can pay for. It takes no locks: skipping a long queue of unaffordable
// transactions takes time, and callers that post wait for the keys' locks.
func (s *Store) dispatchable(ctx context.Context, limits AllocationLimits, limit int) ([][16]byte, error) {
	return collect(ctx, s.db, "list what may be dispatched", pgx.RowTo[[16]byte], `WITH room AS MATERIALIZED (SELECT k.address, $6::text::numeric - coalesce(b.spent_wei, 0) AS budget,
			CASE WHEN k.balance_at > now() - $5::interval THEN k.balance_wei - k.committed_wei END AS free
		FROM relayer_keys k LEFT JOIN relayer_budgets b ON (b.chain_id, b.pool_id, b.day, b.scope, b.subject)
			= (k.chain_id, k.pool_id, (now() AT TIME ZONE 'utc')::date, 'key', k.address)
		WHERE k.chain_id = $1 AND k.pool_id = $2 AND k.address = ANY($7) AND k.pending_count < $8
			AND k.enabled AND NOT k.paused AND NOT k.funding AND k.stuck_since IS NULL
	), targets AS MATERIALIZED (SELECT target FROM (SELECT $2::text AS target UNION ALL SELECT address FROM room) AS every
		WHERE EXISTS (SELECT FROM room WHERE every.target IN ($2, room.address) AND (room.free IS NULL OR room.free >= (
			SELECT t.value_wei + coalesce(t.reserve_wei, 0) FROM relayer_txs t
			WHERE t.chain_id = $1 AND t.pool_id = $2 AND t.target = every.target AND t.open AND t.nonce IS NULL
			ORDER BY t.value_wei + coalesce(t.reserve_wei, 0) LIMIT 1)))
	)
	SELECT next.id FROM targets CROSS JOIN LATERAL (SELECT t.id FROM relayer_txs t
		WHERE t.chain_id = $1 AND t.pool_id = $2 AND t.target = targets.target AND t.open AND t.nonce IS NULL
			AND (t.valid_until IS NULL OR t.valid_until > now())
			AND EXISTS (SELECT FROM room WHERE t.target IN ($2, room.address)
				AND (room.free IS NULL OR room.free >= t.value_wei + coalesce(t.reserve_wei, 0))
				AND (room.budget IS NULL OR t.reserve_wei IS NULL OR room.budget >= t.reserve_wei))
		ORDER BY t.id LIMIT $3) AS next ORDER BY next.id LIMIT $4`,
		s.ChainID, s.Pool, max(1, min(limit, limits.Cap*len(limits.Held))), limit*(len(limits.Held)+1), BalanceAge,
		relayer.Decimal(s.Budgets.Key), hexAddresses(limits.Held), limits.Cap)
}

// Queued returns how many transactions are queued.
func (s *Store) Queued(ctx context.Context) (n int, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(sum(greatest(0, waiting)), 0) FROM relayer_queues WHERE chain_id = $1 AND pool_id = $2`,
		s.ChainID, s.Pool).Scan(&n)
	return n, err
}

// RecountQueues compares the counters of the pool's queues with the rows, corrects those that differ, and returns their
// targets. Triggers maintain the counters, so none should ever differ.
func (s *Store) RecountQueues(ctx context.Context) (corrected []string, err error) {
	const differing = `SELECT coalesce(q.target, t.target), coalesce(q.waiting, 0), coalesce(t.n, 0)
		FROM (SELECT target, waiting FROM relayer_queues WHERE chain_id = $1 AND pool_id = $2) AS q
		FULL JOIN (SELECT target, count(*) AS n FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL GROUP BY 1) AS t
			ON t.target = q.target WHERE coalesce(q.waiting, 0) <> coalesce(t.n, 0) ORDER BY 1 LIMIT 100`
	var differ bool
	// One statement reads counters and rows in one snapshot, so that without a difference no lock is taken.
	if err := s.db.QueryRow(ctx, `SELECT EXISTS (`+differing+`)`, s.ChainID, s.Pool).Scan(&differ); err != nil || !differ {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		// A transaction that changes a queue changes its counter before it commits, and waits for these locks there. This
		// is a separate statement, because the next one must see the changes that this one waited for.
		batch.Queue(`SELECT FROM relayer_queues WHERE chain_id = $1 AND pool_id = $2 ORDER BY target FOR UPDATE`, s.ChainID, s.Pool)
		batch.Queue(`INSERT INTO relayer_queues AS q (chain_id, pool_id, target, waiting) SELECT $1, $2, d.target, d.rows FROM (`+differing+`) AS d (target, counted, rows)
			ON CONFLICT (chain_id, pool_id, target) DO UPDATE SET waiting = excluded.waiting RETURNING q.target`, s.ChainID, s.Pool).Query(func(rows pgx.Rows) (err error) {
			corrected, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("correct the counters of queues: %w", err)
	}
	return corrected, nil
}
