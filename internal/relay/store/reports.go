package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relay"
)

// Applied is the result of one report.
type Applied struct {
	// ID is the transaction's id; zero if no row has the relayer's id, and the report was kept.
	ID uuid.UUID
	// Changed reports that the report changed the transaction. It is false for a repeated or late one.
	Changed bool
	// Client, PublicID and Revision are those of a changed transaction.
	Client, PublicID string
	Revision         int
}

// rank orders statuses for reports without a revision and of the same time.
const rank = `CASE %s WHEN 'submitted' THEN 1 WHEN 'mined' THEN 2 ELSE 3 END`

// applySQL returns the end of a statement that applies the rows of "asked" (n, relayer_tx, status, reason, tx_hash, revision,
// at), of which the newest of each transaction counts. A report that shows nothing new only moves the row's marks, because the
// relayer is not silent. A transaction that its relayer was asked to cancel, and has canceled without having sent it, returns to
// the queue.
//
// "found" has the transactions of the relayer's ids. Only an array of ids, and a condition on "open" that no index can use,
// make the planner read these alone: with a join, it reads all open transactions for each batch.
func applySQL(enqueueRequeued string) string {
	return `found AS MATERIALIZED (
			SELECT id, relayer_tx FROM relay_transactions WHERE relayer_tx = ANY(ARRAY(SELECT relayer_tx FROM asked))
		), newest AS (
			SELECT DISTINCT ON (relayer_tx) * FROM asked ORDER BY relayer_tx, revision DESC, at DESC, ` + fmt.Sprintf(rank, "status") + ` DESC
		), locked AS MATERIALIZED (
			SELECT t.id, a.status, a.reason, a.tx_hash, a.revision, a.at,
				t.withdrawing AND a.status = 'canceled' AND a.tx_hash IS NULL AND t.tx_hash IS NULL AS withdrawn,
				(t.status, t.status_reason) <> (a.status, a.reason) OR a.tx_hash IS DISTINCT FROM t.tx_hash AND a.tx_hash IS NOT NULL AS visible
			FROM newest a JOIN found f ON f.relayer_tx = a.relayer_tx JOIN relay_transactions t ON t.id = f.id
			WHERE t.id = ANY(ARRAY(SELECT id FROM found)) AND CASE WHEN NOT t.open OR t.relayer_tx IS DISTINCT FROM a.relayer_tx THEN false
				WHEN a.revision > 0 AND t.reported_revision > 0 THEN a.revision > t.reported_revision
				ELSE (a.at, ` + fmt.Sprintf(rank, "a.status") + `) > (t.reported_at, ` + fmt.Sprintf(rank, "t.status") + `) END
			ORDER BY t.id FOR UPDATE OF t
		), seen AS (
			UPDATE relay_transactions t SET reported_revision = GREATEST(l.revision, t.reported_revision), reported_at = GREATEST(l.at, t.reported_at),
				check_at = now() + $1::interval, checks = 0
			FROM locked l WHERE t.id = l.id AND NOT l.visible
		), requeued AS (
			UPDATE relay_transactions t SET status = 'queued', status_reason = 'withdrawn from ' || t.relayer, relayer = '', relayer_url = '',
				relayer_id = '', scope = '', relayer_tx = NULL, reported_revision = 0, reported_at = '-infinity', outstanding = false,
				submitted_at = NULL, withdrawing = false, withdrawn = t.withdrawn + 1, revision = t.revision + 1, updated_at = now(),
				check_at = now() + $1::interval, checks = 0
			FROM locked l WHERE t.id = l.id AND l.visible AND l.withdrawn RETURNING t.*
		), queue AS (` + enqueueRequeued + `), applied AS (
			UPDATE relay_transactions t SET status = l.status, status_reason = l.reason, tx_hash = coalesce(l.tx_hash, t.tx_hash),
				reported_revision = GREATEST(l.revision, t.reported_revision), reported_at = GREATEST(l.at, t.reported_at),
				open = l.status IN ('submitted', 'mined'), outstanding = l.status IN ('submitted', 'mined'),
				revision = t.revision + 1, updated_at = now(), check_at = now() + $1::interval, checks = 0
			FROM locked l WHERE t.id = l.id AND l.visible AND NOT l.withdrawn RETURNING t.*
		), changed AS (SELECT * FROM applied UNION ALL SELECT * FROM requeued)` + record
}

