package relayertest

import (
	"cmp"
	"context"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// OnRound returns a tracker's events that also call f in each round. events may be nil.
func OnRound(events tracker.Events, f func(ctx context.Context, head evm.Header)) tracker.Events {
	return onRound{events, f}
}

type onRound struct {
	tracker.Events
	f func(context.Context, evm.Header)
}

func (o onRound) Round(ctx context.Context, head evm.Header) {
	if o.Events != nil {
		o.Events.Round(ctx, head)
	}
	o.f(ctx, head)
}

func (o onRound) Idle() {
	if o.Events != nil {
		o.Events.Idle()
	}
}

func (o onRound) TakeTopUps() []*relayer.Transaction {
	if o.Events == nil {
		return nil
	}
	return o.Events.TakeTopUps()
}

// Options configure a relayer.
type Options struct {
	ID          string // of the pool; default PoolID
	DatabaseURL string
	RPC         []string
	ChainID     uint64 // default 1337
	Ring        *signer.Ring
	Targets     []string // of webhooks
	Budgets     store.Budgets
	Registry    *prometheus.Registry // for the metrics of all parts; default none
	// TopUp, if not nil, makes Funder fund the other keys.
	TopUp  *keymonitor.TopUp
	Funder signer.Signer

	// Chain, Pool, Sender and Tracker edit the configuration of each part, if not nil.
	Chain   func(*evm.Config)
	Pool    func(*service.Config)
	Sender  func(*sender.Config)
	Tracker func(*tracker.Config)
	// Keeper starts a keeper, and may edit its configuration; without it balances are not read.
	KeyMonitor func(*keymonitor.Config)
}

// Relayer is one process of a pool, without its HTTP API.
type Relayer struct {
	*service.Service
	Store         *store.Store
	Client        *evm.Client
	ChainIdentity *tracker.ChainIdentity

	stop context.CancelCauseFunc
	done chan struct{}
	once sync.Once
}

// PoolID is the default pool of the relayers made here.
const PoolID = "pool"

// Start runs a relayer until the test ends, or until Stop. It returns when the relayer is healthy.
func Start(t testing.TB, o Options) *Relayer {
	t.Helper()
	r := Launch(t, o)
	require.Eventually(t, func() bool { return r.Health().Ready && r.registered(t) }, 2*time.Minute, 10*time.Millisecond, "relayer did not become healthy")
	return r
}

func (r *Relayer) registered(t testing.TB) bool {
	keys, err := r.Store.Keys(context.WithoutCancel(t.Context()))
	return err == nil && len(keys) >= len(r.Allocation().Held) && !slices.ContainsFunc(keys, func(k *relayer.Key) bool {
		return slices.Contains(r.Allocation().Held, k.Address) && !r.Store.Trusts(k)
	})
}

// Launch is Start without waiting.
func Launch(t testing.TB, o Options) *Relayer {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.WithoutCancel(t.Context()))
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	if os.Getenv("RELAYTEST_QUIET") != "" {
		log = slog.New(slog.DiscardHandler)
	}
	if o.ChainID == 0 {
		o.ChainID = 1337
	}
	o.ID = cmp.Or(o.ID, PoolID)
	require.NoError(t, postgres.Migrate(ctx, o.DatabaseURL, store.Migrations()))
	db, err := postgres.Open(ctx, postgres.Config{URL: o.DatabaseURL})
	require.NoError(t, err)
	nodes := evm.Config{ChainID: o.ChainID, Endpoints: o.RPC, PollInterval: 50 * time.Millisecond, Logger: log}
	if o.Chain != nil {
		o.Chain(&nodes)
	}
	client, err := evm.Open(nodes)
	require.NoError(t, err)
	r := &Relayer{Client: client, stop: stop, done: make(chan struct{})}
	var reg prometheus.Registerer
	if o.Registry != nil {
		reg = o.Registry
	}
	r.Store = store.New(db, store.Config{
		ChainID: o.ChainID, Pool: o.ID, Targets: o.Targets, Budgets: o.Budgets, Metrics: store.NewMetrics(reg),
	})
	follow := tracker.Nodes(client)
	r.ChainIdentity = tracker.NewChainIdentity(follow, r.Store, log, client)
	sending := sender.Config{ChainID: o.ChainID, Ring: o.Ring, Chain: client, Store: r.Store, Log: log, Ready: r.ChainIdentity.Err, Metrics: sender.NewMetrics(reg),
		Pause: 100 * time.Millisecond, MaxPause: 3 * time.Second,
	}
	var funding []common.Address
	if o.TopUp != nil {
		funding = []common.Address{o.Funder.Address()}
		sending.Ring = withSigner(t, o.Ring, o.Funder)
	}
	relaying := service.Config{
		Queue: 10_000,
		ID:    o.ID, RPCProxy: client, Signing: true, Store: r.Store, Chain: client, Ring: o.Ring, Log: log, Enabled: true, Ready: r.ChainIdentity.Err,
		Funding: funding, Metrics: service.NewMetrics(reg),
	}
	if o.Pool != nil {
		o.Pool(&relaying)
	}
	tracking := tracker.Config{
		Name: uuid.NewString(), Store: r.Store, Chain: follow, Allocation: relaying.Allocation(), Log: log, Confirmations: 2,
		Tend: 100 * time.Millisecond, Abandoned: 300 * time.Millisecond, Term: time.Second, ChainIdentity: r.ChainIdentity, Metrics: tracker.NewMetrics(reg),
	}
	tracking.Allocation.Held = slices.Concat(tracking.Allocation.Held, funding)
	var keys *keymonitor.Monitor
	if o.KeyMonitor != nil {
		monitoring := keymonitor.Config{
			Store: r.Store, Chain: client, Log: log, Describe: relaying.Describe,
			Interval: 50 * time.Millisecond, TopUp: o.TopUp, SwitchedOff: !relaying.Enabled, Metrics: keymonitor.NewMetrics(reg),
		}
		o.KeyMonitor(&monitoring)
		keys = keymonitor.New(monitoring)
		sending.Events, tracking.Events = keys, keys
	}
	if o.Sender != nil {
		o.Sender(&sending)
	}
	send := sender.New(sending)
	tracking.Sender = send
	if o.Tracker != nil {
		o.Tracker(&tracking)
	}
	track := tracker.New(tracking)
	relaying.Sender, relaying.Rounds = send, track.Rounds
	r.Service = service.New(relaying)

	var parts errgroup.Group
	senders, stopSender := context.WithCancel(context.WithoutCancel(ctx))
	parts.Go(func() error {
		defer stopSender()
		var first errgroup.Group
		first.Go(func() error { return r.Run(ctx) })
		first.Go(func() error { return track.Run(ctx) })
		return first.Wait()
	})
	parts.Go(func() error { return send.Run(senders) })
	parts.Go(func() error { return r.ChainIdentity.Run(ctx) })
	if keys != nil {
		parts.Go(func() error { return keys.Run(ctx) })
	}
	parts.Go(func() error { return client.Run(ctx) })
	go func() {
		defer close(r.done)
		if err := parts.Wait(); err != nil {
			t.Error(err)
		}
		client.Close()
		db.Close()
	}()
	t.Cleanup(r.Stop)
	return r
}

