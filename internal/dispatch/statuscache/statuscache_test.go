package statuscache_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/statuscache"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
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
	return statuscache.New(cfg), server
}

// of returns a transaction of a status that changed a moment ago.
func of(status dispatch.Status) *dispatch.Transaction {
	return &dispatch.Transaction{Status: status, UpdatedAt: time.Now()}
}

// A mined transaction can return to submitted, so its answer lives as long as that of a queued one.
func TestCache_EachStatus_LivesAsLongAsItCannotChange(t *testing.T) {
	c, server := setup(t)
	ttl := func(id string) time.Duration {
		return server.Client().PTTL(t.Context(), "p:relay:answer:shop:"+id).Val()
	}
	for _, status := range dispatch.Statuses {
		id := string(status)
		require.Nil(t, c.Get(t.Context(), "shop", id))
		c.Put(t.Context(), "shop", id, of(status), time.Now(), []byte("x"))
		switch status {
		case dispatch.Confirmed, dispatch.Failed, dispatch.Canceled, dispatch.Expired:
			require.Greater(t, ttl(id), 20*time.Second, status)
			require.LessOrEqual(t, ttl(id), time.Minute, status)
			require.Equal(t, "x", string(c.Get(t.Context(), "shop", id)))
			require.Nil(t, c.Get(t.Context(), "other", id), "another client's")
		default:
			require.LessOrEqual(t, ttl(id), time.Second, status)
		}
	}
	long := strings.Repeat("long", 100)
	c.Put(t.Context(), "shop", long, of(dispatch.Confirmed), time.Now(), []byte("x"))
	require.Equal(t, time.Duration(-2), ttl(long), "not stored")
}

func TestCache_OpenTransaction_IsAnsweredForASecond(t *testing.T) {
	c, server := setup(t)
	require.Eventually(t, func() bool { // on a busy machine the second may be over
		c.Put(t.Context(), "shop", "1", of(dispatch.Mined), time.Now(), []byte("x"))
		return string(c.Get(t.Context(), "shop", "1")) == "x"
	}, 2*time.Minute, 10*time.Millisecond)
	// A Redis that does not expire it changes nothing.
	require.Eventually(t, func() bool {
		c.Put(t.Context(), "shop", "2", of(dispatch.Mined), time.Now(), []byte("x"))
		return server.Client().Persist(t.Context(), "p:relay:answer:shop:2").Val()
	}, 2*time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return c.Get(t.Context(), "shop", "2") == nil }, 2*time.Minute, 10*time.Millisecond)
	require.EqualValues(t, 1, server.Client().Exists(t.Context(), "p:relay:answer:shop:2").Val())
}

// A process that was paused after it read the row, and a Redis that executes the SET late, make no old answer a new one.
func TestCache_AnswerStoredLate_IsNotUsed(t *testing.T) {
	c, server := setup(t)
	require.Eventually(t, func() bool {
		c.Put(t.Context(), "shop", "1", of(dispatch.Submitting), time.Now().Add(-2*time.Second), []byte("x"))
		require.Nil(t, c.Get(t.Context(), "shop", "1"))
		return server.Client().Persist(t.Context(), "p:relay:answer:shop:1").Val() // it was stored
	}, 2*time.Minute, 10*time.Millisecond)
	require.Nil(t, c.Get(t.Context(), "shop", "1"))
}

// Of two processes that read the row, the one that read it before its last change may be the later one to store its answer.
func TestCache_OpenAnswerAfterFinal_ChangesNothing(t *testing.T) {
	c, _ := setup(t)
	c.Put(t.Context(), "shop", "1", of(dispatch.Submitted), time.Now(), []byte("submitted"))
	c.Put(t.Context(), "shop", "1", of(dispatch.Confirmed), time.Now(), []byte("confirmed"))
	c.Put(t.Context(), "shop", "1", of(dispatch.Submitted), time.Now(), []byte("submitted"))
	require.Equal(t, "confirmed", string(c.Get(t.Context(), "shop", "1")))
}

// After a day, at the earliest, a final transaction may be purged, and its id be another one's.
func TestCache_LongFinal_IsNotStored(t *testing.T) {
	c, server := setup(t)
	tx := &dispatch.Transaction{Status: dispatch.Confirmed, UpdatedAt: time.Now().Add(-13 * time.Hour)}
	c.Put(t.Context(), "shop", "1", tx, time.Now(), []byte("x"))
	require.Zero(t, server.Client().DBSize(t.Context()).Val())
	tx.UpdatedAt = time.Now().Add(-11 * time.Hour)
	c.Put(t.Context(), "shop", "1", tx, time.Now(), []byte("x"))
	require.Equal(t, "x", string(c.Get(t.Context(), "shop", "1")))
}

func TestCache_RedisAway_IsPassedOver(t *testing.T) {
	c, server := setup(t, func(cfg *statuscache.Config) { cfg.Timeout = 0 })
	require.Eventually(t, func() bool { // on a busy machine a call may take too long
		c.Put(t.Context(), "shop", "1", of(dispatch.Confirmed), time.Now(), []byte("x"))
		return c.Get(t.Context(), "shop", "1") != nil
	}, 2*time.Minute, 10*time.Millisecond)
	server.Pause() // it accepts connections, and does not answer
	began := time.Now()
	for range 100 {
		require.Nil(t, c.Get(t.Context(), "shop", "1"))
	}
	require.Less(t, time.Since(began), 5*time.Second, "one call waits, not each")
	server.Resume()
	require.Eventually(t, func() bool { return string(c.Get(t.Context(), "shop", "1")) == "x" }, 2*time.Minute, 10*time.Millisecond)
}

func TestCache_Nil_DoesNothing(t *testing.T) {
	t.Parallel()
	var c *statuscache.Cache
	c.Put(t.Context(), "shop", "1", of(dispatch.Confirmed), time.Now(), []byte("x"))
	require.Nil(t, c.Get(t.Context(), "shop", "1"))
}
