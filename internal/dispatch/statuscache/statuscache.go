package statuscache

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

const (
	// pause is how long Redis is not called after a failure.
	pause = time.Second
	// The lives of answers: of those that can change, and of final ones.
	openTTL  = time.Second
	finalTTL = time.Minute
	// keptFor is less than the shortest time that a final transaction is kept.
	keptFor = 12 * time.Hour
	// maxKey bounds the id of a transaction in a key, in bytes.
	maxKey = 300
)

// Config configures a Cache. Fields without a default are required.
type Config struct {
	Redis redis.UniversalClient
	// Prefix is the prefix of the keys.
	Prefix string
	// Timeout bounds a call of Redis. Default 50 ms.
	Timeout    time.Duration
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Cache holds answers by client and id. Its methods are safe for concurrent use; those of a nil Cache do nothing.
type Cache struct {
	cfg      Config
	lookups  *prometheus.CounterVec
	failures prometheus.Counter
	away     atomic.Int64 // until when Redis is not called, in Unix ns
}

// New returns a Cache.
func New(cfg Config) *Cache {
	cfg.Timeout = cmp.Or(cfg.Timeout, 50*time.Millisecond)
	f := promauto.With(cfg.Registerer)
	return &Cache{
		cfg: cfg,
		lookups: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_status_cache_lookups_total", Help: "Reads of a transaction's status, by result: hit, miss or away.",
		}, []string{"result"}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_status_cache_failures_total", Help: "Calls of the cache's Redis that failed.",
		}),
	}
}

func (c *Cache) key(client, id string) string {
	return c.cfg.Prefix + "relay:answer:" + client + ":" + id
}

// Get returns the answer about a client's transaction; nil if there is none.
func (c *Cache) Get(ctx context.Context, client, id string) []byte {
	if c == nil || len(id) > maxKey {
		return nil
	}
	answer, result := c.get(ctx, client, id)
	c.lookups.WithLabelValues(result).Inc()
	return answer
}

func (c *Cache) get(ctx context.Context, client, id string) (answer []byte, result string) {
	if !c.reachable() {
		return nil, "away"
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	value, err := c.cfg.Redis.Get(ctx, c.key(client, id)).Bytes()
	switch {
	case err == redis.Nil: //nolint:errorlint // go-redis returns it as it is
		return nil, "miss"
	case err != nil:
		c.failed(ctx, err)
		return nil, "away"
	}
	end, answer, _ := bytes.Cut(value, []byte(":"))
	until, err := strconv.ParseInt(string(end), 10, 64)
	if err != nil || time.Now().UnixMilli() >= until {
		return nil, "miss"
	}
	return answer, "hit"
}

// Put stores the answer about a client's transaction. read is a time before its row was read.
func (c *Cache) Put(ctx context.Context, client, id string, tx *dispatch.Transaction, read time.Time, answer []byte) {
	if c == nil || len(id) > maxKey || !c.reachable() {
		return
	}
	args := redis.SetArgs{Mode: "NX", TTL: openTTL}
	if tx.Status.Final() {
		if read.Sub(tx.UpdatedAt) > keptFor {
			return
		}
		args = redis.SetArgs{TTL: finalTTL}
	}
	end := strconv.FormatInt(read.Add(args.TTL).UnixMilli(), 10)
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err := c.cfg.Redis.SetArgs(ctx, c.key(client, id), end+":"+string(answer), args).Err()
	if err != nil && err != redis.Nil { //nolint:errorlint // as it is; there is an answer already
		c.failed(ctx, err)
	}
}

func (c *Cache) reachable() bool { return time.Now().UnixNano() >= c.away.Load() }

// failed pauses the calls of Redis, unless the caller has gone.
func (c *Cache) failed(ctx context.Context, err error) {
	if context.Cause(ctx) == context.Canceled { //nolint:errorlint // as it is
		return
	}
	c.failures.Inc()
	before := c.away.Load()
	now := time.Now()
	c.away.Store(now.Add(pause).UnixNano())
	if now.Sub(time.Unix(0, before)) > time.Minute {
		c.cfg.Logger.Warn("statuses are not cached: Redis fails", "component", "statuscache", "err", err)
	}
}
