package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

var selectTransactions = `SELECT ` + relayer.SelectList[relayer.TransactionRow]("relayer_txs", nil) + ` FROM relayer_txs`

// selectToSign is selectTransactions with the actual number of attempts. The row's own number is updated with node
// responses, and misses an attempt that was being stored while the row lost its nonce. The next attempt would then reuse
// that number and never be stored.
var selectToSign = `SELECT ` + relayer.SelectList[relayer.TransactionRow]("relayer_txs", map[string]string{
	"attempts": `coalesce((SELECT max(a.attempt) FROM relayer_attempts a WHERE a.tx_id = relayer_txs.id), 0)`,
}) + ` FROM relayer_txs`

// selectToShow returns selectTransactions of other rows, with the fees of the attempt whose hash the row has. LIMIT makes
// the planner look each attempt up by its hash.
func selectToShow(rows string) string {
	return `SELECT ` + relayer.SelectList[relayer.TransactionRow]("relayer_txs", nil) + `, offered_fee, offered_tip FROM ` + rows + `
		LEFT JOIN LATERAL (SELECT a.max_fee::text AS offered_fee, a.max_priority::text AS offered_tip FROM relayer_attempts a
			WHERE a.tx_hash = relayer_txs.tx_hash AND a.tx_id = relayer_txs.id LIMIT 1) AS offer ON true`
}

// Transaction returns one transaction, or [relayer.ErrNotFound] if the pool has none with that id.
func (s *Store) Transaction(ctx context.Context, id uuid.UUID) (*relayer.Transaction, error) {
	return s.one(ctx, ` WHERE id = $1 AND chain_id = $2 AND pool_id = $3`, id, s.ChainID, s.Pool)
}

// TransactionByNonce returns the transaction with a key's nonce, in the chain's current generation.
func (s *Store) TransactionByNonce(ctx context.Context, key common.Address, nonce uint64) (*relayer.Transaction, error) {
	return s.one(ctx, ` WHERE relayer_address = $1 AND nonce = $2 AND chain_id = $3 AND pool_id = $4 AND generation = `+generationSQL("$3"),
		hexAddress(key), int64(nonce), s.ChainID, s.Pool)
}

func (s *Store) one(ctx context.Context, where string, args ...any) (*relayer.Transaction, error) {
	txs, err := s.show(ctx, new(pgx.Batch), selectToShow(`relayer_txs`)+where, args...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read a transaction: %w", err)
	case len(txs) == 0:
		return nil, relayer.ErrNotFound
	default:
		return txs[0], nil
	}
}

// flushDelay is how long a relaxed commit may take to get to the disk: Postgres's longest wal_writer_delay, three times.
const flushDelay = 30 * time.Second

// show runs a query for transactions after the batch. A server crash may lose commits that have not waited for the disk:
// those that allocate nonces, and those that make transactions mined or final. So if the query returns such a row, show
// waits until it is on disk. Callers never read such a row that a crash then removes. Both use one connection, because a
// server crash in between breaks it.
func (s *Store) show(ctx context.Context, batch *pgx.Batch, query string, args ...any) (txs []*relayer.Transaction, err error) {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	batch.Queue(query, args...).Query(func(rows pgx.Rows) (err error) {
		txs, err = pgx.CollectRows(rows, scanTransaction)
		return err
	})
	var behind bool // some of the rows read may not be on disk
	var now time.Time
	batch.Queue(`SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn(), now()`).QueryRow(func(row pgx.Row) error {
		return row.Scan(&behind, &now)
	})
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	unflushed := func(t *relayer.Transaction) bool {
		return (t.Status == relayer.Allocated || t.Status == relayer.Mined || t.Status.Final()) && now.Sub(t.UpdatedAt) < flushDelay
	}
	if !behind || !slices.ContainsFunc(txs, unflushed) {
		return txs, nil
	}
	if _, err := conn.Exec(ctx, waitForDisk); err != nil {
		return nil, fmt.Errorf("wait for the disk: %w", err)
	}
	return txs, nil
}

