package service_test

import (
	"context"
	"errors"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

// fixture is a chain, a database, and funded keys.
type fixture struct {
	chain   *testchain.Chain
	ring    *signer.Ring
	options relayertest.Options
}

func setup(t *testing.T, keys int) *fixture {
	t.Helper()
	t.Parallel()
	f := &fixture{chain: testchain.Simulated(t, testchain.SimulatedOptions{}), ring: signertest.Ring(t, t.Name(), keys)}
	f.chain.Fund(testchain.Ether(10), f.ring.Addresses()...)
	f.options = relayertest.Options{
		DatabaseURL: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL(), RPC: []string{f.chain.URL()}, Ring: f.ring,
	}
	return f
}

func (f *fixture) start(t *testing.T, edit ...func(*service.Config)) *relayertest.Relayer {
	t.Helper()
	o := f.options
	o.Pool = func(c *service.Config) {
		for _, e := range edit {
			e(c)
		}
	}
	return relayertest.Start(t, o)
}

func (f *fixture) submission() relayer.Submission {
	return relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Speed: relayer.Fast,
	}}
}

func TestSubmit_IsMinedAndConfirmed(t *testing.T) {
	f := setup(t, 2)
	r := f.start(t)
	tx := r.Send(t, f.chain.Accounts[0].Address, 5, nil)
	require.NotNil(t, tx.Nonce)
	r.Reaches(t, tx, relayer.Broadcasted)
	f.chain.Commit()
	require.NotNil(t, r.Reaches(t, tx, relayer.Mined).Hash)
	f.chain.Commit()
	r.Reaches(t, tx, relayer.Confirmed)
}

// A thousand submissions with one idempotency key, to three processes at once, store one transaction. That holds after it
// was mined, and for a process that was started later.
func TestSubmit_ConcurrentWithOneIdempotencyKey_StoresOne(t *testing.T) {
	f := setup(t, 2)
	var processes []*relayertest.Relayer
	for range 3 { // a busy machine takes longer than the default for a thousand
		processes = append(processes, f.start(t, func(c *service.Config) { c.DatabaseTimeout = time.Minute }))
	}
	s := f.submission()
	s.IdempotencyKey, s.BodyHash = "key", [32]byte{1}
	var mu sync.Mutex
	ids := map[uuid.UUID]int{}
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			tx, err := processes[i%3].Submit(t.Context(), s)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[tx.ID]++
		})
	}
	all.Wait()
	require.Len(t, ids, 1)
	tx, err := processes[0].Submit(t.Context(), s)
	require.NoError(t, err)
	processes[0].Reaches(t, tx, relayer.Broadcasted)
	f.chain.Commit()
	f.chain.Commit()
	processes[0].Reaches(t, tx, relayer.Confirmed)
	again, err := f.start(t).Submit(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, tx.ID, again.ID)
	require.Equal(t, relayer.Confirmed, again.Status)
	s.BodyHash = [32]byte{2}
	_, err = processes[1].Submit(t.Context(), s)
	require.ErrorIs(t, err, relayer.ErrKeyReused)
	nonces := uint64(0)
	keys, err := processes[0].Store.Keys(t.Context())
	require.NoError(t, err)
	for _, k := range keys {
		nonces += k.NextNonce
	}
	require.Equal(t, uint64(1), nonces)
}

// A burst over several processes leaves no key with more than one transaction above any other. The rest is queued, then
// rejected.
func TestSubmit_Burst_IsSpreadThenQueuedThenRejected(t *testing.T) {
	f := setup(t, 8)
	before := f.received(t)
	var processes []*relayertest.Relayer
	for range 3 {
		processes = append(processes, f.start(t, func(c *service.Config) { c.Cap, c.Queue = 10, 40 }))
	}
	burst := func(n int) (refused int) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				_, err := processes[i%3].Submit(t.Context(), f.submission())
				if _, full := err.(*relayer.LimitError); full { //nolint:errorlint // the error is not wrapped
					mu.Lock()
					defer mu.Unlock()
					refused++
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return refused
	}
	counts := func() []int {
		keys, err := processes[0].Store.Keys(t.Context())
		require.NoError(t, err)
		var counts []int
		for _, k := range keys {
			counts = append(counts, k.PendingCount)
		}
		return counts
	}
	require.Zero(t, burst(60))
	require.LessOrEqual(t, slices.Max(counts())-slices.Min(counts()), 1)
	require.Equal(t, 10, burst(70))
	require.Equal(t, []int{10, 10, 10, 10, 10, 10, 10, 10}, counts())
	require.Eventually(t, func() bool {
		f.chain.Commit()
		queued, err := processes[0].Store.Queued(t.Context())
		return err == nil && queued == 0 && slices.Max(counts()) == 0
	}, 2*time.Minute, 200*time.Millisecond)
	require.Equal(t, int64(120), new(big.Int).Sub(f.received(t), before).Int64())
}

