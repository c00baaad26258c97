package tracker_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

// fixture is a relayer with funded keys on a chain that seals on demand.
type fixture struct {
	t     *testing.T
	chain *testchain.Chain
	ring  *signer.Ring
	*relayertest.Relayer
	options relayertest.Options
}

func setup(t *testing.T, keys int, edit ...func(*relayertest.Options)) *fixture {
	t.Helper()
	t.Parallel()
	f := &fixture{t: t, chain: testchain.Simulated(t, testchain.SimulatedOptions{}), ring: signertest.Ring(t, t.Name(), keys)}
	f.chain.Fund(testchain.Ether(100), f.ring.Addresses()...)
	f.options = relayertest.Options{
		DatabaseURL: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL(), RPC: []string{f.chain.URL()}, Ring: f.ring,
	}
	for _, e := range edit {
		e(&f.options)
	}
	f.Relayer = relayertest.Start(t, f.options)
	return f
}

// oneIsPending waits until the node's pool has one transaction.
func (f *fixture) oneIsPending() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		count, err := f.chain.Client().PendingTransactionCount(f.t.Context())
		return err == nil && count == 1
	}, 2*time.Minute, 20*time.Millisecond)
}

// send submits a transaction and waits until the node has it.
func (f *fixture) send() *relayer.Transaction {
	f.t.Helper()
	return f.Reaches(f.t, f.Send(f.t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
}

// balance returns an account's balance, in wei, minus its initial balance.
func (f *fixture) balance(of common.Address) *big.Int {
	f.t.Helper()
	b, err := f.chain.Client().BalanceAt(f.t.Context(), of, nil)
	require.NoError(f.t, err)
	return b
}

func (f *fixture) head() common.Hash {
	f.t.Helper()
	h, err := f.chain.Client().HeaderByNumber(f.t.Context(), nil)
	require.NoError(f.t, err)
	return h.Hash()
}

// becomesReady waits until the relayer is ready: a health check may take long on a busy machine.
func (f *fixture) becomesReady() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
}

// expire ends a transaction's validity now. A short one could end before the transaction is accepted.
func (f *fixture) expire(tx *relayer.Transaction) {
	f.t.Helper()
	f.exec(`UPDATE relayer_txs SET valid_until = now() WHERE id = $1`, tx.ID)
}

// settled requires every key to have nothing pending, and the chain's count as next_nonce.
func (f *fixture) settled() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		keys, err := f.Store.Keys(f.t.Context())
		if err != nil {
			return false
		}
		for _, k := range keys {
			count, err := f.chain.Client().NonceAt(f.t.Context(), k.Address, nil)
			if err != nil || k.PendingCount != 0 || k.NextNonce != count {
				return false
			}
		}
		return true
	}, 2*time.Minute, 20*time.Millisecond)
}

// A mined transaction whose block is reorganized away, and which the pool has lost as well, is sent again, and mined once.
func TestTransaction_ReorganizedAndDropped_IsMinedAgain(t *testing.T) {
	f := setup(t, 1)
	to := f.chain.Accounts[0].Address
	before, parent := f.balance(to), f.head()
	tx := f.send()
	f.chain.Commit()
	mined := f.Reaches(t, tx, relayer.Mined)
	f.chain.Fork(parent)
	f.chain.Rollback()
	f.chain.Commit()
	f.chain.Commit() // the other branch is the longer one
	again := f.Reaches(t, tx, relayer.Broadcasted)
	require.Greater(t, again.Revision, mined.Revision)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == relayer.Confirmed
	}, 2*time.Minute, 200*time.Millisecond)
	require.Equal(t, int64(1), new(big.Int).Sub(f.balance(to), before).Int64())
	f.settled()
}

func TestTransaction_DroppedByThePool_IsSentAgain(t *testing.T) {
	f := setup(t, 1)
	tx := f.send()
	f.chain.Rollback()
	f.oneIsPending()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
}

