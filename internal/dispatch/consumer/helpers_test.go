package consumer

import (
	"context"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// world has a store, its queue, and stand-ins for relayers. Consumers share them.
type world struct {
	*store.Store
	t        *testing.T
	db       *pgxpool.Pool
	relayers []*upstreamtest.Relayer
	fleet    *fixedFleet
}

func setup(t *testing.T, relayers ...*upstreamtest.Relayer) *world {
	t.Helper()
	return setupLimited(t, 30*time.Second, relayers...)
}

// setupLimited is setup with a limit of the requests that submit.
func setupLimited(t *testing.T, limit time.Duration, relayers ...*upstreamtest.Relayer) *world {
	t.Helper()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	w := &world{t: t, db: db, relayers: relayers, Store: store.New(db, store.Config{Enqueue: queue.EnqueueSQL}), fleet: &fixedFleet{}}
	for _, r := range relayers {
		client, err := upstream.New(upstream.Config{URL: r.URL(), Key: key, SubmitTimeout: limit})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		info, err := client.Discover(t.Context())
		require.NoError(t, err)
		w.fleet.members = append(w.fleet.members, member{client, dispatch.Route{Relayer: r.URL(), URL: r.URL(), RelayerID: info.RelayerID, Scope: info.Scope}})
	}
	return w
}

const key = "the-key-of-the-consumer-0123456789"

// ours starts a stand-in with idempotency keys; those of one pool share them.
func ours(t *testing.T, pool *upstreamtest.Pool) *upstreamtest.Relayer {
	return upstreamtest.Start(t, upstreamtest.Options{Key: key, Scope: "0123456789abcdef", Pool: pool})
}

// foreign starts a stand-in without idempotency keys, as OpenZeppelin's relayer is.
func foreign(t *testing.T) *upstreamtest.Relayer {
	return upstreamtest.Start(t, upstreamtest.Options{Key: key})
}

// member is a live relayer.
type member struct {
	client *upstream.Client
	route  dispatch.Route
}

// fixedFleet chooses its members in order, without load or breakers. Package fleet has the real choice.
type fixedFleet struct {
	mu      sync.Mutex
	members []member
	away    map[string]bool // by URL
	asked   atomic.Int64
	avoided atomic.Int64          // choices that exclude a scope
	inUse   atomic.Int64          // choices whose Done was not called
	slow    func(context.Context) // called before each submission, if set, with its context
}

// slowed is a relayer with a hook before each submission.
type slowed struct {
	Relayer
	before func(context.Context)
}

func (s slowed) Submit(ctx context.Context, sub upstream.Submission) upstream.Result {
	s.before(ctx)
	return s.Relayer.Submit(ctx, sub)
}

func (f *fixedFleet) Choose(w Want) (Choice, bool) {
	f.asked.Add(1)
	if w.Avoid != "" {
		f.avoided.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if f.away[m.route.URL] || slices.Contains(w.Exclude, m.route.Relayer) || w.Resume && m.route.Scope != w.Scope || w.Keyed && m.route.Scope == "" ||
			w.Avoid != "" && m.route.Scope == w.Avoid {
			continue
		}
		f.inUse.Add(1)
		var once sync.Once
		choice := Choice{Route: m.route, Relayer: m.client, Done: func(*upstream.Result) { once.Do(func() { f.inUse.Add(-1) }) }}
		if f.slow != nil {
			choice.Relayer = slowed{m.client, f.slow}
		}
		return choice, true
	}
	return Choice{}, false
}

func (f *fixedFleet) Besides(ids []string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.members, func(m member) bool { return !slices.Contains(ids, m.route.Relayer) })
}

func (f *fixedFleet) At(r dispatch.Route) (Relayer, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if m.route.URL == r.URL {
			return m.client, true
		}
	}
	return nil, false
}

// remove makes a relayer unavailable.
func (f *fixedFleet) remove(r *upstreamtest.Relayer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away == nil {
		f.away = map[string]bool{}
	}
	f.away[r.URL()] = true
}

// restore makes all relayers available again.
func (f *fixedFleet) restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.away)
}

// queue returns the queue.
func (w *world) queue(concurrency int) *queue.Queue {
	w.t.Helper()
	q, err := queue.Open(w.db, queue.Config{Concurrency: concurrency, Lease: 10 * time.Second})
	require.NoError(w.t, err)
	return q
}

// consume runs a consumer until the test ends, or the returned function is called.
func (w *world) consume(edit ...func(*Config)) (stop func()) {
	w.t.Helper()
	q := w.queue(64)
	cfg := Config{Queue: q, Store: w.Store, Relayers: w.fleet, Logger: slog.New(slog.DiscardHandler), Settled: 2 * time.Second, Lease: 20 * time.Second}
	for _, e := range edit {
		e(&cfg)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- New(cfg).Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-done)
		require.NoError(w.t, q.Close())
	})
	w.t.Cleanup(stop)
	return stop
}

// post accepts a transaction of a client.
func (w *world) post(data ...byte) uuid.UUID {
	w.t.Helper()
	tx := &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct,
		Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(5), Data: data, GasLimit: 100_000, Speed: dispatch.Average},
	}
	results, err := w.Accept(w.t.Context(), []*dispatch.Transaction{tx})
	require.NoError(w.t, err)
	require.NoError(w.t, results[0].Err)
	return tx.ID
}

// reaches waits until a transaction has a status, and returns it.
func (w *world) reaches(id uuid.UUID, status dispatch.Status) *dispatch.Transaction {
	w.t.Helper()
	var tx *dispatch.Transaction
	require.Eventually(w.t, func() bool {
		var err error
		tx, err = w.ByID(w.t.Context(), id)
		return err == nil && tx.Status == status
	}, 2*time.Minute, 10*time.Millisecond, "%s", status)
	return tx
}

// drained waits until the queue is empty.
func (w *world) drained() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		var n int
		err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM relay_queue`).Scan(&n)
		return err == nil && n == 0
	}, 2*time.Minute, 10*time.Millisecond)
}