// Apply stores reports of relayers, and returns a result for each. A report of an unknown transaction is kept until its row
// has the relayer's id.
func (s *Store) Apply(ctx context.Context, reports []relay.Update) ([]Applied, error) {
	n := len(reports)
	txs, statuses, reasons := make([]string, n), make([]string, n), make([]string, n)
	hashes, revisions, times, numbers := make([][]byte, n), make([]int32, n), make([]time.Time, n), make([]int32, n)
	for i, r := range reports {
		numbers[i], txs[i], statuses[i], reasons[i] = int32(i), r.RelayerTx, string(r.Status), bounded(r.Reason)
		revisions[i], times[i] = int32(r.Revision), r.At
		if r.Hash != nil {
			hashes[i] = r.Hash[:]
		}
	}
	rows, err := s.db.Query(ctx, `WITH asked AS MATERIALIZED (
			SELECT n, relayer_tx, status, reason, tx_hash, revision, LEAST(at, now()) AS at -- a clock that is ahead would hide later reports
			FROM unnest($2::int[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::int[], $8::timestamptz[])
				AS a (n, relayer_tx, status, reason, tx_hash, revision, at)
		), `+s.apply+`, kept AS (
			INSERT INTO relay_reports (relayer_tx, status, reason, tx_hash, revision, at)
			SELECT a.relayer_tx, a.status, a.reason, a.tx_hash, a.revision, a.at FROM asked a
			WHERE NOT EXISTS (SELECT FROM found f WHERE f.relayer_tx = a.relayer_tx)
		)
		SELECT a.n, f.id, c.id IS NOT NULL, coalesce(c.client, ''), coalesce(c.client_id, c.id::text, ''), coalesce(c.revision, 0)
		FROM asked a LEFT JOIN found f ON f.relayer_tx = a.relayer_tx LEFT JOIN changed c ON c.id = f.id`,
		s.cfg.Silent, numbers, txs, statuses, reasons, hashes, revisions, times)
	if err != nil {
		return nil, fmt.Errorf("apply reports: %w", err)
	}
	applied := make([]Applied, n)
	var at int32
	var id *uuid.UUID
	var one Applied
	if _, err := pgx.ForEachRow(rows, []any{&at, &id, &one.Changed, &one.Client, &one.PublicID, &one.Revision}, func() error {
		if id != nil {
			one.ID = *id
			applied[at] = one
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("apply reports: %w", err)
	}
	return applied, nil
}

// storedSQL takes kept reports and applies them. %s selects them.
const storedSQL = `WITH asked AS MATERIALIZED (
		DELETE FROM relay_reports r WHERE %s RETURNING id AS n, relayer_tx, status, reason, tx_hash, revision, at
	), `

// queueStoredReports applies the kept reports of transactions whose relayer's ids the batch has stored.
func queueStoredReports(batch *pgx.Batch, s *Store, relayerTxs []string) {
	batch.Queue(fmt.Sprintf(storedSQL, `relayer_tx = ANY($2)`)+s.apply+`SELECT`, s.cfg.Silent, relayerTxs)
}

// MatchReports applies kept reports whose transactions are known by now. A report may be kept while another process stores
// the relayer's id: neither sees the other. It also removes reports that nothing has claimed for a week, and returns their
// number.
func (s *Store) MatchReports(ctx context.Context) (removed int, err error) {
	// The planner makes a join of EXISTS, and may read the index of all transactions for it.
	if _, err := s.db.Exec(ctx, fmt.Sprintf(storedSQL, `(SELECT true FROM relay_transactions t WHERE t.relayer_tx = r.relayer_tx LIMIT 1)`)+s.apply+`SELECT`,
		s.cfg.Silent); err != nil {
		removed, purged := s.purgeReports(ctx)
		return removed, errors.Join(fmt.Errorf("match reports: %w", err), purged)
	}
	return s.purgeReports(ctx)
}

// purgeReports removes reports that nothing has claimed for a week. They are purged even if matching fails, because it may fail
// for their number.
func (s *Store) purgeReports(ctx context.Context) (removed int, err error) {
	tag, err := s.db.Exec(ctx, `DELETE FROM relay_reports WHERE received_at < now() - interval '7 days'`)
	if err != nil {
		return 0, fmt.Errorf("purge reports: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