func TestCancel_BeforeMined_NoopIsMined(t *testing.T) {
	f := setup(t, 1)
	before := f.balance(f.chain.Accounts[0].Address)
	tx := f.send()
	canceled, err := f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	require.Equal(t, relayer.IntentCancel, canceled.Intent)
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Canceled)
	require.Zero(t, f.balance(f.chain.Accounts[0].Address).Cmp(before))
	var state *relayer.StateError
	_, err = f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.ErrorAs(t, err, &state)
	f.settled()
}

func TestReplace_NewContentsAreMined(t *testing.T) {
	f := setup(t, 1)
	to := f.chain.Accounts[0].Address
	before := f.balance(to)
	tx := f.send()
	replaced, err := f.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{
		To: &to, Value: big.NewInt(7), Speed: relayer.Fast,
	})
	require.NoError(t, err)
	require.Equal(t, *tx.Nonce, *replaced.Nonce)
	f.chain.Commit()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Confirmed)
	require.Equal(t, int64(7), new(big.Int).Sub(f.balance(to), before).Int64())
}

// A no-op takes the nonce of a transaction that expires while it waits for a lower base fee.
func TestValidUntil_PassesBeforeMined_NoopTakesTheNonce(t *testing.T) {
	f := setup(t, 1)
	to := f.chain.Accounts[0].Address
	before := f.balance(to)
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &to, Value: big.NewInt(1), Speed: relayer.Fast, ValidUntil: time.Now().Add(time.Hour),
	}})
	require.NoError(t, err)
	f.Reaches(t, tx, relayer.Broadcasted)
	f.expire(tx)
	require.Eventually(t, func() bool {
		attempts, err := f.Store.Attempts(t.Context(), tx.ID)
		if err != nil || len(attempts) == 0 || attempts[len(attempts)-1].Purpose != relayer.PurposeNoop {
			return false
		}
		// It is stored before it is sent, and a block in between would mine the original.
		_, _, err = f.chain.Client().TransactionByHash(t.Context(), attempts[len(attempts)-1].Hash)
		return err == nil
	}, 2*time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == relayer.Expired
	}, 2*time.Minute, 100*time.Millisecond)
	require.Zero(t, f.balance(to).Cmp(before))
	f.settled()
}