func withSigner(t testing.TB, ring *signer.Ring, more signer.Signer) *signer.Ring {
	t.Helper()
	signers := []signer.Signer{more}
	for _, address := range ring.Addresses() {
		s, _ := ring.Signer(address)
		signers = append(signers, s)
	}
	both, err := signer.New(signers...)
	require.NoError(t, err)
	return both
}

// Stop ends the relayer like SIGTERM, and waits for it.
func (r *Relayer) Stop() {
	r.once.Do(func() { r.stop(context.Canceled) })
	<-r.done
}

// Send submits a transaction to the pool.
func (r *Relayer) Send(t testing.TB, to common.Address, wei int64, data []byte) *relayer.Transaction {
	t.Helper()
	tx, err := r.Submit(t.Context(), relayer.Submission{RelayerID: PoolID, Caller: "test", Request: relayer.Request{
		To: &to, Value: big.NewInt(wei), Data: data, Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	return tx
}

// Reaches waits until a transaction has a status, and returns it.
func (r *Relayer) Reaches(t testing.TB, tx *relayer.Transaction, status relayer.Status) *relayer.Transaction {
	t.Helper()
	for limit := time.After(2 * time.Minute); ; {
		now, err := r.Transaction(t.Context(), PoolID, tx.ID)
		if err == nil && now.Status == status {
			return now
		}
		select {
		case <-limit:
			require.FailNow(t, "transaction did not get "+string(status), "%+v, %v", now, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
