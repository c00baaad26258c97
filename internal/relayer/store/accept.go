package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// AllocationLimits are the limits of one allocation of nonces.
type AllocationLimits struct {
	// Held are the keys that this process signs with. It allocates nonces of no other key.
	Held []common.Address
	// Cap is the maximum number of pending transactions per key, 1 or more.
	Cap int
	// Queue is the maximum number of queued transactions when no key has room, 0 or more.
	Queue int
}

// NewTransaction is a transaction to be accepted.
type NewTransaction struct {
	ID     uuid.UUID      // version 7
	Target string         // the target that it was posted to
	Key    common.Address // the only key that may send it; zero: any
	Caller string
	Kind   relayer.Kind
	relayer.Request
	// Reserve is the maximum gas cost at today's fees, wei. Nil: unknown; then neither budgets nor balances hold it up.
	Reserve *big.Int

	IdempotencyKey string // "" for none; scoped by pool and caller
	BodyHash       [32]byte
	// Identity is the store's identity that the caller expects (see Store.Identity); zero: any.
	Identity uuid.UUID
}

// AcceptResult is the outcome of one new transaction: one of Tx and Err is nil.
type AcceptResult struct {
	Tx *relayer.Transaction
	// Replayed: Tx is not new; an earlier request had the same idempotency key.
	Replayed bool
	// Err is one of package relayer: ErrDisabled, ErrPaused, ErrUnavailable, ErrKeyReused, ErrForgotten, ErrOtherScope,
	// ErrNotFound, a *LimitError or a *FundsError. Nothing was stored.
	Err error
}

// queueRetry is the retry delay returned to callers when the queue is full.
const queueRetry = time.Second

// Accept stores new transactions durably in one database transaction, in the given order. A new transaction gets a key and a
// nonce if a key has room and no queued transaction could use that key. Otherwise it is queued, or gets a [relayer.LimitError] if
// the queue is full. The results are in the order of the new transactions.
//
// An error reports that nothing was stored, unless it wraps [relayer.ErrUnknown]. Then the connection broke during the
// commit, and the outcome could not be read afterwards either.
func (s *Store) Accept(ctx context.Context, limits AllocationLimits, newTxs []*NewTransaction) ([]AcceptResult, error) {
	return s.AcceptNotify(ctx, limits, newTxs, nil)
}

// AcceptNotify is Accept with a callback. It calls unlocked, if not nil, when it has released the keys' locks and waits for
// the disk. It also calls it if the response to its commit was lost. It does not call it if nothing was stored. The next
// call should begin then, because two calls that wait for the locks in the server take longer than one after the other.
func (s *Store) AcceptNotify(ctx context.Context, limits AllocationLimits, newTxs []*NewTransaction, unlocked func()) ([]AcceptResult, error) {
	a := &acceptBatch{store: s, limits: limits, newTxs: newTxs, results: make([]AcceptResult, len(newTxs))}
	err := s.transaction(ctx, a.lock, a.write, unlocked)
	if errors.Is(err, relayer.ErrUnknown) {
		err = a.resolve(ctx, err)
	}
	if err == nil {
		s.metrics.statuses.WithLabelValues(string(relayer.Allocated)).Add(float64(len(a.rows)))
	}
	if err != nil {
		return nil, fmt.Errorf("accept %d transactions: %w", len(newTxs), err)
	}
	a.replay(ctx)
	return a.results, nil
}

// acceptBatch is one call of Accept.
type acceptBatch struct {
	store   *Store
	limits  AllocationLimits
	newTxs  []*NewTransaction
	results []AcceptResult

	allocation keyAllocation // with its budgets
	repeated   map[int]bool  // new transactions whose idempotency key existed before
	rows       []*relayer.Transaction
}

// lock queues the statements of the first round trip.
func (a *acceptBatch) lock(b *pgx.Batch) error {
	a.repeated = map[int]bool{}
	a.queueKeys(b)
	a.allocation.lock(b, a.store, a.limits)
	a.allocation.readQueue(b, a.store)
	if a.store.Budgets.any() {
		var accounts []account
		for _, d := range a.newTxs {
			accounts = append(accounts, account{scopeCaller, d.Caller}, account{scopeTrader, d.Metadata.Trader})
		}
		a.allocation.lockBudgets(b, a.store, a.limits, accounts...)
	}
	return nil
}

