package fleet_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// world has a Redis as the discovery cluster leaves it, stand-ins for relayers, and a fleet.
type world struct {
	*fleet.Fleet
	t        *testing.T
	redis    *testredis.Server
	mu       sync.Mutex // guards relayers, which the fleet's store reads
	relayers map[string]*upstreamtest.Relayer
	registry *prometheus.Registry
	db       *database // nil: Outstanding counts
	chain    atomic.Uint64
	open     atomic.Bool // the store has transactions that are not final
}

// Chain and ClaimChain are the store's.
func (w *world) Chain(context.Context) (uint64, error) { return w.chain.Load(), nil }

func (w *world) ClaimChain(_ context.Context, id uint64) (uint64, error) {
	w.chain.CompareAndSwap(0, id)
	return w.chain.Load(), nil
}

// HasOpen is the store's.
func (w *world) HasOpen(context.Context) (bool, error) { return w.open.Load(), nil }

// Outstanding counts what the store would: the transactions that the stand-ins have accepted and not mined.
func (w *world) Outstanding(_ context.Context, stuckAfter time.Duration) (all []store.Outstanding, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, r := range w.relayers {
		o := store.Outstanding{Relayer: id}
		for _, tx := range r.Transactions() {
			if tx.Status == "mined" || tx.Status == "confirmed" {
				continue
			}
			o.Count++
			if tx.Hash == "" && time.Since(tx.CreatedAt) > stuckAfter {
				o.Stuck++
			}
		}
		all = append(all, o)
	}
	return all, nil
}

// setup starts relayers, which mine a transaction within half a second, and lists them in Redis.
func setup(t *testing.T, ids []string, edit ...func(*fleet.Config)) *world {
	t.Helper()
	return setupWorld(t, ids, func(_ *world, cfg *fleet.Config) {
		for _, e := range edit {
			e(cfg)
		}
	})
}

func setupWorld(t *testing.T, ids []string, edit func(*world, *fleet.Config)) *world {
	t.Helper()
	w := &world{t: t, redis: testredis.Start(t), relayers: map[string]*upstreamtest.Relayer{}, registry: prometheus.NewRegistry()}
	for _, id := range ids {
		w.relayers[id] = upstreamtest.Start(t, upstreamtest.Options{Scope: "scope-of-" + id, Mine: 500 * time.Millisecond})
		w.list(id, w.relayers[id].URL())
	}
	client, err := redisclient.New(redisclient.Options{URL: w.redis.URL()})
	require.NoError(t, err)
	cfg := fleet.Config{
		Redis: client, Store: w, Poll: 200 * time.Millisecond, Registerer: w.registry, Logger: slog.New(slog.DiscardHandler),
		Client: func(_, url string) (*upstream.Client, error) {
			return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key, SubmitTimeout: 5 * time.Second})
		},
	}
	edit(w, &cfg)
	w.Fleet = fleet.New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, client.Close())
	})
	for _, id := range ids {
		w.becomes(true, id)
	}
	return w
}

// add makes a relayer known to the fleet's store.
func (w *world) add(id string, r *upstreamtest.Relayer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relayers[id] = r
}

// list adds a relayer to Redis as the mirror does.
func (w *world) list(id, url string) {
	w.t.Helper()
	c := w.redis.Client()
	if url != "" {
		require.NoError(w.t, c.HSet(w.t.Context(), "relayer:status:svc:"+id, "url", url, "status", "healthy").Err())
	}
	require.NoError(w.t, c.SAdd(w.t.Context(), "relayer:active", id).Err())
}

// available reports whether a relayer can be chosen.
func (w *world) available(id string) bool {
	exclude := []string{}
	for other := range w.relayers {
		if other != id {
			exclude = append(exclude, other)
		}
	}
	choice, ok := w.Choose(consumer.Want{Exclude: exclude})
	if !ok {
		return false
	}
	choice.Done(nil)
	return choice.Route.Relayer == id
}

func (w *world) becomes(available bool, id string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.available(id) == available }, 2*time.Minute, 5*time.Millisecond)
}

// gauge returns a metric's value.
func (w *world) gauge(name string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	w.t.Fatalf("no metric %s", name)
	return 0
}

