package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// failover measures kill -9 of the leader, of a new cluster each time, after it has settled.
func failover(ctx context.Context, s *suite) error {
	const (
		peer       = "etcd: leader killed to next write"
		registered = "leader killed to a gateway registered with the new one"
		mirrored   = "leader killed to first Redis write of the new epoch"
		settle     = time.Second
	)
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	for kill := range s.kills {
		progress("kill %d of %d", kill+1, s.kills)
		etcd, err := s.startEtcd(ctx)
		if err != nil {
			return err
		}
		pause(ctx, settle)
		took, err := etcd.failover(ctx)
		etcd.close()
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		s.sample(peer, took.Seconds(), "s")

		c, err := s.startRollcall(ctx, 10*time.Second)
		if err != nil {
			return err
		}
		register, mirror, err := c.failover(ctx, f, settle)
		c.close()
		if err != nil {
			return fmt.Errorf("rollcall: %w", err)
		}
		s.sample(registered, register.Seconds(), "s")
		s.sample(mirrored, mirror.Seconds(), "s")
	}
	worst := func(name string) float64 { return quantile(s.samples[name], 1) }
	of := fmt.Sprintf(", worst of %d", s.kills)
	s.report(registered, "s").beside(s, peer).within(0.5)
	s.add(registered+of, worst(registered), "s").besideValue(peer+of, worst(peer)).within(1)
	s.report(mirrored, "s").besideValue(registered, median(s.samples[registered])).notAfter(0.1)
	s.add(mirrored+of, worst(mirrored), "s").besideValue(registered+of, worst(registered)).notAfter(0.1)
	s.report(peer, "s")
	s.add(peer+of, worst(peer), "s")
	return nil
}

// failover kills the leader. It returns the time until a gateway, with the default polling, had written with a new
// leader, and the time until Redis had a write of the new epoch.
func (c *rollcallCluster) failover(ctx context.Context, f *fleet, settle time.Duration) (registered, mirrored time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()

	writes := make(chan write, 1000)
	g, err := gateway.New(gateway.Config{
		ClientConfig: gateway.ClientConfig{Coordinators: c.cluster},
		ID:           "bench",
		Source:       newSource(f, 100),
		OnWrite:      func(w gateway.Write) { writes <- write{w.Epoch, time.Now()} },
	})
	if err != nil {
		return 0, 0, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { _ = g.Run(running) }) // an error shows as a missing write
	if _, err := next(ctx, writes, 0); err != nil {
		return 0, 0, fmt.Errorf("first registration: %w", err)
	}
	pause(ctx, settle)

	leader, epoch, err := c.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	claims := make(chan write, 1)
	wg.Go(func() {
		// The pause of a millisecond is the error of the measurement.
		for running.Err() == nil {
			value, err := c.redis.HGet(running, "relayer:meta", "epoch").Result()
			if seen, _ := strconv.ParseUint(value, 10, 64); err == nil && seen > epoch {
				claims <- write{seen, time.Now()}
				return
			}
			pause(running, time.Millisecond)
		}
	})
	killed := time.Now()
	c.nodes[leader].kill()
	byGateway, err := next(ctx, writes, epoch)
	if err != nil {
		return 0, 0, fmt.Errorf("registration after the kill: %w", err)
	}
	byMirror, err := next(ctx, claims, epoch)
	if err != nil {
		return 0, 0, fmt.Errorf("claim after the kill: %w", err)
	}
	return byGateway.at.Sub(killed), byMirror.at.Sub(killed), nil
}

// write is an observed write of an epoch.
type write struct {
	epoch uint64
	at    time.Time
}

// next waits for a write of a later epoch.
func next(ctx context.Context, writes <-chan write, after uint64) (write, error) {
	for {
		select {
		case w := <-writes:
			if w.epoch > after {
				return w, nil
			}
		case <-ctx.Done():
			return write{}, errors.New("none seen")
		}
	}
}

// source defines services that differ each time, so that registering them is a write.
type source struct {
	fleet *fleet
	n     int
	turn  int
}

func newSource(f *fleet, n int) *source { return &source{fleet: f, n: n} }

func (s *source) Services(context.Context) (gateway.Set, error) {
	s.turn++
	set := gateway.Set{Complete: true}
	for i := range s.n {
		service := newService(i, s.fleet.url(i))
		service.WorkerRef.Labels["build"] = fmt.Sprintf("%0*d", widen(service), s.turn)
		set.Services = append(set.Services, service)
	}
	return set, nil
}

func (s *source) Changed() <-chan struct{} { return nil }

func newService(number int, url string) *rollcallv1.Service {
	return &rollcallv1.Service{
		Id: fmt.Sprintf("svc-%07d", number), Kind: "relayer",
		WorkerRef: &rollcallv1.WorkerRef{Url: url, Node: "host-1", Labels: map[string]string{"build": ""}},
	}
}
