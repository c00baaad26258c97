package crashtest

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// outsider is a foreign sender: it has a key of the pool, and uses it without the relayers.
type outsider struct {
	t     testing.TB
	chain *ethclient.Client
	key   signertest.Key
}

// send transfers one wei, for fees in gwei. It ignores rejections.
func (o *outsider) send(nonce uint64, gwei int64) (taken bool) {
	o.t.Helper()
	to, fee := common.Address{0xee}, new(big.Int).Mul(big.NewInt(gwei), big.NewInt(1e9))
	return o.offer(nonce, to, fee)
}

func (o *outsider) offer(nonce uint64, to common.Address, fee *big.Int) (taken bool) {
	o.t.Helper()
	private, err := crypto.ToECDSA(o.key.Bytes)
	require.NoError(o.t, err)
	chainID := big.NewInt(testchain.ChainID)
	tx, err := types.SignNewTx(private, types.LatestSignerForChainID(chainID), &types.DynamicFeeTx{
		ChainID: chainID, Nonce: nonce, To: &to, Value: big.NewInt(1), Gas: 21_000, GasFeeCap: fee, GasTipCap: fee,
	})
	require.NoError(o.t, err)
	return o.chain.SendTransaction(o.t.Context(), tx) == nil
}

// counts returns how many of the key's transactions are mined, and how many including the pool.
func (o *outsider) counts() (mined, pending uint64) {
	o.t.Helper()
	mined, err := o.chain.NonceAt(o.t.Context(), o.key.Address, nil)
	require.NoError(o.t, err)
	pending, err = o.chain.PendingNonceAt(o.t.Context(), o.key.Address)
	require.NoError(o.t, err)
	return mined, pending
}

// Transactions of a foreign sender use nonces that the relayers had assigned, and nonces that they would assign next.
func TestForeignSender_UsesKeysNonces_EachIsExecutedOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{keys: 2, relayers: 2, inFlight: 64, confirmations: 2, geth: pool(1000)})
	l := sc.load(200)
	l.clients, l.pace = 8, 80*time.Millisecond
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { defer close(done); l.run(ctx, sc.random) }()
	v := sc.truth()
	taken := map[string]int{}
	turn := 0
	for tick := time.NewTicker(300 * time.Millisecond); ; turn++ {
		select {
		case <-done:
			tick.Stop()
		case <-tick.C:
			o := &outsider{t: t, chain: v.chain, key: sc.keys[turn%2]}
			mined, pending := o.counts()
			name, nonce := "", uint64(0)
			switch turn / 2 % 4 {
			case 0:
				name, nonce = "lowest pending", mined
			case 1:
				name, nonce = "highest pending", max(pending, 1)-1
			case 2:
				name, nonce = "next", pending
			case 3:
				name, nonce = "beyond", pending+2
			}
			if o.send(nonce, 200) {
				taken[name]++
			}
			continue
		}
		break
	}
	v.settled(2 * patience)
	stored := v.executed(l.hits)
	// The outsider's transactions are mined, too, except for those after a nonce that no sender has.
	for _, k := range sc.keys {
		o := &outsider{t: t, chain: v.chain, key: k}
		eventually(t, patience, func() bool {
			mined, pending := o.counts()
			var next uint64
			err := v.db.QueryRow(t.Context(), `SELECT next_nonce FROM relayer_keys WHERE address = $1`, lower(k.Address)).Scan(&next)
			return err == nil && mined == pending && mined == next
		}, "the store does not agree with the chain")
	}
	v.keys(true)
	t.Logf("%d hits mined; the outsider got in: %s; %s", stored, counts(taken), v.extras())
	require.Len(t, taken, 4, "not every way was tried: %v", taken)
	sc.fleet.stop()
}

// When the pool of relayers was made, a foreign sender's transactions were pending with its key. They were dropped
// later. The relayers must fill those nonces.
func TestForeignSender_PendingIsDropped_GapIsFilled(t *testing.T) {
	t.Parallel()
	sc := prepare(t, setting{keys: 1, relayers: 2, inFlight: 64, confirmations: 2})
	o := &outsider{t: t, chain: sc.node.Client(), key: sc.keys[0]}
	for nonce := range uint64(3) {
		require.True(t, o.offer(nonce, common.Address{0xee}, big.NewInt(1)), "one wei: too little for any block")
	}
	mined, pending := o.counts()
	require.Equal(t, [2]uint64{0, 3}, [2]uint64{mined, pending})
	sc.muster()
	v := sc.truth()
	eventually(t, patience, func() bool {
		var next int
		err := v.db.QueryRow(t.Context(), `SELECT next_nonce FROM relayer_keys`).Scan(&next)
		return err == nil && next == 3
	}, "the key was not registered behind what is pending")
	sc.node.Stop() // its pool is lost
	sc.node.Restart()
	l := sc.load(10)
	l.clients, l.pace = 4, 20*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l.run(ctx, sc.random)
	v.settled(patience)
	v.executed(l.hits)
	v.keys(false)
	v.records()
	var noops int
	require.NoError(t, v.db.QueryRow(t.Context(), `SELECT count(*) FROM relayer_txs WHERE kind = 'noop' AND status = 'confirmed' AND nonce < 3`).Scan(&noops))
	require.Equal(t, 3, noops)
	sc.fleet.stop()
}
