package safeguard

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Rate is how many requests are admitted per second, and at once after a pause. Zero: unlimited.
type Rate struct {
	PerSecond float64
	Burst     int
}

// burstSeconds is the default burst, in seconds of the rate.
const burstSeconds = 3

// maxRate is far above the capacity of a process.
const maxRate = 1e6

// ParseRate parses a number of requests per second, optionally followed by a colon and the burst. The default burst is
// three seconds of the rate. "0" is no limit.
func ParseRate(s string) (r Rate, err error) {
	perSecond, burst, told := strings.Cut(s, ":")
	r.PerSecond, err = strconv.ParseFloat(perSecond, 64)
	if err != nil || !(r.PerSecond >= 0 && r.PerSecond <= maxRate) {
		return Rate{}, fmt.Errorf("%q is no number of requests a second from 0 to %d", perSecond, int(maxRate))
	}
	r.Burst = int(math.Ceil(r.PerSecond * burstSeconds))
	if told {
		if r.Burst, err = strconv.Atoi(burst); err != nil || r.Burst < 1 || r.Burst > maxRate*burstSeconds {
			return Rate{}, fmt.Errorf("%q is no number of requests that may come at once", burst)
		}
	}
	if r.PerSecond == 0 && told {
		return Rate{}, fmt.Errorf("%q: without a rate there is no burst", s)
	}
	return r, nil
}

func (r Rate) limiter() *rate.Limiter {
	if r.PerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(r.PerSecond), max(1, r.Burst))
}

// Rates are the limits of a Guard.
type Rates struct {
	Global Rate
	Caller Rate // per API key
	Trader Rate // per trader that is named
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
		rates: r, now: time.Now, global: r.Global.limiter(), callers: map[string]*rate.Limiter{},
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
	limits := [...]struct {
		name   string
		bucket *rate.Limiter
	}{{"global rate limit", g.global}, {"rate limit of the API key", g.caller(caller)}, {"rate limit of the trader", g.trader(trader)}}
	var refusal *relayer.LimitError
	for _, limit := range limits {
		if limit.bucket == nil {
			continue
		}
		if missing := float64(min(n, limit.bucket.Burst())) - limit.bucket.TokensAt(now); missing > 0 {
			after := time.Duration(missing / float64(limit.bucket.Limit()) * float64(time.Second))
			if refusal == nil || after > refusal.After {
				refusal = &relayer.LimitError{Limit: limit.name, After: after}
			}
		}
	}
	if refusal != nil {
		return refusal
	}
	for _, limit := range limits {
		if limit.bucket == nil {
			continue
		}
		for left := n; left > 0; left -= limit.bucket.Burst() { // a bucket reserves at most its burst at once
			limit.bucket.ReserveN(now, min(left, limit.bucket.Burst()))
		}
	}
	return nil
}

func (g *Guard) caller(name string) *rate.Limiter {
	if g.rates.Caller.PerSecond == 0 {
		return nil
	}
	bucket := g.callers[name]
	if bucket == nil {
		bucket = g.rates.Caller.limiter()
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
	t := &trader{name: name, bucket: g.rates.Trader.limiter()}
	g.traders[name] = g.recent.PushFront(t)
	return t.bucket
}
