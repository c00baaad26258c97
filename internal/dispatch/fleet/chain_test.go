package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
)

// refusedMetric returns the labels of the refused relayers.
func (w *world) refusedMetric() (labels []string) {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, f := range families {
		if f.GetName() != "rollcall_relay_relayer_refused" {
			continue
		}
		for _, m := range f.GetMetric() {
			text := ""
			for _, l := range m.GetLabel() {
				text += l.GetValue() + " "
			}
			labels = append(labels, text)
		}
	}
	return labels
}

// logged makes the fleet log into a buffer.
func logged(log *lockedBuffer) func(*fleet.Config) {
	return func(cfg *fleet.Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) }
}

func TestFleet_RelayerOfAnotherChain_IsRefusedAndNamed(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]upstreamtest.Options{
		"this project's": {ChainID: 10, Scope: "scope"}, "another project's": {ChainID: 10, Network: "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := new(lockedBuffer)
			w := setup(t, []string{"a"}, logged(log))
			require.NoError(t, w.Health())
			stranger := upstreamtest.Start(t, o)
			w.list("b", stranger.URL())
			require.Eventually(t, func() bool { return len(w.refusedMetric()) > 0 }, patience, 5*time.Millisecond)
			require.Equal(t, []string{"chain b "}, w.refusedMetric())
			require.ErrorContains(t, w.Health(), `1 relayers in Redis are refused: "b" (it has another chain)`)
			require.Contains(t, log.String(), "are for chain 1337, and the relayer has chain 10: give its consumers another database and queue")
			require.True(t, w.available("a"))
			require.False(t, w.Besides([]string{"a"}))
			require.Empty(t, w.Sharing(dispatch.Route{Relayer: "b", URL: "http://old"}), "its answers are about another chain's transactions")
			require.Equal(t, float64(1), w.gauge("rollcall_relay_relayers"))
			// It is used once it has the chain.
			stranger.Move("dev", 1337)
			if o.Scope != "" {
				stranger.Move("evm:1337", 1337)
			}
			require.Eventually(t, func() bool { return w.Besides([]string{"a"}) }, patience, 5*time.Millisecond)
			require.Empty(t, w.refusedMetric())
			require.NoError(t, w.Health())
		})
	}
}

// A relayer at the same URL and with the same id has another network by now. It gets none of the transactions of the former one's chain.
func TestChoose_RelayerMovesToAnotherChain_GetsNoTransaction(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		start upstreamtest.Options
		move  func(*upstreamtest.Relayer)
	}{
		"this project's":    {upstreamtest.Options{Scope: "of-1337"}, func(r *upstreamtest.Relayer) { r.Move("evm:10", 10); r.Rescope("of-10") }},
		"another project's": {upstreamtest.Options{Network: "sepolia"}, func(r *upstreamtest.Relayer) { r.Move("optimism", 10) }},
	} {
		for way, poll := range map[string]time.Duration{"between two readings": time.Hour, "with readings": 20 * time.Millisecond} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				w := setup(t, nil, func(c *fleet.Config) { c.Poll = poll })
				r := upstreamtest.Start(t, o.start)
				w.add("a", r)
				w.list("a", r.URL())
				require.NoError(t, w.redis.Client().Publish(t.Context(), "relayer:events", "{}").Err())
				require.Eventually(t, func() bool {
					if w.available("a") {
						return true
					}
					return w.redis.Client().Publish(t.Context(), "relayer:events", "{}").Err() != nil
				}, patience, 5*time.Millisecond)
				const each = 20
				for range each {
					require.Equal(t, "a", w.submit(t.Context()))
				}
				require.Len(t, r.Transactions(), each)
				o.move(r)
				for range each {
					w.submit(t.Context())
				}
				require.Len(t, r.Transactions(), each)
				require.Eventually(t, func() bool { return slices.Equal([]string{"chain a "}, w.refusedMetric()) }, patience, 5*time.Millisecond)
				require.False(t, w.available("a"))
			})
		}
	}
}

