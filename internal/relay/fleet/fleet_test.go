package fleet_test

import (
	"context"
	"log/slog"
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
	"github.com/rollcall-dev/rollcall/internal/relay/store"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream/upstreamtest"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has a Redis as the discovery cluster leaves it, stand-ins for relayers, and a fleet.
type world struct {
	*fleet.Fleet
	t        *testing.T
	redis    *testredis.Server
	mu       sync.Mutex // guards relayers, which the fleet's store reads
	relayers map[string]*upstreamtest.Relayer
	registry *prometheus.Registry
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
	for _, e := range edit {
		e(&cfg)
	}
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

// submit chooses a relayer and submits one transaction, as the consumer does. It returns the relayer's id, or "".
func (w *world) submit(ctx context.Context) string {
	choice, ok := w.Choose(consumer.Want{})
	if !ok {
		return ""
	}
	to := common.Address{1}
	result := choice.Relayer.Submit(ctx, upstream.Submission{
		RelayerID: choice.Route.RelayerID, Scope: choice.Route.Scope, IdempotencyKey: uuid.NewString(), To: &to, Value: big.NewInt(1), GasLimit: 100_000,
	})
	choice.Done(&result)
	return choice.Route.Relayer
}

// load submits with some workers, each with a pause between its submissions.
type load struct {
	mu     sync.Mutex
	counts map[string]int
	total  int
}

func (w *world) load(workers int, pause time.Duration) *load {
	l := &load{counts: map[string]int{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if id := w.submit(ctx); id != "" {
					l.mu.Lock()
					l.counts[id]++
					l.total++
					l.mu.Unlock()
				}
			}
		})
	}
	w.t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return l
}

// share returns a relayer's share of the next n submissions.
func (l *load) share(t *testing.T, id string, n int) float64 {
	t.Helper()
	read := func() (int, int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.counts[id], l.total
	}
	of, from := read()
	for {
		now, total := read()
		if total-from >= n {
			return float64(now-of) / float64(total-from)
		}
		select {
		case <-t.Context().Done():
			return -1
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// falls waits until a relayer's share stays below a limit, in two windows one after the other, and logs after how long. The limit of
// the time is for busy machines.
func (l *load) falls(t *testing.T, id string, below float64, within time.Duration) {
	t.Helper()
	began := time.Now()
	for {
		after := time.Since(began)
		first, second := l.share(t, id, 200), l.share(t, id, 600)
		if first < below && second < below {
			t.Logf("the share of %s is %.3f from %v on", id, (first+3*second)/4, after.Round(10*time.Millisecond))
			return
		}
		require.Less(t, time.Since(began), within, "the share of %s is %.2f and %.2f", id, first, second)
	}
}

var three = []string{"a", "b", "c"}

// asProduct sets the product's own intervals.
func asProduct(c *fleet.Config) { c.Poll, c.SilentAfter = 0, 0 }

// The aim is 5 s on an idle machine.
func TestChoose_RelayerIsSlow_GetsLessUntilItRecovers(t *testing.T) {
	t.Parallel()
	w := setup(t, three, asProduct)
	l := w.load(10, 20*time.Millisecond)
	w.relayers["a"].Fail(upstreamtest.Submit, upstreamtest.Slow(400*time.Millisecond))
	l.falls(t, "a", 1.0/7, 20*time.Second) // a third of each of the others'
	w.relayers["a"].Fail(upstreamtest.Submit, nil)
	require.Eventually(t, func() bool { return l.share(t, "a", 200) > 0.25 }, 30*time.Second, time.Millisecond)
}

// A relayer attracts everything where only its load counts: because it fails at once, forgets, or counts nothing. The aim is 10 s on
// an idle machine.
func TestChoose_BlackHole_GetsLessThanATenth(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*upstreamtest.Relayer){
		"fails at once":            func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.Error(500)) },
		"accepts and forgets":      func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget) },
		"counts nothing, for ever": func(r *upstreamtest.Relayer) { r.ReportZero(true) },
		"hangs":                    func(r *upstreamtest.Relayer) { r.Fail(upstreamtest.Submit, upstreamtest.Hang) },
		"forgets and counts nothing": func(r *upstreamtest.Relayer) {
			r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
			r.ReportZero(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, three, asProduct)
			l := w.load(10, 20*time.Millisecond)
			fault(w.relayers["b"])
			l.falls(t, "b", 0.1, 30*time.Second)
		})
	}
}

// The load of a relayer counts, also where others caused it.
func TestChoose_ManyPending_GetsLess(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	for range 300 {
		w.relayers["a"].Add(upstreamtest.Transaction{Status: "submitted", Hash: "0x01"})
	}
	l := w.load(10, 20*time.Millisecond)
	l.falls(t, "a", 0.1, 30*time.Second)
}

// Of many relayers two are compared, so that consumers with the same readings do not all choose the same one. The one with the
// highest load is never the cheaper one of two.
func TestChoose_SixRelayers_ComparesTwoAtRandom(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "b", "c", "d", "e", "f"}
	w := setup(t, ids)
	for i, id := range ids {
		for range 10 * i {
			w.relayers[id].Add(upstreamtest.Transaction{Status: "submitted", Hash: "0x01"})
		}
	}
	chosen := func() map[string]int {
		counts := map[string]int{}
		for range 600 {
			choice, ok := w.Choose(consumer.Want{})
			require.True(t, ok)
			choice.Done(nil)
			counts[choice.Route.Relayer]++
		}
		return counts
	}
	// Of the pairs of six, the first wins all five that it is in, the second four, and the last none.
	require.Eventually(t, func() bool {
		counts := chosen()
		return counts["f"] == 0 && counts["a"] > counts["c"] && counts["c"] > counts["e"] && counts["e"] > 0
	}, 20*time.Second, 10*time.Millisecond, "%v", chosen())
}

// A relayer without a scope whose account is empty rejects each transaction at once. It stays available, because a rejection is the
// client's fault otherwise.
func TestChoose_RejectsWithoutAScope_GetsLittle(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	drained := upstreamtest.Start(t, upstreamtest.Options{})
	drained.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
	w.add("d", drained)
	w.list("d", drained.URL())
	w.becomes(true, "d")
	l := w.load(10, 20*time.Millisecond)
	l.falls(t, "d", 0.1, 30*time.Second)
	w.becomes(true, "d")
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
