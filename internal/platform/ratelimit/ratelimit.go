package ratelimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
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
	perSecond, burst, given := strings.Cut(s, ":")
	r.PerSecond, err = strconv.ParseFloat(perSecond, 64)
	if err != nil || !(r.PerSecond >= 0 && r.PerSecond <= maxRate) {
		return Rate{}, fmt.Errorf("%q is no number of requests a second from 0 to %d", perSecond, int(maxRate))
	}
	r.Burst = int(math.Ceil(r.PerSecond * burstSeconds))
	if given {
		if r.Burst, err = strconv.Atoi(burst); err != nil || r.Burst < 1 || r.Burst > maxRate*burstSeconds {
			return Rate{}, fmt.Errorf("%q is no number of requests that may come at once", burst)
		}
	}
	if r.PerSecond == 0 && given {
		return Rate{}, fmt.Errorf("%q: without a rate there is no burst", s)
	}
	return r, nil
}

// Bucket returns a full token bucket; nil if the rate is unlimited.
func (r Rate) Bucket() *rate.Limiter {
	if r.PerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(r.PerSecond), max(1, r.Burst))
}

// Limit is a bucket with the name that its refusal has.
type Limit struct {
	Name   string
	Bucket *rate.Limiter // nil: no limit
}

// Refusal is the limit that keeps a request waiting for longest.
type Refusal struct {
	Limit string
	After time.Duration // until the request would be admitted
}

// Take takes n tokens from each bucket at a time, or none, and returns the refusal then. More tokens than the burst are
// taken once the bucket is full. All of them count: nothing else is admitted until they are made up for. The caller
// serializes calls on the same buckets.
func Take(now time.Time, n int, limits ...Limit) *Refusal {
	var refusal *Refusal
	for _, limit := range limits {
		if limit.Bucket == nil {
			continue
		}
		if missing := float64(min(n, limit.Bucket.Burst())) - limit.Bucket.TokensAt(now); missing > 0 {
			after := time.Duration(missing / float64(limit.Bucket.Limit()) * float64(time.Second))
			if refusal == nil || after > refusal.After {
				refusal = &Refusal{Limit: limit.Name, After: after}
			}
		}
	}
	if refusal != nil {
		return refusal
	}
	for _, limit := range limits {
		if limit.Bucket == nil {
			continue
		}
		for left := n; left > 0; left -= limit.Bucket.Burst() { // a bucket reserves at most its burst at once
			limit.Bucket.ReserveN(now, min(left, limit.Bucket.Burst()))
		}
	}
	return nil
}
