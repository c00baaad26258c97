package limits

import (
	"container/list"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Rates are the limits of a Guard.
type Rates struct {
	Global ratelimit.Rate
	Caller ratelimit.Rate // per API key
	Trader ratelimit.Rate // per trader that is named
	// Traders is how many traders are remembered: past it the least recent one is dropped, and starts again with a full
	// bucket. Default 65,536, about 15 MB.
	Traders int
}

// Guard limits the rate of requests. It is safe for concurrent use, and implements [service.Guard] for one process.
type Guard struct {
	rates Rates
	now   func() time.Time

	mu      sync.Mutex
	global  *rate.Limiter
	callers map[string]*rate.Limiter // one per API key
	traders map[string]*list.Element // elements of recent
	recent  *list.List               // values of *trader, the latest one first
}

type trader struct {
	name   string
	bucket *rate.Limiter
}

// NewGuard returns a Guard with full buckets.
func NewGuard(r Rates) *Guard {
	if r.Traders <= 0 {
		r.Traders = 1 << 16
	}
	return &Guard{
		rates: r, now: time.Now, global: r.Global.Bucket(), callers: map[string]*rate.Limiter{},
		traders: map[string]*list.Element{}, recent: list.New(),
	}
}

// Admit accepts a request, or fails with a [relayer.LimitError] with the time until the next one is possible. A rejected
// request consumes no tokens, so a caller above its own limit takes none from the others.
func (g *Guard) Admit(_ context.Context, caller string, r *relayer.Request) error {
	return g.admit(caller, r.Metadata.Trader, 1)
}

// AdmitCalls accepts several calls together, or none, as Admit does. More calls than the burst are accepted once the bucket
// is full. All of them count: nothing else is accepted until they are made up for.
func (g *Guard) AdmitCalls(caller string, n int) error { return g.admit(caller, "", n) }

func (g *Guard) admit(caller, trader string, n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	refusal := ratelimit.Take(now, n, ratelimit.Limit{Name: "global rate limit", Bucket: g.global},
		ratelimit.Limit{Name: "rate limit of the API key", Bucket: g.caller(caller)},
		ratelimit.Limit{Name: "rate limit of the trader", Bucket: g.trader(trader)})
	if refusal != nil {
		return &relayer.LimitError{Limit: refusal.Limit, After: refusal.After}
	}
	return nil
}

func (g *Guard) caller(name string) *rate.Limiter {
	if g.rates.Caller.PerSecond == 0 {
		return nil
	}
	bucket := g.callers[name]
	if bucket == nil {
		bucket = g.rates.Caller.Bucket()
		g.callers[name] = bucket
	}
	return bucket
}

func (g *Guard) trader(name string) *rate.Limiter {
	if name == "" || g.rates.Trader.PerSecond == 0 {
		return nil
	}
	if e := g.traders[name]; e != nil {
		g.recent.MoveToFront(e)
		return e.Value.(*trader).bucket
	}
	if len(g.traders) >= g.rates.Traders {
		oldest := g.recent.Remove(g.recent.Back()).(*trader)
		delete(g.traders, oldest.name)
	}
	t := &trader{name: name, bucket: g.rates.Trader.Bucket()}
	g.traders[name] = g.recent.PushFront(t)
	return t.bucket
}
