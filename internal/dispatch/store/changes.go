package store

import (
	"context"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// queueLock locks the rows of a query for ids, which uses $1 alone, and of a condition, in the order of their ids. It puts the transactions
// with their evidence into found. Late acceptances are read after the locks, so that those of a process that held a lock are among them.
func queueLock(batch *pgx.Batch, ids, condition string, found map[uuid.UUID]*dispatch.Transaction, args ...any) {
	batch.Queue(`SELECT `+columns+`, now(), nullif(reported_at, '-infinity') AS reported_at, withdrawing, withdrawn_at, coalesce((SELECT ahead
			FROM relay_relayer_clocks o WHERE o.relayer = t.relayer AND `+measured("o")+`), '0') AS ahead
		FROM relay_transactions t WHERE id = ANY(ARRAY(`+ids+`)) AND `+condition+` ORDER BY id FOR UPDATE OF t`, args...).Query(func(rows pgx.Rows) error {
		locked, err := pgx.CollectRows(rows, pgx.RowToStructByName[lockedRow])
		if err != nil {
			return err
		}
		for i := range locked {
			r := &locked[i]
			tx, err := r.transaction()
			if err != nil {
				return err
			}
			tx.Evidence = dispatch.Evidence{
				Now: r.Now, Ahead: r.Ahead, ReportedAt: timeOf(r.ReportedAt), Withdrawing: r.Withdrawing, WithdrawnAt: timeOf(r.WithdrawnAt),
			}
			found[tx.ID] = tx
		}
		return nil
	})
	batch.Queue(`SELECT DISTINCT tx FROM relay_late_acceptances WHERE NOT settled AND tx = ANY(ARRAY(`+ids+`))`, args[:1]...).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			if tx := found[id]; tx != nil {
				tx.Late = true
			}
			return nil
		})
		return err
	})
}

// byID is the query of [queueLock] for an array of ids.
const byID = `SELECT unnest($1::uuid[])`

// lockedRow is a row that [queueLock] reads.
type lockedRow struct {
	row
	Now         time.Time     `db:"now"`
	ReportedAt  *time.Time    `db:"reported_at"`
	Withdrawing bool          `db:"withdrawing"`
	WithdrawnAt *time.Time    `db:"withdrawn_at"`
	Ahead       time.Duration `db:"ahead"`
}

// change is a change of a locked transaction.
type change struct {
	from *dispatch.Transaction
	to   dispatch.Transaction
}

// visible reports whether the client sees the change.
func (c *change) visible() bool { return c.to.Revision != c.from.Revision }

// lockOne locks the row of a transaction; it returns nil if a condition, which has the arguments from $2, does not hold.
func lockOne(ctx context.Context, db pgx.Tx, id uuid.UUID, condition string, args ...any) (*dispatch.Transaction, error) {
	batch, found := new(pgx.Batch), map[uuid.UUID]*dispatch.Transaction{}
	queueLock(batch, byID, condition, found, append([]any{[]uuid.UUID{id}}, args...)...)
	err := db.SendBatch(ctx, batch).Close()
	return found[id], err
}

