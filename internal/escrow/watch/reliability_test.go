package watch

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// everywhere makes a rule strike at all endpoints.
func (w *world) everywhere(rule proxy.Rule) {
	for _, p := range w.proxies {
		p.SetRules(rule)
	}
}

// heal ends all rules.
func (w *world) heal() {
	for _, p := range w.proxies {
		p.SetRules()
	}
}

// awaitStrikes returns once a rule has struck n times, at all endpoints together.
func (w *world) awaitStrikes(name string, n uint64) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		var struck uint64
		for _, p := range w.proxies {
			struck += p.Injected()[name]
		}
		return struck >= n
	}, patience, time.Millisecond)
}

// inBothDeliveries runs a test with a world that has a chain and one process that has read it.
func inBothDeliveries(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	for _, delivery := range []Delivery{Finalized, Instant} {
		t.Run(fmt.Sprint(delivery), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 9, 2)
			w.delivery, w.timeout = delivery, 2*time.Second // some calls are never answered
			w.mine(6)
			w.finalize(2)
			w.start()
			w.awaitAll()
			run(t, w)
		})
	}
}

// All endpoints fail in one way, while the chain goes on. Once they answer, the messages are the chain's.
func TestEndpoints_AllFail_NothingIsMissed(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]proxy.Fault{
		"errors":    {Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
		"429":       {Kind: proxy.Status, Code: 429},
		"502":       {Kind: proxy.Status, Code: 502},
		"no answer": {Kind: proxy.Hang},
		"cut":       {Kind: proxy.Cut},
		"truncated": {Kind: proxy.Truncate},
		"null":      {Kind: proxy.Answer, Result: "null"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothDeliveries(t, func(_ *testing.T, w *world) {
				w.everywhere(proxy.Rule{Name: name, Fault: fault})
				w.mine(4)
				w.finalize(1)
				w.awaitStrikes(name, 3)
				w.heal()
				w.mine(2)
				w.finalize(1)
				w.awaitAll()
				w.requireTruth(w.upto())
			})
		})
	}
}

// All endpoints fail one call of eight, in changing ways, and half of the blocks are missing for a while.
func TestEndpoints_SomeCallsFail_NothingIsMissedOrRepeated(t *testing.T) {
	t.Parallel()
	blocks := []string{"eth_getBlockByNumber", "eth_getBlockByHash"}
	inBothDeliveries(t, func(_ *testing.T, w *world) {
		for _, rule := range []proxy.Rule{
			{Name: "errors", Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}, Probability: .125},
			{Name: "429", Fault: proxy.Fault{Kind: proxy.Status, Code: 429}, Probability: .125},
			{Name: "502", Fault: proxy.Fault{Kind: proxy.Status, Code: 502}, Probability: .125},
			{Name: "truncated", Fault: proxy.Fault{Kind: proxy.Truncate}, Probability: .125},
			{Name: "cut", Fault: proxy.Fault{Kind: proxy.Cut}, Probability: .125},
			{Name: "lost", Fault: proxy.Fault{Kind: proxy.Lose}, Probability: .125},
			{Name: "missing", Methods: blocks, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}, Probability: .5},
			{Name: "no answer", Methods: []string{logsMethod}, Limit: 1, Fault: proxy.Fault{Kind: proxy.Hang}},
		} {
			w.everywhere(rule)
			for range 5 {
				w.mine(2)
				w.finalize(1)
				w.pass()
			}
			w.awaitStrikes(rule.Name, 1)
		}
		w.heal()
		w.mine(1)
		w.finalize(1)
		w.awaitAll()
		w.requireTruth(w.upto())
	})
}

// Hundreds of blocks without a log are passed.
func TestBlocks_WithoutLogs_ArePassed(t *testing.T) {
	t.Parallel()
	inBothDeliveries(t, func(_ *testing.T, w *world) {
		for range 500 {
			w.head = w.chain.Mine(w.head)
		}
		w.finalize(100)
		w.awaitAll()
		w.mine(3)
		w.finalize(1)
		w.awaitAll()
		w.requireTruth(w.upto())
	})
}

// A WebSocket stays open and announces no block: the chain is followed, and no block is left out once it announces again.
func TestSubscription_Silent_BlocksAreFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10, 2)
	w.delivery, w.ws = Instant, true
	w.mine(4)
	w.start()
	w.awaitAll()
	var announced atomic.Int64
	w.proxies[0].SetRules(proxy.Rule{Methods: []string{"eth_subscription"}, When: func(proxy.Call) bool { announced.Add(1); return false }})
	for announced.Load() < 3 {
		w.mine(1)
		w.awaitAll()
	}
	w.proxies[0].SetRules(proxy.Rule{Name: "silent", Methods: []string{"eth_subscription"}, Fault: proxy.Fault{Kind: proxy.Omit}})
	for range 5 {
		w.mine(3)
		w.awaitAll()
	}
	require.Positive(t, w.proxies[0].Injected()["silent"])
	w.mine(3)
	w.heal()
	w.mine(1)
	w.awaitAll()
	w.requireTruth(w.head)
}

// A block is announced, and replaced before any endpoint returns its logs. Its hash is unknown then.
func TestBlock_ReplacedWhileAsked_OtherBranchIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 11, 2)
	w.delivery = Instant
	w.mine(5)
	w.start()
	w.awaitAll()
	for range 5 {
		parent := w.head
		replaced := w.chain.Mine(parent, w.create(worldFactory))
		w.everywhere(proxy.Rule{
			Name: "replaced", Methods: []string{logsMethod, receiptsMethod}, When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), replaced.Hash.Hex()) },
			Fault: proxy.Fault{Kind: proxy.Refuse, Message: "unknown block"},
		})
		w.head = replaced
		w.show()
		w.awaitStrikes("replaced", 2)
		w.head = parent
		w.mine(2)
		w.awaitAll()
		for _, m := range w.messages() {
			require.NotEqual(t, replaced.Hash, m.BlockHash)
		}
		w.heal()
	}
	w.requireTruth(w.head)
}

// The database is killed, stopped and frozen, in history and at the head, while the chain goes on.
func TestDatabase_RestartsAndFreezes_NothingIsMissedOrRepeated(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		t.Run(fmt.Sprint(delivery), func(t *testing.T) {
			t.Parallel()
			server := testpostgres.Own(t)
			require.NoError(t, postgres.Migrate(t.Context(), server.URL(), store.Migrations()))
			w := newWorld(t, 12, 2)
			w.url, w.db, w.delivery = server.URL(), server.Pool(t), delivery
			w.mine(60)
			w.finalize(3)
			w.start()
			w.start()
			for _, outage := range []struct{ begin, end func() }{{server.Kill, server.Restart}, {server.Stop, server.Restart}, {server.Pause, server.Resume}} {
				outage.begin()
				w.mine(3)
				w.finalize(2)
				for _, p := range w.processes { // each has an error, or waits for an answer
					require.Eventually(t, func() bool { return p.watcher.Health() != nil || p.db.Stat().AcquiredConns() > 0 }, patience, time.Millisecond)
				}
				outage.end()
				w.mine(2)
				w.finalize(1)
				w.awaitAll()
			}
			w.requireTruth(w.upto())
			require.NotContains(t, w.statuses(), events.Retracted)
		})
	}
}

// statuses returns the statuses that messages have.
func (w *world) statuses() map[events.Status]bool {
	all := map[events.Status]bool{}
	for _, m := range w.messages() {
		all[m.Status] = true
	}
	return all
}
