package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Chain is what is remembered of the chain.
type Chain struct {
	Genesis common.Hash
	Anchor  Block // deeper than any reorganization
	Era     int   // how often it has lost its history
}

// ErrChainChanged means that something else is known of the chain than what a decision was made by.
var ErrChainChanged = errors.New("what is known of the chain has changed meanwhile")

// ErrNoChain means that nothing is remembered of the chain yet.
var ErrNoChain = errors.New("the chain is not known yet")

// Chain returns what is remembered, or fails with [ErrNoChain].
func (l *Store) Chain(ctx context.Context) (c Chain, err error) {
	var hash, anchor string
	err = l.db.QueryRow(ctx, `SELECT genesis_hash, anchor_number, anchor_hash, era FROM relayer_chains WHERE chain_id = $1`,
		l.ChainID).Scan(&hash, &c.Anchor.Number, &anchor, &c.Era)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, ErrNoChain
	}
	if err != nil {
		return c, fmt.Errorf("read the chain: %w", err)
	}
	c.Genesis, c.Anchor.Hash = common.HexToHash(hash), common.HexToHash(anchor)
	return c, nil
}

// InitChain writes down what the chain is recognised by, unless something is written down, and returns what is.
func (l *Store) InitChain(ctx context.Context, genesis common.Hash) (Chain, error) {
	if _, err := l.db.Exec(ctx, `INSERT INTO relayer_chains (chain_id, genesis_hash, anchor_hash) VALUES ($1, $2, $2)
		ON CONFLICT DO NOTHING`, l.ChainID, genesis.Hex()); err != nil {
		return Chain{}, fmt.Errorf("remember the chain: %w", err)
	}
	return l.Chain(ctx)
}

// MoveAnchor remembers a later block of the given era's chain; in another era it does nothing.
func (l *Store) MoveAnchor(ctx context.Context, era int, b Block) error {
	_, err := l.db.Exec(ctx, `UPDATE relayer_chains SET anchor_number = $2, anchor_hash = $3
		WHERE chain_id = $1 AND anchor_number < $2 AND era = $4`, l.ChainID, int64(b.Number), b.Hash.Hex(), era)
	if err != nil {
		return fmt.Errorf("move the anchor: %w", err)
	}
	return nil
}

