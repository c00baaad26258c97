package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/platform/lease"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Chain is the recorded state of the chain.
type Chain struct {
	Genesis    common.Hash
	Anchor     Block // a block deeper than any reorganization
	Generation int   // how often the chain has lost its history
}

// ErrChainChanged means that the recorded chain differs from the one that a decision was based on.
var ErrChainChanged = errors.New("what is known of the chain has changed meanwhile")

// ErrNoChain means that no chain is recorded yet.
var ErrNoChain = errors.New("the chain is not known yet")

// Chain returns the recorded chain, or fails with [ErrNoChain].
func (s *Store) Chain(ctx context.Context) (c Chain, err error) {
	var hash, anchor string
	err = s.db.QueryRow(ctx, `SELECT genesis_hash, anchor_number, anchor_hash, generation FROM relayer_chains WHERE chain_id = $1`,
		s.ChainID).Scan(&hash, &c.Anchor.Number, &anchor, &c.Generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, ErrNoChain
	}
	if err != nil {
		return c, fmt.Errorf("read the chain: %w", err)
	}
	c.Genesis, c.Anchor.Hash = common.HexToHash(hash), common.HexToHash(anchor)
	return c, nil
}

// InitChain records the chain's genesis hash unless a chain is recorded, and returns the recorded chain.
func (s *Store) InitChain(ctx context.Context, genesis common.Hash) (Chain, error) {
	if _, err := s.db.Exec(ctx, `INSERT INTO relayer_chains (chain_id, genesis_hash, anchor_hash) VALUES ($1, $2, $2)
		ON CONFLICT DO NOTHING`, s.ChainID, genesis.Hex()); err != nil {
		return Chain{}, fmt.Errorf("remember the chain: %w", err)
	}
	return s.Chain(ctx)
}

// MoveAnchor records a later block of the given generation's chain. In another generation it does nothing.
func (s *Store) MoveAnchor(ctx context.Context, generation int, b Block) error {
	_, err := s.db.Exec(ctx, `UPDATE relayer_chains SET anchor_number = $2, anchor_hash = $3
		WHERE chain_id = $1 AND anchor_number < $2 AND generation = $4`, s.ChainID, int64(b.Number), b.Hash.Hex(), generation)
	if err != nil {
		return fmt.Errorf("move the anchor: %w", err)
	}
	return nil
}

// Addresses returns the addresses of all keys on the chain, of any pool.
func (s *Store) Addresses(ctx context.Context) ([]common.Address, error) {
	return collect(ctx, s.db, "list addresses", func(row pgx.CollectableRow) (common.Address, error) {
		var address string
		err := row.Scan(&address)
		return common.HexToAddress(address), err
	}, `SELECT address FROM relayer_keys WHERE chain_id = $1 ORDER BY address`, s.ChainID)
}

// generationSQL returns an SQL expression that reads the chain's generation (how often it has lost its history) under the lock of
// a key. Nonces belong to a generation. chain is the parameter with the chain's id.
func generationSQL(chain string) string {
	return `coalesce((SELECT c.generation FROM relayer_chains c WHERE c.chain_id = ` + chain + `), 0)`
}

// ResetChain accepts that the chain has another history. It drops the transactions pending on the old one and sets each
// key's next nonce from nonces. A key that nonces does not list begins at 0: nonces should list all Addresses. Its duration
// grows with the number of pending and queued transactions; final ones are unchanged. Each pool's own webhook targets
// receive the dropped transactions. It fails with [ErrChainChanged], and drops nothing, unless known is still the recorded
// chain.
func (s *Store) ResetChain(ctx context.Context, known Chain, genesis common.Hash, anchor Block, nonces map[common.Address]uint64) (dropped int, err error) {
	var addresses []string
	var next []int64
	for address, nonce := range nonces {
		addresses, next = append(addresses, hexAddress(address)), append(next, int64(nonce))
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT 1 FROM relayer_keys WHERE chain_id = $1 ORDER BY address FOR UPDATE`, s.ChainID)
		batch.Queue(`UPDATE relayer_chains SET genesis_hash = $2, anchor_number = $3, anchor_hash = $4, generation = generation + 1
			WHERE chain_id = $1 AND (genesis_hash, anchor_number, anchor_hash, generation) = ($5, $6, $7, $8)`,
			s.ChainID, genesis.Hex(), int64(anchor.Number), anchor.Hash.Hex(),
			known.Genesis.Hex(), int64(known.Anchor.Number), known.Anchor.Hash.Hex(), known.Generation).Exec(func(tag pgconn.CommandTag) error {
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
			s.ChainID).QueryRow(func(row pgx.Row) error { return row.Scan(&dropped) })
		// A queued transaction may have lost a nonce before, and may get the same nonce again. The attempts of the previous
		// chain must not be used for it.
		batch.Queue(`DELETE FROM relayer_attempts WHERE tx_id IN (SELECT id FROM relayer_txs WHERE chain_id = $1 AND open AND nonce IS NULL)`, s.ChainID)
		batch.Queue(`UPDATE relayer_txs SET attempts = 0 WHERE chain_id = $1 AND open AND nonce IS NULL AND attempts > 0`, s.ChainID)
		batch.Queue(`UPDATE relayer_keys k SET pending_count = 0, committed_wei = 0, balance_at = NULL, stuck_since = NULL, updated_at = now(), next_nonce =
			coalesce((SELECT v.next FROM unnest($2::text[], $3::bigint[]) AS v (address, next) WHERE v.address = k.address), 0)
			WHERE chain_id = $1`, s.ChainID, addresses, next)
		batch.Queue(forgetFinalBlocksSQL, s.ChainID)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("start over: %w", err)
	}
	s.metrics.statuses.WithLabelValues(string(relayer.Dropped)).Add(float64(dropped))
	return dropped, nil
}

// trackerLease is the lease in the row of a pool.
var trackerLease = lease.Table{
	Name: "relayer_pools", Key: []string{"chain_id", "pool_id"}, Holder: "tracker", Until: "tracker_until", Epoch: "tracker_epoch",
}

// TrackerLease returns the lease of the process that follows the chain for the pool. No process is elected before the pool is
// registered.
func (s *Store) TrackerLease() lease.Row { return trackerLease.Row(s.db, s.ChainID, s.Pool) }

// FinalBlock returns the newest block with transactions that were made final, of any process; zero if there is none.
func (s *Store) FinalBlock(ctx context.Context) (b Block, err error) {
	var hash string
	err = s.db.QueryRow(ctx, `SELECT final_number, final_hash FROM relayer_pools WHERE chain_id = $1 AND pool_id = $2`,
		s.ChainID, s.Pool).Scan(&b.Number, &hash)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Block{}, fmt.Errorf("read the final block: %w", err)
	}
	b.Hash = common.HexToHash(hash)
	return b, nil
}

// ForgetFinalBlock removes the newest final block if it is still b, because the chain no longer has it.
func (s *Store) ForgetFinalBlock(ctx context.Context, b Block) error {
	_, err := s.db.Exec(ctx, `UPDATE relayer_pools SET final_number = 0, final_hash = ''
		WHERE chain_id = $1 AND pool_id = $2 AND (final_number, final_hash) = ($3, $4)`, s.ChainID, s.Pool, int64(b.Number), b.Hash.Hex())
	if err != nil {
		return fmt.Errorf("forget the final block: %w", err)
	}
	return nil
}

// forgetFinalBlocksSQL removes the final blocks of a chain's pools, which belong to a former branch.
const forgetFinalBlocksSQL = `UPDATE relayer_pools SET final_number = 0, final_hash = '' WHERE chain_id = $1 AND final_number > 0`
