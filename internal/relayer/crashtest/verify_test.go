package crashtest

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

// truth reads the chain and the store directly, without the relayers.
type truth struct {
	t       testing.TB
	db      *pgxpool.Pool
	chain   *ethclient.Client
	counter common.Address
}

// settled waits until no transaction is open or pending.
func (v *truth) settled(within time.Duration) {
	v.t.Helper()
	var open, pending int
	deadline := time.Now().Add(within)
	for tick := time.NewTicker(200 * time.Millisecond); ; <-tick.C {
		require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT (SELECT count(*) FROM relayer_txs WHERE open),
			(SELECT coalesce(sum(pending_count), 0) FROM relayer_keys)`).Scan(&open, &pending))
		if open == 0 {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(v.t, "not everything was mined", "%d transactions are open, %d count as pending after %v\n%s", open, pending, within, v.open())
		}
	}
}

// open describes the transactions that are not final, for a failure message.
func (v *truth) open() (out string) {
	rows, err := v.db.Query(v.t.Context(), `SELECT format('%s nonce %s of %s: %s %s, intent %s, %s attempts (%s), updated %s', t.kind, t.nonce, t.relayer_address,
		t.status, t.status_reason, t.intent, t.attempts, (SELECT string_agg(format('%s:%s:%s %s, %s resends, paused until %s', a.attempt, a.nonce, a.purpose, a.last_error,
			a.resends, a.next_send_at), ', ') FROM relayer_attempts a WHERE a.tx_id = t.id),
		t.updated_at) FROM relayer_txs t WHERE open ORDER BY relayer_address, nonce LIMIT 40`)
	require.NoError(v.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(v.t, err)
	for _, line := range lines {
		out += line + "\n"
	}
	return out
}

// executed fails the test unless each stored hit was executed exactly once, or is final and was not executed: canceled
// by its client or expired. No other hit was executed. It returns how many were stored.
func (v *truth) executed(hits []*hit) (stored int) {
	v.t.Helper()
	rows, err := v.db.Query(v.t.Context(), `SELECT i.key, t.id::text, t.status, t.tx_hash FROM relayer_idempotency i JOIN relayer_txs t ON t.id = i.tx_id`)
	require.NoError(v.t, err)
	type row struct {
		ID, Status string
		Hash       *string
	}
	rowsByKey := map[string]row{}
	var key string
	var r row
	_, err = pgx.ForEachRow(rows, []any{&key, &r.ID, &r.Status, &r.Hash}, func() error { rowsByKey[key] = r; return nil })
	require.NoError(v.t, err)
	ids := make([]common.Hash, len(hits))
	for i, h := range hits {
		ids[i] = h.id
	}
	times := v.counts(ids)
	var wrong []string
	confirmed := 0
	for i, h := range hits {
		r, known := rowsByKey[h.key()]
		want := uint64(0)
		if known {
			stored++
		}
		switch {
		case !known:
		case r.Status == "confirmed":
			want = 1
			confirmed++
		case r.Status == "canceled" && h.cancelAfter > 0, r.Status == "expired" && h.validFor > 0:
		default:
			wrong = append(wrong, fmt.Sprintf("hit %s is %s", h.key(), r.Status))
		}
		switch {
		case times[i] != want:
			wrong = append(wrong, fmt.Sprintf("hit %s (%+v) was executed %d times", h.key(), r, times[i]))
		case !known && !h.hasty && !h.late, h.tx != "" && h.tx != r.ID:
			wrong = append(wrong, fmt.Sprintf("hit %s was accepted as %q and is stored as %q", h.key(), h.tx, r.ID))
		}
	}
	require.Empty(v.t, wrong)
	total, err := contracts.Total(v.t.Context(), v.chain, v.counter, nil)
	require.NoError(v.t, err)
	require.EqualValues(v.t, confirmed, total, "hits on the chain")
	return stored
}

// delivered waits until no webhook is due.
func (v *truth) delivered(within time.Duration) {
	v.t.Helper()
	eventually(v.t, within, func() bool {
		var due int
		require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT count(*) FROM relayer_webhooks WHERE state = 'waiting'`).Scan(&due))
		return due == 0
	}, "webhooks are not delivered")
}

// outcomes returns the end of each stored hit, by the id of its transaction.
func (v *truth) outcomes() map[string]outcome {
	v.t.Helper()
	rows, err := v.db.Query(v.t.Context(), `SELECT t.id::text, i.key, t.status, t.attempts, coalesce(t.tx_hash, ''), t.revision
		FROM relayer_txs t JOIN relayer_idempotency i ON i.tx_id = t.id`)
	require.NoError(v.t, err)
	ends := map[string]outcome{}
	var ids []string // of transactions, in the order of the keys and the hashes below
	var keys, hashes []common.Hash
	var id, key, status, hash string
	var attempts, revision int
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &status, &attempts, &hash, &revision}, func() error {
		ends[id] = outcome{status: relayer.Status(status).API(attempts > 0), hash: hash, revision: revision}
		ids, keys, hashes = append(ids, id), append(keys, common.HexToHash(key)), append(hashes, common.HexToHash(hash))
		return nil
	})
	require.NoError(v.t, err)
	executions, mined := v.counts(keys), v.areMined(hashes)
	for i, id := range ids {
		end := ends[id]
		end.executions, end.mined = executions[i], mined[i]
		ends[id] = end
	}
	return ends
}