// The lowest pending nonce is outbid until it is mined, by a tenth each time, and never above the cap.
func TestBump_NotMined_RaisesUpToTheCap(t *testing.T) {
	var node *proxy.Proxy
	limit := big.NewInt(10_000_000_000)
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(known)
		o.Sender = func(c *sender.Config) { c.MaxFee = limit }
		o.Pool = func(c *service.Config) { c.MaxFee = limit }
		o.Tracker = func(c *tracker.Config) {
			c.BumpAfter = map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	tx := f.send()
	next := f.send()
	var attempts []*relayer.Attempt
	require.Eventually(t, func() (done bool) {
		f.chain.Commit()
		var err error
		attempts, err = f.Store.Attempts(t.Context(), tx.ID)
		require.NoError(t, err)
		last := attempts[len(attempts)-1].MaxFee
		return new(big.Int).Div(new(big.Int).Mul(last, big.NewInt(110)), big.NewInt(100)).Cmp(limit) > 0
	}, 2*time.Minute, 100*time.Millisecond)
	for i, a := range attempts {
		require.LessOrEqual(t, a.MaxFee.Cmp(limit), 0)
		if i == 0 {
			continue
		}
		was := attempts[i-1]
		for _, pair := range [][2]*big.Int{{was.MaxFee, a.MaxFee}, {was.MaxPriorityFee, a.MaxPriorityFee}} {
			least := new(big.Int).Mul(pair[0], big.NewInt(110))
			require.GreaterOrEqual(t, new(big.Int).Mul(pair[1], big.NewInt(100)).Cmp(least), 0, "attempt %d", a.Number)
		}
	}
	others, err := f.Store.Attempts(t.Context(), next.ID)
	require.NoError(t, err)
	require.Len(t, others, 1) // it only waits behind the first
	node.SetRules()
	f.commitUntil(tx, relayer.Confirmed)
	f.commitUntil(next, relayer.Confirmed)
}

// Another sender's transaction uses our nonce: ours waits until that one is final, and is then sent under another.
func TestNonceConflict_ForeignIsFinal_OursGetsAnotherNonce(t *testing.T) {
	f := setup(t, 1)
	to := f.chain.Accounts[0].Address
	before := f.balance(to)
	tx := f.send()
	ring := f.ring
	address := ring.Addresses()[0]
	key, _ := ring.Signer(address)
	foreign, err := signer.SignTx(t.Context(), key, types.NewTx(&types.DynamicFeeTx{
		ChainID: big.NewInt(1337), Nonce: *tx.Nonce, To: &to, Value: big.NewInt(1000), Gas: 21000,
		GasFeeCap: big.NewInt(90_000_000_000), GasTipCap: big.NewInt(50_000_000_000),
	}), big.NewInt(1337))
	require.NoError(t, err)
	require.NoError(t, f.chain.Client().SendTransaction(t.Context(), foreign))
	f.chain.Commit()
	require.Eventually(t, func() bool {
		f.chain.Commit()
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == relayer.Confirmed
	}, 2*time.Minute, 200*time.Millisecond)
	now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
	require.NoError(t, err)
	require.Equal(t, *tx.Nonce+1, *now.Nonce)
	require.Equal(t, int64(1001), new(big.Int).Sub(f.balance(to), before).Int64())
	f.settled()
}

// A chain with another genesis block is rejected: nothing is accepted, and nothing sent.
func TestChainIdentity_OtherGenesis_SendsNothing(t *testing.T) {
	f := setup(t, 1)
	f.send()
	f.Stop()
	other := testchain.Simulated(t, testchain.SimulatedOptions{})
	f.options.RPC = []string{other.URL()}
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool {
		h := r.Health()
		return !h.Ready && len(h.Components) > 0 && r.ChainIdentity.Err() != nil && len(h.Reason) > 0 &&
			r.ChainIdentity.Err().Error() != "no node has confirmed yet that the chain is the one that transactions were sent on"
	}, 2*time.Minute, 20*time.Millisecond)
	require.ErrorContains(t, r.ChainIdentity.Err(), "another history")
	_, err := r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &common.Address{}, Value: big.NewInt(1), Speed: relayer.Fast,
	}})
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	count, err := other.Client().PendingTransactionCount(t.Context())
	require.NoError(t, err)
	require.Zero(t, count)
	// An operator resets the chain.
	known, err := r.Store.Chain(t.Context())
	require.NoError(t, err)
	dropped, err := tracker.StartOver(t.Context(), r.Client, r.Store, known)
	require.NoError(t, err)
	require.Equal(t, 1, dropped)
	require.Eventually(t, func() bool { return r.ChainIdentity.Err() == nil }, 2*time.Minute, 20*time.Millisecond)
}

// A server crash may lose records that nodes and the chain can report again. They are stored again, each change once.
func TestTracker_LostRecords_StoredAgain(t *testing.T) {
	f := setup(t, 1)
	to := f.chain.Accounts[0].Address
	before := f.balance(to)
	first, second := f.send(), f.send()
	f.chain.Commit()
	f.Reaches(t, first, relayer.Mined)
	f.Reaches(t, second, relayer.Mined)
	conn, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	// The rows are set to their state when the attempts were stored, and so is the key.
	_, err = conn.Exec(t.Context(), `WITH lost AS (UPDATE relayer_txs SET status = 'allocated', status_reason = '', tx_hash = NULL, block_number = NULL, block_hash = NULL,
			mined_at = NULL, sent_at = NULL, succeeded = NULL, mined_purpose = NULL, gas_used = NULL, gas_price_paid = NULL, attempts = 0, revision = 1
			WHERE open RETURNING 1)
		UPDATE relayer_keys SET pending_count = pending_count + (SELECT count(*) FROM lost)`)
	require.NoError(t, err)
	f.chain.Commit()
	f.Reaches(t, first, relayer.Confirmed)
	f.Reaches(t, second, relayer.Confirmed)
	f.settled()
	require.Equal(t, new(big.Int).Add(before, big.NewInt(2)), f.balance(to), "executed once each")
}
