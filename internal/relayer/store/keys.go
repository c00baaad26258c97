package store

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Registration is a key that a process holds.
type Registration struct {
	Address common.Address
	// NextNonce is the first nonce of a key that the store does not have yet: the chain's pending count.
	NextNonce uint64
	// Funding: it funds the other keys, and sends no caller's transactions.
	Funding bool
	// MinBalance is the balance below which the key is disabled, wei; nil for none. Registering a known key updates it too,
	// unless an operator set the key's own.
	MinBalance *big.Int
}

// ForeignKeyError reports a key that belongs to another pool of this database.
type ForeignKeyError struct {
	Address common.Address
	Pool    string
}

func (e *ForeignKeyError) Error() string {
	return fmt.Sprintf("key %s belongs to pool %q: two pools must not share a key, because each assigns nonces from its own rows",
		e.Address, e.Pool)
}

// Register stores new keys and the webhook targets of the pool. It fails with a [ForeignKeyError], and changes nothing, if
// a key belongs to another pool. After [Store.RequireComparison] no nonce of a key is allocated before the key was compared
// with the chain since.
func (s *Store) Register(ctx context.Context, keys []Registration) error {
	addresses, nonces, balances, funding := make([]string, len(keys)), make([]int64, len(keys)), make([]string, len(keys)), make([]bool, len(keys))
	for i, k := range keys {
		addresses[i], nonces[i], balances[i] = hexAddress(k.Address), int64(k.NextNonce), "0"
		funding[i] = k.Funding
		if k.MinBalance != nil {
			balances[i] = k.MinBalance.String()
		}
	}
	var now time.Time
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO relayer_keys (chain_id, pool_id, address, next_nonce, min_balance_wei, funding, last_seen_at)
			SELECT $1, $2, address, nonce, balance::numeric, funding, now()
			FROM unnest($3::text[], $4::bigint[], $5::text[], $6::boolean[]) AS k (address, nonce, balance, funding) ORDER BY address
			ON CONFLICT (chain_id, address) DO UPDATE
			SET min_balance_wei = CASE WHEN relayer_keys.min_balance_own THEN relayer_keys.min_balance_wei ELSE excluded.min_balance_wei END, funding = excluded.funding, last_seen_at = now(),
				registered_at = now()
			WHERE relayer_keys.pool_id = excluded.pool_id`,
			s.ChainID, s.Pool, addresses, nonces, balances, funding)
		if err != nil {
			return fmt.Errorf("register keys: %w", err)
		}
		err = tx.QueryRow(ctx, `INSERT INTO relayer_pools (chain_id, pool_id, targets, timeline) VALUES ($1, $2, $3, `+timeline+`)
			ON CONFLICT (chain_id, pool_id) DO UPDATE SET targets = excluded.targets RETURNING now()`, s.ChainID, s.Pool, s.targets()).Scan(&now)
		if err != nil {
			return fmt.Errorf("register the pool: %w", err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO relayer_origins (chain_id, pool_id, origin) VALUES ($1, $2, `+transactionID+`)
			ON CONFLICT DO NOTHING`, s.ChainID, s.Pool); err != nil {
			return fmt.Errorf("register the pool: %w", err)
		}
		var address, pool string
		err = tx.QueryRow(ctx, `SELECT address, pool_id FROM relayer_keys
			WHERE chain_id = $1 AND address = ANY($2) AND pool_id <> $3 LIMIT 1`, s.ChainID, addresses, s.Pool).Scan(&address, &pool)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("register keys: %w", err)
		}
		return &ForeignKeyError{Address: common.HexToAddress(address), Pool: pool}
	})
	if since := s.registered.Load(); err == nil && since != nil && since.IsZero() {
		s.registered.Store(&now) // the first registration: later keys were never compared
	}
	return err
}

// Keys returns all keys of the pool, by address, whichever process holds them.
func (s *Store) Keys(ctx context.Context) ([]*relayer.Key, error) {
	return collect(ctx, s.db, "list keys", scanKey, selectKeys+` WHERE chain_id = $1 AND pool_id = $2 ORDER BY address`, s.ChainID, s.Pool)
}