// areMined reports which transactions are in a block.
func (v *truth) areMined(hashes []common.Hash) (are []bool) {
	v.t.Helper()
	for some := range slices.Chunk(hashes, 500) {
		calls := make([]rpc.BatchElem, len(some))
		for i, hash := range some {
			calls[i] = rpc.BatchElem{Method: "eth_getTransactionByHash", Args: []any{hash}, Result: new(mined)}
		}
		require.NoError(v.t, v.chain.Client().BatchCallContext(v.t.Context(), calls))
		for _, c := range calls {
			require.NoError(v.t, c.Error)
			are = append(are, c.Result.(*mined).BlockHash != common.Hash{})
		}
	}
	return are
}

// counts returns how often each id was hit.
func (v *truth) counts(ids []common.Hash) (times []uint64) {
	v.t.Helper()
	for len(ids) > 0 {
		n := min(len(ids), contracts.ReadMax)
		some, err := contracts.Counts(v.t.Context(), v.chain, v.counter, nil, ids[:n]...)
		require.NoError(v.t, err)
		times, ids = append(times, some...), ids[n:]
	}
	return times
}

// keys fails the test unless store and chain agree about each key, nonce by nonce. If a foreign sender shares the keys,
// nonces that it used before the relayers could assign them are allowed.
func (v *truth) keys(shared bool) (used uint64) {
	v.t.Helper()
	rows, err := v.db.Query(v.t.Context(), `SELECT address, next_nonce, pending_count, enabled AND NOT paused AND stuck_since IS NULL,
		(SELECT count(DISTINCT nonce) FROM relayer_txs t WHERE t.relayer_address = k.address) FROM relayer_keys k ORDER BY address`)
	require.NoError(v.t, err)
	var address string
	var next, rowsOf uint64
	var pending int
	var usable bool
	_, err = pgx.ForEachRow(rows, []any{&address, &next, &pending, &usable, &rowsOf}, func() error {
		key := common.HexToAddress(address)
		count, err := v.chain.NonceAt(v.t.Context(), key, nil)
		require.NoError(v.t, err)
		waiting, err := v.chain.PendingNonceAt(v.t.Context(), key)
		require.NoError(v.t, err)
		require.Equal(v.t, count, next, "next nonce of %s", address)
		require.Equal(v.t, count, waiting, "%s has something in the pool", address)
		require.Zero(v.t, pending, "pending count of %s", address)
		require.True(v.t, usable, "%s is not usable", address)
		if !shared {
			require.Equal(v.t, count, rowsOf, "nonces of %s that the store can account for", address)
		}
		used += count
		return nil
	})
	require.NoError(v.t, err)
	if shared {
		return used
	}
	var pool struct{ Pending, Queued string }
	require.NoError(v.t, v.chain.Client().CallContext(v.t.Context(), &pool, "txpool_status"))
	require.Equal(v.t, "0x0 0x0", pool.Pending+" "+pool.Queued, "the node's pool")
	return used
}

// records fails the test unless each row has the block in which its transaction is on the chain.
func (v *truth) records() {
	v.t.Helper()
	rows, err := v.db.Query(v.t.Context(), `SELECT tx_hash, relayer_address, nonce, block_hash FROM relayer_txs WHERE nonce IS NOT NULL`)
	require.NoError(v.t, err)
	type row struct {
		Hash, Address string
		Nonce         uint64
		Block         string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(v.t, err)
	for len(all) > 0 {
		some := all[:min(len(all), 500)]
		all = all[len(some):]
		calls := make([]rpc.BatchElem, len(some))
		for i, r := range some {
			calls[i] = rpc.BatchElem{Method: "eth_getTransactionByHash", Args: []any{r.Hash}, Result: new(mined)}
		}
		require.NoError(v.t, v.chain.Client().BatchCallContext(v.t.Context(), calls))
		for i, c := range calls {
			require.NoError(v.t, c.Error)
			is := c.Result.(*mined)
			require.Equal(v.t, some[i], row{is.Hash.Hex(), lower(is.From), is.nonce(v.t), is.BlockHash.Hex()})
		}
	}
}

// mined is a transaction in a node's answer.
type mined struct {
	Hash, BlockHash common.Hash
	From            common.Address
	Nonce           string
}

func (m *mined) nonce(t testing.TB) uint64 {
	n, ok := new(big.Int).SetString(m.Nonce, 0)
	require.True(t, ok, m.Nonce)
	return n.Uint64()
}

func lower(a common.Address) string { return "0x" + common.Bytes2Hex(a[:]) }

// noopsAbove counts the transactions of an intent whose nonce was used by a no-op with a fee above a price.
func (v *truth) noopsAbove(price int64, intent relayer.Intent) (n int) {
	v.t.Helper()
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT count(*) FROM relayer_txs t JOIN relayer_attempts a ON a.tx_id = t.id AND a.tx_hash = t.tx_hash
		WHERE t.intent = $1 AND t.block_number IS NOT NULL AND a.purpose = 'noop' AND a.max_fee > $2`, intent, price).Scan(&n))
	return n
}

// extras counts the store's rows besides one attempt for each hit.
func (v *truth) extras() string {
	v.t.Helper()
	var noops, attempts, several, foreign int
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT (SELECT count(*) FROM relayer_txs WHERE kind = 'noop'),
		(SELECT count(*) FROM relayer_attempts), (SELECT count(DISTINCT tx_id) FROM relayer_attempts WHERE attempt > 1),
		(SELECT count(*) FROM relayer_txs WHERE kind = 'foreign')`).Scan(&noops, &attempts, &several, &foreign))
	return fmt.Sprintf("attempts %d, transactions with more than one %d, no-ops %d, foreign %d", attempts, several, noops, foreign)
}
