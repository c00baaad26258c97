package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// pool returns an expression for the set of relayers within which a relayer's id names one transaction.
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
// to the relayer that has accepted it late, because no other one has it.
func (s *Store) TakeLate(ctx context.Context) ([]Late, error) {
	// Another process may settle a late acceptance until its transaction is locked, so it is locked, and read again, after that.
	if _, err := s.db.Exec(ctx, `WITH free AS MATERIALIZED (
			SELECT id FROM relay_transactions WHERE id = ANY(ARRAY(SELECT tx FROM relay_late_acceptances WHERE NOT settled)) AND status = 'queued'
			ORDER BY id FOR UPDATE
		), unsettled AS MATERIALIZED (
			SELECT l.* FROM free f JOIN relay_late_acceptances l ON l.tx = f.id WHERE NOT l.settled FOR UPDATE OF l
		), late AS (
			SELECT DISTINCT ON (tx) * FROM unsettled ORDER BY tx, received_at, relayer_tx
		), changed AS (
			UPDATE relay_transactions t SET status = 'submitted', status_reason = 'accepted late', relayer = l.relayer, relayer_url = l.relayer_url,
				relayer_id = l.relayer_id, scope = l.scope, relayer_tx = l.relayer_tx, outstanding = true, submitted_at = now(),
				attempts = t.attempts + 1, revision = t.revision + 1, updated_at = now(), check_at = now(), checks = 0
			FROM late l WHERE t.id = l.tx RETURNING t.*
		), taken AS (
			DELETE FROM relay_late_acceptances l USING changed c WHERE (l.tx, l.pool, l.relayer_tx) = (c.id, `+pool("c")+`, c.relayer_tx)
		)`+record+`SELECT`); err != nil {
		return nil, fmt.Errorf("give transactions to relayers that accepted them late: %w", err)
	}
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

// SettleLate ends a late acceptance, because its relayer has finished the transaction. executed is the hash under which it was executed;
// nil if it was not. An executed transaction becomes confirmed unless it is final, whatever another relayer has of it. SettleLate reports
// whether that changed it.
func (s *Store) SettleLate(ctx context.Context, l *Late, executed *common.Hash) (bool, error) {
	var hash []byte
	if executed != nil {
		hash = executed[:]
	}
	var n int
	err := s.db.QueryRow(ctx, `WITH former AS MATERIALIZED (
			SELECT id, relayer, relayer_tx FROM relay_transactions WHERE id = $1 FOR UPDATE
		), changed AS (
			UPDATE relay_transactions t SET status = 'confirmed', tx_hash = $3, open = false, outstanding = false, withdrawing = false, holder = NULL,
				held_until = '-infinity', status_reason = 'executed by ' || $4 || ' as ' || $5 || CASE WHEN f.relayer = '' THEN ''
					ELSE '; ' || f.relayer || coalesce(' has it as ' || f.relayer_tx, ' may have it') || ', and may execute it again' END,
				relayer = $4, relayer_url = $6, relayer_id = $7, scope = $8, relayer_tx = $5, revision = t.revision + 1, updated_at = now()
			FROM former f WHERE t.id = f.id AND t.open AND $3::bytea IS NOT NULL RETURNING t.*
		), resolved AS (DELETE FROM relay_unresolved_calls WHERE tx IN (SELECT id FROM changed)
		), settled AS (
			UPDATE relay_late_acceptances l SET settled = true FROM former f
			WHERE l.tx = f.id AND l.pool = $2 AND l.relayer_tx = $5
		)`+record+` SELECT count(*) FROM changed`,
		l.Transaction.ID, poolOf(&l.Route), hash, l.Route.Relayer, l.Route.RelayerTx, l.Route.URL, l.Route.RelayerID, l.Route.Scope).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("settle a late acceptance: %w", err)
	}
	return n > 0, nil
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

// poolOf is what [pool] is in SQL.
func poolOf(r *dispatch.Route) string { return cmp.Or(r.Scope, r.Relayer) }
