package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// Applied is the result of one report.
type Applied struct {
	// ID is the transaction's id; zero if no row has the relayer's id, and the report was kept, or if several rows have it.
	ID uuid.UUID
	// Changed reports that the report changed the transaction. It is false for a repeated or late one.
	Changed bool
}

// rank orders statuses for reports without a revision and of the same time.
const rank = `CASE %s WHEN 'unknown' THEN 0 WHEN 'submitted' THEN 1 WHEN 'mined' THEN 2 ELSE 3 END`

// applySQL returns the end of a statement that applies the rows of "asked" (n, tx, relayer_tx, status, reason, tx_hash, revision,
// at, digest, attempt, known), of which the newest of each transaction counts. A report that shows nothing new only moves the row's marks,
// because the relayer is not silent. A transaction that its relayer was asked to cancel, and has canceled, returns to the queue.
// The report may have the hash of a no-op: the relayer had given the transaction a nonce, which the no-op has used.
//
// A report that contains another call, such as a no-op that took the nonce, is believed if its hash is one that the row had before:
// OpenZeppelin's relayer writes the no-op's call before its hash. Otherwise the hash is not the transaction's, and confirmed becomes
// unknown, because only the chain shows which of the two was executed.
//
// A report that names the transaction is the answer to a check, and its time is the consumer's. The time of any other one is the
// relayer's, and is converted. The answer to a check counts also with the revision that is known: the relayer is there, and a transaction
// that became unknown because no relayer answered goes on.
//
// The answer to a check counts with a lower revision, too, if the row still has the one that it had when the relayer was asked: no other
// report came meanwhile, so the relayer's own history went back, as after a restore from a backup.
//
// A report that names an earlier attempt changes nothing. As long as the relayer of a late acceptance may have the transaction, a report
// that it was not executed makes it unknown.
//
// "found" has the transactions of the relayer's ids. Only an array of ids, and a condition on "open" that no index can use,
// make the planner read these alone: with a join, it reads all open transactions for each batch. A report that does not name the
// transaction, of an id that two relayers have given, also to a former submission of any row, changes no row: the reconciler asks both.
func applySQL(enqueueRequeued string) string {
	return `found AS MATERIALIZED (
			SELECT id, relayer_tx, count(*) OVER (PARTITION BY relayer_tx)
				+ (SELECT count(*) FROM relay_late_acceptances l WHERE l.relayer_tx = t.relayer_tx) AS owners
			FROM relay_transactions t WHERE relayer_tx = ANY(ARRAY(SELECT relayer_tx FROM asked))
		), matched AS MATERIALIZED (
			SELECT a.n, f.id FROM asked a JOIN found f ON f.relayer_tx = a.relayer_tx AND (f.id = a.tx OR a.tx IS NULL AND f.owners = 1)
		), newest AS (
			SELECT DISTINCT ON (m.id) m.id, a.* FROM matched m JOIN asked a USING (n)
			ORDER BY m.id, revision DESC, at DESC NULLS LAST, ` + fmt.Sprintf(rank, "status") + ` DESC
		), locked AS MATERIALIZED (
			SELECT t.id, e.status, e.reason, e.tx_hash, a.revision, call.at,
				call.withdrawn, call.backward, t.relayer, t.relayer_url, t.relayer_id, t.scope, t.relayer_tx,
				(t.status, t.status_reason) <> (e.status, e.reason) OR e.tx_hash IS DISTINCT FROM t.tx_hash AND e.tx_hash IS NOT NULL AS visible
			FROM newest a JOIN relay_transactions t ON t.id = a.id
			LEFT JOIN relay_relayer_clocks o ON a.tx IS NULL AND o.relayer = t.relayer AND ` + measured("o") + `
			CROSS JOIN LATERAL (SELECT LEAST(a.at - coalesce(o.ahead, '0'), now()) AS at, -- a clock that is ahead would hide later reports
				coalesce(a.digest <> t.digest, false) AND (a.tx_hash IS NULL OR a.tx_hash IS DISTINCT FROM t.tx_hash
				AND NOT EXISTS (SELECT FROM relay_history h WHERE h.tx = t.id AND h.tx_hash = a.tx_hash)) AS differs,
				t.withdrawing AND t.scope <> '' AND a.status = 'canceled' AS withdrawn,
				coalesce(a.known = t.reported_revision AND a.revision BETWEEN 1 AND t.reported_revision - 1, false) AS backward,
				a.status IN ('failed', 'canceled', 'expired') AND ` + maybeElsewhere + ` AS elsewhere) AS call
			CROSS JOIN LATERAL (SELECT
				CASE WHEN call.elsewhere AND NOT call.withdrawn THEN 'unknown' WHEN NOT call.differs THEN a.status
					WHEN a.status = 'mined' THEN 'submitted' WHEN a.status = 'confirmed' THEN 'unknown' ELSE a.status END AS status,
				CASE WHEN call.elsewhere AND NOT call.withdrawn
						THEN 'its relayer reports it as ' || a.status || ', and another relayer has accepted it, too'
					WHEN NOT call.differs THEN a.reason
					ELSE 'its relayer reports another call' || coalesce(': 0x' || encode(a.tx_hash, 'hex'), '') END AS reason,
				CASE WHEN NOT call.differs THEN a.tx_hash END AS tx_hash) AS e
			WHERE t.id = ANY(ARRAY(SELECT id FROM matched)) AND CASE
				WHEN NOT t.open OR t.relayer_tx IS DISTINCT FROM a.relayer_tx OR a.attempt <> t.attempts THEN false
				WHEN call.backward THEN true
				WHEN a.revision > 0 AND (t.reported_revision > 0 OR a.at IS NULL)
					THEN a.revision > t.reported_revision OR a.revision = t.reported_revision AND a.tx IS NOT NULL
				WHEN a.at IS NULL THEN (` + fmt.Sprintf(rank, "a.status") + `, e.tx_hash IS NOT NULL)
					> (` + fmt.Sprintf(rank, "t.status") + `, t.tx_hash IS NOT NULL)
				ELSE (call.at, ` + fmt.Sprintf(rank, "a.status") + `) > (t.reported_at, ` + fmt.Sprintf(rank, "t.status") + `) END
			ORDER BY t.id FOR UPDATE OF t
		), seen AS (
			UPDATE relay_transactions t SET
				reported_revision = CASE WHEN l.backward THEN l.revision ELSE GREATEST(l.revision, t.reported_revision) END,
				reported_at = GREATEST(l.at, t.reported_at), check_at = now(), checks = 0
			FROM locked l WHERE t.id = l.id AND NOT l.visible
		), requeued AS (
			UPDATE relay_transactions t SET status = 'queued', status_reason = 'withdrawn from ' || t.relayer, relayer = '', relayer_url = '',
				relayer_id = '', scope = '', relayer_tx = NULL, tx_hash = NULL, reported_revision = 0, reported_at = '-infinity', outstanding = false,
				submitted_at = NULL, withdrawing = false, withdrawn = t.withdrawn + 1,
				withdrawn_from = t.scope, withdrawn_at = now(), revision = t.revision + 1, updated_at = now(),
				check_at = now(), checks = 0
			FROM locked l WHERE t.id = l.id AND l.visible AND l.withdrawn RETURNING t.*
		), former AS (
			INSERT INTO relay_late_acceptances AS known (tx, pool, relayer_tx, relayer, relayer_url, relayer_id, scope, settled)
			SELECT l.id, ` + pool("l") + `, l.relayer_tx, l.relayer, l.relayer_url, l.relayer_id, l.scope, true
			FROM locked l WHERE l.visible AND l.withdrawn
			ON CONFLICT (tx, pool, relayer_tx) DO UPDATE SET settled = true
		), queue AS (` + enqueueRequeued + `), applied AS (
			UPDATE relay_transactions t SET status = l.status, status_reason = l.reason, tx_hash = coalesce(l.tx_hash, t.tx_hash),
				reported_revision = CASE WHEN l.backward THEN l.revision ELSE GREATEST(l.revision, t.reported_revision) END,
				reported_at = GREATEST(l.at, t.reported_at),
				open = l.status IN ('submitted', 'mined', 'unknown'), outstanding = l.status IN ('submitted', 'mined'),
				revision = t.revision + 1, updated_at = now(), check_at = now(), checks = 0
			FROM locked l WHERE t.id = l.id AND l.visible AND NOT l.withdrawn RETURNING t.*
		), changed AS (SELECT * FROM applied UNION ALL SELECT * FROM requeued)` + record
}