// Addresses are those of all keys on the chain, of any pool.
func (l *Store) Addresses(ctx context.Context) ([]common.Address, error) {
	rows, err := l.db.Query(ctx, `SELECT address FROM relayer_keys WHERE chain_id = $1 ORDER BY address`, l.ChainID)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addresses, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (common.Address, error) {
		var address string
		err := row.Scan(&address)
		return common.HexToAddress(address), err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addresses, nil
}

// generationSQL is the part of a statement that reads how often the chain has lost its history, under the lock of a key: nonces are those
// of an era. chain is the parameter that has the chain's id.
func generationSQL(chain string) string {
	return `coalesce((SELECT c.era FROM relayer_chains c WHERE c.chain_id = ` + chain + `), 0)`
}

// ResetChain accepts that the chain has another history: what was pending on the old one is dropped, and each key begins
// at the nonce that the new one has for it. A key that nonces does not name begins at 0: it should name all Addresses.
// It takes as long as there is something pending or waiting; what is final is not touched. Of what it drops, each pool's own webhook
// targets are told. It fails with [ErrChainChanged], and
// drops nothing, unless the chain that is given up is still the known one.
func (l *Store) ResetChain(ctx context.Context, known Chain, genesis common.Hash, anchor Block, nonces map[common.Address]uint64) (dropped int, err error) {
	var addresses []string
	var next []int64
	for address, nonce := range nonces {
		addresses, next = append(addresses, hexAddress(address)), append(next, int64(nonce))
	}
	err = pgx.BeginFunc(ctx, l.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT 1 FROM relayer_keys WHERE chain_id = $1 ORDER BY address FOR UPDATE`, l.ChainID)
		batch.Queue(`UPDATE relayer_chains SET genesis_hash = $2, anchor_number = $3, anchor_hash = $4, era = era + 1
			WHERE chain_id = $1 AND (genesis_hash, anchor_number, anchor_hash, era) = ($5, $6, $7, $8)`,
			l.ChainID, genesis.Hex(), int64(anchor.Number), anchor.Hash.Hex(),
			known.Genesis.Hex(), int64(known.Anchor.Number), known.Anchor.Hash.Hex(), known.Era).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				return ErrChainChanged
			}
			return nil
		})
		batch.Queue(`WITH doomed AS MATERIALIZED (
			SELECT id FROM relayer_txs WHERE chain_id = $1 AND open AND nonce IS NOT NULL ORDER BY relayer_address, nonce FOR UPDATE
		), changed AS (
			UPDATE relayer_txs t SET status = 'dropped', status_reason = 'the chain that it was sent on is gone', open = false,
				revision = revision + 1, updated_at = now()
			FROM doomed WHERE t.id = doomed.id RETURNING t.*)`+settleBudgetSQL+enqueueDeliveriesByPoolSQL+`SELECT count(*) FROM changed`,
			l.ChainID).QueryRow(func(row pgx.Row) error { return row.Scan(&dropped) })
		// What waits may have lost a nonce before, and get the same one now: bytes of the chain that is gone are not for that.
		batch.Queue(`DELETE FROM relayer_attempts WHERE tx_id IN (SELECT id FROM relayer_txs WHERE chain_id = $1 AND open AND nonce IS NULL)`, l.ChainID)
		batch.Queue(`UPDATE relayer_txs SET attempts = 0 WHERE chain_id = $1 AND open AND nonce IS NULL AND attempts > 0`, l.ChainID)
		batch.Queue(`UPDATE relayer_keys k SET pending_count = 0, committed_wei = 0, balance_at = NULL, stuck_since = NULL, updated_at = now(), next_nonce =
			coalesce((SELECT v.next FROM unnest($2::text[], $3::bigint[]) AS v (address, next) WHERE v.address = k.address), 0)
			WHERE chain_id = $1`, l.ChainID, addresses, next)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("start over: %w", err)
	}
	l.metrics.statuses.WithLabelValues(string(relayer.Dropped)).Add(float64(dropped))
	return dropped, nil
}

// AcquireTrackerLease makes holder the process that follows the chain for the pool, for term from now on by the database's clock, unless
// another is it, or the pool has not registered yet. With free above 0, holder lets others go first: it takes the lease only when
// that has been free for so long. It returns whether holder is, and a number that grows with each change of holder.
func (l *Store) AcquireTrackerLease(ctx context.Context, holder string, term, free time.Duration) (following bool, epoch int64, err error) {
	err = l.db.QueryRow(ctx, `UPDATE relayer_pools SET tracker = $3, tracker_until = now() + $4::interval,
			tracker_epoch = tracker_epoch + CASE WHEN tracker = $3 THEN 0 ELSE 1 END
		WHERE chain_id = $1 AND pool_id = $2 AND (tracker = $3 AND $5::interval = '0' OR tracker_until < now() - $5::interval) RETURNING tracker_epoch`,
		l.ChainID, l.Pool, holder, term, free).Scan(&epoch)
	switch {
	case err == pgx.ErrNoRows: //nolint:errorlint // pgx returns it bare
		return false, 0, nil
	case err != nil:
		return false, 0, fmt.Errorf("follow the chain: %w", err)
	}
	return true, epoch, nil
}

// Followed returns whether a process follows the chain for the pool now, and the number of its turn.
func (l *Store) Followed(ctx context.Context) (epoch int64, held bool, err error) {
	err = l.db.QueryRow(ctx, `SELECT tracker_epoch, tracker_until > now() FROM relayer_pools WHERE chain_id = $1 AND pool_id = $2`,
		l.ChainID, l.Pool).Scan(&epoch, &held)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("read who follows the chain: %w", err)
	}
	return epoch, held, nil
}

// ReleaseTrackerLease lets another process follow at once.
func (l *Store) ReleaseTrackerLease(ctx context.Context, holder string) error {
	_, err := l.db.Exec(ctx, `UPDATE relayer_pools SET tracker_until = now(), tracker = '' WHERE chain_id = $1 AND pool_id = $2 AND tracker = $3`,
		l.ChainID, l.Pool, holder)
	if err != nil {
		return fmt.Errorf("leave the chain to others: %w", err)
	}
	return nil
}
