package fleet_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/consumer"
	"github.com/rollcall-dev/rollcall/internal/relay/fleet"
	"github.com/rollcall-dev/rollcall/internal/relay/queue"
	"github.com/rollcall-dev/rollcall/internal/relay/store"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream/upstreamtest"
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
}

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
	require.Eventually(w.t, func() bool { return w.available(id) == available }, 20*time.Second, 5*time.Millisecond)
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
		RelayerID: choice.Route.RelayerID, Scope: choice.Route.Scope, IdempotencyKey: uuid.NewString(), To: &to, Value: big.NewInt(1), GasLimit: 100_000,
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
const patience = 30 * time.Second

// load submits 100 transactions a second, each by a goroutine of its own, as the consumer does. It records each choice.
type load struct {
	w  *world
	mu sync.Mutex
	// choices are all choices, in their order.
	choices []choice
}

type choice struct {
	at time.Time
	id string
}

func (w *world) load() *load {
	l := &load{w: w}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
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

// falls requires that a relayer's share of the last n choices before a limit of time is below a limit, and logs both. The limit of
// time holds where the machine is idle; a busy one, which delays readings, choices and answers, has three times as long.
func (l *load) falls(id string, below float64, n int, within time.Duration) {
	l.w.t.Helper()
	began := time.Now()
	<-time.After(within)
	for {
		var all []choice
		require.Eventually(l.w.t, func() bool { all = l.since(began); return len(all) >= n }, patience, 5*time.Millisecond)
		at, took := share(all[len(all)-n:], id), time.Since(began)
		if at < below || took > 3*within {
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
	accepted []relay.Route // not stored yet
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
		if err := d.store(ctx, reported); err != nil && ctx.Err() == nil {
			return err
		}
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
		txs, starts, acceptances := make([]*relay.Transaction, n), make([]store.Start, n), make([]store.Acceptance, n)
		for i, route := range all {
			id := uuid.Must(uuid.NewV7())
			txs[i] = &relay.Transaction{
				ID: id, Client: "shop", Kind: relay.Direct,
				Call: relay.Call{To: common.Address{1}, Value: big.NewInt(1), GasLimit: 100_000, Speed: relay.Average},
			}
			starts[i] = store.Start{ID: id, Holder: uuid.New(), Route: route, Lease: time.Minute}
			acceptances[i] = store.Acceptance{ID: id, Route: route}
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
	var reports []relay.Update
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
			reports = append(reports, relay.Update{RelayerTx: tx.ID, Status: relay.Status(tx.Status), Hash: &hash, At: time.Now()})
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

func TestChoose_RelayerIsSlow_GetsLessUntilItRecovers(t *testing.T) {
	t.Parallel()
	w := setupWorld(t, three, product)
	l := w.load()
	l.next(100)
	w.relayers["a"].Fail(upstreamtest.Submit, upstreamtest.Slow(400*time.Millisecond))
	l.falls("a", 1.0/7, 100, 5*time.Second) // a third of each of the others'
	w.relayers["a"].Fail(upstreamtest.Submit, nil)
	began := time.Now()
	require.Eventually(t, func() bool { return share(l.next(100), "a") > 0.25 }, patience, time.Millisecond)
	t.Logf("share of a above 0.25 of 100 choices %v after it recovered", time.Since(began).Round(time.Millisecond))
}

// A relayer attracts everything where only its load counts: because it fails at once, forgets, or counts nothing.
func TestChoose_BlackHole_GetsLessThanATenth(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*upstreamtest.Relayer){
		"fails at once":            func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.Error(500)) },
		"accepts and forgets":      func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget) },
		"counts nothing, for ever": func(r *upstreamtest.Relayer) { r.ReportZero(true) },
		"counts nothing, slowly": func(r *upstreamtest.Relayer) {
			r.ReportZero(true)
			r.Fail(upstreamtest.Status, upstreamtest.Slow(900*time.Millisecond)) // nearly until the next reading
		},
		"hangs": func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.Hang) },
		"forgets and counts nothing": func(r *upstreamtest.Relayer) {
			r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
			r.ReportZero(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setupWorld(t, three, product)
			l := w.load()
			l.next(100)
			fault(w.relayers["b"])
			l.falls("b", 0.1, 200, 10*time.Second)
			l.falls("b", 0.1, 300, 4*time.Second) // it stays there
		})
	}
}