// An empty list of another chain's relayer does not prove that a transaction was not done, and an equal call in it is another one.
func TestAt_RelayerMovedToAnotherChain_ItsListIsNotRead(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]bool{"live": true, "not live any more": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, nil)
			w.chain.Store(1337)
			r := upstreamtest.Start(t, upstreamtest.Options{Network: "sepolia"})
			added := r.Add(upstreamtest.Transaction{To: "0x0100000000000000000000000000000000000000", CreatedAt: time.Now()})
			if live {
				w.add("a", r)
				w.list("a", r.URL())
				w.becomes(true, "a")
			}
			at, ok := w.At(dispatch.Route{Relayer: "a", URL: r.URL(), RelayerID: "relayer-1"})
			require.True(t, ok)
			lookup := func() ([]upstream.Transaction, error) {
				return at.Lookup(t.Context(), upstream.Ref{ID: "relayer-1"}, upstream.Match{To: &common.Address{1}})
			}
			found, err := lookup()
			require.NoError(t, err)
			require.Equal(t, added.ID, found[0].ID)
			lists := r.Calls(upstreamtest.List)
			r.Move("mainnet", 1)
			_, err = lookup()
			require.ErrorContains(t, err, "another")
			require.Equal(t, lists, r.Calls(upstreamtest.List))
			r.Move("sepolia", 1337)
			require.Eventually(t, func() bool { found, err := lookup(); return err == nil && len(found) == 1 }, patience, 5*time.Millisecond)
			if live {
				w.becomes(true, "a")
				r.Pause(true) // it does not serve its node, and its chain is known
				_, err = lookup()
				require.NoError(t, err)
			}
		})
	}
}

func TestFleet_HostIsNotAllowed_GetsNeitherKeyNorTransaction(t *testing.T) {
	t.Parallel()
	log := new(lockedBuffer)
	hosts, err := hostlist.Parse([]string{"127.0.0.1"})
	require.NoError(t, err)
	w := setup(t, []string{"a"}, logged(log), func(cfg *fleet.Config) {
		cfg.Client = func(_, url string) (*upstream.Client, error) {
			return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key, Dial: hosts.Dial})
		}
	})
	stranger := upstreamtest.Start(t, upstreamtest.Options{Scope: "scope-of-b"})
	w.list("b", "http://127.0.0.2"+stranger.URL()[len("http://127.0.0.1"):])
	require.Eventually(t, func() bool { return len(w.refusedMetric()) > 0 }, patience, 5*time.Millisecond)
	require.Equal(t, []string{"host b "}, w.refusedMetric())
	require.ErrorContains(t, w.Health(), `"b" (its host is not in CONSUMER_RELAYER_HOSTS)`)
	require.Contains(t, log.String(), "its host is not allowed")
	require.True(t, w.available("a"))
	require.False(t, w.Besides([]string{"a"}))
}

// Members that are no relayers must not hide the live ones.
func TestFleet_MoreMembersThanAreRead_KeepsThoseThatAnswer(t *testing.T) {
	t.Parallel()
	const many, most = 25_000, 10_000
	log := new(lockedBuffer)
	w := setup(t, three, logged(log))
	ids := make([]any, many)
	for i := range ids {
		ids[i] = fmt.Sprintf("stranger-%d", i)
	}
	require.NoError(t, w.redis.Client().SAdd(t.Context(), "relayer:active", ids...).Err())
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_relayers_unread") > 0 }, patience, 5*time.Millisecond)
	require.Equal(t, float64(many+len(three)-most), w.gauge("rollcall_relay_relayers_unread"))
	require.Contains(t, log.String(), "more relayers in Redis than are read")
	require.ErrorContains(t, w.Health(), "Redis lists 15003 relayers more than the 10000 that are read")
	for _, id := range three {
		w.becomes(true, id)
	}
	require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", "a").Err())
	w.becomes(false, "a")
	require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", ids...).Err())
	require.Eventually(t, func() bool { return w.Health() == nil }, patience, 5*time.Millisecond)
	require.Zero(t, w.gauge("rollcall_relay_relayers_unread"))
}

// growing adds members to the set between its count and its first page, once it is told to.
type growing struct {
	add atomic.Pointer[func()]
}

func (g *growing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *growing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (g *growing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "sscan" {
			if add := g.add.Swap(nil); add != nil {
				(*add)()
			}
		}
		return next(ctx, cmd)
	}
}

func TestFleet_SetGrowsWhileItIsRead_CountsAllAndKeepsThoseThatAnswer(t *testing.T) {
	t.Parallel()
	const many, most = 25_000, 10_000
	hook := &growing{}
	log := new(lockedBuffer)
	w := setup(t, three, logged(log), func(cfg *fleet.Config) { cfg.Redis.AddHook(hook) })
	ids := make([]any, many)
	for i := range ids {
		ids[i] = fmt.Sprintf("stranger-%d", i)
	}
	var added error
	add := func() { added = w.redis.Client().SAdd(t.Context(), "relayer:active", ids...).Err() }
	hook.add.Store(&add)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "more relayers in Redis than are read") }, patience, 5*time.Millisecond)
	require.NoError(t, added)
	require.True(t, strings.Contains(log.String(), fmt.Sprintf("unread=%d", many+len(three)-most)), "the first reading tells all") //nolint:testifylint // the log is long
	for _, id := range three {
		w.becomes(true, id)
	}
}

