package fleet_test

import (
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

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

func TestChoose_HighPending_GetsLess(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a", "b"})
	r := w.start("c", 100)
	l := w.load()
	l.falls("c", 0.05, 200, 4*time.Second) // the others have less than 50 each, but one may answer late
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

// A relayer whose account is empty, or whose settings are wrong, rejects each transaction at once; this project's answers 503 if no key
// can pay. It stays available, because the transaction is the reason otherwise.
func TestChoose_RejectsEverything_GetsLittle(t *testing.T) {
	t.Parallel()
	const poor = `{"success":false,"data":null,"error":"no key can pay for it: value and gas may come to 1000 wei"}`
	for name, c := range map[string]struct {
		scope   string
		answer  upstreamtest.Fault
		latency time.Duration // of the others
	}{
		"rejects, others are idle":    {scope: "scope-of-d", answer: upstreamtest.Error(http.StatusBadRequest)},
		"rejects, others are busy":    {answer: upstreamtest.Error(http.StatusBadRequest), latency: 600 * time.Millisecond},
		"cannot pay, others are idle": {scope: "scope-of-d", answer: upstreamtest.Respond(http.StatusServiceUnavailable, poor, "Retry-After", "30")},
		"cannot pay, others are busy": {scope: "scope-of-d", answer: upstreamtest.Respond(http.StatusServiceUnavailable, poor, "Retry-After", "30"), latency: 600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, three)
			for _, id := range three {
				w.relayers[id].Fail(upstreamtest.Submit, upstreamtest.Slow(c.latency))
			}
			drained := upstreamtest.Start(t, upstreamtest.Options{Scope: c.scope})
			drained.Fail(upstreamtest.Submit, c.answer)
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
	began, count := time.Now(), 0
	for range 50 {
		w.submit(t.Context(), func(id string) {
			if id == "c" {
				count++
			}
		})
	}
	require.Positive(t, count)
	require.LessOrEqual(t, count, 1+int(time.Since(began)/time.Second), "its breaker is open for a second at least")
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
	}, 2*time.Minute, 5*time.Millisecond)
}

// A relayer gets an idempotency scope, as when this project's replaces another one behind a URL. It gets no transaction before its chain
// is known.
func TestChoose_RelayerGetsAScope_IsLookedUpAgain(t *testing.T) {
	t.Parallel()
	for name, reading := range map[string]bool{"between two readings": false, "during a reading": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, nil)
			r := w.start("a", 0)
			scope := func() string {
				choice, ok := w.Choose(consumer.Want{})
				if !ok {
					return ""
				}
				choice.Done(nil)
				return choice.Route.Scope
			}
			begun, release := make(chan struct{}), make(chan struct{})
			if reading {
				var first sync.Once
				r.Fail(upstreamtest.Status, func(c *upstreamtest.Call) {
					first.Do(func() {
						close(begun)
						<-release
					})
					c.Do(c.ResponseWriter)
				})
				<-begun
			}
			r.Rescope("scope-of-a")
			require.Equal(t, "a", w.submit(t.Context()))
			close(release)
			require.Empty(t, r.Transactions())
			require.Eventually(t, func() bool { return scope() == "scope-of-a" }, 2*time.Minute, 5*time.Millisecond)
		})
	}
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

func TestChoose_Avoid_ExcludesTheScope(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	for range 20 {
		choice, ok := w.Choose(consumer.Want{Avoid: "scope-of-b", Exclude: []string{"a"}})
		require.True(t, ok)
		require.Equal(t, "c", choice.Route.Relayer)
		choice.Done(nil)
	}
	_, ok := w.Choose(consumer.Want{Avoid: "scope-of-b", Exclude: []string{"a", "c"}})
	require.False(t, ok)
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
