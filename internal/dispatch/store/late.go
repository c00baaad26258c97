package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// pool returns the expression for [dispatch.Route.Pool] of a row.
func pool(row string) string {
	return `coalesce(nullif(` + row + `.scope, ''), ` + row + `.relayer)`
}

// maybeElsewhere is the condition for a row t that the relayer of a late acceptance may have it.
const maybeElsewhere = `EXISTS (SELECT FROM relay_late_acceptances l WHERE l.tx = t.id AND NOT l.settled)`

// Late is an acceptance that came when its transaction was at another relayer, or final. The relayer may execute the transaction.
type Late struct {
	// Transaction is the row as it is now.
	Transaction *dispatch.Transaction
	// Route is the relayer that has accepted it, with its id of it.
	Route dispatch.Route
	// Checks is how often its relayer was to be asked, this time included, and Age is how long ago it came.
	Checks int
	Age    time.Duration
}

// maxLate is how many late acceptances one TakeLate returns.
const maxLate = 200

// TakeLate returns late acceptances whose relayers are to be asked now, and postpones their next check. A queued transaction is given
// to the relayer that has accepted it late, because no other one has it. With an error it may return some.
func (s *Store) TakeLate(ctx context.Context) ([]Late, error) {
	rows, err := s.db.Query(ctx, `SELECT id FROM relay_transactions
		WHERE id = ANY(ARRAY(SELECT tx FROM relay_late_acceptances WHERE NOT settled)) AND status = 'queued'`)
	if err != nil {
		return nil, fmt.Errorf("find transactions that were accepted late: %w", err)
	}
	queued, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find transactions that were accepted late: %w", err)
	}
	var failures []error // of single transactions, which do not stop the others
	for _, id := range queued {
		if err := s.inTx(ctx, func(db *dbTx) error { return giveToLate(ctx, db, id) }); err != nil {
			failures = append(failures, fmt.Errorf("give %s to the relayer that accepted it late: %w", id, err))
		}
	}
	due, err := s.dueLate(ctx)
	return due, errors.Join(append(failures, err)...)
}

// dueLate returns late acceptances whose relayers are to be asked now, and postpones their next check.
func (s *Store) dueLate(ctx context.Context) ([]Late, error) {
	rows, err := s.db.Query(ctx, `WITH due AS (
			UPDATE relay_late_acceptances l SET checks = checks + 1, check_at = now() + $2::interval * 2 ^ LEAST(checks, $3)
			WHERE (tx, pool, relayer_tx) IN (SELECT tx, pool, relayer_tx FROM relay_late_acceptances
				WHERE NOT settled AND check_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING *
		) SELECT tx, relayer, relayer_url, relayer_id, scope, relayer_tx, checks, now() - received_at FROM due`,
		maxLate, s.cfg.Silent, maxCheckDoublings)
	if err != nil {
		return nil, fmt.Errorf("take late acceptances: %w", err)
	}
	var ids []uuid.UUID
	due, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (l Late, err error) {
		var id uuid.UUID
		err = r.Scan(&id, &l.Route.Relayer, &l.Route.URL, &l.Route.RelayerID, &l.Route.Scope, &l.Route.RelayerTx, &l.Checks, &l.Age)
		ids = append(ids, id)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("take late acceptances: %w", err)
	}
	if len(due) == 0 {
		return nil, nil
	}
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("take late acceptances: %w", err)
	}
	byID := make(map[uuid.UUID]*dispatch.Transaction, len(found))
	for _, tx := range found {
		byID[tx.ID] = tx
	}
	taken := due[:0]
	for i, l := range due {
		if l.Transaction = byID[ids[i]]; l.Transaction != nil { // a purged row has none
			taken = append(taken, l)
		}
	}
	return taken, nil
}

// giveToLate gives a queued transaction to the first one of the relayers that have accepted it late. Another process may settle a late
// acceptance until the transaction is locked, so it is read after that.
func giveToLate(ctx context.Context, db *dbTx, id uuid.UUID) error {
	tx, err := lockOne(ctx, db, id, `true`)
	if err != nil || tx == nil || !tx.Late {
		return err
	}
	var by dispatch.Route
	if err := db.QueryRow(ctx, `SELECT relayer, relayer_url, relayer_id, scope, relayer_tx FROM relay_late_acceptances
		WHERE tx = $1 AND NOT settled ORDER BY received_at, relayer_tx LIMIT 1`, id).Scan(&by.Relayer, &by.URL, &by.RelayerID, &by.Scope, &by.RelayerTx); err != nil {
		return err
	}
	next, ok := tx.AcceptLate(by)
	if !ok {
		return nil
	}
	batch := new(pgx.Batch)
	db.queueChanges(batch, []change{{tx, next}})
	batch.Queue(forgetAcceptance, id, by.Pool(), by.RelayerTx)
	return db.SendBatch(ctx, batch).Close()
}

// SettleLate ends a late acceptance, because its relayer has finished the transaction. executed is the hash under which it was executed;
// nil if it was not. An executed transaction becomes confirmed unless it is final, whatever another relayer has of it. SettleLate reports
// whether that changed it.
func (s *Store) SettleLate(ctx context.Context, l *Late, executed *common.Hash) (changed bool, err error) {
	id := l.Transaction.ID
	if err = s.inTx(ctx, func(db *dbTx) error {
		tx, err := lockOne(ctx, db, id, `true`)
		if err != nil || tx == nil {
			return err
		}
		batch := new(pgx.Batch)
		if executed != nil {
			var next dispatch.Transaction
			if next, changed = tx.ExecuteLate(l.Route, *executed); changed {
				db.queueChanges(batch, []change{{tx, next}})
				batch.Queue(forgetCalls, []uuid.UUID{id})
			}
		}
		batch.Queue(`UPDATE relay_late_acceptances SET settled = true WHERE (tx, pool, relayer_tx) = ($1, $2, $3)`, id, l.Route.Pool(), l.Route.RelayerTx)
		return db.SendBatch(ctx, batch).Close()
	}); err != nil {
		return false, fmt.Errorf("settle a late acceptance: %w", err)
	}
	return changed, nil
}

// LateOf returns the late acceptances of a transaction that are not settled, for operators.
func (s *Store) LateOf(ctx context.Context, id uuid.UUID) ([]dispatch.Route, error) {
	rows, err := s.db.Query(ctx, `SELECT relayer, relayer_url, relayer_id, scope, relayer_tx FROM relay_late_acceptances
		WHERE tx = $1 AND NOT settled ORDER BY received_at, relayer_tx`, id)
	if err != nil {
		return nil, fmt.Errorf("read late acceptances: %w", err)
	}
	late, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dispatch.Route])
	if err != nil {
		return nil, fmt.Errorf("read late acceptances: %w", err)
	}
	return late, nil
}
