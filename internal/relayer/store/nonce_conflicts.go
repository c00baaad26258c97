package store

import (
	"context"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// RecordNonceConflicts records that another sender's transaction used one of our nonces. The caller found it by its hash in
// a block that is deep enough. The row with that nonce is queued again, to be sent under another one, or becomes final if
// it was no longer to be sent. The foreign transaction is stored in its place. RecordNonceConflicts reports whether it did
// so. The block belongs to the chain of the given generation; in another generation it does nothing.
func (s *Store) RecordNonceConflicts(ctx context.Context, id uuid.UUID, key common.Address, known int, nonce uint64, hash common.Hash, block Block) (bool, error) {
	n, err := s.withLockedKeys(ctx, "displace a transaction", `WITH displaced AS MATERIALIZED (
		SELECT id, chain_id, pool_id, relayer_address, key_budget_day, reserve_wei FROM relayer_txs
		WHERE id = $4 AND chain_id = $2 AND pool_id = $3 AND open AND status <> 'mined' AND relayer_address = $5 AND nonce = $6
			AND generation = $11 AND `+generationSQL("$2")+` = $11 FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET relayer_address = NULL, nonce = NULL, tx_hash = NULL, sent_at = NULL, key_budget_day = NULL,
			attempts = coalesce((SELECT max(attempt) FROM relayer_attempts WHERE tx_id = t.id), 0),
			status = CASE WHEN t.intent = 'cancel' THEN 'canceled' WHEN t.intent = 'expire' THEN 'expired'
				WHEN t.intent = 'fail' THEN 'failed' WHEN t.kind <> 'transaction' THEN 'replaced' ELSE 'allocated' END,
			open = t.intent = 'send' AND t.kind = 'transaction',
			status_reason = 'another transaction, not the relayer''s, took its nonce',
			revision = revision + 1, updated_at = now()
		FROM displaced d WHERE t.id = d.id RETURNING t.*
	), foreigner AS (
		INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, relayer_address, nonce, tx_hash, status, open,
			block_number, block_hash, confirmed_at, generation)
		SELECT $7, $2, $3, $5, '', 'foreign', $5, $6, $8, 'confirmed', false, $9, $10, now(), $11 FROM changed
	), counted AS (SELECT $5::text AS address, -count(*)::int AS n FROM changed)`+refundBudgetSQL,
		s.targets(), s.ChainID, s.Pool, id, hexAddress(key), int64(nonce), uuid.Must(uuid.NewV7()), hash.Hex(), int64(block.Number), block.Hash.Hex(), known)
	return n > 0, err
}