// submit chooses a relayer and submits one transaction, as the consumer does. It reports the choice, and returns the relayer's id,
// or "".
func (w *world) submit(ctx context.Context, chosen ...func(id string)) string {
	choice, ok := w.Choose(consumer.Want{})
	if !ok {
		return ""
	}
	for _, report := range chosen {
		report(choice.Route.Relayer)
	}
	to := common.Address{1}
	result := choice.Relayer.Submit(ctx, upstream.Submission{
		RelayerID: choice.Route.RelayerID, Scope: choice.Route.Scope, Network: choice.Network, IdempotencyKey: uuid.NewString(), To: &to, Value: big.NewInt(1), GasLimit: 100_000,
	})
	if w.db != nil && result.Outcome == upstream.Accepted {
		route := choice.Route
		route.RelayerTx = result.Transaction.ID
		w.db.mu.Lock()
		w.db.accepted = append(w.db.accepted, route)
		w.db.mu.Unlock()
	}
	choice.Done(&result)
	return choice.Route.Relayer
}

// patience limits waits for which nothing is promised.
const patience = 2 * time.Minute

// perSecond is how many transactions a load submits on an idle machine.
const perSecond = 100

// load submits transactions, each by a goroutine of its own, as the consumer does. It records each choice.
type load struct {
	w  *world
	mu sync.Mutex
	// choices are all choices, in their order.
	choices []choice
	// ticks counts those of one goroutine's ticker that reached it.
	ticks atomic.Int64
}

// pulse is the interval of those ticks.
const pulse = 10 * time.Millisecond

type choice struct {
	at time.Time
	id string
}

func (w *world) load() *load {
	l := &load{w: w}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(pulse)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			l.ticks.Add(1)
		}
	})
	all.Go(func() {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		slots := make(chan struct{}, 64) // the consumer's concurrency
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			all.Go(func() {
				defer func() { <-slots }()
				w.submit(ctx, func(id string) {
					l.mu.Lock()
					defer l.mu.Unlock()
					l.choices = append(l.choices, choice{time.Now(), id})
				})
			})
		}
	})
	w.t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return l
}

// since returns the choices from a time on.
func (l *load) since(began time.Time) []choice {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.choices, began, func(c choice, at time.Time) int { return c.at.Compare(at) })
	return slices.Clone(l.choices[i:])
}

// next waits for the next n choices, and returns them.
func (l *load) next(n int) (all []choice) {
	l.w.t.Helper()
	began := time.Now()
	require.Eventually(l.w.t, func() bool { all = l.since(began); return len(all) >= n }, patience, 5*time.Millisecond)
	return all[:n]
}

// share returns a relayer's share of choices.
func share(all []choice, id string) float64 {
	of := 0
	for _, c := range all {
		if c.id == id {
			of++
		}
	}
	return float64(of) / float64(len(all))
}

// giveUp is how long a starved machine may take to recover.
const giveUp = 2 * time.Minute

// falls requires that a relayer's share of the last n choices before a limit of time is below a limit, and logs both. The limit of
// time holds where the machine is idle; a busy one, which delays readings, choices and answers, has three times as long, as many
// choices as an idle one makes, and is not judged while it is starved. After giveUp it is.
func (l *load) falls(id string, below float64, n int, within time.Duration) {
	l.w.t.Helper()
	began, ticks := time.Now(), l.ticks.Load()
	<-time.After(within)
	for {
		var all []choice
		require.Eventually(l.w.t, func() bool { all = l.since(began); return len(all) >= n }, patience, 5*time.Millisecond)
		at, took := share(all[len(all)-n:], id), time.Since(began)
		delayed := float64(l.ticks.Load()-ticks) < 0.9*float64(took/pulse) // a ticker drops ticks for a goroutine that does not run
		enough := took > 3*within && len(all) >= perSecond*int(within.Seconds()) && !l.w.db.isStarved() && !delayed
		if at < below || enough || took > giveUp {
			l.w.t.Logf("share of %s is %.3f of the last %d of %d choices after %v", id, at, n, len(all), took.Round(10*time.Millisecond))
			require.Less(l.w.t, at, below)
			return
		}
		l.next(n)
	}
}

