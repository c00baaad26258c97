package sender

import (
	"context"
	"errors"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parts implements the chain and the store, with settable results, and records the calls.
type parts struct {
	mu        sync.Mutex
	stored    map[common.Hash]bool
	storeErr  error
	lost      map[uuid.UUID]bool // another process was first
	sent      []common.Hash
	premature []common.Hash // sent without being stored
	outcome   evm.Outcome
	unclear   bool       // nodes refuse in unrecognized words
	balances  []*big.Int // of the keys that are asked for; nil: no node answers
	recorded  []store.Broadcast
	groups    []int // how many attempts each call stored
	wake      chan struct{}
	gas       uint64 // of a transfer
}

func (p *parts) Fees(context.Context) (evm.Fees, error) { return london, nil }

func (p *parts) TransferGas(context.Context, common.Address, common.Address, bool) uint64 {
	return p.gas
}

func (p *parts) MaxTransferGas() uint64 { return 30_000_000 }

func (p *parts) Send(_ context.Context, raws []evm.Raw) []evm.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make([]evm.Result, len(raws))
	for i, r := range raws {
		p.sent = append(p.sent, r.Hash)
		if !p.stored[r.Hash] {
			p.premature = append(p.premature, r.Hash)
		}
		results[i].Outcome, results[i].Unrecognized = p.outcome, p.unclear
	}
	return results
}

func (p *parts) Balances(_ context.Context, keys []common.Address) ([]*big.Int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.balances == nil {
		return nil, errors.New("no node")
	}
	return p.balances[:len(keys)], nil
}

func (p *parts) SendToAll(ctx context.Context, raws []evm.Raw) []evm.Result { return p.Send(ctx, raws) }

func (p *parts) StoreAttempts(_ context.Context, attempts []*relayer.Attempt) ([]bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = append(p.groups, len(attempts))
	stored := make([]bool, len(attempts))
	if p.storeErr != nil {
		p.wake <- struct{}{}
		return nil, p.storeErr
	}
	for i, a := range attempts {
		if stored[i] = !p.lost[a.TxID]; stored[i] {
			p.stored[a.Hash] = true
		}
	}
	return stored, nil
}

func (p *parts) RecordBroadcasts(_ context.Context, b []store.Broadcast) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recorded = append(p.recorded, slices.Clone(b)...)
	return nil
}

func setup(t *testing.T, edit ...func(*Config)) (*Sender, *parts, []common.Address) {
	t.Helper()
	ring := signertest.Ring(t, t.Name(), 3)
	p := &parts{stored: map[common.Hash]bool{}, lost: map[uuid.UUID]bool{}, gas: 21_000, outcome: evm.Accepted, wake: make(chan struct{}, 1000)}
	cfg := Config{ChainID: 1, Ring: ring, Chain: p, Store: p, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, e := range edit {
		e(&cfg)
	}
	return New(cfg), p, ring.Addresses()
}

func tx(from common.Address, nonce uint64) *relayer.Transaction {
	return &relayer.Transaction{ID: uuid.New(), From: from, Nonce: &nonce, Request: relayer.Request{To: &common.Address{1}, GasLimit: 21_000}}
}

// run has the sender finish jobs.
func run(t *testing.T, s *Sender, jobs ...*Job) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.Sign(jobs...)
	stop() // the sender finishes accepted jobs
	require.NoError(t, <-done)
}

// Every attempt is stored before it is sent, in the order of each key's nonces, and its result is recorded.
func TestSender_StoresThenSendsInNonceOrder(t *testing.T) {
	t.Parallel()
	s, p, keys := setup(t)
	var jobs []*Job
	nonceOf := map[uuid.UUID]uint64{}
	for nonce := range uint64(100) {
		for _, key := range keys {
			j := NewJob(tx(key, nonce))
			nonceOf[j.Tx.ID] = nonce
			jobs = append(jobs, j)
		}
	}
	run(t, s, jobs...)
	require.Len(t, p.sent, 300)
	require.Empty(t, p.premature)
	require.Len(t, p.recorded, 300)
	for _, b := range p.recorded {
		require.Equal(t, relayer.Broadcasted, b.Status)
		require.Contains(t, p.stored, b.Hash)
	}
}