// queueKeys inserts the idempotency keys. If another transaction has inserted a key, the insert waits for that
// transaction's end.
func (a *acceptBatch) queueKeys(b *pgx.Batch) {
	var order []int
	for i, d := range a.newTxs {
		if d.IdempotencyKey != "" {
			order = append(order, i)
			a.repeated[i] = true
		}
	}
	if len(order) == 0 {
		return
	}
	// The order is sorted, so that two batches with the same keys do not wait for each other.
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := a.newTxs[i], a.newTxs[j]
		return cmp.Or(cmp.Compare(x.Caller, y.Caller), cmp.Compare(x.IdempotencyKey, y.IdempotencyKey))
	})
	var callers, keys []string
	var hashes [][]byte
	var ids [][16]byte // the driver is slow with user-defined types
	byID := map[uuid.UUID]int{}
	for _, i := range order {
		d := a.newTxs[i]
		callers, keys = append(callers, d.Caller), append(keys, d.IdempotencyKey)
		hashes, ids = append(hashes, d.BodyHash[:]), append(ids, d.ID)
		byID[d.ID] = i
	}
	b.Queue(`INSERT INTO relayer_idempotency (chain_id, pool_id, caller, key, body_hash, tx_id)
		SELECT $1, $2, caller, key, hash, id FROM unnest($3::text[], $4::text[], $5::bytea[], $6::uuid[]) AS d (caller, key, hash, id)
		ON CONFLICT DO NOTHING RETURNING tx_id`,
		a.store.ChainID, a.store.Pool, callers, keys, hashes, ids).Query(func(rows pgx.Rows) error {
		written, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		for _, id := range written {
			delete(a.repeated, byID[id])
		}
		return err
	})
}

// write queues the statements of the second round trip: it decides on each new transaction and stores the result.
func (a *acceptBatch) write(b *pgx.Batch) error {
	var callers, keys []string // of rejected new transactions
	for i, d := range a.newTxs {
		if a.repeated[i] {
			continue
		}
		locked, err := a.allocate(d)
		if err != nil {
			a.results[i].Err = err
			if d.IdempotencyKey != "" {
				callers, keys = append(callers, d.Caller), append(keys, d.IdempotencyKey)
			}
			continue
		}
		tx := a.store.transactionOf(d, a.allocation.now)
		if locked != nil {
			tx.From, tx.Nonce = locked.address, new(a.allocation.assignNonce(locked, tx.Value, tx.Reserve))
		}
		a.results[i].Tx = tx
		a.rows = append(a.rows, tx)
	}
	if len(keys) > 0 { // only those: this database transaction inserted them
		b.Queue(`DELETE FROM relayer_idempotency i USING unnest($3::text[], $4::text[]) AS r (caller, key)
			WHERE (i.chain_id, i.pool_id, i.caller, i.key) = ($1, $2, r.caller, r.key)`, a.store.ChainID, a.store.Pool, callers, keys)
	}
	a.store.insert(b, a.rows, a.allocation.budgets.today())
	a.allocation.store(b, a.store)
	return nil
}

// allocate finds a key or a queue place for a new transaction that is within its budgets, and charges its caller's and trader's
// budgets.
func (a *acceptBatch) allocate(d *NewTransaction) (*lockedKey, error) {
	if d.Identity != (uuid.UUID{}) && d.Identity != a.allocation.identity {
		return nil, relayer.ErrOtherScope
	}
	budgets, accounts := &a.allocation.budgets, []account{{scopeCaller, d.Caller}, {scopeTrader, d.Metadata.Trader}}
	for _, account := range accounts {
		if !budgets.fits(account, d.Reserve) {
			return nil, budgets.refusal(account.scope)
		}
	}
	locked, err := a.allocation.findKey(d.Target, d.Key, d.Value, d.Reserve)
	if err != nil {
		return nil, err
	}
	for _, account := range accounts {
		budgets.take(account, d.Reserve)
	}
	return locked, nil
}

// transactionOf returns a new row. now is the database's time, because rows are compared with that clock later: this
// process's may be wrong.
func (s *Store) transactionOf(d *NewTransaction, now time.Time) *relayer.Transaction {
	now = now.UTC()
	return &relayer.Transaction{
		ID: d.ID, ChainID: s.ChainID, Pool: s.Pool, Target: d.Target, Caller: d.Caller, Kind: d.Kind, Request: d.Request, Reserve: d.Reserve,
		Status: relayer.Allocated, Intent: relayer.IntentSend, Revision: 1, CreatedAt: now, UpdatedAt: now,
	}
}

