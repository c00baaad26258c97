package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
)

const checkedServices = 10_000

// checks measures how punctual a whole cluster's checks are, and their cost.
func checks(t *trial) {
	const interval, what = time.Second, "10,000 services each 1s: "
	f, c := t.startFleet(), t.startRollcall(interval)
	c.fill(f, checkedServices)
	// The first checks come at once, the next ones each at its own time.
	t.pause(interval + 3*time.Second)
	var seen arrivals
	used := t.processorTime(map[string]processor{"leader": processorOf(c.nodes[c.leader().index].PID())}, func() {
		seen = f.arrivals(t, interval, func() { t.pause(t.checking) })
	})
	t.add(what+"lateness of checks, p99", ms(seen.Late), "ms").valueAtMost(50)
	t.add(what+"checks", seen.PerSecond, "/s")
	t.add(what+"checks missed", float64(seen.Missed+checkedServices-seen.Services), "")
	t.add(what+"cores used by the leader", used["leader"].Seconds()/t.checking.Seconds(), "cores")
}

// saturation measures more services than can be checked, by the checker alone and in a whole cluster. It compares them
// with a bare net/http client on the same addresses, also alone.
func saturation(t *trial) {
	const (
		services = 4 * maxHosts
		bare     = "bare net/http client: requests"
		alone    = "checks at saturation, the checker alone"
		whole    = "checks at saturation, in a whole cluster"
	)
	f := t.startFleet()
	// checked returns the checks once the first ones are over.
	checked := func(t *trial) result {
		t.pause(5 * time.Second)
		return result{PerSecond: f.arrivals(t, time.Second, func() { t.pause(3 * t.window) }).PerSecond}
	}
	t.inRounds(
		contender(bare, func(t *trial) (best result) {
			for _, workers := range []int{32, 256, 1024} {
				if res := f.requests(t, maxHosts, workers); res.PerSecond > best.PerSecond {
					best = res
				}
			}
			return best
		}),
		contender(alone, func(t *trial) result {
			f.check(t, services)
			return checked(t)
		}),
		contender(whole, func(t *trial) result {
			t.startRollcall(time.Second).fill(f, services)
			return checked(t)
		}))
	t.versus(bare, alone, "/s").atLeast(0.8)
	t.report(whole, "/s")
}

// check runs the product's checker alone until the trial ends.
func (f *fleet) check(t *trial, services int) {
	c, err := health.New(health.Config{Interval: time.Second})
	t.check(err)
	for i := range services {
		service := newService(i, f.url(i))
		c.Set(health.Target{ID: service.Id, Kind: service.Kind, URL: service.WorkerRef.Url})
	}
	ctx, cancel := context.WithCancel(t.ctx)
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		// Its results have to be read, or it blocks.
		var results []health.Result
		for {
			select {
			case <-c.Ready():
				results = c.Take(results[:0])
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() { defer close(done); _ = c.Run(ctx) }() // an error shows as missing checks
}

// requests measures a bare net/http client that requests the checker's addresses, in turn, as fast as it can.
func (f *fleet) requests(t *trial, services, workers int) result {
	transport := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: 500 * time.Millisecond, Transport: transport}
	urls := make([]string, services)
	for i := range urls {
		urls[i] = f.url(i) + "/health"
	}
	// Each worker has its own services, so that no two use one kept connection.
	turn := make([]int, workers)
	return t.run(load{Callers: workers, Warm: 2 * t.warm, Window: t.window}, func(ctx context.Context, worker, _ int) (int, error) {
		url := urls[(worker+turn[worker]*workers)%len(urls)]
		turn[worker]++
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, ctx.Err() // timed out, like a check may: not counted
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, errors.New(resp.Status)
		}
		return 1, nil
	})
}
