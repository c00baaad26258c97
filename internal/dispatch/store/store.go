package store

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// Config configures a Store. Fields without a default are required.
type Config struct {
	// Enqueue returns SQL that adds an entry to the queue for each row of a relation, which has the columns id and client. It is the
	// body of a common table expression.
	Enqueue func(relation string) string
	// Targets are the names of the clients with a webhook, for the transactions that this Store accepts. Default: none.
	Targets []string
	// Silent is the time without a report after which TakeDue returns a transaction that a relayer has. Default 60 s.
	Silent time.Duration
	// Stranded is the time after which TakeDue returns a transaction that no relayer has. Default 5 min.
	Stranded time.Duration
	// WebhooksStored is called after a commit that has stored webhooks for clients, so that their deliverers can be woken. It must not
	// block. Default: nothing.
	WebhooksStored func()
	// Logger receives acceptances that are refused. Default: discard.
	Logger *slog.Logger
}

// Store gives access to the transactions. It is safe for concurrent use.
type Store struct {
	db      *pgxpool.Pool
	cfg     Config
	enqueue string // SQL that queues those of an array of ids that no relayer has accepted

	chain atomic.Uint64 // of the transactions; 0 until it was read
}

// New returns a Store. It does not close db.
func New(db *pgxpool.Pool, cfg Config) *Store {
	if cfg.Silent <= 0 {
		cfg.Silent = time.Minute
	}
	if cfg.Stranded <= 0 {
		cfg.Stranded = 5 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.WebhooksStored == nil {
		cfg.WebhooksStored = func() {}
	}
	if cfg.Targets == nil {
		cfg.Targets = []string{}
	}
	return &Store{db: db, cfg: cfg, enqueue: `WITH changed AS (
			SELECT id, client FROM relay_transactions WHERE id = ANY($1) AND status IN ('queued', 'submitting')
		), queue AS (` + cfg.Enqueue("changed") + `) SELECT`}
}

// record is the end of each statement that changes transactions. "changed" has the changed rows. Clients get no webhook for
// queued and submitting: these are the relay path's own steps.
const record = `, history AS (
		INSERT INTO relay_history (tx, revision, status, reason, relayer, tx_hash)
		SELECT id, revision, status, status_reason, relayer, tx_hash FROM changed
	), deliveries AS (
		INSERT INTO relay_webhooks (lane, subject, about, revision, transaction_id, status, status_reason, tx_hash, accepted_at, changed_at)
		SELECT client, id || '/' || client, id, revision, coalesce(client_id, id::text), status, status_reason, tx_hash, created_at, updated_at
		FROM changed WHERE webhook AND status NOT IN ('queued', 'submitting') RETURNING 1
	)`

// webhooksStored is the expression for whether [record] has stored webhooks.
const webhooksStored = `EXISTS (SELECT FROM deliveries)`

// dbTx is a database transaction of the Store.
type dbTx struct {
	pgx.Tx
	webhooksStored bool
}

// inTx executes do in a database transaction, and wakes the deliverers of the webhooks that it has stored.
func (s *Store) inTx(ctx context.Context, do func(*dbTx) error) error {
	var db dbTx
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		db.Tx = tx
		return do(&db)
	})
	if err == nil && db.webhooksStored {
		s.cfg.WebhooksStored()
	}
	return err
}

// columns are those of a row.
const columns = `id, client, coalesce(client_id, '') AS client_id, coalesce(idempotency_key, '') AS idempotency_key, request_hash, kind,
	to_address, value_wei::text AS value_wei, data, gas_limit, speed, signer, forward_nonce::text AS forward_nonce, forward_deadline,
	traceparent, status, status_reason, revision, relayer, relayer_url, relayer_id, scope, coalesce(relayer_tx, '') AS relayer_tx, tx_hash,
	attempts, checks, reported_revision, coalesce(attempts = failed_attempt, false) AS request_failed,
	withdrawn, withdrawn_from, created_at, submitted_at, updated_at,
	now() - created_at AS age, now() - updated_at AS unchanged, now() - GREATEST(updated_at, requested_at) AS quiet`

