package store

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// timeline is an SQL expression for Postgres's name of its current timeline, which changes with each promotion of a
// replica.
const timeline = `substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)`

// transactionID is an SQL expression for the id of the current database transaction, as xmin has it in the rows that it
// writes.
const transactionID = `pg_current_xact_id()::xid::text::bigint`

// otherHistory is an SQL condition: nonces of the pool p were allocated under another timeline, or before p was restored
// from a dump.
const otherHistory = `(p.timeline <> ` + timeline + ` OR NOT EXISTS (SELECT FROM relayer_origins o
	WHERE (o.chain_id, o.pool_id) = (p.chain_id, p.pool_id) AND o.origin = o.xmin::text::bigint))`

// errFailedOver is returned for requests until Reconcile.
var errFailedOver = fmt.Errorf("%w: the database failed over or was restored, and its nonces are being compared with the nodes'", relayer.ErrUnavailable)

// Identity returns the identity of the store of the pool's idempotency keys. Relayers with equal identities share their
// keys. It fails with [relayer.ErrNotFound] before the first registration.
func (s *Store) Identity(ctx context.Context) (identity uuid.UUID, err error) {
	err = s.db.QueryRow(ctx, `SELECT identity FROM relayer_pools WHERE chain_id = $1 AND pool_id = $2`, s.ChainID, s.Pool).Scan(&identity)
	switch {
	case err == pgx.ErrNoRows: //nolint:errorlint // pgx returns it bare
		return identity, relayer.ErrNotFound
	case err != nil:
		return identity, fmt.Errorf("read the identity of the pool: %w", err)
	}
	return identity, nil
}

// FailedOver reports whether Postgres's timeline changed since nonces were allocated, or whether it was restored from a
// dump since. A dump, or a replica without the last commits, may allocate nonces a second time. So no nonce is allocated
// until Reconcile.
func (s *Store) FailedOver(ctx context.Context) (over bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_pools p WHERE chain_id = $1 AND pool_id = $2 AND `+otherHistory+`)`,
		s.ChainID, s.Pool).Scan(&over)
	if err != nil {
		return false, fmt.Errorf("look whether the database failed over: %w", err)
	}
	return over, nil
}

// Reconcile ends the state that FailedOver reports. Each key of the pool continues above the nonces that nodes report, if
// those are higher. pending is the highest pending count that any node reports of each key, mined or in its pool, on the
// chain of the given generation. In another generation nothing is changed. The pool's identity changes, because
// idempotency keys may be lost too: a key that was used before may be new now.
func (s *Store) Reconcile(ctx context.Context, known int, pending map[common.Address]uint64) error {
	var addresses []string
	var next []int64
	for address, nonce := range pending {
		addresses, next = append(addresses, hexAddress(address)), append(next, int64(nonce))
	}
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT 1 FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 ORDER BY address FOR UPDATE`, s.ChainID, s.Pool)
		batch.Queue(`UPDATE relayer_keys k SET next_nonce = v.next, updated_at = now()
			FROM unnest($3::text[], $4::bigint[]) AS v (address, next)
			WHERE k.chain_id = $1 AND k.pool_id = $2 AND k.address = v.address AND k.next_nonce < v.next AND `+generationSQL("$1")+` = $5`, s.ChainID, s.Pool, addresses, next, known)
		batch.Queue(`UPDATE relayer_pools p SET timeline = `+timeline+`, identity = CASE WHEN `+otherHistory+` THEN gen_random_uuid() ELSE identity END
			WHERE chain_id = $1 AND pool_id = $2 AND `+generationSQL("$1")+` = $3`, s.ChainID, s.Pool, known)
		batch.Queue(`INSERT INTO relayer_origins (chain_id, pool_id, origin) SELECT $1, $2, `+transactionID+` WHERE `+generationSQL("$1")+` = $3
			ON CONFLICT (chain_id, pool_id) DO UPDATE SET origin = excluded.origin`, s.ChainID, s.Pool, known)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("reconcile after a failover: %w", err)
	}
	return nil
}