func TestSender_AttemptNotStored_IsNotBroadcast(t *testing.T) {
	t.Parallel()
	s, p, keys := setup(t)
	ours, theirs := NewJob(tx(keys[0], 0)), NewJob(tx(keys[0], 1))
	p.lost[theirs.Tx.ID] = true
	run(t, s, ours, theirs)
	require.Len(t, p.sent, 1)
	require.Len(t, p.recorded, 1)
	require.Equal(t, ours.Tx.ID, p.recorded[0].TxID)

	s, p, keys = setup(t)
	p.storeErr = errors.New("the database is away")
	run(t, s, NewJob(tx(keys[0], 0)))
	require.Empty(t, p.sent)
}

func TestSender_NotReady_SendsNothing(t *testing.T) {
	t.Parallel()
	foreign := errors.New("another chain")
	s, p, keys := setup(t, func(c *Config) { c.Ready = func() error { return foreign } })
	run(t, s, NewJob(tx(keys[0], 0)))
	require.Empty(t, p.sent)
	_, err := s.Resend(t.Context(), []*relayer.Attempt{{}})
	require.ErrorIs(t, err, foreign)
	require.Empty(t, p.sent)
}

// Failures count from the first to the last, while none of them is older than a minute and no broadcast reaches a node.
func TestUnreached_CountsFromFirstFailureToLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := setup(t)
		lost := evm.Result{Outcome: evm.Unknown, Err: errors.New("timeout")}
		is := func(want time.Duration) {
			t.Helper()
			during, err := s.Unreached()
			require.Equal(t, want, during)
			require.Equal(t, want > 0, err != nil && during > 0)
		}
		is(0)
		s.reach.note(common.Hash{1}, lost)
		<-time.After(30 * time.Second)
		is(0) // one lost answer is no outage
		s.reach.note(common.Hash{1}, lost)
		is(30 * time.Second)
		s.reach.note(common.Hash{2}, evm.Result{Outcome: evm.Unknown, Reached: true}) // another node has answered
		is(0)
		s.reach.note(common.Hash{1}, lost)
		<-time.After(10 * time.Second)
		s.reach.note(common.Hash{1}, lost)
		is(10 * time.Second)
		s.NodeHas(common.Hash{3}) // another process's
		is(10 * time.Second)
		s.NodeHas(common.Hash{1})
		is(0)
		s.reach.note(common.Hash{1}, lost)
		<-time.After(59 * time.Second)
		s.reach.note(common.Hash{1}, lost)
		is(59 * time.Second)
		<-time.After(61 * time.Second)
		is(0)
		s.reach.note(common.Hash{1}, lost)
		is(0)
	})
}

func TestSender_NodeOutcome_DecidesTheStatus(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[evm.Outcome]relayer.Status{
		evm.Accepted: relayer.Broadcasted, evm.AlreadyKnown: relayer.Broadcasted, evm.NonceTooLow: relayer.Broadcasted,
		evm.Unknown: relayer.Unknown, evm.InsufficientFunds: relayer.Allocated, evm.NotSent: relayer.Allocated,
		evm.ReplacementUnderpriced: relayer.Allocated, evm.PoolFull: relayer.Allocated,
	} {
		s, p, keys := setup(t)
		p.outcome = outcome
		run(t, s, NewJob(tx(keys[0], 0)))
		require.Len(t, p.recorded, 1)
		require.Equal(t, want, p.recorded[0].Status, outcome.String())
		require.Equal(t, want == relayer.Broadcasted, p.recorded[0].Error == "", outcome.String())
	}
}

func TestBuild_Noop_IsSentToItsOwnKey(t *testing.T) {
	t.Parallel()
	s, _, keys := setup(t)
	canceled := tx(keys[0], 7)
	canceled.Intent, canceled.Data = relayer.IntentCancel, []byte{1}
	j := NewJob(canceled)
	require.Equal(t, relayer.PurposeNoop, j.Purpose)
	built := build(canceled, j.Purpose, 30_000, FeeBid{wei(2), wei(1)}, s.chainID)
	require.Equal(t, keys[0], *built.To())
	require.Zero(t, built.Value().Sign())
	require.Empty(t, built.Data())
	require.Equal(t, uint64(7), built.Nonce())
	require.Equal(t, uint64(30_000), built.Gas())
}