func (f *fixture) received(t *testing.T) *big.Int {
	t.Helper()
	b, err := f.chain.Client().BalanceAt(t.Context(), f.chain.Accounts[0].Address, nil)
	require.NoError(t, err)
	return b
}

// While a signer is slow, no lock is held: another session can lock the key's row, and other requests succeed.
func TestSubmit_SlowSigner_HoldsNoLock(t *testing.T) {
	f := setup(t, 1)
	slow := signertest.NewFake(signertest.Keys(t, t.Name()+" slow", 1)[0].Signer)
	ring, err := signer.New(slow)
	require.NoError(t, err)
	f.options.Ring = ring
	f.chain.Fund(testchain.Ether(10), slow.Address())
	r := f.start(t)
	arrived, release := slow.Block()
	defer release() // whatever fails: the relayer ends only after the signer
	first, err := r.Submit(t.Context(), f.submission())
	require.NoError(t, err)
	<-arrived
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer db.Close(t.Context())
	// Other sessions hold the row briefly; a blocked signer would hold it until released.
	_, err = db.Exec(t.Context(), `SET lock_timeout = '10s'; SELECT 1 FROM relayer_keys FOR UPDATE`)
	require.NoError(t, err)
	second, err := r.Submit(t.Context(), f.submission())
	require.NoError(t, err)
	require.Equal(t, *first.Nonce+1, *second.Nonce)
	release()
	r.Reaches(t, first, relayer.Broadcasted)
	r.Reaches(t, second, relayer.Broadcasted)
}

func TestSubmit_Refused_TakesNoNonce(t *testing.T) {
	f := setup(t, 1)
	counter := f.chain.Counter()
	other := common.HexToAddress("0xdead")
	r := f.watched(t, func(c *service.Config) {
		c.MaxFee, c.MaxGas = big.NewInt(50_000_000_000), 1_000_000
		c.Receivers = []common.Address{f.chain.Accounts[0].Address, counter}
	})
	huge := new(big.Int).Lsh(big.NewInt(1), 200)
	for name, c := range map[string]struct {
		edit  func(*relayer.Submission)
		field string
		text  string
	}{
		"expired":          {func(s *relayer.Submission) { s.Request.ValidUntil = time.Now().Add(-time.Second) }, "valid_until", "past"},
		"receiver":         {func(s *relayer.Submission) { s.Request.To = &other }, "to", "receivers"},
		"gas below":        {func(s *relayer.Submission) { s.Request.GasLimit = 20_999 }, "gas_limit", "21000"},
		"gas above":        {func(s *relayer.Submission) { s.Request.GasLimit = 1_000_001 }, "gas_limit", "1000000"},
		"price":            {func(s *relayer.Submission) { s.Request.GasPrice = big.NewInt(50_000_000_001) }, "gas_price", "cap"},
		"tip above":        {func(s *relayer.Submission) { s.Request.MaxFee, s.Request.MaxPriorityFee = big.NewInt(1), big.NewInt(2) }, "max_priority_fee_per_gas", "above"},
		"more than it has": {func(s *relayer.Submission) { s.Request.Value = huge }, "value", "more than"},
	} {
		s := f.submission()
		c.edit(&s)
		_, err := r.Submit(t.Context(), s)
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, name)
		require.Equal(t, c.field, invalid.Field, "%s: %s", name, invalid)
		require.Contains(t, invalid.Problem, c.text, name)
	}
	s := f.submission()
	s.Request.To, s.Request.Value, s.Request.Data = &counter, new(big.Int), contracts.Fail("out of stock")
	_, err := r.Submit(t.Context(), s)
	var revert *relayer.RevertError
	require.ErrorAs(t, err, &revert)
	require.Equal(t, "out of stock", revert.Reason)
	for _, id := range []string{"absent", other.Hex()} {
		s := f.submission()
		s.RelayerID = id
		_, err := r.Submit(t.Context(), s)
		require.ErrorIs(t, err, relayer.ErrNotFound)
	}
	keys, err := r.Store.Keys(t.Context())
	require.NoError(t, err)
	require.Zero(t, keys[0].NextNonce)
	_, total, err := r.Transactions(t.Context(), relayertest.PoolID, relayer.Filter{}, 0, 1)
	require.NoError(t, err)
	require.Zero(t, total)
}