// chainStore is a store with a chain of its own.
type chainStore struct {
	fleet.Store
	chain *atomic.Uint64
}

func (s chainStore) Chain(context.Context) (uint64, error) { return s.chain.Load(), nil }

func (s chainStore) ClaimChain(_ context.Context, id uint64) (uint64, error) {
	s.chain.CompareAndSwap(0, id)
	return s.chain.Load(), nil
}

// starting returns a fleet with another store, which does not run.
func (w *world) starting(chain *atomic.Uint64) *fleet.Fleet {
	return fleet.New(fleet.Config{
		Redis: w.redis.Client(), Store: chainStore{w, chain}, Logger: slog.New(slog.DiscardHandler),
		Client: func(_, url string) (*upstream.Client, error) {
			return upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key})
		},
	})
}

func TestCheckChain_Starts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		database uint64
		open     bool              // it has transactions that are not final
		relayers map[string]uint64 // their chains; 0: it does not answer
		err      string
		after    uint64 // the database's chain
	}{
		"none listed":                 {},
		"first start":                 {relayers: map[string]uint64{"a": 10, "b": 10}, after: 10},
		"no relayer answers":          {database: 1, relayers: map[string]uint64{"a": 0}, after: 1},
		"the database's":              {database: 10, relayers: map[string]uint64{"a": 10, "b": 0}, after: 10},
		"some of the database's":      {database: 10, relayers: map[string]uint64{"a": 1, "b": 10}, after: 10},
		"all of another":              {database: 1, relayers: map[string]uint64{"a": 10, "b": 10}, err: "relayer a: another chain: the transactions of this database are for chain 1, and the relayer has chain 10: give", after: 1},
		"another, some do not answer": {database: 1, relayers: map[string]uint64{"a": 10, "b": 0}, after: 1},
		"open, some do not answer":    {open: true, relayers: map[string]uint64{"a": 10, "b": 0}},
		"open, all answer alike":      {open: true, relayers: map[string]uint64{"a": 10, "b": 10}, after: 10},
		"several at a first start":    {relayers: map[string]uint64{"a": 10, "b": 1}, err: "the relayers in Redis are of several chains (b has 1, a has 10), and the database has none yet: set CONSUMER_CHAIN_ID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, nil)
			w.open.Store(c.open)
			var chain atomic.Uint64
			chain.Store(c.database)
			for id, chain := range c.relayers {
				r := upstreamtest.Start(t, upstreamtest.Options{ChainID: chain})
				if chain == 0 {
					r.Refuse()
				}
				w.list(id, r.URL())
			}
			err := w.starting(&chain).CheckChain(t.Context())
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, c.after, chain.Load())
		})
	}
}

// Transactions of a database that has no chain yet are for the chain of their relayers. One that answers first while others do not may be
// a stray one of another chain.
func TestFleet_OpenTransactionsAndNoChain_AllRelayersDecide(t *testing.T) {
	t.Parallel()
	log := new(lockedBuffer)
	w := setup(t, nil, logged(log))
	w.open.Store(true)
	own, stray := upstreamtest.Start(t, upstreamtest.Options{}), upstreamtest.Start(t, upstreamtest.Options{ChainID: 10})
	w.add("own", own)
	own.Fail(upstreamtest.Find, upstreamtest.Drop)
	w.list("own", own.URL())
	w.list("stray", stray.URL())
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "relayer own has not answered") }, patience, 5*time.Millisecond)
	require.Zero(t, w.chain.Load())
	require.False(t, w.Besides(nil))
	require.ErrorContains(t, w.Health(), "relayer own has not answered: set CONSUMER_CHAIN_ID")
	own.Fail(upstreamtest.Find, nil)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "are of several chains") }, patience, 5*time.Millisecond)
	require.Zero(t, w.chain.Load())
	require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", "stray").Err())
	w.becomes(true, "own")
	require.Equal(t, uint64(1337), w.chain.Load())
	require.NoError(t, w.Health())
}

// Without Redis a process starts, and waits.
func TestCheckChain_RedisAway_Starts(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.redis.Stop()
	require.NoError(t, w.starting(new(atomic.Uint64)).CheckChain(t.Context()))
}