// start starts and lists a relayer that reports pending transactions.
func (w *world) start(id string, pending int) *upstreamtest.Relayer {
	w.t.Helper()
	r := upstreamtest.Start(w.t, upstreamtest.Options{})
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

func TestChoose_HighPending_GetsLess(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a", "b"})
	r := w.start("c", 100)
	l := w.load()
	require.Less(t, share(l.next(200), "c"), 0.05, "the others have less than 50 each") // not zero: one may answer late
	for _, tx := range r.Transactions() {
		r.Remove(tx.ID)
	}
	require.Eventually(t, func() bool { return share(l.next(100), "c") > 0.25 }, patience, time.Millisecond)
}

// Of many relayers two random ones are compared. So the least loaded one gets the most, and not everything; the most loaded one of
// all loses each comparison.
func TestChoose_ManyRelayers_TheLeastLoadedOfTwoGetsIt(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for i, id := range ids {
		w.start(id, 10*i)
	}
	const n = 3000
	shares := w.shares(n)
	for i, id := range ids { // of 15 pairs
		require.InDelta(t, float64(len(ids)-1-i)/15, shares[id], 0.05, "%s of %v", id, shares)
	}
	require.Zero(t, shares["f"])

	// Below six all are compared.
	require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", "b").Err())
	w.becomes(false, "b")
	require.InDelta(t, 1, w.shares(n)["a"], 1e-6)
}

// A relayer whose account is empty, or whose settings are wrong, rejects each transaction at once. It stays available, because a
// rejection is the client's fault otherwise.
func TestChoose_RejectsEverything_GetsLittle(t *testing.T) {
	t.Parallel()
	for name, latency := range map[string]time.Duration{"others are idle": 0, "others are busy": 600 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, three)
			for _, id := range three {
				w.relayers[id].Fail(upstreamtest.Submit, upstreamtest.Slow(latency))
			}
			scope := ""
			if latency == 0 {
				scope = "scope-of-a"
			}
			drained := upstreamtest.Start(t, upstreamtest.Options{Scope: scope})
			drained.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
			w.add("d", drained)
			w.list("d", drained.URL())
			w.becomes(true, "d")
			l := w.load()
			l.falls("d", 0.1, 200, 10*time.Second)
			l.falls("d", 0.1, 300, 4*time.Second) // it stays there
			w.becomes(true, "d")
		})
	}
}

func TestChoose_RelayerRefusesConnections_GetsAtMostOneMoreRequest(t *testing.T) {
	t.Parallel()
	w := setup(t, three, func(c *fleet.Config) { c.Poll = time.Hour }) // the readings would detect it
	w.relayers["c"].Refuse()
	for range 50 {
		w.submit(t.Context())
	}
	require.False(t, w.available("c"))
	count := 0
	families, err := w.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "rollcall_relay_relayer_submissions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[1].GetValue() == "c" {
				count += int(m.GetCounter().GetValue())
			}
		}
	}
	require.LessOrEqual(t, count, 1)
	w.relayers["c"].Resume(t)
	w.becomes(true, "c")
}

func TestChoose_PausedOrDisabled_IsPassedOver(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	w.relayers["a"].Pause(true)
	w.becomes(false, "a")
	w.relayers["a"].Pause(false)
	w.becomes(true, "a")
	w.relayers["a"].Disable(true)
	w.becomes(false, "a")
	require.True(t, w.Besides([]string{"b"}))
	require.False(t, w.Besides([]string{"b", "c"}), "nothing is expected of a disabled one")
}

func TestChoose_TooManyRequests_WaitsAsAsked(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a"})
	w.relayers["a"].Fail(upstreamtest.Submit, upstreamtest.Respond(429, `{}`, "Retry-After", "2"))
	began := time.Now()
	require.Equal(t, "a", w.submit(t.Context()))
	require.False(t, w.available("a"))
	w.becomes(true, "a")
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
}

func TestChoose_RelayersIDChanged_IsLookedUpAgain(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a"})
	w.relayers["a"].Rename("another")
	require.Eventually(t, func() bool {
		choice, ok := w.Choose(consumer.Want{})
		if ok {
			choice.Done(nil)
		}
		return ok && choice.Route.RelayerID == "another"
	}, 20*time.Second, 5*time.Millisecond)
}