func TestSubmit_Disabled_RejectsNewAndAnswersReads(t *testing.T) {
	f := setup(t, 1)
	on := f.start(t)
	s := f.submission()
	s.IdempotencyKey = "key"
	tx, err := on.Submit(t.Context(), s)
	require.NoError(t, err)
	off := relayertest.Launch(t, func() relayertest.Options {
		o := f.options
		o.Pool = func(c *service.Config) { c.Enabled = false }
		return o
	}())
	_, err = off.Submit(t.Context(), f.submission())
	require.ErrorIs(t, err, relayer.ErrDisabled)
	again, err := off.Submit(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, tx.ID, again.ID)
	for _, id := range []string{relayertest.PoolID, f.ring.Addresses()[0].Hex()} {
		r, err := off.Relayer(t.Context(), id)
		require.NoError(t, err)
		require.True(t, r.Disabled)
		require.Equal(t, "switched off: RELAYER_ENABLED is false", r.DisabledReason)
		// No balance is stored yet: the relayer queries the node, because clients expect one.
		status, err := off.Status(t.Context(), id, relayer.StatusParts{Balance: true})
		require.NoError(t, err)
		require.Positive(t, status.Balance.Sign())
		status, err = off.Status(t.Context(), id, relayer.StatusParts{})
		require.NoError(t, err)
		require.Nil(t, status.Balance)
	}
	require.Eventually(t, func() bool {
		h := off.Health()
		return !h.Ready && slices.ContainsFunc(h.Components, func(c relayer.Component) bool { return c.Name == "switch" && c.Problem != "" })
	}, 2*time.Minute, 10*time.Millisecond)
}

// Without its database the relayer accepts nothing, reports that, and recovers by itself.
func TestSubmit_DatabaseIsDown_FailsAndRecovers(t *testing.T) {
	f := setup(t, 1)
	server := testpostgres.Own(t)
	f.options.DatabaseURL = server.URL()
	r := f.start(t, func(c *service.Config) { c.DatabaseTimeout = 2 * time.Second })
	server.Stop()
	_, err := r.Submit(t.Context(), f.submission())
	require.Error(t, err)
	require.True(t, errors.Is(err, relayer.ErrUnavailable) || errors.Is(err, relayer.ErrUnknown), err)
	require.Eventually(t, func() bool { return !r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
	server.Restart()
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
	tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
	r.Reaches(t, tx, relayer.Broadcasted)
}

// simulating are nodes that call a hook before each simulation.
type simulating struct {
	service.Chain
	before func()
}

func (s *simulating) EstimateGas(ctx context.Context, m evm.Message) (uint64, error) {
	s.before()
	return s.Chain.EstimateGas(ctx, m)
}

// If a caller disconnects, no transaction is lost: a retry with the same idempotency key returns it.
func TestSubmit_CallerDisconnects_RetryFindsTransaction(t *testing.T) {
	f := setup(t, 1)
	f.options.Registry = prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := f.start(t, func(c *service.Config) { c.Chain = &simulating{c.Chain, cancel} })
	s := f.submission()
	_, err := r.Submit(ctx, s)
	require.Error(t, err)
	s.IdempotencyKey, s.Request.GasLimit = "key", 21_000
	_, err = r.Submit(ctx, s)
	require.Error(t, err)
	require.Equal(t, map[string]float64{"abandoned": 2}, f.outcomes(t), "it is the caller's doing")
	tx, err := r.Submit(t.Context(), s)
	require.NoError(t, err)
	r.Reaches(t, tx, relayer.Broadcasted)
	_, total, err := r.Transactions(t.Context(), relayertest.PoolID, relayer.Filter{}, 0, 1)
	require.NoError(t, err)
	require.Equal(t, 1, total)
}

// outcomes returns the counters of requests by outcome, without zeros.
func (f *fixture) outcomes(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := f.options.Registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "rollcall_relayer_submissions_total" && m.GetCounter().GetValue() > 0 {
				counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return counts
}
