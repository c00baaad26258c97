package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
)

const checkedServices = 10_000

// checks measures how punctual health checks are, and their cost.
func checks(ctx context.Context, s *suite) error {
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	for _, interval := range s.intervals {
		if err := s.punctuality(ctx, f, interval); err != nil {
			return fmt.Errorf("every %s: %w", interval, err)
		}
	}
	return nil
}

// punctuality measures the checks of a fleet by a whole cluster.
func (s *suite) punctuality(ctx context.Context, f *fleet, interval time.Duration) error {
	c, err := s.startRollcall(ctx, interval)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.fill(ctx, f, checkedServices); err != nil {
		return err
	}
	// The first checks come at once, the next ones each at its own time.
	pause(ctx, interval+3*time.Second)
	leader, _, err := c.leader(ctx)
	if err != nil {
		return err
	}
	m, err := measureChecks(ctx, f, c.nodes[leader], c.server, interval, s.checking)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	what := fmt.Sprintf("10,000 services each %s: ", interval)
	s.add(what+"lateness of checks, p99", m.P99, "ms").within(50)
	s.add(what+"lateness of checks, worst", m.Max, "ms")
	s.add(what+"checks", float64(m.Checks)/m.Seconds, "/s")
	s.add(what+"checks missed", float64(m.Missed+checkedServices-m.Services), "")
	s.add(what+"connections opened", float64(m.Conns), "")
	s.add(what+"cores used by the leader", m.cores, "cores")
	s.add(what+"cores used by Redis", m.redisCores, "cores")
	s.add(what+"cores used by the checked services", m.fleetCores, "cores")
	return nil
}

// checksMeasured is the result at the services' end, and its cost.
type checksMeasured struct {
	arrivals
	cores, fleetCores, redisCores float64
}

// measureChecks measures a checker for a time. redis may be nil.
func measureChecks(ctx context.Context, f *fleet, checker, redis *process, interval, window time.Duration) (m checksMeasured, err error) {
	processes := []*process{checker, f.process, redis}
	var cores [3]float64
	read := func(sign float64) error {
		for i, p := range processes {
			if p == nil {
				continue
			}
			used, err := p.cpu()
			if err != nil {
				return err
			}
			cores[i] += sign * used.Seconds()
		}
		return nil
	}
	if err := errors.Join(f.record(ctx), read(-1)); err != nil {
		return m, err
	}
	pause(ctx, window)
	if err := read(1); err != nil {
		return m, err
	}
	m.arrivals, err = f.arrivals(ctx, interval)
	m.cores, m.fleetCores, m.redisCores = cores[0]/m.Seconds, cores[1]/m.Seconds, cores[2]/m.Seconds
	return m, err
}

// fill registers the given number of services.
func (c *rollcallCluster) fill(ctx context.Context, f *fleet, services int) error {
	all, closeAll, err := c.registrars(ctx, f, 1, services, true)
	if err != nil {
		return err
	}
	defer closeAll()
	return all[0].registerAll(ctx)
}

// saturation measures more services than can be checked, by the checker alone and in a whole cluster. It compares them
// with a bare net/http client on the same addresses, also alone.
func saturation(ctx context.Context, s *suite) error {
	const (
		services = 4 * maxHosts
		bare     = "bare net/http client: requests"
		fresh    = "bare net/http client: requests on new connections"
		alone    = "checks at saturation, the checker alone"
		whole    = "checks at saturation, in a whole cluster"
	)
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	window := 3 * s.window
	err = s.inRounds(ctx,
		func(ctx context.Context) error {
			best := 0.0
			for _, workers := range []int{32, 256, 1024} {
				res, err := s.bareClient(ctx, f, maxHosts, workers, false)
				if err != nil {
					return err
				}
				progress("%d workers: %s/s", workers, number(res.PerSecond))
				best = max(best, res.PerSecond)
			}
			s.sample(bare, best, "/s")
			res, err := s.bareClient(ctx, f, maxHosts, 256, true)
			if err != nil {
				return err
			}
			s.sample(fresh, res.PerSecond, "/s")
			return nil
		},
		func(ctx context.Context) error {
			p, err := self("checker", f.dir, "checker", "-port", strconv.Itoa(f.port), "-services", strconv.Itoa(services))
			if err != nil {
				return err
			}
			defer p.kill()
			pause(ctx, 5*time.Second)
			m, err := measureChecks(ctx, f, p, nil, time.Second, window)
			if err != nil {
				return errors.Join(err, p.running())
			}
			s.sample(alone, float64(m.Checks)/m.Seconds, "/s")
			s.sample(alone+": cores used", m.cores, "cores")
			progress("%d connections opened", m.Conns)
			return nil
		},
		func(ctx context.Context) error {
			c, err := s.startRollcall(ctx, time.Second)
			if err != nil {
				return err
			}
			defer c.close()
			if err := c.fill(ctx, f, services); err != nil {
				return err
			}
			pause(ctx, 5*time.Second)
			leader, epoch, err := c.leader(ctx)
			if err != nil {
				return err
			}
			m, err := measureChecks(ctx, f, c.nodes[leader], c.server, time.Second, window)
			if err != nil {
				return err
			}
			s.sample(whole, float64(m.Checks)/m.Seconds, "/s")
			s.sample(whole+": cores used by the leader", m.cores, "cores")
			s.sample(whole+": cores used by Redis", m.redisCores, "cores")
			if _, now, err := c.leader(ctx); err != nil || now != epoch {
				progress("the leader changed meanwhile: epoch %d, then %d, %v", epoch, now, err)
			}
			return nil
		})
	if err != nil {
		return err
	}
	s.report(alone, "/s").beside(s, bare).atLeast(0.8)
	s.report(alone+": cores used", "cores")
	s.report(whole, "/s").beside(s, bare)
	s.report(whole+": cores used by the leader", "cores")
	s.report(whole+": cores used by Redis", "cores")
	s.report(bare, "/s")
	s.report(fresh, "/s")
	return nil
}

// checker runs the product's checker in its own process.
func checker(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("checker", flag.ExitOnError)
	port := flags.Int("port", 0, "the services' port")
	services := flags.Int("services", 0, "how many there are")
	if err := flags.Parse(args); err != nil {
		return err
	}
	f := &fleet{port: *port}
	c, err := health.New(health.Config{Interval: time.Second})
	if err != nil {
		return err
	}
	for i := range *services {
		service := newService(i, f.url(i))
		c.Set(health.Target{ID: service.Id, Kind: service.Kind, URL: service.WorkerRef.Url})
	}
	go func() {
		// Its results have to be read, or it blocks.
		var results []health.Result
		for range c.Ready() {
			results = c.Take(results[:0])
			for _, r := range results {
				if r.Verdict == health.Down {
					fmt.Fprintln(os.Stderr, r.ID, r.Reason)
				}
			}
		}
	}()
	return c.Run(ctx)
}
