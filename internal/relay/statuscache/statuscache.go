package statuscache

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/platform/batch"
	"github.com/rollcall-dev/rollcall/internal/relay"
)

const (
	// pause is how long Redis is not called after a failure.
	pause = time.Second
	// The lives of entries. Consumers change a transaction until a relayer has it, and do not announce that. After that the relayer's
	// webhooks announce changes; the reconciler finds one whose webhook was lost, a minute later.
	consumersTTL = 2 * time.Second
	relayersTTL  = 10 * time.Second
	finalTTL     = 10 * time.Minute
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
	reads    *batch.Group[string, entry]
	lookups  *prometheus.CounterVec
	failures prometheus.Counter
	away     atomic.Int64 // until when Redis is not called, in Unix ns
}

// entry is the result of reading a key; no value means that there is none.
type entry struct {
	value []byte
	err   error
}

// New returns a Cache.
func New(cfg Config) *Cache {
	cfg.Timeout = cmp.Or(cfg.Timeout, 50*time.Millisecond)
	f := promauto.With(cfg.Registerer)
	c := &Cache{
		cfg: cfg,
		lookups: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_status_cache_lookups_total", Help: "Reads of a transaction's status, by result: hit, miss or away.",
		}, []string{"result"}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_status_cache_failures_total", Help: "Calls of the cache's Redis that failed.",
		}),
	}
	c.reads = batch.New(batch.Config{Timeout: cfg.Timeout}, c.read)
	return c
}

// Wait waits for calls of Redis whose callers have left. Call it before Redis is closed.
func (c *Cache) Wait() {
	if c != nil {
		c.reads.Wait()
	}
}

func (c *Cache) key(client, id string) string {
	return c.cfg.Prefix + "relay:status:" + client + ":" + id
}

// Get returns the answer about a client's transaction; nil if there is none.
func (c *Cache) Get(ctx context.Context, client, id string) []byte {
	if c == nil || len(id) > maxKey {
		return nil
	}
	if !c.reachable() {
		c.lookups.WithLabelValues("away").Inc()
		return nil
	}
	found, err := c.reads.Do(ctx, c.key(client, id))
	if err != nil || found.err != nil {
		c.lookups.WithLabelValues("away").Inc()
		return nil
	}
	var answer []byte
	if parts := bytes.SplitN(found.value, []byte(":"), 3); len(parts) == 3 {
		answer = parts[2]
	}
	if len(answer) == 0 { // nothing, or a version alone
		c.lookups.WithLabelValues("miss").Inc()
		return nil
	}
	c.lookups.WithLabelValues("hit").Inc()
	return answer
}

// read reads the keys of concurrent calls in one round trip: one each would take a quarter of the API's processor time.
func (c *Cache) read(ctx context.Context, keys []string) ([]entry, error) {
	pipeline := c.cfg.Redis.Pipeline()
	answers := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		answers[i] = pipeline.Get(ctx, key)
	}
	_, _ = pipeline.Exec(ctx) // the error of the first answer that has one
	found := make([]entry, len(keys))
	var failed error
	for i, answer := range answers {
		if value, err := answer.Bytes(); err == nil {
			found[i].value = value
		} else if err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
			found[i].err = err
			failed = err
		}
	}
	if failed != nil {
		c.failed(ctx, failed)
	}
	return found, nil
}

// Version orders the answers under one id of a client. After the purge of a transaction, or a restore of the database, the client may
// use the id again: the new transaction's revisions begin at 1, and its ID, a UUIDv7, is greater.
type Version struct {
	ID       uuid.UUID
	Revision int
}

// store sets KEYS[1] to transaction ARGV[1], revision ARGV[2] and answer ARGV[3] for ARGV[4] ms, unless it has a higher version, or an
// answer of the same one.
var store = redis.NewScript(`
local now = redis.call('GET', KEYS[1])
if now then
  local tx, revision, answer = string.match(now, '^([^:]*):(%d+):(.*)$')
  if tx == ARGV[1] then
    local has, given = tonumber(revision), tonumber(ARGV[2])
    if has > given or has == given and #answer > 0 then return 0 end
  elseif tx and tx > ARGV[1] then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. ARGV[2] .. ':' .. ARGV[3], 'PX', ARGV[4])
return 1`)

// Put stores an answer about a client's transaction. Nothing is stored if a higher version is known.
func (c *Cache) Put(ctx context.Context, client, id string, v Version, status relay.Status, answer []byte) {
	ttl := consumersTTL
	switch {
	case status.Final():
		ttl = finalTTL
	case status.AtRelayer():
		ttl = relayersTTL
	}
	// Entries that were stored together must not expire together: the database would get all their reads at once.
	c.run(ctx, client, id, v, answer, ttl-rand.N(ttl/2))
}

// Outdate hides answers about a client's transaction below a version.
func (c *Cache) Outdate(ctx context.Context, client, id string, v Version) {
	c.run(ctx, client, id, v, nil, relayersTTL)
}

func (c *Cache) run(ctx context.Context, client, id string, v Version, answer []byte, ttl time.Duration) {
	if c == nil || len(id) > maxKey || !c.reachable() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if err := store.Run(ctx, c.cfg.Redis, []string{c.key(client, id)}, v.ID.String(), strconv.Itoa(v.Revision), answer, ttl.Milliseconds()).Err(); err != nil {
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