const selectKeys = `SELECT id, chain_id, address, pool_id AS pool, enabled, disabled_reason, disabled_until, disabled_checks AS checks, funding,
	paused, draining, stuck_since, next_nonce, pending_count, last_error, last_seen_at, balance_wei::text AS balance,
	min_balance_wei::text AS min_balance, coalesce((SELECT c.generation FROM relayer_chains c WHERE c.chain_id = relayer_keys.chain_id), 0) AS generation,
	compared_at, compared_at >= registered_at AS compared, now() AS read_at FROM relayer_keys`

// keyRow is a row of selectKeys.
type keyRow struct {
	relayer.Key
	Address             string
	Balance, MinBalance *string
	ComparedAt          pgtype.Timestamptz // infinite before the first comparison
}

func (r *keyRow) key() *relayer.Key {
	k := &r.Key
	k.Address, k.Balance, k.MinBalance = common.HexToAddress(r.Address), relayer.ParseDecimal(r.Balance), relayer.ParseDecimal(r.MinBalance)
	if r.ComparedAt.InfinityModifier == pgtype.Finite {
		k.ComparedAt = r.ComparedAt.Time
	}
	return k
}

// KeyChange is a change of a key; nil fields are kept.
type KeyChange struct {
	Enabled        *bool
	DisabledReason *string
	Paused         *bool
	Draining       *bool
	Stuck          *bool
	LastError      *string
	Balance        *big.Int
	MinBalance     *big.Int
	OwnMinBalance  *bool // whether MinBalance is kept when a process registers the key with another
}

// PauseKey stops new transactions of a key, or allows them again, and ends a drain. It returns the key as it was and as it is, under one
// lock. It fails with [relayer.ErrNotFound].
func (s *Store) PauseKey(ctx context.Context, address common.Address, paused bool) (was, is *relayer.Key, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		const this = ` WHERE chain_id = $1 AND pool_id = $2 AND address = $3`
		found, err := collect(ctx, tx, "read the key", scanKey, selectKeys+this+` FOR UPDATE`, s.ChainID, s.Pool, hexAddress(address))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return relayer.ErrNotFound
		}
		was, is = found[0], new(*found[0])
		is.Paused, is.Draining = paused, false
		_, err = tx.Exec(ctx, `UPDATE relayer_keys SET paused = $4, draining = false, updated_at = now()`+this, s.ChainID, s.Pool, hexAddress(address), paused)
		return err
	})
	if err != nil && !errors.Is(err, relayer.ErrNotFound) {
		err = fmt.Errorf("pause key %s: %w", address, err)
	}
	return was, is, err
}

// ChangeKey applies a change, and reports whether the key was enabled or disabled by it. It fails with
// [relayer.ErrNotFound].
func (s *Store) ChangeKey(ctx context.Context, address common.Address, c KeyChange) (switched bool, err error) {
	err = s.db.QueryRow(ctx, `
		WITH old AS (SELECT enabled FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 FOR UPDATE)
		UPDATE relayer_keys k SET
			enabled = coalesce($4, k.enabled), disabled_reason = coalesce($5, k.disabled_reason), paused = coalesce($6, k.paused),
			draining = coalesce($7, k.draining),
			stuck_since = CASE WHEN $8 THEN coalesce(k.stuck_since, now()) WHEN NOT $8 THEN NULL ELSE k.stuck_since END,
			last_error = coalesce($9, k.last_error), balance_wei = coalesce($10::text::numeric, k.balance_wei),
			min_balance_wei = coalesce($11::text::numeric, k.min_balance_wei),
			min_balance_own = coalesce($12, k.min_balance_own), updated_at = now()
		FROM old WHERE k.chain_id = $1 AND k.address = $3
		RETURNING k.enabled <> old.enabled`,
		s.ChainID, s.Pool, hexAddress(address), c.Enabled, c.DisabledReason, c.Paused, c.Draining, c.Stuck, c.LastError,
		relayer.Decimal(c.Balance), relayer.Decimal(c.MinBalance), c.OwnMinBalance).Scan(&switched)
	if err == pgx.ErrNoRows { //nolint:errorlint // pgx returns it bare
		return false, relayer.ErrNotFound
	}
	if err != nil {
		return false, fmt.Errorf("change key %s: %w", address, err)
	}
	return switched, nil
}
