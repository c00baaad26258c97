package statuscache_test

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/statuscache"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup returns a cache that waits for a busy Redis, unless edit sets another limit.
func setup(t *testing.T, edit ...func(*statuscache.Config)) (*statuscache.Cache, *testredis.Server) {
	t.Helper()
	t.Parallel()
	server := testredis.Start(t)
	client, err := redisclient.New(redisclient.Options{URL: server.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	cfg := statuscache.Config{Redis: client, Prefix: "p:", Timeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, e := range edit {
		e(&cfg)
	}
	c := statuscache.New(cfg)
	t.Cleanup(c.Wait)
	return c, server
}

// version is a version of the one transaction of most tests.
func version(revision int) statuscache.Version {
	return statuscache.Version{ID: uuid.Max, Revision: revision}
}

// A client may use the id of a transaction again that was purged. The former one's answers must not be the new one's.
func TestCache_IDIsUsedAgain_FormerTransactionIsHidden(t *testing.T) {
	c, _ := setup(t)
	ctx := t.Context()
	former := statuscache.Version{ID: uuid.Must(uuid.NewV7()), Revision: 5}
	c.Put(ctx, "shop", "order-1", former, relay.Confirmed, []byte("former"))
	accepted := statuscache.Version{ID: uuid.Must(uuid.NewV7()), Revision: 1}
	c.Outdate(ctx, "shop", "order-1", accepted)
	require.Nil(t, c.Get(ctx, "shop", "order-1"))
	c.Put(ctx, "shop", "order-1", former, relay.Confirmed, []byte("former")) // read before the purge
	require.Nil(t, c.Get(ctx, "shop", "order-1"))
	c.Put(ctx, "shop", "order-1", accepted, relay.Queued, []byte("new"))
	require.Equal(t, "new", string(c.Get(ctx, "shop", "order-1")))
}

func TestCache_LowerRevision_ChangesNothing(t *testing.T) {
	c, _ := setup(t)
	ctx := t.Context()
	require.Nil(t, c.Get(ctx, "shop", "1"))
	c.Put(ctx, "shop", "1", version(9), relay.Submitted, []byte("nine"))
	require.Equal(t, "nine", string(c.Get(ctx, "shop", "1")))
	c.Put(ctx, "shop", "1", version(8), relay.Confirmed, []byte("eight"))
	c.Outdate(ctx, "shop", "1", version(9))
	require.Equal(t, "nine", string(c.Get(ctx, "shop", "1")))
	require.Nil(t, c.Get(ctx, "other", "1"), "another client's")

	// A report is applied while a reader has read the row before it.
	c.Outdate(ctx, "shop", "1", version(10))
	require.Nil(t, c.Get(ctx, "shop", "1"))
	c.Put(ctx, "shop", "1", version(9), relay.Submitted, []byte("nine"))
	require.Nil(t, c.Get(ctx, "shop", "1"))
	c.Put(ctx, "shop", "1", version(10), relay.Confirmed, []byte("ten"))
	require.Equal(t, "ten", string(c.Get(ctx, "shop", "1")))
}

func TestCache_EntriesExpire(t *testing.T) {
	c, server := setup(t)
	c.Put(t.Context(), "shop", "open", version(1), relay.Queued, []byte("x"))
	c.Put(t.Context(), "shop", "final", version(1), relay.Confirmed, []byte("x"))
	c.Put(t.Context(), "shop", strings.Repeat("long", 100), version(1), relay.Confirmed, []byte("x"))
	ttl := func(id string) time.Duration {
		return server.Client().PTTL(t.Context(), "p:relay:status:shop:"+id).Val()
	}
	require.LessOrEqual(t, ttl("open"), 2*time.Second)
	require.GreaterOrEqual(t, ttl("final"), 4*time.Minute)
	require.Equal(t, time.Duration(-2), ttl(strings.Repeat("long", 100)), "not stored")
	c.Put(t.Context(), "shop", "at a relayer", version(1), relay.Mined, []byte("x"))
	require.Greater(t, ttl("at a relayer"), 2*time.Second)
	require.LessOrEqual(t, ttl("at a relayer"), 10*time.Second)
}

func TestCache_EntriesStoredTogether_DoNotExpireTogether(t *testing.T) {
	c, server := setup(t)
	const n = 100
	for i := range n {
		c.Put(t.Context(), "shop", strconv.Itoa(i), version(1), relay.Queued, []byte("x"))
	}
	first, last := 2*time.Second, time.Duration(0)
	for i := range n {
		ttl := server.Client().PTTL(t.Context(), "p:relay:status:shop:"+strconv.Itoa(i)).Val()
		first, last = min(first, ttl), max(last, ttl)
	}
	require.Greater(t, last-first, 500*time.Millisecond)
}

func TestCache_ConcurrentReads_EachGetsItsOwn(t *testing.T) {
	c, _ := setup(t)
	const n = 200
	for i := range n {
		c.Put(t.Context(), "shop", strconv.Itoa(i), version(1), relay.Confirmed, []byte(strconv.Itoa(i)))
	}
	var readers sync.WaitGroup
	for i := range 2 * n {
		readers.Go(func() {
			var want []byte
			if i < n {
				want = []byte(strconv.Itoa(i))
			}
			assert.Equal(t, want, c.Get(t.Context(), "shop", strconv.Itoa(i)))
		})
	}
	readers.Wait()
}

func TestCache_RedisAway_IsPassedOver(t *testing.T) {
	c, server := setup(t, func(cfg *statuscache.Config) { cfg.Timeout = 0 })
	require.Eventually(t, func() bool { // on a busy machine a call may take too long
		c.Put(t.Context(), "shop", "1", version(1), relay.Confirmed, []byte("x"))
		return c.Get(t.Context(), "shop", "1") != nil
	}, 20*time.Second, 10*time.Millisecond)
	server.Pause() // it accepts connections, and does not answer
	began := time.Now()
	for range 100 {
		require.Nil(t, c.Get(t.Context(), "shop", "1"))
	}
	require.Less(t, time.Since(began), 5*time.Second, "one call waits, not each")
	server.Resume()
	require.Eventually(t, func() bool { return string(c.Get(t.Context(), "shop", "1")) == "x" }, 20*time.Second, 10*time.Millisecond)
}

func TestCache_Nil_DoesNothing(t *testing.T) {
	t.Parallel()
	var c *statuscache.Cache
	c.Put(t.Context(), "shop", "1", version(1), relay.Confirmed, []byte("x"))
	c.Outdate(t.Context(), "shop", "1", version(1))
	require.Nil(t, c.Get(t.Context(), "shop", "1"))
}