// database has the product's store, and brings it the relayers' reports as their webhooks do.
type database struct {
	*store.Store
	w *world

	mu       sync.Mutex
	accepted []dispatch.Route // not stored yet
	took     time.Duration    // by the last run of store
}

// starved is how long the events of 50 ms take to be stored on a machine whose store knows of acceptances too late to compare them
// with a relayer's count.
const starved = 150 * time.Millisecond

// isStarved reports whether the last run of store took so long. A nil database never is.
func (d *database) isStarved() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.took > starved
}

// useDatabase makes submissions known to the product's store, which replaces the one that counts at the relayers.
func (w *world) useDatabase(cfg *fleet.Config) {
	pool := testpostgres.New(w.t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(w.t)
	w.db = &database{Store: store.New(pool, store.Config{Enqueue: queue.EnqueueSQL}), w: w}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.db.run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	cfg.Store = w.db
}

// run stores acceptances and reports until ctx ends.
func (d *database) run(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	reported := map[string]string{}
	for {
		began := time.Now()
		if err := d.store(ctx, reported); err != nil && ctx.Err() == nil {
			return err
		}
		d.mu.Lock()
		d.took = time.Since(began)
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (d *database) store(ctx context.Context, reported map[string]string) error {
	d.mu.Lock()
	all := d.accepted
	d.accepted = nil
	d.mu.Unlock()
	if n := len(all); n > 0 {
		txs, starts, acceptances := make([]*dispatch.Transaction, n), make([]store.Start, n), make([]store.Acceptance, n)
		for i, route := range all {
			id := uuid.Must(uuid.NewV7())
			txs[i] = &dispatch.Transaction{
				ID: id, Client: "shop", Kind: dispatch.Direct,
				Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(1), GasLimit: 100_000, Speed: dispatch.Average},
			}
			starts[i] = store.Start{ID: id, Holder: uuid.New(), Route: route, Lease: time.Minute}
			acceptances[i] = store.Acceptance{ID: id, Attempt: 1, Route: route}
		}
		_, err := d.Accept(ctx, txs)
		if err == nil {
			_, err = d.Begin(ctx, starts)
		}
		if err == nil {
			err = d.Accepted(ctx, acceptances)
		}
		if err != nil {
			return err
		}
	}
	var reports []dispatch.Update
	d.w.mu.Lock()
	relayers := maps.Clone(d.w.relayers)
	d.w.mu.Unlock()
	for _, r := range relayers {
		for _, tx := range r.Transactions() {
			if tx.Status == "pending" || reported[tx.ID] == tx.Status {
				continue
			}
			reported[tx.ID] = tx.Status
			hash := common.HexToHash(tx.Hash)
			reports = append(reports, dispatch.Update{RelayerTx: tx.ID, Status: dispatch.Status(tx.Status), Hash: &hash, At: time.Now()})
		}
	}
	if len(reports) == 0 {
		return nil
	}
	_, err := d.Apply(ctx, reports)
	return err
}

var three = []string{"a", "b", "c"}

// product uses the product's store and its default settings.
func product(w *world, cfg *fleet.Config) {
	w.useDatabase(cfg)
	cfg.Poll = 0
	cfg.Client = func(_, url string) (*upstream.Client, error) {
		return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key})
	}
}

// start starts and lists a relayer that reports pending transactions, which it does not mine. It mines later ones within half a second.
func (w *world) start(id string, pending int) *upstreamtest.Relayer {
	w.t.Helper()
	r := upstreamtest.Start(w.t, upstreamtest.Options{Mine: 500 * time.Millisecond})
	for range pending {
		r.Add(upstreamtest.Transaction{Status: "submitted", Hash: "0x01", CreatedAt: time.Now()})
	}
	w.add(id, r)
	w.list(id, r.URL())
	w.becomes(true, id)
	return r
}

// shares returns the relayers' shares of n choices without a submission.
func (w *world) shares(n int) map[string]float64 {
	w.t.Helper()
	all := map[string]float64{}
	for range n {
		c, ok := w.Choose(consumer.Want{})
		require.True(w.t, ok)
		c.Done(nil)
		all[c.Route.Relayer] += 1 / float64(n)
	}
	return all
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