// row is a row of relay_transactions as [columns] selects it.
type row struct {
	ID             uuid.UUID       `db:"id"`
	Client         string          `db:"client"`
	ClientID       string          `db:"client_id"`
	IdempotencyKey string          `db:"idempotency_key"`
	RequestHash    []byte          `db:"request_hash"`
	Kind           dispatch.Kind   `db:"kind"`
	To             common.Address  `db:"to_address"`
	Value          string          `db:"value_wei"`
	Data           []byte          `db:"data"`
	GasLimit       uint64          `db:"gas_limit"`
	Speed          dispatch.Speed  `db:"speed"`
	Signer         *common.Address `db:"signer"`
	ForwardNonce   *string         `db:"forward_nonce"`
	Deadline       *int64          `db:"forward_deadline"`
	Traceparent    string          `db:"traceparent"`
	Status         dispatch.Status `db:"status"`
	Reason         string          `db:"status_reason"`
	Revision       int             `db:"revision"`
	Relayer        string          `db:"relayer"`
	URL            string          `db:"relayer_url"`
	RelayerID      string          `db:"relayer_id"`
	Scope          string          `db:"scope"`
	RelayerTx      string          `db:"relayer_tx"`
	Hash           *common.Hash    `db:"tx_hash"`
	Attempts       int             `db:"attempts"`
	Checks         int             `db:"checks"`
	Reported       int             `db:"reported_revision"`
	RequestFailed  bool            `db:"request_failed"`
	Withdrawn      int             `db:"withdrawn"`
	WithdrawnFrom  string          `db:"withdrawn_from"`
	CreatedAt      time.Time       `db:"created_at"`
	SubmittedAt    *time.Time      `db:"submitted_at"`
	UpdatedAt      time.Time       `db:"updated_at"`
	Age            time.Duration   `db:"age"`
	Unchanged      time.Duration   `db:"unchanged"`
	Quiet          time.Duration   `db:"quiet"`
}

// transaction returns the row's transaction.
func (r *row) transaction() (*dispatch.Transaction, error) {
	value, ok := new(big.Int).SetString(r.Value, 10)
	if !ok {
		return nil, fmt.Errorf("transaction %s: the value %q is no number", r.ID, r.Value)
	}
	t := &dispatch.Transaction{
		ID: r.ID, Client: r.Client, ClientID: r.ClientID, IdempotencyKey: r.IdempotencyKey, Kind: r.Kind,
		Call:   dispatch.Call{To: r.To, Value: value, Data: r.Data, GasLimit: r.GasLimit, Speed: r.Speed},
		Status: r.Status, Reason: r.Reason, Revision: r.Revision,
		Route: dispatch.Route{Relayer: r.Relayer, URL: r.URL, RelayerID: r.RelayerID, Scope: r.Scope, RelayerTx: r.RelayerTx},
		Hash:  r.Hash, Traceparent: r.Traceparent, Withdrawn: r.Withdrawn, WithdrawnFrom: r.WithdrawnFrom,
		Attempt: r.Attempts, Reported: r.Reported, RequestFailed: r.RequestFailed, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		SubmittedAt: timeOf(r.SubmittedAt),
		AcceptedAt:  time.Now().Add(-r.Age), ChangedAt: time.Now().Add(-r.Unchanged), QuietSince: time.Now().Add(-r.Quiet),
	}
	if r.Signer != nil && r.ForwardNonce != nil && r.Deadline != nil {
		nonce, ok := new(big.Int).SetString(*r.ForwardNonce, 10)
		if !ok {
			return nil, fmt.Errorf("transaction %s: the forwarder nonce %q is no number", r.ID, *r.ForwardNonce)
		}
		t.Forward = &dispatch.Forward{Signer: *r.Signer, Nonce: nonce, Deadline: uint64(*r.Deadline)}
	}
	return t, nil
}

// transactions reads the rows of a query that selects [columns].
func (s *Store) transactions(ctx context.Context, query string, args ...any) ([]*dispatch.Transaction, error) {
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*dispatch.Transaction, error) {
		one, err := pgx.RowToStructByName[row](r)
		if err != nil {
			return nil, err
		}
		return one.transaction()
	})
}