// The next attempt outbids the last one of the same nonce; at another nonce it starts from the market fee.
func TestNext_SameNonce_Outbids(t *testing.T) {
	t.Parallel()
	s, _, keys := setup(t)
	pending := tx(keys[0], 3)
	last := &relayer.Attempt{Number: 4, From: keys[0], Nonce: 3, MaxFee: wei(1000), MaxPriorityFee: wei(500)}
	next, err := s.Next(t.Context(), pending, relayer.PurposeSend, []*relayer.Attempt{last})
	require.NoError(t, err)
	require.Equal(t, 5, next.Number)
	require.Equal(t, "1100", next.MaxFee.String())
	last.Nonce = 2
	next, err = s.Next(t.Context(), pending, relayer.PurposeSend, []*relayer.Attempt{last})
	require.NoError(t, err)
	require.Equal(t, 5, next.Number)
	require.Equal(t, "203", next.MaxFee.String())
	for _, tip := range []*big.Int{nil, wei(1)} { // far below the market fee, set by the caller
		pending.GasPrice, pending.MaxFee = nil, nil
		cheap := &relayer.Attempt{Number: 1, From: keys[0], Nonce: 3, MaxFee: wei(1), MaxPriorityFee: tip}
		own, market := "2", "103" // by a tenth, which is 1 wei at least
		if tip == nil {
			pending.GasPrice = wei(1)
		} else {
			pending.MaxFee, market = wei(1), "203"
		}
		next, err = s.Next(t.Context(), pending, relayer.PurposeReplace, []*relayer.Attempt{cheap})
		require.NoError(t, err)
		require.Equal(t, own, next.MaxFee.String())
		next, err = s.NextAtMarketPrice(t.Context(), pending, relayer.PurposeSend, []*relayer.Attempt{cheap})
		require.NoError(t, err)
		require.Equal(t, market, next.MaxFee.String())
	}
	stranger := tx(common.Address{9}, 0)
	_, err = s.Next(t.Context(), stranger, relayer.PurposeSend, nil)
	require.ErrorIs(t, err, errNotHeld)
}

func TestResults_SeveralAttempts_LatestIsRecorded(t *testing.T) {
	t.Parallel()
	s, p, keys := setup(t)
	one, other := uuid.New(), uuid.New()
	for _, b := range []store.Broadcast{
		{TxID: one, Number: 2, From: keys[0], Status: relayer.Unknown}, {TxID: one, Number: 3, From: keys[0], Status: relayer.Broadcasted},
		{TxID: other, Number: 1, From: keys[1], Status: relayer.Allocated}, {TxID: other, Number: 1, From: keys[1], Status: relayer.Broadcasted},
		{TxID: one, Number: 1, From: keys[0], Status: relayer.Allocated},
	} {
		s.results <- b
	}
	close(s.results)
	s.record(t.Context())
	require.Equal(t, []store.Broadcast{
		{TxID: one, Number: 3, From: keys[0], Status: relayer.Broadcasted}, {TxID: other, Number: 1, From: keys[1], Status: relayer.Broadcasted},
	}, p.recorded)
}

// events calls the functions that are not nil.
type events struct {
	signed      func(key common.Address, err error)
	broadcasted func(key common.Address)
}

func (e events) Signed(key common.Address, err error) {
	if e.signed != nil {
		e.signed(key, err)
	}
}

func (e events) Broadcasted(key common.Address, _ evm.Outcome) {
	if e.broadcasted != nil {
		e.broadcasted(key)
	}
}

// The hook receives the results of signers, but not of a caller that gave up.
func TestEvents_Signed_HasTheSignersError(t *testing.T) {
	t.Parallel()
	key := signertest.Keys(t, t.Name(), 1)[0]
	remote := signertest.NewFake(key.Signer)
	ring, err := signer.New(remote)
	require.NoError(t, err)
	var received []error
	s, _, _ := setup(t, func(c *Config) {
		c.Ring, c.Events = ring, events{signed: func(k common.Address, err error) {
			require.Equal(t, key.Address, k)
			received = append(received, err)
		}}
	})
	pending := tx(key.Address, 0)
	_, err = s.Next(t.Context(), pending, relayer.PurposeSend, nil)
	require.NoError(t, err)
	away := errors.New("the signer is away")
	remote.Fail(away)
	_, err = s.Next(t.Context(), pending, relayer.PurposeSend, nil)
	require.ErrorIs(t, err, away)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Next(ctx, pending, relayer.PurposeSend, nil)
	require.Error(t, err)
	require.Len(t, received, 2)
	require.NoError(t, received[0])
	require.ErrorIs(t, received[1], away)
}

