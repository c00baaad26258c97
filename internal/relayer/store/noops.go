package store

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// SetIntent records that a no-op shall take a transaction's nonce. A transaction without a nonce becomes final at once:
// canceled, expired or failed. SetIntent returns the row after that; the caller has to get the no-op signed.
//
// It fails with [relayer.ErrNotFound], or with a [relayer.StateError] if the transaction is mined or final, or has another
// intent. Setting the same intent again changes nothing. An error that wraps [relayer.ErrUnknown] reports that the intent
// is stored, but the row could not be read.
func (l *Store) SetIntent(ctx context.Context, id uuid.UUID, intent relayer.Intent, reason string) (*relayer.Transaction, error) {
	final := map[relayer.Intent]relayer.Status{
		relayer.IntentCancel: relayer.Canceled, relayer.IntentExpire: relayer.Expired, relayer.IntentFail: relayer.Failed,
	}[intent]
	var changed int
	if err := l.db.QueryRow(ctx, `WITH changed AS (
		UPDATE relayer_txs t SET intent = $5, intent_reason = $6, updated_at = now(), revision = t.revision + 1,
			status = CASE WHEN t.nonce IS NULL THEN $7 ELSE t.status END, open = t.nonce IS NOT NULL,
			status_reason = CASE WHEN t.nonce IS NULL THEN $6 ELSE t.status_reason END
		WHERE t.id = $2 AND t.chain_id = $3 AND t.pool_id = $4 AND t.open AND t.status <> 'mined' AND t.intent = 'send'
		RETURNING t.*)`+settleBudgetSQL+enqueueDeliveriesSQL+`SELECT count(*) FROM changed`,
		l.targets(), id, l.ChainID, l.Pool, string(intent), reason, string(final)).Scan(&changed); err != nil {
		return nil, fmt.Errorf("%s: %w", intent, err)
	}
	l.notifyDeliveries()
	tx, err := l.reload(ctx, id, changed > 0)
	if err == nil && changed > 0 && tx.Status.Final() {
		l.metrics.statuses.WithLabelValues(string(tx.Status)).Inc()
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
func (l *Store) reload(ctx context.Context, id uuid.UUID, written bool) (*relayer.Transaction, error) {
	tx, err := l.Transaction(ctx, id)
	if err != nil && written {
		return nil, fmt.Errorf("%w: what was asked for is written down: %w", relayer.ErrUnknown, err)
	}
	return tx, err
}

// Now returns the time by the database's clock, which sets the creation time of rows.
func (l *Store) Now(ctx context.Context) (now time.Time, err error) {
	if err := l.db.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// CancelPending cancels up to limit of callers' pending transactions, as SetIntent does with one, and returns their ids. It
// selects those created by the given time (see [Store.Now]). There may be others until it returns none. The zero key
// selects the whole pool.
func (l *Store) CancelPending(ctx context.Context, key common.Address, by time.Time, reason string, limit int) (canceled []uuid.UUID, err error) {
	address := hexAddress(key)
	if key == (common.Address{}) {
		address = ""
	}
	var ended int
	rows, err := l.db.Query(ctx, `WITH sent AS MATERIALIZED (
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
		l.targets(), l.ChainID, l.Pool, address, reason, limit, by)
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
	l.notifyDeliveries()
	l.metrics.statuses.WithLabelValues(string(relayer.Canceled)).Add(float64(ended))
	return canceled, nil
}

// Replacement holds new contents for a transaction that is not mined.
type Replacement struct {
	ID uuid.UUID
	relayer.Request
	// Reserve is the maximum gas cost of the new contents, wei; nil: unchanged.
	Reserve *big.Int
	// Attempt is the signed attempt with the new contents, for the same nonce; nil for a transaction without a nonce.
	Attempt *relayer.Attempt
	// Only is the only key that may send them; zero: unchanged.
	Only common.Address
}

// ErrRaced means that another process has signed for the transaction meanwhile: read it again.
var ErrRaced = errors.New("another process signed for the transaction at the same time")

// Replace changes a transaction's contents and stores the attempt with them, in one step. It fails with [ErrRaced],
// [relayer.ErrNotFound] or a [relayer.StateError]. Nothing is changed then, unless the error is [postgres.ErrUnknown].
func (l *Store) Replace(ctx context.Context, r *Replacement) error {
	return postgres.InTx(ctx, l.db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectTransactions+` WHERE id = $1 AND chain_id = $2 AND pool_id = $3 FOR UPDATE`, r.ID, l.ChainID, l.Pool)
		if err != nil {
			return fmt.Errorf("replace: %w", err)
		}
		was, err := pgx.CollectExactlyOneRow(rows, scanTransaction)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return relayer.ErrNotFound
		case err != nil:
			return fmt.Errorf("replace: %w", err)
		case was.Status.Final() || was.Status == relayer.Mined || was.Intent != relayer.IntentSend:
			return &relayer.StateError{Status: was.Status, Doing: "replace"}
		case (was.Nonce == nil) != (r.Attempt == nil), r.Attempt != nil && (*was.Nonce != r.Attempt.Nonce || was.From != r.Attempt.From):
			return ErrRaced
		}
		if err := l.reserveAgain(ctx, tx, was, r.Reserve); err != nil {
			return err
		}
		var only *string
		if r.Only != (common.Address{}) {
			only = new(hexAddress(r.Only))
		}
		if _, err := tx.Exec(ctx, keepContents, r.ID); err != nil {
			return fmt.Errorf("replace: keep the contents for webhooks: %w", err)
		}
		if _, err := tx.Exec(ctx, `WITH changed AS (
			UPDATE relayer_txs t SET (`+contents.names()+`) = (SELECT r.* FROM `+contents.rows(5)+`),
				reserve_wei = coalesce($3::text::numeric, reserve_wei),
				target = CASE WHEN t.nonce IS NULL THEN coalesce($4, t.target) ELSE t.target END, revision = revision + 1, updated_at = now()
			WHERE t.id = $2 RETURNING t.*)`+enqueueDeliveriesSQL+`SELECT`,
			append([]any{l.targets(), r.ID, relayer.Decimal(r.Reserve), only}, arrays(contents, (&relayer.Transaction{Request: r.Request}).Row())...)...); err != nil {
			return fmt.Errorf("replace: %w", err)
		}
		if r.Attempt == nil {
			return nil
		}
		stored, err := l.storeAttempts(ctx, tx, []*relayer.Attempt{r.Attempt})
		if err == nil && !stored[0] {
			err = ErrRaced
		}
		return err
	})
}

// RecordNonceConflicts records that another sender's transaction used one of our nonces. The caller found it by its hash in
// a block that is deep enough. The row with that nonce is queued again, to be sent under another one, or becomes final if
// it was no longer to be sent. The foreign transaction is stored in its place. RecordNonceConflicts reports whether it did
// so. The block belongs to the chain of the given generation; in another generation it does nothing.
func (l *Store) RecordNonceConflicts(ctx context.Context, id uuid.UUID, key common.Address, known int, nonce uint64, hash common.Hash, block Block) (bool, error) {
	n, err := l.withLockedKeys(ctx, "displace a transaction", `WITH displaced AS MATERIALIZED (
		SELECT id, chain_id, pool_id, relayer_address, key_budget_day, reserve_wei FROM relayer_txs
		WHERE id = $4 AND chain_id = $2 AND pool_id = $3 AND open AND status <> 'mined' AND relayer_address = $5 AND nonce = $6
			AND generation = $11 AND `+generationSQL("$2")+` = $11 FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET relayer_address = NULL, nonce = NULL, tx_hash = NULL, sent_at = NULL, key_budget_day = NULL,
			attempts = coalesce((SELECT max(attempt) FROM relayer_attempts WHERE tx_id = t.id), 0),
			status = CASE WHEN t.intent = 'cancel' THEN 'canceled' WHEN t.intent = 'expire' THEN 'expired'
				WHEN t.intent = 'fail' THEN 'failed' WHEN t.kind <> 'transaction' THEN 'replaced' ELSE 'allocated' END,
			open = t.intent = 'send' AND t.kind = 'transaction',
			status_reason = 'another transaction, not the relayer''s, took its nonce',
			revision = revision + 1, updated_at = now()
		FROM displaced d WHERE t.id = d.id RETURNING t.*
	), foreigner AS (
		INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, relayer_address, nonce, tx_hash, status, open,
			block_number, block_hash, confirmed_at, generation)
		SELECT $7, $2, $3, $5, '', 'foreign', $5, $6, $8, 'confirmed', false, $9, $10, now(), $11 FROM changed
	), counted AS (SELECT $5::text AS address, -count(*)::int AS n FROM changed)`+refundBudgetSQL,
		l.targets(), l.ChainID, l.Pool, id, hexAddress(key), int64(nonce), uuid.Must(uuid.NewV7()), hash.Hex(), int64(block.Number), block.Hash.Hex(), known)
	return n > 0, err
}
