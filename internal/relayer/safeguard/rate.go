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

// Rate is how many requests may come in a second, and at once after a pause. Zero: any number.
type Rate struct {
	PerSecond float64
	Burst     int
}

// burstSeconds is how long a rate lets requests save up, unless it says so itself.
const burstSeconds = 3

// maxRate is far above what a process can do.
const maxRate = 1e6

// ParseRate reads a number of requests a second, and after a colon how many may come at once: by default what comes in
// three seconds. "0" is no limit.
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
	Caller Rate // each API key's
	Trader Rate // each trader's that is named
	// Traders is how many of them are remembered: past it the one that has been silent for longest begins again.
	// Default 65,536, about 15 MB.
	Traders int
}

// Guard judges requests by their number. It is safe for concurrent use, and [pool.Guard] for one process.
type Guard struct {
	rates Rates
	now   func() time.Time

	mu      sync.Mutex
	global  *rate.Limiter
	callers map[string]*rate.Limiter // as many as there are API keys
	traders map[string]*list.Element // of recent
	recent  *list.List               // of *trader, the latest one first
}

type trader struct {
	name   string
	bucket *rate.Limiter
}

// NewGuard makes a Guard whose buckets are full.
func NewGuard(r Rates) *Guard {
	if r.Traders <= 0 {
		r.Traders = 1 << 16
	}
	return &Guard{
		rates: r, now: time.Now, global: r.Global.limiter(), callers: map[string]*rate.Limiter{},
		traders: map[string]*list.Element{}, recent: list.New(),
	}
}

// Admit lets a request in, or fails with a [relayer.LimitError] that says when the next one may come. A refused request
// uses up no limit, so that a caller above its own limit takes nothing from the others.
func (g *Guard) Admit(_ context.Context, caller string, r *relayer.Request) error {
	return g.admit(caller, r.Metadata.Trader, 1)
}

// AdmitCalls lets as many calls in together, or none of them, as Admit does. More than may ever come at once come in once
// that many may, and all of them count: until they are made up for, nothing else comes in.
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
		for left := n; left > 0; left -= limit.bucket.Burst() { // a bucket gives no more than its burst at once
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