// A transaction that no node accepts is given up even if its no-op cannot outbid it under the cap.
func TestNext_NoopOfFailedAtCap_DoesNotOutbid(t *testing.T) {
	t.Parallel()
	s, _, keys := setup(t, func(c *Config) { c.MaxFee, c.NoopFactor = wei(1000), 1 })
	failed := tx(keys[0], 3)
	attempts := []*relayer.Attempt{{Number: 1, From: keys[0], Nonce: 3, MaxFee: wei(1000), MaxPriorityFee: wei(500), Purpose: relayer.PurposeSend}}
	for _, intent := range []relayer.Intent{relayer.IntentSend, relayer.IntentCancel, relayer.IntentExpire} {
		failed.Intent = intent
		_, err := s.Next(t.Context(), failed, relayer.PurposeNoop, attempts)
		require.ErrorIs(t, err, ErrAtCap)
	}
	failed.Intent = relayer.IntentFail
	noop, err := s.Next(t.Context(), failed, relayer.PurposeNoop, attempts)
	require.NoError(t, err)
	require.LessOrEqual(t, noop.MaxFee.Cmp(wei(1000)), 0)
	_, err = s.Next(t.Context(), failed, relayer.PurposeNoop, append(attempts, &relayer.Attempt{
		Number: 2, From: keys[0], Nonce: 3, MaxFee: wei(1000), MaxPriorityFee: wei(500), Purpose: relayer.PurposeNoop,
	}))
	require.ErrorIs(t, err, ErrAtCap, "the same bytes again are no new attempt")
}

func TestNext_NoopExceedsTheCapByTheFactor(t *testing.T) {
	t.Parallel()
	s, _, keys := setup(t, func(c *Config) { c.MaxFee, c.NoopFactor = wei(1000), 3 })
	canceled := tx(keys[0], 3)
	canceled.Intent = relayer.IntentCancel
	at := func(fee int64, purpose relayer.Purpose) []*relayer.Attempt {
		return []*relayer.Attempt{{Number: 1, From: keys[0], Nonce: 3, MaxFee: wei(fee), MaxPriorityFee: wei(fee), Purpose: purpose}}
	}
	noop, err := s.Next(t.Context(), canceled, relayer.PurposeNoop, at(1000, relayer.PurposeSend))
	require.NoError(t, err)
	require.Equal(t, wei(1100), noop.MaxFee)
	require.Equal(t, wei(1100), noop.MaxPriorityFee)
	noop, err = s.NextAtMarketPrice(t.Context(), canceled, relayer.PurposeNoop, at(2700, relayer.PurposeNoop))
	require.NoError(t, err)
	require.Equal(t, wei(2970), noop.MaxFee)
	_, err = s.NextAtMarketPrice(t.Context(), canceled, relayer.PurposeNoop, at(2970, relayer.PurposeNoop))
	require.ErrorIs(t, err, ErrAtCap)
	_, err = s.NextAtMarketPrice(t.Context(), canceled, relayer.PurposeReplace, at(1000, relayer.PurposeReplace))
	require.ErrorIs(t, err, ErrAtCap, "only no-ops may exceed the cap")
}

func TestSign_FirstAttemptLeavesRoomForTwoBumps(t *testing.T) {
	t.Parallel()
	s, p, keys := setup(t, func(c *Config) { c.MaxFee = wei(150) })
	pending := tx(keys[0], 0)
	first, err := s.Next(t.Context(), pending, relayer.PurposeSend, nil)
	require.NoError(t, err)
	second, err := s.Next(t.Context(), pending, relayer.PurposeReplace, []*relayer.Attempt{first})
	require.NoError(t, err, "%s", first.MaxFee)
	require.LessOrEqual(t, second.MaxFee.Cmp(wei(150)), 0)
	next := tx(keys[0], 1)
	next.Intent = relayer.IntentSend
	job := NewJob(next)
	run(t, s, job)
	require.Equal(t, first.MaxFee, job.attempt.MaxFee)
	require.Len(t, p.sent, 1)
}

