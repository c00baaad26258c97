package store

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// ReplacedAttempts are those of the given hashes that do what a caller asked for, of transactions whose contents were
// replaced at some time: only these may hold other contents than their row.
func (l *Store) ReplacedAttempts(ctx context.Context, ids []uuid.UUID, hashes []common.Hash) ([]*relayer.Attempt, error) {
	texts := make([]string, len(hashes))
	for i, h := range hashes {
		texts[i] = h.Hex()
	}
	return l.listAttempts(ctx, "read attempts", selectAttempts+` WHERE a.tx_id = ANY($1) AND a.tx_hash = ANY($2) AND a.purpose <> 'noop'
		AND EXISTS (SELECT FROM relayer_attempts r WHERE r.tx_id = a.tx_id AND r.purpose = 'replace')`, ids, texts)
}

// keepContents copies the contents of transaction $1 into its deliveries, which read them from the transaction's row otherwise. It
// comes before each statement that replaces contents.
const keepContents = `UPDATE relayer_deliveries d SET contents = jsonb_build_object('to_address', t.to_address, 'value_wei', t.value_wei,
		'data', '\x' || encode(t.data, 'hex'), 'gas_limit', t.gas_limit, 'speed', t.speed, 'gas_price', t.gas_price, 'max_fee', t.max_fee,
		'max_priority', t.max_priority, 'valid_until', t.valid_until)
	FROM relayer_txs t WHERE t.id = $1 AND d.subject = $1 AND d.contents IS NULL`

// SetMinedPayload gives a transaction the contents and fees that bytes of it hold which the chain has taken, unless it has these
// contents. That nobody is told is on purpose: whoever calls it records next what became of the transaction.
func (l *Store) SetMinedPayload(ctx context.Context, id uuid.UUID, r *relayer.Request) error {
	var to *string
	if r.To != nil {
		to = new(hexAddress(*r.To))
	}
	data := r.Data
	if data == nil {
		data = []byte{}
	}
	batch := new(pgx.Batch) // one database transaction
	// A statement of its own: the next ones have to see what this one waited for.
	batch.Queue(`SELECT FROM relayer_txs WHERE id = $1 FOR UPDATE`, id)
	batch.Queue(keepContents, id)
	batch.Queue(`UPDATE relayer_txs SET to_address = $4, value_wei = $5::text::numeric, data = $6, gas_limit = $7,
			gas_price = $8::text::numeric, max_fee = $9::text::numeric, max_priority = $10::text::numeric
		WHERE id = $1 AND chain_id = $2 AND pool_id = $3 AND open
			AND (to_address, value_wei, data, gas_limit) IS DISTINCT FROM ($4, $5::text::numeric, $6::bytea, $7)`,
		id, l.ChainID, l.Pool, to, r.Value.String(), data, int64(r.GasLimit), decimal(r.GasPrice), decimal(r.MaxFee), decimal(r.MaxPriorityFee))
	if err := l.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("restore contents: %w", err)
	}
	return nil
}

// foreignAbove is the condition for the rows that [Store.DropForeignTransactions] gives up.
const foreignAbove = `chain_id = $1 AND pool_id = $2 AND relayer_address = $3 AND nonce >= $4 AND kind = 'foreign' AND block_number <= $5 AND era = $6`

// HasForeign reports whether there are transactions that [Store.DropForeignTransactions] gives up.
func (l *Store) HasForeign(ctx context.Context, key common.Address, era int, nonce, head uint64) (has bool, err error) {
	err = l.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_txs WHERE `+foreignAbove+`)`,
		l.ChainID, l.Pool, hexAddress(key), int64(nonce), int64(head), era).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for other senders' transactions of %s: %w", key, err)
	}
	return has, nil
}

// DropForeignTransactions gives up what is written down of somebody else's transactions that a key has not used the nonces of: those from
// the given nonce on that were found in blocks up to head, where the chain has used up only the nonces below. A
// reorganization took them away, and [Store.FillNonceGaps] finds their nonces free. era is that of the chain that this was seen on.
func (l *Store) DropForeignTransactions(ctx context.Context, key common.Address, era int, nonce, head uint64) error {
	_, err := l.db.Exec(ctx, `UPDATE relayer_txs SET nonce = NULL, status = 'dropped', status_reason = 'its block is no longer part of the chain',
			revision = revision + 1, updated_at = now()
		WHERE `+foreignAbove,
		l.ChainID, l.Pool, hexAddress(key), int64(nonce), int64(head), era)
	if err != nil {
		return fmt.Errorf("disown transactions of %s: %w", key, err)
	}
	return nil
}
