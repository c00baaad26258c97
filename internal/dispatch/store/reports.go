package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
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

// Apply stores reports of relayers, and returns a result for each. A report of an unknown transaction is kept until its row
// has the relayer's id.
func (s *Store) Apply(ctx context.Context, reports []dispatch.Update) (applied []Applied, err error) {
	reports = slices.Clone(reports)
	for i := range reports {
		reports[i].Reason, reports[i].At = bounded(reports[i].Reason), reports[i].At.Truncate(time.Microsecond) // as Postgres stores it
	}
	if err = s.inTx(ctx, func(db *dbTx) error {
		applied, err = s.applyReports(ctx, db, reports, true)
		return err
	}); err != nil {
		return nil, fmt.Errorf("apply reports: %w", err)
	}
	return applied, nil
}

// applyReports applies reports, of which the newest of each transaction counts, and keeps those of unknown transactions if keep is set.
//
// A report that does not name the transaction, of an id that two relayers have given, also to a former submission of any row, changes no
// row: the reconciler asks both. Rows are read by arrays of ids, and by a condition that no index can use: with a join, or an index of the
// open ones, the planner may read all open transactions for each batch. All open rows with an id of a report are locked, in the order of their
// ids; [Store.Accepted] has locked others before, so the two may deadlock over ids that two relayers have given. Both callers repeat.
func (s *Store) applyReports(ctx context.Context, db *dbTx, reports []dispatch.Update, keep bool) ([]Applied, error) {
	relayerTxs := make([]string, len(reports))
	for i := range reports {
		relayerTxs[i] = reports[i].RelayerTx
	}
	type owner struct {
		id    uuid.UUID
		alone bool // no other submission has the relayer's id
	}
	owners, locked := map[string][]owner{}, map[uuid.UUID]*dispatch.Transaction{}
	batch := new(pgx.Batch)
	batch.Queue(`SELECT relayer_tx, id, count(*) OVER (PARTITION BY relayer_tx)
			+ (SELECT count(*) FROM relay_late_acceptances l WHERE l.relayer_tx = t.relayer_tx) = 1
		FROM relay_transactions t WHERE relayer_tx = ANY($1)`, relayerTxs).Query(func(rows pgx.Rows) error {
		var relayerTx string
		var o owner
		_, err := pgx.ForEachRow(rows, []any{&relayerTx, &o.id, &o.alone}, func() error {
			owners[relayerTx] = append(owners[relayerTx], o)
			return nil
		})
		return err
	})
	queueLock(batch, `SELECT id FROM relay_transactions WHERE relayer_tx = ANY($1)`, `CASE WHEN open THEN true END`, locked, relayerTxs)
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	var requeued []uuid.UUID
	batch = new(pgx.Batch)
	applied, newest := make([]Applied, len(reports)), map[uuid.UUID]dispatch.Update{}
	for i, r := range reports {
		all := owners[r.RelayerTx]
		if keep && len(all) == 0 && r.ID == uuid.Nil {
			batch.Queue(`INSERT INTO relay_reports (relayer_tx, status, reason, tx_hash, revision, at, digest) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
				r.RelayerTx, r.Status, r.Reason, hashBytes(r.Hash), r.Revision, timeOrNil(r.At), r.Digest())
		}
		for _, o := range all {
			if o.id != r.ID && (r.ID != uuid.Nil || !o.alone) {
				continue
			}
			applied[i].ID = o.id
			if former, ok := newest[o.id]; !ok || dispatch.CompareUpdates(r, former) > 0 {
				newest[o.id] = r
			}
		}
	}
	if err := readHashes(ctx, db, locked, newest); err != nil {
		return nil, err
	}
	var changes []change
	visible := map[uuid.UUID]bool{}
	for id, r := range newest {
		tx := locked[id]
		if tx == nil {
			continue // final
		}
		next, ok := tx.Apply(r)
		if !ok {
			continue
		}
		c := change{tx, next}
		changes, visible[id] = append(changes, c), c.visible()
		if next.Withdrawn != tx.Withdrawn {
			queueAcceptance(batch, id, &tx.Route, true, false)
			requeued = append(requeued, id)
		}
	}
	db.queueChanges(batch, changes)
	if len(requeued) > 0 {
		batch.Queue(s.enqueue, requeued)
	}
	for i := range applied {
		applied[i].Changed = visible[applied[i].ID]
	}
	if batch.Len() == 0 {
		return applied, nil
	}
	return applied, db.SendBatch(ctx, batch).Close()
}

// readHashes reads the former hashes of transactions whose reports contain another call.
func readHashes(ctx context.Context, db pgx.Tx, locked map[uuid.UUID]*dispatch.Transaction, newest map[uuid.UUID]dispatch.Update) error {
	var ids []uuid.UUID
	for id, r := range newest {
		if tx := locked[id]; tx != nil && tx.Differs(&r) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, `SELECT tx, tx_hash FROM relay_history WHERE tx = ANY($1) AND tx_hash IS NOT NULL`, ids)
	if err != nil {
		return err
	}
	var id uuid.UUID
	var hash common.Hash
	_, err = pgx.ForEachRow(rows, []any{&id, &hash}, func() error {
		locked[id].Hashes = append(locked[id].Hashes, hash)
		return nil
	})
	return err
}

// queueTaken takes the kept reports of a condition.
func queueTaken(batch *pgx.Batch, condition string, arg any, into *[]dispatch.Update) {
	batch.Queue(`DELETE FROM relay_reports r WHERE `+condition+` RETURNING relayer_tx, status, reason, tx_hash, revision, at, digest`, arg).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (u dispatch.Update, err error) {
			var at *time.Time
			err = row.Scan(&u.RelayerTx, &u.Status, &u.Reason, &u.Hash, &u.Revision, &at, &u.CallDigest)
			u.At = timeOf(at)
			return u, err
		})
		return err
	})
}

// keptOf is the condition for kept reports of relayer's ids that rows have. Those of a late acceptance stay.
const keptOf = `relayer_tx = ANY(ARRAY(SELECT t.relayer_tx FROM relay_transactions t WHERE t.relayer_tx = ANY($1)))`

// maxMatched is how many kept reports one MatchReports applies.
const maxMatched = 1000

// MatchReports applies kept reports whose transactions are known by now, up to 1,000. A report may be kept while another process
// stores the relayer's id: neither sees the other. Therefore only reports of the last ten minutes are looked at: relayers also report
// transactions of other callers, which are kept and never match. MatchReports also removes reports that nothing has claimed for a
// day, and returns their number.
func (s *Store) MatchReports(ctx context.Context) (removed int, err error) {
	if err := s.inTx(ctx, func(db *dbTx) error {
		var reports []dispatch.Update
		batch := new(pgx.Batch)
		// The planner makes a join of EXISTS, and may read the index of all transactions for it.
		queueTaken(batch, `r.id = ANY(ARRAY(SELECT id FROM relay_reports k
			WHERE received_at > now() - interval '10 minutes'
				AND (SELECT true FROM relay_transactions t WHERE t.relayer_tx = k.relayer_tx LIMIT 1)
			ORDER BY received_at, id LIMIT $1))`, maxMatched, &reports)
		if err := db.SendBatch(ctx, batch).Close(); err != nil || len(reports) == 0 {
			return err
		}
		_, err := s.applyReports(ctx, db, reports, false)
		return err
	}); err != nil {
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
