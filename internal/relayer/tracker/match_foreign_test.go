package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// counting returns a rule by which a node returns this count for every account and block.
func counting(result string, limit uint64) proxy.Rule {
	return proxy.Rule{
		Name: "count " + result, Methods: []string{"eth_getTransactionCount"}, Limit: limit, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"` + result + `"`},
	}
}

// identical sends the same transaction as send, as another sender with the relayer's first key.
func (f *fixture) identical(nonce uint64) common.Hash {
	f.t.Helper()
	key, _ := f.ring.Signer(f.ring.Addresses()[0])
	tx, err := signer.SignTx(f.t.Context(), key, types.NewTx(&types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Gas: 21_000,
		GasFeeCap: big.NewInt(90_000_000_000), GasTipCap: big.NewInt(50_000_000_000),
	}), big.NewInt(testchain.ChainID))
	require.NoError(f.t, err)
	require.NoError(f.t, f.chain.Client().SendTransaction(f.t.Context(), tx))
	return tx.Hash()
}

// outlast waits until the time is past that of the newest block.
func (f *fixture) outlast() {
	f.t.Helper()
	h, err := f.chain.Client().HeaderByNumber(f.t.Context(), nil)
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool { return time.Now().Unix() > int64(h.Time)+1 }, 2*time.Minute, 50*time.Millisecond)
}

// A lagging node causes the allocation of a used nonce. An identical transaction that was mined before ours was accepted is
// another sender's: ours is executed as well.
func TestAdopt_MinedBeforeAcceptance_IsForeign(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(counting("0x0", 0))
		o.Tracker = func(c *tracker.Config) { c.AdoptMargin = time.Millisecond }
	})
	to := f.chain.Accounts[0].Address
	was := f.balance(to)
	var theirs []common.Hash
	for nonce := range uint64(3) {
		theirs = append(theirs, f.identical(nonce))
	}
	f.chain.Commit()
	f.outlast()
	var txs []*relayer.Transaction
	for nonce := range uint64(3) {
		tx := f.Send(t, to, 1, nil)
		require.Equal(t, nonce, *tx.Nonce)
		txs = append(txs, tx)
	}
	node.SetRules()
	for _, tx := range txs {
		now := f.commitUntil(tx, relayer.Confirmed)
		require.NotContains(t, theirs, *now.Hash)
	}
	require.Equal(t, int64(6), new(big.Int).Sub(f.balance(to), was).Int64())
	f.settled()
}

// A hash signed for another row belongs to that row, although the contents are the same.
func TestAdopt_HashOfAnotherRow_IsForeign(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(counting("0x0", 0))
	})
	theirs := f.identical(0)
	f.chain.Commit()
	tx := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Equal(t, uint64(0), *tx.Nonce)
	f.exec(`WITH row AS (
			INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, status, open)
			SELECT gen_random_uuid(), chain_id, pool_id, target, caller, kind, 'failed', false FROM relayer_txs WHERE id = $1 RETURNING id, chain_id
		) INSERT INTO relayer_attempts (chain_id, tx_id, attempt, address, nonce, purpose, tx_hash, raw, max_fee)
		SELECT chain_id, id, 1, $2, 0, 'send', $3, '', 1 FROM row`, tx.ID, "0x00", theirs.Hex())
	node.SetRules()
	now := f.commitUntil(tx, relayer.Confirmed)
	require.NotEqual(t, theirs, *now.Hash)
	f.settled()
}
