package tracker_test

import (
	"context"
	"log/slog"
	"math/big"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// holder returns a function that reads which process has the lease; empty if none has.
func (f *fixture) holder() func() string {
	f.t.Helper()
	db, err := postgres.Open(f.t.Context(), postgres.Config{URL: f.options.DatabaseURL})
	require.NoError(f.t, err)
	f.t.Cleanup(db.Close)
	return func() (name string) {
		require.NoError(f.t, db.QueryRow(f.t.Context(), `SELECT CASE WHEN tracker_until > now() THEN tracker ELSE '' END FROM relayer_pools`).Scan(&name))
		return name
	}
}

// A process whose nodes are down, or reject a round's calls, releases the lease. Another process with working nodes takes
// it.
func TestLease_FollowersNodesAreAway_AnotherTakesOver(t *testing.T) {
	for name, fail := range map[string]func(*proxy.Proxy){
		"down": func(p *proxy.Proxy) { p.SetDown(true) },
		"hang": func(p *proxy.Proxy) { p.SetRules(proxy.Rule{Name: "hang", Fault: proxy.Fault{Kind: proxy.Hang}}) },
		"count": func(p *proxy.Proxy) {
			p.SetRules(proxy.Rule{Name: "count", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "missing trie node"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var own *proxy.Proxy
			var node string
			f := setup(t, 1, func(o *relayertest.Options) {
				node = o.RPC[0]
				own = before(t, o)
				o.Tracker = func(c *tracker.Config) { c.Name = "first" }
			})
			holder := f.holder()
			holds := func(name string) {
				t.Helper()
				require.Eventually(t, func() bool { return holder() == name }, 2*time.Minute, 10*time.Millisecond)
			}
			holds("first")
			o := f.options
			o.RPC = []string{node}
			o.Tracker = func(c *tracker.Config) { c.Name = "second" }
			other := relayertest.Start(t, o)
			fail(own)
			tx := other.Reaches(t, other.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
			began := time.Now()
			f.chain.Commit()
			other.Reaches(t, tx, relayer.Mined)
			t.Logf("mined after %v", time.Since(began))
			holds("second")
			f.chain.Commit()
			other.Reaches(t, tx, relayer.Confirmed)
		})
	}
}

// The server executes the last claim of a stopped process after the claim's caller gave up. The session is frozen meanwhile.
func TestLease_StoppedDuringClaim_IsReleased(t *testing.T) {
	f := setup(t, 1)
	f.Stop()
	config, err := pgxpool.ParseConfig(f.options.DatabaseURL)
	require.NoError(t, err)
	var session atomic.Uint32
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		session.CompareAndSwap(0, conn.PgConn().PID())
		return nil
	}
	sent := make(sentStatements, 100)
	config.ConnConfig.Tracer = sent
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer db.Close()
	s := store.New(db, store.Config{ChainID: 1337, Pool: relayertest.PoolID})
	_, taken, err := s.TrackerLease().Elect(t.Context(), "prepares the statement", 0, 0)
	require.NoError(t, err)
	require.True(t, taken)
	<-sent

	signal := func(s syscall.Signal) { require.NoError(t, syscall.Kill(int(session.Load()), s)) }
	signal(syscall.SIGSTOP)
	resume := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
	defer resume()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- tracker.New(tracker.Config{Name: "stopped", Store: s, Term: time.Minute, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}).Run(ctx)
	}()
	<-sent
	stop()
	ended := false
	select {
	case err = <-done:
		ended = true
	case <-time.After(300 * time.Millisecond): // the process waits for the session
	}
	resume()
	if !ended {
		err = <-done
	}
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the sessions have executed all that was sent to them
		var active int
		require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid = $1 AND state = 'active' AND pid <> pg_backend_pid()`, int64(session.Load())).Scan(&active))
		return active == 0
	}, 2*time.Minute, 10*time.Millisecond)
	require.Empty(t, f.holder()())
}

// sentStatements receives each statement before it is sent.
type sentStatements chan struct{}

func (s sentStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s <- struct{}{}
	return ctx
}

func (sentStatements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The process that takes over also bumps what waits for a block, and gives the nonces of expired transactions to no-ops.
func TestLease_AnotherTookOver_BumpsAndExpires(t *testing.T) {
	var own *proxy.Proxy
	var node string
	f := setup(t, 1, func(o *relayertest.Options) {
		node = o.RPC[0]
		own = before(t, o)
		o.Tracker = func(c *tracker.Config) { c.Name = "first" }
	})
	holder := f.holder()
	require.Eventually(t, func() bool { return holder() == "first" }, 2*time.Minute, 10*time.Millisecond)
	o := f.options
	o.RPC = []string{node}
	second := before(t, &o)
	second.SetRules(known) // blocks come without the transactions
	o.Tracker = func(c *tracker.Config) {
		c.Name, c.BumpAfter = "second", map[relayer.Speed]time.Duration{relayer.Fast: 200 * time.Millisecond}
	}
	other := relayertest.Start(t, o)
	own.SetDown(true)
	first := other.Reaches(t, other.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
	expiring, err := other.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Speed: relayer.Fast, ValidUntil: time.Now().Add(time.Hour),
	}})
	require.NoError(t, err)
	other.Reaches(t, expiring, relayer.Broadcasted)
	f.expire(expiring)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		return f.latest(first).Number > 1 && f.latest(expiring).Purpose == relayer.PurposeNoop
	}, 2*time.Minute, 200*time.Millisecond)
	second.SetRules()
	require.Eventually(t, func() bool { return holder() == "second" }, 2*time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		now, err := other.Transaction(t.Context(), relayertest.PoolID, expiring.ID)
		return err == nil && now.Status == relayer.Expired
	}, 2*time.Minute, 100*time.Millisecond)
	other.Reaches(t, first, relayer.Confirmed)
}

// A single process resumes as soon as its nodes are back, after any outage.
func TestLease_SingleProcess_GoesOnWhenNodesAreBack(t *testing.T) {
	var own *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { own = before(t, o) })
	holder := f.holder()
	tx := f.send()
	own.SetDown(true)
	require.Eventually(t, func() bool { return holder() == "" }, 2*time.Minute, 10*time.Millisecond, "the lease was not released")
	f.chain.Commit()
	f.chain.Commit()
	own.SetDown(false)
	f.Reaches(t, tx, relayer.Confirmed)
	f.settled()
}

// The process with the lease reads its nodes, and cannot send through them, or knows no fees. Another process takes over and
// sends what the first one has accepted.
func TestLease_FollowerCannotSend_AnotherTakesOver(t *testing.T) {
	for name, rule := range map[string]proxy.Rule{"sends": refusals["sends"], "no sends": refusals["no sends"], "fees": refusals["fees"]} {
		t.Run(name, func(t *testing.T) {
			var own *proxy.Proxy
			var node string
			f := setup(t, 1, func(o *relayertest.Options) { node = o.RPC[0] })
			f.Stop()
			own = before(t, &f.options)
			rule.Name, rule.Fault.Kind = name, proxy.Refuse
			if name == "fees" {
				own.SetRules(rule) // a process that has known the fees uses them for a minute
			}
			f.options.Tracker = func(c *tracker.Config) { c.Name = "first" }
			f.Relayer = relayertest.Launch(t, f.options)
			holder := f.holder()
			holds := func(name string) {
				t.Helper()
				require.Eventually(t, func() bool { return holder() == name }, 2*time.Minute, 10*time.Millisecond)
			}
			holds("first")
			var tx *relayer.Transaction
			if name != "fees" {
				f.becomesReady()
				own.SetRules(rule)
				tx = f.Send(t, f.chain.Accounts[0].Address, 1, nil)
			}
			o := f.options
			o.RPC = []string{node}
			o.Tracker = func(c *tracker.Config) { c.Name = "second" }
			other := relayertest.Launch(t, o)
			holds("second")
			if tx == nil {
				tx = other.Send(t, f.chain.Accounts[0].Address, 1, nil)
			}
			other.Reaches(t, tx, relayer.Broadcasted)
			f.chain.Commit()
			other.Reaches(t, tx, relayer.Mined)
		})
	}
}

// A single process that cannot send releases the lease, and goes on tracking the chain.
func TestLease_SingleProcessCannotSend_GoesOn(t *testing.T) {
	var own *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { own = before(t, o) })
	holder := f.holder()
	tx := f.send()
	rule := refusals["sends"]
	rule.Name, rule.Fault.Kind = "sends", proxy.Refuse
	own.SetRules(rule)
	late := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Eventually(t, func() bool { return holder() == "" }, 2*time.Minute, 10*time.Millisecond, "the lease was not released")
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	own.SetRules()
	f.commitUntil(late, relayer.Confirmed)
	f.settled()
}