// One process serves relayers of two networks. That of the other one is listed first.
func TestChoose_TwoNetworks_OnlyTheConfiguredOneIsUsed(t *testing.T) {
	t.Parallel()
	holesky := upstreamtest.Start(t, upstreamtest.Options{ID: "first", Network: "holesky"})
	both := upstreamtest.Start(t, upstreamtest.Options{ID: "second", Network: "sepolia", With: []*upstreamtest.Relayer{holesky}})
	for name, c := range map[string]struct {
		relayer, network string
		want             string // the id; "": none is used
	}{
		"any":                       {want: "first"},
		"the first network":         {network: "holesky", want: "first"},
		"the second network":        {network: "sepolia", want: "second"},
		"a network of none":         {network: "mainnet"},
		"the id":                    {relayer: "second", want: "second"},
		"the id and its network":    {relayer: "second", network: "sepolia", want: "second"},
		"the id of another network": {relayer: "first", network: "sepolia"},
		"the id of none":            {relayer: "third"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := new(lockedBuffer)
			w := setup(t, nil, func(cfg *fleet.Config) {
				cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
				cfg.Client = func(_, url string) (*upstream.Client, error) {
					return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key, RelayerID: c.relayer, Network: c.network})
				}
			})
			w.list("a", both.URL())
			if c.want != "" {
				w.becomes(true, "a")
				choice, ok := w.Choose(consumer.Want{})
				require.True(t, ok)
				choice.Done(nil)
				require.Equal(t, c.want, choice.Route.RelayerID)
				require.Zero(t, w.gauge("rollcall_relay_relayers_unusable"))
				return
			}
			require.Eventually(t, func() bool { return w.gauge("rollcall_relay_relayers_unusable") == 1 }, patience, 5*time.Millisecond)
			require.False(t, w.available("a"))
			require.False(t, w.Besides(nil))
			require.ErrorContains(t, w.Health(), "another id or network")
			require.Zero(t, w.gauge("rollcall_relay_relayers"))
			require.Contains(t, log.String(), "relayer not usable")
			require.Contains(t, log.String(), map[bool]string{true: "another network", false: "no such relayer"}[c.network != ""])
		})
	}
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

func TestChoose_Resumed_StaysInTheScope(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	for range 20 {
		choice, ok := w.Choose(consumer.Want{Resume: true, Scope: "scope-of-b"})
		require.True(t, ok)
		require.Equal(t, "b", choice.Route.Relayer)
		choice.Done(nil)
	}
	_, ok := w.Choose(consumer.Want{Resume: true, Scope: "another"})
	require.False(t, ok)
}