var insertTransactions = `INSERT INTO relayer_txs (` + newTransaction.names() + `, chain_id, pool_id, budget_day, key_budget_day, generation)
	SELECT r.*, $1, $2, CASE WHEN r.reserve_wei IS NOT NULL THEN $3::date END,
		CASE WHEN r.reserve_wei IS NOT NULL AND r.nonce IS NOT NULL THEN $3::date END, ` + generationSQL("$1") + `
	FROM ` + newTransaction.rows(4)

// insert queues the statement that inserts rows. day is the day of the budgets that they are charged to, nil for none.
func (s *Store) insert(b *pgx.Batch, txs []*relayer.Transaction, day *time.Time) {
	if len(txs) == 0 {
		return
	}
	rows := make([]*relayer.TransactionRow, len(txs))
	for i, t := range txs {
		rows[i] = t.Row()
	}
	b.Queue(insertTransactions, append([]any{s.ChainID, s.Pool, day}, arrays(newTransaction, rows...)...)...)
}

// resolve finds the outcome of a commit whose response was lost. It takes the commit's locks again, which the server grants
// only after it has finished the first transaction. A commit of its own makes the rows found durable.
func (a *acceptBatch) resolve(ctx context.Context, lost error) error {
	ids := make([][16]byte, len(a.rows))
	for i, tx := range a.rows {
		ids[i] = tx.ID
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveLimit)
	defer cancel()
	for {
		var found int
		batch := new(pgx.Batch)
		batch.Queue(`SELECT FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
			a.store.ChainID, a.store.Pool, hexAddresses(a.limits.Held))
		batch.Queue(`SELECT count(*) FROM relayer_txs WHERE id = ANY($1)`, ids).QueryRow(func(row pgx.Row) error { return row.Scan(&found) })
		batch.Queue(waitForDisk)
		err := a.store.db.SendBatch(ctx, batch).Close()
		switch {
		case err == nil && found == len(ids):
			return nil
		case err == nil:
			return errNotCommitted
		}
		select {
		case <-ctx.Done():
			return errors.Join(lost, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var errNotCommitted = fmt.Errorf("%w: the connection to the database broke, or its server crashed, before the commit was on its disk", relayer.ErrUnavailable)

// replay fills in the results of new transactions whose idempotency key existed before. The outcome of the other new transactions
// is certain by now, whatever fails here: a caller without a response retries.
func (a *acceptBatch) replay(ctx context.Context) {
	type question struct {
		caller, key string
		hash        [32]byte
	}
	answers := map[question]AcceptResult{} // several new transactions may have the same key
	for i, d := range a.newTxs {
		if !a.repeated[i] {
			continue
		}
		q := question{d.Caller, d.IdempotencyKey, d.BodyHash}
		v, ok := answers[q]
		if !ok {
			v.Tx, v.Err = a.store.Replay(ctx, d.Caller, d.IdempotencyKey, d.BodyHash)
			switch {
			case errors.Is(v.Err, relayer.ErrKeyReused), errors.Is(v.Err, relayer.ErrForgotten):
			case v.Err != nil:
				v.Err = fmt.Errorf("%w: %w", relayer.ErrUnknown, v.Err)
			case v.Tx == nil:
				v.Err = fmt.Errorf("%w: the first request with this idempotency key was refused meanwhile", relayer.ErrUnavailable)
			default:
				v.Replayed = true
			}
			answers[q] = v
		}
		a.results[i] = v
	}
}

// Replay returns the transaction of an idempotency key. It returns nil if the key is new, [relayer.ErrKeyReused] if it came
// with another body, and [relayer.ErrForgotten] if its transaction was purged.
func (s *Store) Replay(ctx context.Context, caller, key string, bodyHash [32]byte) (*relayer.Transaction, error) {
	var hash []byte
	var id uuid.UUID
	err := s.db.QueryRow(ctx, `SELECT body_hash, tx_id FROM relayer_idempotency
		WHERE chain_id = $1 AND pool_id = $2 AND caller = $3 AND key = $4`, s.ChainID, s.Pool, caller, key).Scan(&hash, &id)
	switch {
	case err == pgx.ErrNoRows: //nolint:errorlint // pgx returns it bare
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look an idempotency key up: %w", err)
	case !slices.Equal(hash, bodyHash[:]):
		return nil, relayer.ErrKeyReused
	}
	tx, err := s.Transaction(ctx, id)
	if errors.Is(err, relayer.ErrNotFound) {
		return nil, relayer.ErrForgotten
	}
	return tx, err
}
