package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// Get returns a client's transaction by its public id. It fails with [dispatch.ErrNotFound], also for another client's.
func (s *Store) Get(ctx context.Context, client, publicID string) (*dispatch.Transaction, error) {
	id, err := uuid.Parse(publicID)
	if err != nil {
		id = uuid.Nil
	}
	// The client's own id comes first: it may look like another transaction's. The id that a transaction was given stays valid when the
	// client names it later.
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions
		WHERE client = $1 AND (client_id = $2 OR id = $3) ORDER BY client_id IS NOT DISTINCT FROM $2 DESC LIMIT 1`, client, publicID, id)
	if err != nil {
		return nil, fmt.Errorf("%w: read a transaction: %w", dispatch.ErrUnavailable, err)
	}
	if len(found) == 0 {
		return nil, dispatch.ErrNotFound
	}
	return found[0], nil
}

// ByID returns the transaction with an id, of any client, for operators. It fails with [dispatch.ErrNotFound].
func (s *Store) ByID(ctx context.Context, id uuid.UUID) (*dispatch.Transaction, error) {
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions WHERE id = $1`, id)
	if err != nil {
		return nil, fmt.Errorf("read a transaction: %w", err)
	}
	if len(found) == 0 {
		return nil, dispatch.ErrNotFound
	}
	return found[0], nil
}

// Filter selects transactions. A zero field selects all.
type Filter struct {
	Client   string
	Statuses []dispatch.Status
	Kind     dispatch.Kind
	// Before is the last id of the previous page.
	Before uuid.UUID
	// Limit is 1 to 101. Default 20.
	Limit int
}

const (
	defaultPage = 20
	maxPage     = 101 // a page, and one more to know whether there is another
)

// List returns transactions, the newest first.
func (s *Store) List(ctx context.Context, f Filter) ([]*dispatch.Transaction, error) {
	limit := defaultPage
	if f.Limit > 0 {
		limit = min(f.Limit, maxPage)
	}
	var before *uuid.UUID
	if f.Before != uuid.Nil {
		before = &f.Before
	}
	statuses, open := make([]string, len(f.Statuses)), ""
	for i, status := range f.Statuses {
		statuses[i] = string(status)
	}
	if len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, dispatch.Status.Final) {
		open = "open AND" // few rows, by an index
	}
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions
		WHERE `+open+` ($1 = '' OR client = $1) AND (cardinality($2::text[]) = 0 OR status = ANY($2)) AND ($3 = '' OR kind = $3)
			AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5`, f.Client, statuses, string(f.Kind), before, limit)
	if err != nil {
		return nil, fmt.Errorf("%w: list transactions: %w", dispatch.ErrUnavailable, err)
	}
	return found, nil
}

// Change is one change of a transaction.
type Change struct {
	Revision int
	Status   dispatch.Status
	Reason   string
	Relayer  string
	Hash     *common.Hash
	At       time.Time
}

// History returns the changes of a transaction, the first one first.
func (s *Store) History(ctx context.Context, id uuid.UUID) ([]Change, error) {
	rows, err := s.db.Query(ctx, `SELECT revision, status, reason, relayer, tx_hash, at FROM relay_history WHERE tx = $1 ORDER BY revision`, id)
	if err != nil {
		return nil, fmt.Errorf("read a history: %w", err)
	}
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Change])
	if err != nil {
		return nil, fmt.Errorf("read a history: %w", err)
	}
	return changes, nil
}

// Owners returns the transactions that have the given relayer's ids, or had them in a former submission.
func (s *Store) Owners(ctx context.Context, relayerTxs []string) (map[string]uuid.UUID, error) {
	rows, err := s.db.Query(ctx, `SELECT relayer_tx, tx FROM relay_late_acceptances WHERE relayer_tx = ANY($1)
		UNION ALL SELECT relayer_tx, id FROM relay_transactions WHERE relayer_tx = ANY($1)`, relayerTxs)
	if err != nil {
		return nil, fmt.Errorf("find owners: %w", err)
	}
	owners := map[string]uuid.UUID{}
	var relayerTx string
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&relayerTx, &id}, func() error {
		owners[relayerTx] = id
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find owners: %w", err)
	}
	return owners, nil
}

// Outstanding is the load of a relayer as the relay path sees it.
type Outstanding struct {
	Relayer string
	// Count is the number of transactions that the relayer has accepted and that are not known to be mined.
	Count int
	// Stuck is the number of those that have no hash after the given time: the relayer does not send them.
	Stuck int
}

// Outstanding returns the load of each relayer with transactions that are not final. A transaction without a hash for longer
// than stuckAfter counts as stuck.
func (s *Store) Outstanding(ctx context.Context, stuckAfter time.Duration) ([]Outstanding, error) {
	rows, err := s.db.Query(ctx, `SELECT relayer, count(*) FILTER (WHERE status = 'submitted'),
			count(*) FILTER (WHERE status = 'submitted' AND tx_hash IS NULL AND submitted_at < now() - $1::interval)
		FROM relay_transactions WHERE outstanding GROUP BY relayer`, stuckAfter)
	if err != nil {
		return nil, fmt.Errorf("count outstanding transactions: %w", err)
	}
	loads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Outstanding])
	if err != nil {
		return nil, fmt.Errorf("count outstanding transactions: %w", err)
	}
	return loads, nil
}

// Depth is the work that is not finished.
type Depth struct {
	// Counts and Oldest are the number of transactions of each status that is not final, and the age of the oldest one.
	Counts map[dispatch.Status]int
	Oldest map[dispatch.Status]time.Duration
	// Blocked is the number of those among the queued ones that have the [BlockedReason].
	Blocked int
}

// Depth returns the work that is not finished.
func (s *Store) Depth(ctx context.Context) (Depth, error) {
	d := Depth{Counts: map[dispatch.Status]int{}, Oldest: map[dispatch.Status]time.Duration{}}
	rows, err := s.db.Query(ctx, `SELECT status, count(*), extract(epoch FROM now() - min(created_at))::float8,
			count(*) FILTER (WHERE status = 'queued' AND status_reason = $1)
		FROM relay_transactions WHERE open GROUP BY status`, BlockedReason)
	if err != nil {
		return Depth{}, fmt.Errorf("count transactions: %w", err)
	}
	var status dispatch.Status
	var n, blocked int
	var seconds float64
	if _, err := pgx.ForEachRow(rows, []any{&status, &n, &seconds, &blocked}, func() error {
		d.Counts[status], d.Oldest[status] = n, time.Duration(seconds*float64(time.Second))
		d.Blocked += blocked
		return nil
	}); err != nil {
		return Depth{}, fmt.Errorf("count transactions: %w", err)
	}
	return d, nil
}