// Others may answer about a transaction: the relayer of the service under its new URL, and those of the scope.
func TestSharing_RelayerIsGone_FindsItsScopeAndItsNewURL(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	urls := func(at relay.Route) (urls []string) {
		for _, client := range w.Sharing(at) {
			urls = append(urls, client.URL())
		}
		return urls
	}
	require.Eventually(t, func() bool {
		return slices.Equal([]string{w.relayers["b"].URL()}, urls(relay.Route{Relayer: "gone", URL: "http://gone", Scope: "scope-of-b"}))
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{w.relayers["a"].URL(), w.relayers["b"].URL()}, urls(relay.Route{Relayer: "a", URL: "http://old", Scope: "scope-of-b"}))
	require.Equal(t, []string{w.relayers["a"].URL()}, urls(relay.Route{Relayer: "a", URL: "http://old"}))
	require.Empty(t, urls(relay.Route{Relayer: "b", URL: w.relayers["b"].URL(), Scope: "scope-of-b"}), "the route's own")
}

// Only a relayer that can be chosen now, and has another scope, can take what is withdrawn.
func TestElsewhere_OnlyAnotherScopeThatIsUsable(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	require.Eventually(t, func() bool { return w.Besides([]string{"a", "c"}) }, 20*time.Second, 5*time.Millisecond)
	require.True(t, w.Elsewhere("scope-of-b"), "a and c have none")
	require.True(t, w.Elsewhere("another"))
	for _, id := range []string{"a", "c"} {
		require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", id).Err())
		w.becomes(false, id)
	}
	require.False(t, w.Elsewhere("scope-of-b"))
	require.True(t, w.Elsewhere("another"))
	w.relayers["b"].Fail(upstreamtest.Submit, upstreamtest.Drop)
	require.Equal(t, "b", w.submit(t.Context()))
	require.False(t, w.Elsewhere("another"), "its breaker is open")
	require.True(t, w.Answering())
	w.relayers["b"].Refuse()
	require.Eventually(t, func() bool { return !w.Answering() }, 20*time.Second, 5*time.Millisecond)
}

func TestFleet_FollowsRedis(t *testing.T) {
	t.Parallel()
	w := setup(t, three, func(c *fleet.Config) { c.URLTemplate = "http://127.0.0.1:{N}" })
	c := w.redis.Client()

	require.NoError(t, c.SRem(t.Context(), "relayer:active", "a").Err())
	w.becomes(false, "a")
	w.list("a", "")
	w.becomes(true, "a")

	// A relayer that moves is another one.
	moved := upstreamtest.Start(t, upstreamtest.Options{})
	w.list("a", moved.URL())
	require.Eventually(t, func() bool {
		choice, ok := w.Choose(consumer.Want{Exclude: []string{"b", "c"}})
		if ok {
			choice.Done(nil)
		}
		return ok && choice.Route.URL == moved.URL()
	}, 20*time.Second, 5*time.Millisecond)

	// An invalid URL does not disturb the others.
	w.list("a", "ftp://relayer")
	w.becomes(false, "a")
	w.becomes(true, "b")

	// Without a hash the template gives the URL.
	port := moved.URL()[len("http://127.0.0.1:"):]
	id := "oz-relayer-" + port
	w.add(id, moved)
	w.list(id, "")
	w.becomes(true, id)
}

func TestFleet_Message_IsReadAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, nil, func(c *fleet.Config) { c.Poll = time.Hour })
	r := upstreamtest.Start(t, upstreamtest.Options{})
	w.add("a", r)
	require.Eventually(t, func() bool {
		return w.redis.Client().PubSubNumSub(t.Context(), "relayer:events").Val()["relayer:events"] == 1
	}, 20*time.Second, 5*time.Millisecond)
	w.list("a", r.URL())
	require.NoError(t, w.redis.Client().Publish(t.Context(), "relayer:events", "{}").Err())
	w.becomes(true, "a")
}

func TestFleet_RedisAway_LastKnownSetCountsForAWhile(t *testing.T) {
	t.Parallel()
	w := setup(t, three, func(c *fleet.Config) { c.KeepFor = 3 * time.Second })
	w.redis.Stop()
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_redis_up") == 0 }, 20*time.Second, 5*time.Millisecond)
	require.True(t, w.available("a"))
	w.becomes(false, "a")
	require.GreaterOrEqual(t, w.gauge("rollcall_relay_relayers_age_seconds"), 3.0)
	w.redis.Restart()
	w.becomes(true, "a")
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_redis_up") == 1 }, 20*time.Second, 5*time.Millisecond)

	// Redis came back empty, before the leading coordinator has written to it.
	require.NoError(t, w.redis.Client().FlushAll(t.Context()).Err())
	w.becomes(false, "a")
}

func TestFleet_NoRightToSubscribe_Polls(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	c := w.redis.Client()
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">secret", "~*", "resetchannels", "+@all").Err())
	client := redis.NewClient(&redis.Options{Addr: w.redis.Addr(), Username: "reader", Password: "secret"})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	r := upstreamtest.Start(t, upstreamtest.Options{})
	w.add("a", r)
	f := fleet.New(fleet.Config{
		Redis: client, Store: w, Poll: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Client: func(_, url string) (*upstream.Client, error) {
			return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key})
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w.list("a", r.URL())
	require.Eventually(t, func() bool {
		choice, ok := f.Choose(consumer.Want{})
		if ok {
			choice.Done(nil)
		}
		return ok
	}, 20*time.Second, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestAt_RelayerHasLeft_IsStillKnown(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a"})
	url := w.relayers["a"].URL()
	require.NoError(t, w.redis.Client().Del(t.Context(), "relayer:active").Err())
	w.becomes(false, "a")
	_, ok := w.At(relay.Route{Relayer: "a", URL: url, RelayerID: "relayer-1"})
	require.True(t, ok)
	_, ok = w.At(relay.Route{})
	require.False(t, ok)
}