// Apply stores reports of relayers, and returns a result for each. A report of an unknown transaction is kept until its row
// has the relayer's id.
func (s *Store) Apply(ctx context.Context, reports []dispatch.Update) ([]Applied, error) {
	n := len(reports)
	ids, attempts, known := make([]*uuid.UUID, n), make([]*int32, n), make([]*int32, n)
	txs, statuses, reasons := make([]string, n), make([]string, n), make([]string, n)
	hashes, digests, revisions, times, numbers := make([][]byte, n), make([][]byte, n), make([]int32, n), make([]*time.Time, n), make([]int32, n)
	for i := range reports {
		r := &reports[i]
		numbers[i], txs[i], statuses[i], reasons[i] = int32(i), r.RelayerTx, string(r.Status), bounded(r.Reason)
		revisions[i] = int32(r.Revision)
		if r.Call != nil {
			digest := r.Call.Digest()
			digests[i] = digest[:]
		}
		if r.ID != uuid.Nil {
			ids[i] = &r.ID
		}
		if r.Attempt > 0 {
			attempts[i] = new(int32(r.Attempt))
		}
		if r.Known > 0 {
			known[i] = new(int32(r.Known))
		}
		if !r.At.IsZero() {
			times[i] = &r.At
		}
		if r.Hash != nil {
			hashes[i] = r.Hash[:]
		}
	}
	rows, err := s.db.Query(ctx, `WITH asked AS MATERIALIZED (
			SELECT * FROM unnest($1::int[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::int[], $8::timestamptz[], $9::bytea[],
				$10::int[], $11::int[]) AS a (n, tx, relayer_tx, status, reason, tx_hash, revision, at, digest, attempt, known)
		), `+s.apply+`, kept AS (
			INSERT INTO relay_reports (relayer_tx, status, reason, tx_hash, revision, at, digest)
			SELECT a.relayer_tx, a.status, a.reason, a.tx_hash, a.revision, a.at, a.digest FROM asked a
			WHERE a.tx IS NULL AND NOT EXISTS (SELECT FROM found f WHERE f.relayer_tx = a.relayer_tx)
		)
		SELECT a.n, m.id, c.id IS NOT NULL
		FROM asked a LEFT JOIN matched m USING (n) LEFT JOIN changed c ON c.id = m.id`,
		numbers, ids, txs, statuses, reasons, hashes, revisions, times, digests, attempts, known)
	if err != nil {
		return nil, fmt.Errorf("apply reports: %w", err)
	}
	applied := make([]Applied, n)
	var at int32
	var id *uuid.UUID
	var one Applied
	if _, err := pgx.ForEachRow(rows, []any{&at, &id, &one.Changed}, func() error {
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
		DELETE FROM relay_reports r WHERE %s
		RETURNING id AS n, NULL::uuid AS tx, relayer_tx, status, reason, tx_hash, revision, at, digest, NULL::int AS attempt, NULL::int AS known
	), `

// queueStoredReports applies the kept reports of transactions whose relayer's ids the batch has stored. Those of a late acceptance stay.
func queueStoredReports(batch *pgx.Batch, s *Store, relayerTxs []string) {
	known := `relayer_tx = ANY(ARRAY(SELECT t.relayer_tx FROM relay_transactions t WHERE t.relayer_tx = ANY($1)))`
	batch.Queue(fmt.Sprintf(storedSQL, known)+s.apply+`SELECT`, relayerTxs)
}

// maxMatched is how many kept reports one MatchReports applies.
const maxMatched = 1000

// MatchReports applies kept reports whose transactions are known by now, up to 1,000. A report may be kept while another process
// stores the relayer's id: neither sees the other. Therefore only reports of the last ten minutes are looked at: relayers also report
// transactions of other callers, which are kept and never match. MatchReports also removes reports that nothing has claimed for a
// day, and returns their number.
func (s *Store) MatchReports(ctx context.Context) (removed int, err error) {
	// The planner makes a join of EXISTS, and may read the index of all transactions for it.
	if _, err := s.db.Exec(ctx, fmt.Sprintf(storedSQL, `r.id = ANY(ARRAY(SELECT id FROM relay_reports k
			WHERE received_at > now() - interval '10 minutes'
				AND (SELECT true FROM relay_transactions t WHERE t.relayer_tx = k.relayer_tx LIMIT 1)
			ORDER BY received_at, id LIMIT $1))`)+s.apply+`SELECT`,
		maxMatched); err != nil {
		removed, purged := s.purgeReports(ctx)
		return removed, errors.Join(fmt.Errorf("match reports: %w", err), purged)
	}
	return s.purgeReports(ctx)
}

// purgeReports removes reports that nothing has claimed for a day. They are purged even if matching fails, because it may fail
// for their number.
func (s *Store) purgeReports(ctx context.Context) (removed int, err error) {
	tag, err := s.db.Exec(ctx, `DELETE FROM relay_reports WHERE received_at < now() - interval '1 day'`)
	if err != nil {
		return 0, fmt.Errorf("purge reports: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
