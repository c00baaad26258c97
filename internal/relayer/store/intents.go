package store

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// SetIntent records that a no-op shall take a transaction's nonce. A transaction without a nonce becomes final at once:
// canceled, expired or failed. SetIntent returns the row after that; the caller has to get the no-op signed.
//
// It fails with [relayer.ErrNotFound], or with a [relayer.StateError] if the transaction is mined or final, or has another
// intent. Setting the same intent again changes nothing. An error that wraps [relayer.ErrUnknown] reports that the intent
// is stored, but the row could not be read.
func (s *Store) SetIntent(ctx context.Context, id uuid.UUID, intent relayer.Intent, reason string) (*relayer.Transaction, error) {
	final := map[relayer.Intent]relayer.Status{
		relayer.IntentCancel: relayer.Canceled, relayer.IntentExpire: relayer.Expired, relayer.IntentFail: relayer.Failed,
	}[intent]
	var changed int
	if err := s.db.QueryRow(ctx, `WITH changed AS (
		UPDATE relayer_txs t SET intent = $5, intent_reason = $6, updated_at = now(), revision = t.revision + 1,
			status = CASE WHEN t.nonce IS NULL THEN $7 ELSE t.status END, open = t.nonce IS NOT NULL,
			status_reason = CASE WHEN t.nonce IS NULL THEN $6 ELSE t.status_reason END
		WHERE t.id = $2 AND t.chain_id = $3 AND t.pool_id = $4 AND t.open AND t.status <> 'mined' AND t.intent = 'send'
		RETURNING t.*)`+settleBudgetSQL+enqueueDeliveriesSQL+`SELECT count(*) FROM changed`,
		s.targets(), id, s.ChainID, s.Pool, string(intent), reason, string(final)).Scan(&changed); err != nil {
		return nil, fmt.Errorf("%s: %w", intent, err)
	}
	s.notifyDeliveries()
	tx, err := s.reload(ctx, id, changed > 0)
	if err == nil && changed > 0 && tx.Status.Final() {
		s.metrics.statuses.WithLabelValues(string(tx.Status)).Inc()
	}
	switch {
	case err != nil:
		return nil, err
	case changed == 0 && (tx.Intent != intent || tx.Status == relayer.Mined || tx.Status.Final()):
		return nil, &relayer.StateError{Status: tx.Status, Doing: string(intent)}
	}
	return tx, nil
}

// reload reads a transaction after a statement that may have written to it. A failed read does not undo the write, so after
// a write the error wraps [relayer.ErrUnknown].
func (s *Store) reload(ctx context.Context, id uuid.UUID, written bool) (*relayer.Transaction, error) {
	tx, err := s.Transaction(ctx, id)
	if err != nil && written {
		return nil, fmt.Errorf("%w: what was asked for is written down: %w", relayer.ErrUnknown, err)
	}
	return tx, err
}

// CancelPending cancels up to limit of callers' pending transactions, as SetIntent does with one, and returns their ids. It
// selects those created by the given time (see [Store.Now]). There may be others until it returns none. The zero key
// selects the whole pool.
func (s *Store) CancelPending(ctx context.Context, key common.Address, by time.Time, reason string, limit int) (canceled []uuid.UUID, err error) {
	address := hexAddress(key)
	if key == (common.Address{}) {
		address = ""
	}
	var ended int
	rows, err := s.db.Query(ctx, `WITH sent AS MATERIALIZED (
		SELECT id FROM relayer_txs WHERE chain_id = $2 AND pool_id = $3 AND open AND nonce IS NOT NULL AND intent = 'send' AND kind = 'transaction'
			AND status <> 'mined' AND $4 IN ('', relayer_address) AND created_at <= $7 ORDER BY relayer_address, nonce LIMIT $6 FOR UPDATE
	), waiting AS MATERIALIZED (
		SELECT id FROM relayer_txs WHERE chain_id = $2 AND pool_id = $3 AND open AND nonce IS NULL AND intent = 'send' AND kind = 'transaction'
			AND $4 IN ('', target) AND created_at <= $7 ORDER BY id LIMIT greatest(0, $6 - (SELECT count(*) FROM sent)) FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET intent = 'cancel', intent_reason = $5, updated_at = now(), revision = t.revision + 1,
			status = CASE WHEN t.nonce IS NULL THEN 'canceled' ELSE t.status END, open = t.nonce IS NOT NULL,
			status_reason = CASE WHEN t.nonce IS NULL THEN $5 ELSE t.status_reason END
		WHERE t.id IN (SELECT id FROM sent UNION ALL SELECT id FROM waiting) RETURNING t.*)`+settleBudgetSQL+enqueueDeliveriesSQL+`SELECT id, NOT open FROM changed`,
		s.targets(), s.ChainID, s.Pool, address, reason, limit, by)
	if err == nil {
		var id uuid.UUID
		var final bool
		_, err = pgx.ForEachRow(rows, []any{&id, &final}, func() error {
			canceled = append(canceled, id)
			if final {
				ended++
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cancel what is pending: %w", err)
	}
	s.notifyDeliveries()
	s.metrics.statuses.WithLabelValues(string(relayer.Canceled)).Add(float64(ended))
	return canceled, nil
}