func TestNext_NoopThatLacksGas_GrowsUpToABound(t *testing.T) {
	t.Parallel()
	s, p, keys := setup(t)
	p.gas = 50_000
	canceled := tx(keys[0], 3)
	canceled.Intent = relayer.IntentCancel
	next := func(reason evm.Outcome, before *relayer.Attempt) (*relayer.Attempt, uint64) {
		canceled.Status, canceled.StatusReason = relayer.Allocated, reason.String()
		if reason == evm.Accepted {
			canceled.Status, canceled.StatusReason = relayer.Broadcasted, ""
		}
		var attempts []*relayer.Attempt
		if before != nil {
			attempts = append(attempts, before)
		}
		a, err := s.NextAtMarketPrice(t.Context(), canceled, relayer.PurposeNoop, attempts)
		require.NoError(t, err)
		return a, gasOf(a)
	}
	first, gas := next(evm.NotSent, nil)
	require.EqualValues(t, 50_000, gas)
	second, gas := next(evm.IntrinsicGas, first)
	require.EqualValues(t, 100_000, gas)
	require.Equal(t, first.MaxFee, second.MaxFee)
	third, gas := next(evm.Accepted, second)
	require.EqualValues(t, 100_000, gas, "an accepted gas limit is kept")
	require.Positive(t, third.MaxFee.Cmp(second.MaxFee))
	_, gas = next(evm.InsufficientFunds, second)
	require.EqualValues(t, 50_000, gas)
	p.gas = 2 * p.MaxTransferGas()
	most, gas := next(evm.IntrinsicGas, second)
	require.Equal(t, p.MaxTransferGas(), gas)
	dearer, gas := next(evm.IntrinsicGas, most)
	require.Equal(t, p.MaxTransferGas(), gas)
	require.NotEqual(t, most.Hash, dearer.Hash, "the same bytes again are no attempt")
}

// A stop waits for a signer that hangs, but not for all jobs queued for that signer.
func TestSender_StopWhileSignerHangs_DropsQueuedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := signertest.Keys(t, t.Name(), 1)[0]
		remote := signertest.NewFake(local.Signer)
		ring, err := signer.New(remote)
		require.NoError(t, err)
		s, p, _ := setup(t, func(c *Config) { c.Ring, c.Signers = ring, 2 })
		arrived, release := remote.Block()
		defer release()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for nonce := range uint64(16) {
			s.Sign(NewJob(tx(local.Address, nonce)))
		}
		<-arrived
		<-arrived
		began := time.Now()
		stop()
		require.NoError(t, <-done)
		require.Equal(t, stopLimit, time.Since(began))
		require.Empty(t, p.sent)
	})
}

// slowChain takes a minute for each send.
type slowChain struct {
	*parts
	sends atomic.Int64
}

func (c *slowChain) Send(ctx context.Context, raws []evm.Raw) []evm.Result {
	c.sends.Add(1)
	select {
	case <-time.After(time.Minute):
		return c.parts.Send(ctx, raws)
	case <-ctx.Done():
		return make([]evm.Result, len(raws)) // unknown
	}
}

// A stop does not wait until nodes have received all stored attempts. The results of those that were being sent are recorded.
func TestSender_StopWhileNodesAreSlow_LeavesStoredAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var chain *slowChain
		s, p, keys := setup(t, func(c *Config) {
			chain = &slowChain{parts: c.Chain.(*parts)}
			c.Chain = chain
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for nonce := range uint64(5 * group) {
			s.Sign(NewJob(tx(keys[0], nonce)))
		}
		synctest.Wait()
		began := time.Now()
		stop()
		require.NoError(t, <-done)
		require.Equal(t, sendLimit, time.Since(began))
		require.EqualValues(t, 1, chain.sends.Load())
		require.NotEmpty(t, p.recorded)
		require.LessOrEqual(t, len(p.recorded), group)
		for _, b := range p.recorded {
			require.Equal(t, relayer.Unknown, b.Status)
		}
	})
}

