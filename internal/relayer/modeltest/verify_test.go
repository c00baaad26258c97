package modeltest

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// row is a transaction in the store at the end.
type row struct {
	ID       uuid.UUID
	Kind     relayer.Kind
	Address  string
	Nonce    *uint64
	Hash     string
	Block    string
	Status   relayer.Status
	Open     bool
	Revision int
	// Told are the statuses in webhooks, by revision, from the second one on.
	Told      []string
	Revisions []int
}

// place is the position of a transaction on the chain.
type place struct {
	hash, block common.Hash
}

// verify requires the invariants, once all work has ended:
//
//   - nothing is open, nothing pending, and each key's next nonce is the chain's count;
//   - of each accepted request the contents were mined exactly once, those of replacements included, or never, if it was
//     canceled or has expired; a request that was never accepted was never mined;
//   - each nonce of each key, from the first to the last, holds the transaction in the store, in the stored block;
//   - everything sent to a node was stored, under the number and the nonce that it was signed for;
//   - the webhook received each revision once, the last one equal to the store, and none after a final one.
func (tr *trial) verify() {
	tr.t.Helper()
	assert.Empty(tr.t, tr.open(), "open at the end")
	calls, stands, counts := tr.chain()
	rows := tr.rows()
	tr.verifyRequests(rows, calls)
	tr.verifyNonces(rows, stands, counts)
	tr.verifyAttempts()
	tr.verifyTold(rows)
}

// chain reads the first node's chain: how often each content was mined, the transaction at each nonce, and each key's
// count.
func (tr *trial) chain() (calls map[uint64]int, stands map[common.Address]map[uint64]place, counts map[common.Address]uint64) {
	calls, stands, counts = map[uint64]int{}, map[common.Address]map[uint64]place{}, map[common.Address]uint64{}
	tr.world.mu.Lock() // if something is open at the end, processes keep running
	defer tr.world.mu.Unlock()
	for b := tr.world.nodes[0].head; b != nil; b = b.up {
		for _, tx := range b.txs {
			if content, ok := bytes.CutPrefix(tx.Data(), []byte("call")); ok {
				calls[binary.BigEndian.Uint64(content)]++
			}
			from := tr.world.sender(tx)
			if stands[from] == nil {
				stands[from] = map[uint64]place{}
			}
			assert.NotContains(tr.t, stands[from], tx.Nonce(), "the nonce is used twice")
			stands[from][tx.Nonce()] = place{tx.Hash(), b.Hash}
			counts[from]++
		}
	}
	return calls, stands, counts
}

func (tr *trial) rows() map[uuid.UUID]row {
	tr.t.Helper()
	found, err := tr.db.Query(context.Background(), `SELECT id, kind, coalesce(relayer_address, ''), nonce, coalesce(tx_hash, ''), coalesce(block_hash, ''),
		status, open, revision,
		ARRAY(SELECT d.status FROM relayer_webhooks d WHERE d.about = t.id ORDER BY d.revision),
		ARRAY(SELECT d.revision FROM relayer_webhooks d WHERE d.about = t.id ORDER BY d.revision) FROM relayer_txs t WHERE t.chain_id = $1`, tr.world.chainID)
	require.NoError(tr.t, err)
	all, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	require.NoError(tr.t, err)
	rows := map[uuid.UUID]row{}
	for _, r := range all {
		rows[r.ID] = r
	}
	return rows
}

func (tr *trial) verifyRequests(rows map[uuid.UUID]row, calls map[uint64]int) {
	for _, r := range tr.requests {
		mined := 0
		for _, content := range r.contents {
			mined += calls[content]
		}
		stored, found := rows[r.id]
		switch {
		case r.id == uuid.Nil && !r.maybe:
			assert.Zero(tr.t, mined, "request %d was refused, and mined", r.number)
		case r.id == uuid.Nil:
			assert.LessOrEqual(tr.t, mined, 1, "request %d, whose acceptance is unknown", r.number)
		case !found:
			assert.Fail(tr.t, "accepted and not stored", "request %d, %s", r.number, r.id)
		case stored.Status == relayer.Confirmed:
			assert.Equal(tr.t, 1, mined, "request %d, %s, is confirmed: how often it was mined", r.number, r.id)
		case stored.Status == relayer.Canceled || stored.Status == relayer.Expired && !r.until.IsZero():
			assert.Zero(tr.t, mined, "request %d, %s, is %s: how often it was mined", r.number, r.id, stored.Status)
		default:
			assert.Fail(tr.t, "status that nothing gave reason for", "request %d, %s: %s", r.number, r.id, stored.Status)
		}
	}
}