// Filter selects transactions; zero fields match all.
type Filter struct {
	Key      common.Address // the transaction's key, or the key that it is queued for
	Statuses []relayer.Status
	// Signed selects transactions that were (true) or were not (false) signed; nil: both.
	Signed *bool
	// Metadata compares each field that is not empty.
	Metadata relayer.Metadata
	// All includes transactions that are not a caller's: no-ops, top-ups, foreign ones.
	All bool
}

// CountLimit is how far beyond a page rows are counted, because counting a whole history takes seconds.
const CountLimit = 10_000

// Transactions lists a page, the newest first, and counts all matches, but no further than [CountLimit] beyond the page. A
// total of that size is a lower bound.
func (s *Store) Transactions(ctx context.Context, f Filter, offset, limit int) (txs []*relayer.Transaction, total int, err error) {
	where, args := f.where(s)
	batch := new(pgx.Batch)
	batch.Queue(`SELECT count(*) FROM (SELECT FROM relayer_txs`+where+fmt.Sprintf(` LIMIT %d) matching`, offset+limit+CountLimit), args...).QueryRow(func(row pgx.Row) error { return row.Scan(&total) })
	txs, err = s.show(ctx, batch, page(where, offset, limit), args...)
	if err != nil {
		return nil, 0, fmt.Errorf("list transactions: %w", err)
	}
	return txs, total, nil
}

// page returns the query for one page of a list. It joins the other tables only for the rows of that page, not for the rows
// before it.
func page(where string, offset, limit int) string {
	return selectToShow(`(SELECT * FROM relayer_txs`+where+fmt.Sprintf(` ORDER BY id DESC OFFSET %d LIMIT %d) AS relayer_txs`, offset, limit)) + ` ORDER BY id DESC`
}

func (f *Filter) where(s *Store) (where string, args []any) {
	conditions := []string{"chain_id = $1", "pool_id = $2"}
	args = []any{s.ChainID, s.Pool}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	if f.Key != (common.Address{}) {
		add("(relayer_address = $%[1]d OR relayer_address IS NULL AND target = $%[1]d)", hexAddress(f.Key))
	}
	if len(f.Statuses) > 0 {
		add("status = ANY($%d)", f.Statuses)
		conditions = append(conditions, indexed(f.Statuses)...)
	}
	if f.Signed != nil {
		signed := "EXISTS (SELECT FROM relayer_attempts a WHERE a.tx_id = relayer_txs.id)"
		if !*f.Signed {
			signed = "NOT " + signed
		}
		conditions = append(conditions, signed)
	}
	m := f.Metadata
	for _, is := range []struct{ column, value string }{
		{"method", m.Method}, {"orderbook", m.Orderbook}, {"trader", m.Trader}, {"request_id", m.RequestID}, {"trace_id", m.TraceID},
	} {
		if is.value != "" {
			add(is.column+" <> '' AND "+is.column+" = $%d", is.value) // the first condition is that of the partial indexes
		}
	}
	if !f.All {
		conditions = append(conditions, "kind = 'transaction'")
	}
	return " WHERE " + strings.Join(conditions, " AND "), args
}

// indexed returns the conditions of the partial indexes that apply to rows with these statuses. Most of a history is
// confirmed, which needs no index.
func indexed(statuses []relayer.Status) (conditions []string) {
	var arms []string
	for _, s := range statuses {
		switch {
		case s == relayer.Confirmed:
			return nil
		case s.Final():
			arms = append(arms, "unsuccessful")
		default:
			arms = append(arms, "open AND nonce IS NOT NULL", "open AND nonce IS NULL")
		}
	}
	slices.Sort(arms)
	return []string{"(" + strings.Join(slices.Compact(arms), " OR ") + ")"}
}

// LastConfirmed returns when a key's transaction, or with the zero address any, was last confirmed; zero for never.
func (s *Store) LastConfirmed(ctx context.Context, key common.Address) (time.Time, error) {
	address := hexAddress(key)
	if key == (common.Address{}) {
		address = ""
	}
	var last *time.Time
	err := s.db.QueryRow(ctx, `SELECT max(last_confirmed_at) FROM relayer_keys
		WHERE chain_id = $1 AND pool_id = $2 AND (address = $3 OR $3 = '')`, s.ChainID, s.Pool, address).Scan(&last)
	if err != nil || last == nil {
		return time.Time{}, err
	}
	return *last, nil
}
