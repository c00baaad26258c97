package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Config selects the rows that a Store reads and writes.
type Config struct {
	ChainID uint64
	Pool    string
	// Targets are the names of the webhook targets that receive each change. None by default.
	Targets []string
	// OnDeliveryQueued, if not nil, is called after a change that was queued for webhook targets. It must not block.
	OnDeliveryQueued func()
	// Budgets are the daily budgets. All processes of a pool must have the same. None by default.
	Budgets Budgets
	// Metrics are unregistered by default.
	Metrics *Metrics
}

// Store is the store of one pool of keys on one chain. It is safe for concurrent use, by any number of processes.
type Store struct {
	db      *pgxpool.Pool
	metrics *Metrics
	Config

	registered atomic.Pointer[time.Time] // see RequireComparison
}

// New returns a Store on a migrated database. It does not close db.
func New(db *pgxpool.Pool, cfg Config) *Store {
	s := &Store{db: db, Config: cfg, metrics: cfg.Metrics}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	return s
}

// resolveLimit is how long Accept looks for the outcome of a commit whose response was lost.
const resolveLimit = 30 * time.Second

// waitForDisk commits and waits until that commit, and with it all earlier commits, is on disk. It writes a record to the
// server's log, because a commit that has written nothing does not wait.
const waitForDisk = `SELECT pg_logical_emit_message(true, 'rollcall', '')`

// transaction runs a database transaction in two round trips. The results of first decide the statements that second
// queues; the commit follows these at once. The error wraps [relayer.ErrUnknown] if the commit may have happened; otherwise
// nothing was committed.
//
// The commit releases the locks before it is on disk, so that other transactions wait less. Then transaction calls
// unlocked, if not nil, and waits for the disk with a second commit on the same connection. A server crash in between
// breaks that connection.
func (s *Store) transaction(ctx context.Context, first, second func(*pgx.Batch) error, unlocked func()) error {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	batch := new(pgx.Batch)
	batch.Queue("begin")
	batch.Queue("SET LOCAL synchronous_commit TO off")
	if err := first(batch); err != nil {
		return err
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return errors.Join(err, rollback(ctx, conn))
	}
	batch = new(pgx.Batch)
	if err := second(batch); err != nil {
		return errors.Join(err, rollback(ctx, conn))
	}
	batch.Queue("commit")
	err = conn.SendBatch(ctx, batch).Close()
	if err != nil && !postgres.Uncertain(err) {
		return errors.Join(err, rollback(ctx, conn))
	}
	if unlocked != nil { // also if the response was lost: resolving it may take long, and other calls need not wait for that
		unlocked()
	}
	if err == nil {
		_, err = conn.Exec(ctx, waitForDisk)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", relayer.ErrUnknown, err)
	}
	return nil
}

func rollback(ctx context.Context, conn *pgxpool.Conn) error {
	if conn.Conn().IsClosed() {
		return nil // the server rolls back
	}
	_, err := conn.Exec(ctx, "rollback")
	return err
}

// Now returns the time by the database's clock, which sets the creation time of rows.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	if err := s.db.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// enqueueDeliveriesSQL is a CTE suffix. It inserts a webhook delivery per target for each row that the CTE "changed"
// returns. Its parameter, the targets' names, is the first of the statement. It stores only columns that change; the
// deliverer reads the others from the transaction's row (see keepContents).
var enqueueDeliveriesSQL = deliveriesCTE(`unnest($1::text[])`)

// enqueueDeliveriesByPoolSQL is [enqueueDeliveriesSQL] for rows of any pool, without the parameter: each row gets the
// targets of its own pool.
var enqueueDeliveriesByPoolSQL = deliveriesCTE(`unnest((SELECT p.targets FROM relayer_pools p WHERE (p.chain_id, p.pool_id) = (c.chain_id, c.pool_id)))`)

func deliveriesCTE(targets string) string {
	return `, deliveries AS (
	INSERT INTO relayer_webhooks (lane, subject, about, revision, status, status_reason, intent, tx_attempts,
		relayer_address, nonce, tx_hash, sent_at, confirmed_at)
	SELECT c.chain_id || '/' || c.pool_id || '/' || webhook_target, c.id || '/' || webhook_target, c.id, c.revision,
		c.status, nullif(c.status_reason, ''), nullif(c.intent, 'send'), c.attempts,
		decode(substr(c.relayer_address, 3), 'hex'), c.nonce, decode(substr(c.tx_hash, 3), 'hex'), c.sent_at, c.confirmed_at
	FROM changed c CROSS JOIN ` + targets + ` AS webhook_target WHERE c.kind = 'transaction')
`
}

// notifyDeliveries reports that deliveries were queued.
func (s *Store) notifyDeliveries() {
	if s.OnDeliveryQueued != nil && len(s.Targets) > 0 {
		s.OnDeliveryQueued()
	}
}

func (s *Store) targets() []string {
	if s.Targets == nil {
		return []string{}
	}
	return s.Targets
}

// hexAddress formats an address as it is stored.
func hexAddress(a common.Address) string { return hexutil.Encode(a[:]) } // without the checksum, which costs ten times as much

func hexAddresses(addresses []common.Address) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = hexAddress(a)
	}
	return out
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