func (tr *trial) verifyNonces(rows map[uuid.UUID]row, stands map[common.Address]map[uint64]place, counts map[common.Address]uint64) {
	held := map[common.Address]map[uint64]bool{}
	for _, k := range tr.keys {
		held[k.Address] = map[uint64]bool{}
		var next uint64
		require.NoError(tr.t, tr.db.QueryRow(context.Background(), `SELECT next_nonce FROM relayer_keys WHERE chain_id = $2 AND address = $1`,
			lower(k.Address), tr.world.chainID).Scan(&next))
		assert.Equal(tr.t, counts[k.Address], next, "next nonce of %s, and the chain's count", k.Address)
	}
	for _, r := range rows {
		if r.Nonce == nil {
			continue
		}
		key := common.HexToAddress(r.Address)
		held[key][*r.Nonce] = true
		there, mined := stands[key][*r.Nonce]
		if !assert.True(tr.t, mined, "%s has nonce %d of %s, which is not mined", r.ID, *r.Nonce, key) {
			continue
		}
		assert.Equal(tr.t, there.hash.Hex(), r.Hash, "%s: hash of what stands at nonce %d", r.ID, *r.Nonce)
		assert.Equal(tr.t, there.block.Hex(), r.Block, "%s: block of what stands at nonce %d", r.ID, *r.Nonce)
	}
	for key, at := range stands {
		for nonce, p := range at {
			assert.True(tr.t, held[key][nonce] || tr.foreign[p.hash], "nonce %d of %s is mined, and no sender has it: %s", nonce, key, p.hash)
		}
	}
}

func (tr *trial) verifyAttempts() {
	tr.world.mu.Lock() // if something is open at the end, processes keep running
	taken := maps.Clone(tr.world.taken)
	tr.world.mu.Unlock()
	found, err := tr.db.Query(context.Background(), `SELECT tx_id, attempt, address, nonce, tx_hash, raw FROM relayer_attempts WHERE chain_id = $1`, tr.world.chainID)
	require.NoError(tr.t, err)
	stored := map[string]bool{}
	var id uuid.UUID
	var number int
	var address, hash string
	var nonce uint64
	var raw []byte
	_, err = pgx.ForEachRow(found, []any{&id, &number, &address, &nonce, &hash, &raw}, func() error {
		tx := new(types.Transaction)
		if assert.NoError(tr.t, tx.UnmarshalBinary(raw)) {
			assert.Equal(tr.t, hash, tx.Hash().Hex(), "attempt %d of %s: hash of its bytes", number, id)
			assert.Equal(tr.t, nonce, tx.Nonce(), "attempt %d of %s: nonce of its bytes", number, id)
			assert.Equal(tr.t, address, lower(tr.world.sender(tx)), "attempt %d of %s: who signed it", number, id)
		}
		stored[hash] = true
		return nil
	})
	require.NoError(tr.t, err)
	for hash, tx := range taken {
		assert.True(tr.t, stored[hash.Hex()], "%s, nonce %d of %s, was given to a node and never stored", hash, tx.Nonce(), tr.world.sender(tx))
	}
}

func (tr *trial) verifyTold(rows map[uuid.UUID]row) {
	for _, r := range rows {
		if r.Kind != relayer.KindTransaction {
			continue
		}
		var want []int
		for revision := 2; revision <= r.Revision; revision++ {
			want = append(want, revision)
		}
		assert.Equal(tr.t, want, append([]int(nil), r.Revisions...), "%s: revisions that the webhook was told", r.ID)
		if n := len(r.Told); assert.NotZero(tr.t, n, "%s: told nothing", r.ID) {
			assert.Equal(tr.t, string(r.Status), r.Told[n-1], "%s: the last status told", r.ID)
			for _, status := range r.Told[:n-1] {
				assert.False(tr.t, relayer.Status(status).Final(), "%s: %s was told, and then something else: %v", r.ID, status, r.Told)
			}
			if r.Status == relayer.Confirmed {
				assert.Contains(tr.t, r.Told, string(relayer.Mined), "%s", r.ID)
			}
		}
	}
}

// lower returns an address in the store's format.
func lower(a common.Address) string { return strings.ToLower(a.Hex()) }
