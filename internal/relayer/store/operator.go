package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Operators' commands use the methods of this file while relayers run.

// UnknownPoolError reports a pool that no relayer has registered keys for.
type UnknownPoolError struct {
	ChainID uint64
	Pool    string
	// Known are the registered pools, as name@chain.
	Known []string
}

func (e *UnknownPoolError) Error() string {
	known := "the database has none"
	if len(e.Known) > 0 {
		known = "the database has " + strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("no relayer has registered keys for pool %q on chain %d: %s", e.Pool, e.ChainID, known)
}

// Attach returns a Store for an operator's command. Its webhook targets are those of the pool's relayers, so its changes
// are delivered like theirs. It fails with an [UnknownPoolError].
func Attach(ctx context.Context, db *pgxpool.Pool, chainID uint64, pool string) (*Store, error) {
	cfg := Config{ChainID: chainID, Pool: pool}
	err := db.QueryRow(ctx, `SELECT targets FROM relayer_pools WHERE chain_id = $1 AND pool_id = $2`, chainID, pool).Scan(&cfg.Targets)
	switch {
	case err == nil:
		return New(db, cfg), nil
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("read the pool: %w", err)
	}
	known, err := collect(ctx, db, "list pools", pgx.RowTo[string], `SELECT pool_id || '@' || chain_id FROM relayer_pools ORDER BY 1 LIMIT 20`)
	if err != nil {
		return nil, err
	}
	return nil, &UnknownPoolError{ChainID: chainID, Pool: pool, Known: known}
}

// HasTransaction reports whether any pool of a database has a transaction.
func HasTransaction(ctx context.Context, db *pgxpool.Pool, id uuid.UUID) (has bool, err error) {
	if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_txs WHERE id = $1)`, id).Scan(&has); err != nil {
		return false, fmt.Errorf("look for a transaction: %w", err)
	}
	return has, nil
}

// TransactionByHash returns the transaction with an attempt of that hash, or with that recorded hash. It returns the
// latest, because a chain that lost its history may have had several.
func (s *Store) TransactionByHash(ctx context.Context, hash common.Hash) (*relayer.Transaction, error) {
	tx, err := s.one(ctx, ` WHERE chain_id = $1 AND pool_id = $2
		AND id = (SELECT tx_id FROM relayer_attempts WHERE chain_id = $1 AND tx_hash = $3 ORDER BY created_at DESC LIMIT 1)`, s.ChainID, s.Pool, hash.Hex())
	if !errors.Is(err, relayer.ErrNotFound) {
		return tx, err
	}
	// A foreign transaction has no attempts. There is no index for this query, because it is rare.
	return s.one(ctx, ` WHERE chain_id = $1 AND pool_id = $2 AND kind = 'foreign' AND tx_hash = $3 ORDER BY id DESC LIMIT 1`, s.ChainID, s.Pool, hash.Hex())
}

// ErrUnsigned means that the transaction has no attempt yet, so there is nothing to outbid.
var ErrUnsigned = errors.New("nothing was signed for it yet")

// RequestBump requests a higher fee than that of the transaction's latest attempt. The relayer that tracks the chain signs
// it in its next round, or, if the fee is above the cap, once it no longer is. RequestBump fails for a transaction that is
// mined or final (a [relayer.StateError]), or has no attempt ([ErrUnsigned]). An error that wraps [relayer.ErrUnknown] is
// as that of [Store.SetIntent].
func (s *Store) RequestBump(ctx context.Context, id uuid.UUID) (*relayer.Transaction, error) {
	tag, err := s.db.Exec(ctx, `UPDATE relayer_txs t SET bump_requested_at = now() WHERE id = $1 AND chain_id = $2 AND pool_id = $3
		AND open AND status <> 'mined' AND nonce IS NOT NULL
		AND EXISTS (SELECT FROM relayer_attempts a WHERE a.tx_id = t.id AND a.nonce = t.nonce AND a.address = t.relayer_address)`, id, s.ChainID, s.Pool)
	if err != nil {
		return nil, fmt.Errorf("ask for a higher fee: %w", err)
	}
	tx, err := s.reload(ctx, id, tag.RowsAffected() > 0)
	switch {
	case err != nil:
		return nil, err
	case tag.RowsAffected() > 0:
		return tx, nil
	case tx.Status == relayer.Mined || tx.Status.Final():
		return nil, &relayer.StateError{Status: tx.Status, Doing: "bump"}
	default:
		return nil, ErrUnsigned
	}
}

// ListBumpRequests returns transactions with a requested bump and no attempt since; at most limit.
func (s *Store) ListBumpRequests(ctx context.Context, limit int) ([]*relayer.Transaction, error) {
	return s.list(ctx, "list what is to be bumped", selectTransactions+` WHERE chain_id = $1 AND pool_id = $2 AND open
		AND bump_requested_at IS NOT NULL AND nonce IS NOT NULL AND status <> 'mined' AND NOT EXISTS (SELECT FROM relayer_attempts a
			WHERE a.tx_id = relayer_txs.id AND a.nonce = relayer_txs.nonce AND a.address = relayer_txs.relayer_address AND a.created_at >= bump_requested_at)
		ORDER BY nonce LIMIT $3`, s.ChainID, s.Pool, limit)
}

// Load counts a key's transactions.
type Load struct {
	Pending int // nonces allocated and not mined
	Mined   int // in blocks that are not deep enough yet
	Waiting int // queued for this very key
}

// LoadOf counts a key's transactions.
func (s *Store) LoadOf(ctx context.Context, key common.Address) (n Load, err error) {
	err = s.db.QueryRow(ctx, `SELECT count(*) FILTER (WHERE nonce IS NOT NULL AND status <> 'mined'),
			count(*) FILTER (WHERE nonce IS NOT NULL AND status = 'mined'),
			coalesce((SELECT greatest(0, waiting) FROM relayer_queues WHERE chain_id = $1 AND pool_id = $2 AND target = $3), 0)
		FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND relayer_address = $3 AND nonce IS NOT NULL`,
		s.ChainID, s.Pool, hexAddress(key)).Scan(&n.Pending, &n.Mined, &n.Waiting)
	if err != nil {
		return n, fmt.Errorf("count the transactions of %s: %w", key, err)
	}
	return n, nil
}

// Recount sets a key's pending count from its rows, and returns the old and the new count. It fails with
// [relayer.ErrNotFound], or a [postgres.UnknownError].
func (s *Store) Recount(ctx context.Context, key common.Address) (was, is int, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		// This is a separate statement, because the next one must see the changes that this one waited for.
		err := tx.QueryRow(ctx, `SELECT pending_count FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 FOR UPDATE`,
			s.ChainID, s.Pool, hexAddress(key)).Scan(&was)
		if errors.Is(err, pgx.ErrNoRows) {
			return relayer.ErrNotFound
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `UPDATE relayer_keys k SET updated_at = now(), pending_count = (SELECT count(*) FROM relayer_txs t
				WHERE t.chain_id = k.chain_id AND t.relayer_address = k.address AND t.open AND t.nonce IS NOT NULL AND t.status <> 'mined')
			WHERE k.chain_id = $1 AND k.address = $2 RETURNING pending_count`, s.ChainID, hexAddress(key)).Scan(&is)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count the pending transactions of %s again: %w", key, err)
	}
	return was, is, nil
}

// DropPreview counts the transactions of a key, of any pool of the chain, that [Store.ResetChain] would drop.
type DropPreview struct {
	Pool    string
	Address common.Address
	Pending int
	Mined   int // not yet final
}

// PreviewDrop lists the transactions that ResetChain would drop, by pool and address.
func (s *Store) PreviewDrop(ctx context.Context) ([]DropPreview, error) {
	return collect(ctx, s.db, "list what would be dropped", func(row pgx.CollectableRow) (d DropPreview, err error) {
		var address string
		err = row.Scan(&d.Pool, &address, &d.Pending, &d.Mined)
		d.Address = common.HexToAddress(address)
		return d, err
	}, `SELECT pool_id, relayer_address, count(*) FILTER (WHERE status <> 'mined'), count(*) FILTER (WHERE status = 'mined')
		FROM relayer_txs WHERE chain_id = $1 AND open AND nonce IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2`, s.ChainID)
}
