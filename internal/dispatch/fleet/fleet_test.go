package fleet_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

// Others may answer about a transaction: the relayer of the service under its new URL, and those of the scope.
func TestSharing_RelayerIsGone_FindsItsScopeAndItsNewURL(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	urls := func(at dispatch.Route) (urls []string) {
		for _, client := range w.Sharing(at) {
			urls = append(urls, client.URL())
		}
		return urls
	}
	require.Eventually(t, func() bool {
		return slices.Equal([]string{w.relayers["b"].URL()}, urls(dispatch.Route{Relayer: "gone", URL: "http://gone", Scope: "scope-of-b"}))
	}, 2*time.Minute, 5*time.Millisecond)
	require.Equal(t, []string{w.relayers["a"].URL(), w.relayers["b"].URL()}, urls(dispatch.Route{Relayer: "a", URL: "http://old", Scope: "scope-of-b"}))
	require.Equal(t, []string{w.relayers["a"].URL()}, urls(dispatch.Route{Relayer: "a", URL: "http://old"}))
	require.Empty(t, urls(dispatch.Route{Relayer: "b", URL: w.relayers["b"].URL(), Scope: "scope-of-b"}), "the route's own")
}

// Only a relayer that can be chosen now, and has another scope, can take withdrawn transactions.
func TestElsewhere_OnlyAnotherScopeThatIsUsable(t *testing.T) {
	t.Parallel()
	w := setup(t, three)
	require.Eventually(t, func() bool { return w.Besides([]string{"a", "c"}) }, 2*time.Minute, 5*time.Millisecond)
	elsewhere := func(scope, what string) { // one failed reading of the load ends it for a moment
		t.Helper()
		require.Eventually(t, func() bool { return w.Elsewhere(scope) }, 2*time.Minute, 5*time.Millisecond, what)
	}
	elsewhere("scope-of-b", "a and c have other scopes")
	elsewhere("another", "all have other scopes")
	for _, id := range []string{"a", "c"} {
		require.NoError(t, w.redis.Client().SRem(t.Context(), "relayer:active", id).Err())
		w.becomes(false, id)
	}
	require.False(t, w.Elsewhere("scope-of-b"))
	elsewhere("another", "b has another scope")
	w.relayers["b"].Fail(upstreamtest.Submit, upstreamtest.Drop)
	require.Eventually(t, func() bool { w.submit(t.Context()); return !w.Elsewhere("another") }, 2*time.Minute, 5*time.Millisecond, "its breaker opens")
	require.Eventually(t, w.Answering, 2*time.Minute, 5*time.Millisecond)
	w.relayers["b"].Refuse()
	require.Eventually(t, func() bool { return !w.Answering() }, 2*time.Minute, 5*time.Millisecond)
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
	}, 2*time.Minute, 5*time.Millisecond)

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
	}, 2*time.Minute, 5*time.Millisecond)
	w.list("a", r.URL())
	require.NoError(t, w.redis.Client().Publish(t.Context(), "relayer:events", "{}").Err())
	// It is a member then. Its load is read only once in an hour, so that may fail on a slow machine.
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_relayers") == 1 }, 2*time.Minute, 5*time.Millisecond)
}

func TestFleet_RedisAway_LastKnownSetCountsForAWhile(t *testing.T) {
	t.Parallel()
	const keepFor = 5 * time.Second
	w := setup(t, three, func(c *fleet.Config) { c.KeepFor = keepFor })
	w.redis.Stop()
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_redis_up") == 0 }, 2*time.Minute, 5*time.Millisecond)
	available := w.available("a")
	if w.gauge("rollcall_relay_relayers_age_seconds") < keepFor.Seconds() { // the machine may be slow
		require.True(t, available)
	}
	w.becomes(false, "a")
	require.GreaterOrEqual(t, w.gauge("rollcall_relay_relayers_age_seconds"), keepFor.Seconds())
	w.redis.Restart()
	w.becomes(true, "a")
	require.Eventually(t, func() bool { return w.gauge("rollcall_relay_redis_up") == 1 }, 2*time.Minute, 5*time.Millisecond)

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
	}, 2*time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestAt_RelayerHasLeft_IsStillKnown(t *testing.T) {
	t.Parallel()
	w := setup(t, []string{"a"})
	url := w.relayers["a"].URL()
	require.NoError(t, w.redis.Client().Del(t.Context(), "relayer:active").Err())
	w.becomes(false, "a")
	_, ok := w.At(dispatch.Route{Relayer: "a", URL: url, RelayerID: "relayer-1"})
	require.True(t, ok)
	_, ok = w.At(dispatch.Route{})
	require.False(t, ok)
}