// A long queue for a signer that hangs does not delay other keys' transactions, and duplicate jobs are signed once.
func TestSender_SignerHangs_OtherKeysGoOn(t *testing.T) {
	t.Parallel()
	keys := signertest.Keys(t, t.Name(), 2)
	remote := signertest.NewFake(keys[0].Signer)
	ring, err := signer.New(remote, keys[1].Signer)
	require.NoError(t, err)
	sent := make(chan common.Address, 4*group)
	s, p, _ := setup(t, func(c *Config) {
		c.Ring, c.Signers = ring, 2
		c.Events = events{broadcasted: func(key common.Address) { sent <- key }}
	})
	arrived, release := remote.Block()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var jobs []*Job
	for nonce := range uint64(group + 10) {
		jobs = append(jobs, NewJob(tx(keys[0].Address, nonce)))
	}
	s.Sign(jobs...)
	<-arrived
	<-arrived
	s.Sign(jobs...)
	s.Sign(NewJob(tx(keys[1].Address, 0)))
	require.Equal(t, keys[1].Address, <-sent)
	release()
	stop()
	require.NoError(t, <-done)
	require.Equal(t, len(jobs), remote.Signed())
	require.Len(t, p.sent, len(jobs)+1)
	s.Sign(jobs...) // after Run the sender drops them
	require.Len(t, p.sent, len(jobs)+1)
}

// Attempts that are signed soon after others were stored are grouped, because each call is a commit.
func TestStore_SoonAfterAnother_Grouped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p, keys := setup(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for nonce := range uint64(4) {
			s.Sign(NewJob(tx(keys[0], nonce)))
			synctest.Wait()
			<-time.After(storePause / 4)
		}
		<-time.After(storePause)
		synctest.Wait()
		require.Equal(t, []int{1, 3}, p.groups)
		stop()
		require.NoError(t, <-done)
		require.Len(t, p.recorded, 4)
	})
}

// outcomes records the outcomes that are reported of keys.
type outcomes struct {
	mu  sync.Mutex
	all []evm.Outcome
}

func (o *outcomes) Signed(common.Address, error) {}

func (o *outcomes) Broadcasted(_ common.Address, outcome evm.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, outcome)
}

// Nodes refuse a transaction in words that are not recognized. The key's balance tells whether it lacks funds.
func TestSender_UnrecognizedRefusal_ComparesBalanceWithCost(t *testing.T) {
	t.Parallel()
	attempt := func(s *Sender, key common.Address) *relayer.Attempt {
		a, err := s.Next(t.Context(), tx(key, 0), relayer.PurposeSend, nil)
		require.NoError(t, err)
		return a
	}
	s, _, keys := setup(t)
	cost := costOf(attempt(s, keys[0]))
	require.Equal(t, 1, cost.Sign())
	for name, test := range map[string]struct {
		outcome  evm.Outcome
		unclear  bool
		balances []*big.Int
		status   relayer.Status
		reason   string
	}{
		"balance below the cost":    {evm.Unknown, true, []*big.Int{new(big.Int).Sub(cost, common.Big1)}, relayer.Allocated, "insufficient funds"},
		"balance of the cost":       {evm.Unknown, true, []*big.Int{cost}, relayer.Unknown, Unrecognized},
		"no balance":                {evm.Unknown, true, nil, relayer.Unknown, Unrecognized},
		"no answer":                 {evm.Unknown, false, []*big.Int{new(big.Int)}, relayer.Unknown, "unknown"},
		"another recognized reason": {evm.PoolFull, false, []*big.Int{new(big.Int)}, relayer.Allocated, "pool full"},
	} {
		for _, way := range []string{"first", "again"} {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				reported := new(outcomes)
				s, p, keys := setup(t, func(c *Config) { c.Events = reported })
				p.outcome, p.unclear, p.balances = test.outcome, test.unclear, test.balances
				if way == "first" {
					run(t, s, NewJob(tx(keys[0], 0)))
				} else {
					results, err := s.Resend(t.Context(), []*relayer.Attempt{attempt(s, keys[0])})
					require.NoError(t, err)
					require.Equal(t, test.reason == "insufficient funds", results[0].Outcome == evm.InsufficientFunds, "its caller decides with it")
				}
				require.Len(t, p.recorded, 1)
				require.Equal(t, test.status, p.recorded[0].Status)
				require.Equal(t, test.reason, p.recorded[0].Error)
				require.Equal(t, test.reason == "insufficient funds", reported.all[0] == evm.InsufficientFunds, "it counts against the key")
			})
		}
	}
}
