package store

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// ReplacedAttempts returns the attempts with the given hashes that carry a caller's contents, of transactions whose
// contents were ever replaced. Only these may hold other contents than their row.
func (s *Store) ReplacedAttempts(ctx context.Context, ids []uuid.UUID, hashes []common.Hash) ([]*relayer.Attempt, error) {
	texts := make([]string, len(hashes))
	for i, h := range hashes {
		texts[i] = h.Hex()
	}
	return s.listAttempts(ctx, "read attempts", selectAttempts+` WHERE a.tx_id = ANY($1) AND a.tx_hash = ANY($2) AND a.purpose <> 'noop'
		AND EXISTS (SELECT FROM relayer_attempts r WHERE r.tx_id = a.tx_id AND r.purpose = 'replace')`, ids, texts)
}

// keepContents copies the contents of transaction $1 into its deliveries, which otherwise read them from the
// transaction's row. The copy is that of [relayer.TransactionRow] in JSON. keepContents must precede each statement that
// replaces contents.
var keepContents = `UPDATE relayer_webhooks w SET contents = jsonb_build_object(` + contents.each(func(_ int, c relayer.Column) string {
	value := "t." + c.Name
	switch {
	case c.Numeric:
		value += "::text"
	case c.Name == "data":
		value = "'0x' || encode(t.data, 'hex')"
	}
	return "'" + c.Field.Tag.Get("json") + "', " + value
}) + `)
	FROM relayer_txs t WHERE t.id = $1 AND w.about = $1 AND w.contents IS NULL`

// SetMinedPayload sets a transaction's contents and fees to those of the attempt that was mined, unless it has these
// contents. It queues no delivery on purpose: its caller records the transaction's outcome next.
func (s *Store) SetMinedPayload(ctx context.Context, id uuid.UUID, r *relayer.Request) error {
	var to *string
	if r.To != nil {
		to = new(hexAddress(*r.To))
	}
	data := r.Data
	if data == nil {
		data = []byte{}
	}
	batch := new(pgx.Batch) // one database transaction
	// This is a separate statement, because the next ones must see the changes that this one waited for.
	batch.Queue(`SELECT FROM relayer_txs WHERE id = $1 FOR UPDATE`, id)
	batch.Queue(keepContents, id)
	batch.Queue(`UPDATE relayer_txs SET to_address = $4, value_wei = $5::text::numeric, data = $6, gas_limit = $7,
			gas_price = $8::text::numeric, max_fee = $9::text::numeric, max_priority = $10::text::numeric
		WHERE id = $1 AND chain_id = $2 AND pool_id = $3 AND open
			AND (to_address, value_wei, data, gas_limit) IS DISTINCT FROM ($4, $5::text::numeric, $6::bytea, $7)`,
		id, s.ChainID, s.Pool, to, r.Value.String(), data, int64(r.GasLimit), relayer.Decimal(r.GasPrice), relayer.Decimal(r.MaxFee), relayer.Decimal(r.MaxPriorityFee))
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("restore contents: %w", err)
	}
	return nil
}

// foreignAbove is the condition for the rows that [Store.DropForeignTransactions] drops.
const foreignAbove = `chain_id = $1 AND pool_id = $2 AND relayer_address = $3 AND nonce >= $4 AND kind = 'foreign' AND block_number <= $5 AND generation = $6`

// HasForeign reports whether there are transactions that [Store.DropForeignTransactions] would drop.
func (s *Store) HasForeign(ctx context.Context, key common.Address, generation int, nonce, head uint64) (has bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_txs WHERE `+foreignAbove+`)`,
		s.ChainID, s.Pool, hexAddress(key), int64(nonce), int64(head), generation).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for other senders' transactions of %s: %w", key, err)
	}
	return has, nil
}

// DropForeignTransactions drops recorded transactions of other senders whose nonces the key has not used after all. These
// are the ones from the given nonce on, found in blocks up to head, where the chain has used only the nonces below. A
// reorganization removed them, and [Store.FillNonceGaps] finds their nonces free. generation is that of the chain on
// which this was observed.
func (s *Store) DropForeignTransactions(ctx context.Context, key common.Address, generation int, nonce, head uint64) error {
	_, err := s.db.Exec(ctx, `UPDATE relayer_txs SET nonce = NULL, status = 'dropped', status_reason = 'its block is no longer part of the chain',
			revision = revision + 1, updated_at = now()
		WHERE `+foreignAbove,
		s.ChainID, s.Pool, hexAddress(key), int64(nonce), int64(head), generation)
	if err != nil {
		return fmt.Errorf("disown transactions of %s: %w", key, err)
	}
	return nil
}