// queueChanges writes changes of locked transactions, and the history and webhooks of the visible ones. A change ends
// the lease: no changed transaction is submitting afterwards.
func (db *dbTx) queueChanges(batch *pgx.Batch, changed []change) {
	if len(changed) == 0 {
		return
	}
	n := len(changed)
	ids, visible, open, outstanding, withdrawing := make([]uuid.UUID, n), make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n)
	statuses, reasons, txs, froms := make([]string, n), make([]string, n), make([]*string, n), make([]string, n)
	relayers, urls, relayerIDs, scopes, hashes := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	revisions, attempts, reported, withdrawn := make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
	submittedAt, reportedAt, withdrawnAt := make([]*time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
	for i, c := range changed {
		t := &c.to
		ids[i], visible[i], open[i], outstanding[i], withdrawing[i] = t.ID, c.visible(), !t.Status.Final(), t.Status.AtRelayer(), t.Withdrawing
		statuses[i], reasons[i], txs[i], froms[i] = string(t.Status), t.Reason, orNil(t.RelayerTx), t.WithdrawnFrom
		relayers[i], urls[i], relayerIDs[i], scopes[i], hashes[i] = t.Relayer, t.URL, t.RelayerID, t.Scope, hashBytes(t.Hash)
		revisions[i], attempts[i], reported[i], withdrawn[i] = int32(t.Revision), int32(t.Attempt), int32(t.Reported), int32(t.Withdrawn)
		submittedAt[i], reportedAt[i], withdrawnAt[i] = timeOrNil(t.SubmittedAt), timeOrNil(t.ReportedAt), timeOrNil(t.WithdrawnAt)
	}
	batch.Queue(`WITH written AS (
			UPDATE relay_transactions t SET open = w.open, outstanding = w.outstanding, withdrawing = w.withdrawing, status = w.status,
				status_reason = w.reason, relayer_tx = w.relayer_tx, withdrawn_from = w.withdrawn_from, relayer = w.relayer, relayer_url = w.url,
				relayer_id = w.relayer_id, scope = w.scope, tx_hash = w.tx_hash, revision = w.revision, attempts = w.attempts,
				reported_revision = w.reported, withdrawn = w.withdrawn, submitted_at = w.submitted_at,
				reported_at = coalesce(w.reported_at, '-infinity'), withdrawn_at = w.withdrawn_at, holder = NULL, held_until = '-infinity',
				updated_at = CASE WHEN w.visible THEN now() ELSE t.updated_at END, check_at = now(), checks = 0
			FROM unnest($1::uuid[], $2::bool[], $3::bool[], $4::bool[], $5::bool[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
				$11::text[], $12::text[], $13::text[], $14::bytea[], $15::int[], $16::int[], $17::int[], $18::int[], $19::timestamptz[],
				$20::timestamptz[], $21::timestamptz[]) AS w (id, visible, open, outstanding, withdrawing, status, reason, relayer_tx,
				withdrawn_from, relayer, url, relayer_id, scope, tx_hash, revision, attempts, reported, withdrawn, submitted_at, reported_at,
				withdrawn_at)
			WHERE t.id = w.id RETURNING t.*, w.visible
		), changed AS (SELECT * FROM written WHERE visible)`+record+`SELECT `+webhooksStored,
		ids, visible, open, outstanding, withdrawing, statuses, reasons, txs, froms, relayers, urls, relayerIDs, scopes, hashes, revisions,
		attempts, reported, withdrawn, submittedAt, reportedAt, withdrawnAt).QueryRow(func(row pgx.Row) error {
		var stored bool
		err := row.Scan(&stored)
		db.webhooksStored = db.webhooksStored || stored
		return err
	})
}

// queueAcceptance keeps the acceptance of a transaction that is not its current submission: a settled one whose end is known, or a late one.
// The reconciler soon asks the relayer of the row, too, if hasten is set and the acceptance is not kept yet.
func queueAcceptance(batch *pgx.Batch, id uuid.UUID, by *dispatch.Route, settled, hasten bool) {
	batch.Queue(`WITH kept AS (
			INSERT INTO relay_late_acceptances (tx, pool, relayer_tx, relayer, relayer_url, relayer_id, scope, settled)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (tx, pool, relayer_tx) DO UPDATE SET settled = true WHERE excluded.settled RETURNING tx
		) UPDATE relay_transactions SET check_at = '-infinity' WHERE $9 AND id = (SELECT tx FROM kept)`,
		id, by.Pool(), by.RelayerTx, by.Relayer, by.URL, by.RelayerID, by.Scope, settled, hasten)
}

// forgetAcceptance is the statement that forgets an acceptance that is the current submission of its transaction by now.
const forgetAcceptance = `DELETE FROM relay_late_acceptances WHERE (tx, pool, relayer_tx) = ($1, $2, $3)`

// forgetCalls is the statement that forgets the unresolved calls of transactions.
const forgetCalls = `DELETE FROM relay_unresolved_calls WHERE tx = ANY($1)`

func hashBytes(h *common.Hash) []byte {
	if h == nil {
		return nil
	}
	return h[:]
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
