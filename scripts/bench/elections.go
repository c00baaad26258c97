package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// elections checks that no election happens under load: 64 gateways register one service a call as fast as they can,
// one writes 10,000 a call each second, and there are 10,000 checks a second.
func elections(ctx context.Context, s *suite) error {
	const batch, singles = 10_000, 64
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	c, err := s.startRollcall(ctx, time.Second)
	if err != nil {
		return err
	}
	defer c.close()

	all, closeAll, err := c.followers(f, singles, 1)
	if err != nil {
		return err
	}
	defer closeAll()
	large, closeLarge, err := c.followers(f, 1, batch)
	if err != nil {
		return err
	}
	defer closeLarge()
	// Its ids differ from those of the others.
	for i, service := range large[0].services {
		service.Id = fmt.Sprintf("big-%07d", i)
		service.WorkerRef.Url = f.url(singles + i)
	}
	large[0].writer.Owner.Id = "bench-large"
	for _, r := range append(all, large...) {
		if err := r.registerAll(ctx); err != nil {
			return err
		}
	}
	pause(ctx, 3*time.Second) // the first checks

	before, err := c.terms(ctx)
	if err != nil {
		return err
	}
	if err := f.record(ctx); err != nil {
		return err
	}
	loaded, stop := context.WithTimeout(ctx, s.calm)
	defer stop()
	var (
		wg               sync.WaitGroup
		ones, batches    atomic.Int64
		oneMS, batchMS   = make([][]float64, singles), []float64(nil)
		failures         atomic.Int64
		began            = time.Now()
		lastFailure      atomic.Value
		spent, cpuErr    = c.cpu()
		fleetSpent, err2 = f.cpu()
	)
	if err := errors.Join(cpuErr, err2); err != nil {
		return err
	}
	failed := func(err error) {
		if loaded.Err() == nil {
			failures.Add(1)
			lastFailure.Store(err.Error())
		}
	}
	for i, r := range all {
		wg.Go(func() {
			for loaded.Err() == nil {
				began := time.Now()
				if _, err := r.register(loaded, 1); err != nil {
					failed(err)
					continue
				}
				ones.Add(1)
				oneMS[i] = append(oneMS[i], ms(time.Since(began)))
			}
		})
	}
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			began := time.Now()
			if _, err := large[0].register(loaded, batch); err == nil {
				batches.Add(1)
				batchMS = append(batchMS, ms(time.Since(began)))
			} else {
				failed(err)
			}
			select {
			case <-loaded.Done():
				return
			case <-tick.C:
			}
		}
	})
	wg.Wait()
	took := time.Since(began).Seconds()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	seen, err := f.arrivals(ctx, time.Second)
	if err != nil {
		return err
	}
	after, err := c.terms(ctx)
	if err != nil {
		return err
	}
	spentAfter, cpuErr := c.cpu()
	fleetAfter, err := f.cpu()
	if err := errors.Join(cpuErr, err); err != nil {
		return err
	}

	load := fmt.Sprintf("%.0f s of combined load", s.calm.Seconds())
	row := s.add("elections in "+load, float64(after.term-before.term), "")
	if !s.short {
		row.within(0)
	}
	s.add(load+": changes of epoch", float64(after.epoch-before.epoch), "")
	s.add(load+": calls failed", float64(failures.Load()), "")
	if text := lastFailure.Load(); text != nil {
		progress("last failure: %s", text)
	}
	var single []float64
	for _, some := range oneMS {
		single = append(single, some...)
	}
	s.add(load+": single registrations, 64 clients", float64(ones.Load())/took, "/s")
	s.add(load+": single registrations, p99", quantile(single, 0.99), "ms")
	s.add(load+": batches of 10,000", float64(batches.Load())/took, "/s")
	s.add(load+": batches of 10,000, p99", quantile(batchMS, 0.99), "ms")
	s.add(load+": checks", float64(seen.Checks)/seen.Seconds, "/s")
	s.add(load+": lateness of checks, p99", seen.P99, "ms")
	s.add(load+": cores used by the coordinators", (spentAfter-spent).Seconds()/took, "cores")
	s.add(load+": cores used by the checked services", (fleetAfter-fleetSpent).Seconds()/took, "cores")
	return nil
}

// terms are the numbers of elections and leaders so far.
type terms struct{ term, epoch uint64 }

func (c *rollcallCluster) terms(ctx context.Context) (t terms, err error) {
	err = until(ctx, 20*time.Second, func(ctx context.Context) error {
		leader, _, err := c.leader(ctx)
		if err != nil {
			return err
		}
		conn, err := dialRollcall(c.cluster[leader])
		if err != nil {
			return err
		}
		defer conn.Close()
		resp, err := rollcallv1.NewClusterServiceClient(conn).ListMembers(ctx, &rollcallv1.ListMembersRequest{})
		if err != nil {
			return err
		}
		t.epoch, t.term = resp.GetEpoch(), 0
		for _, m := range resp.GetMembers() {
			t.term = max(t.term, m.GetTerm())
		}
		return nil
	})
	return t, err
}

// cpu returns the processor time of all coordinators.
func (c *rollcallCluster) cpu() (total time.Duration, err error) {
	for _, p := range c.nodes {
		used, e := p.cpu()
		total, err = total+used, errors.Join(err, e)
	}
	return total, err
}

// followers returns registrars that follow the current leader, like gateways do.
func (c *rollcallCluster) followers(f *fleet, n, services int) ([]*registrar, func(), error) {
	var clients []*gateway.Client
	closeAll := func() {
		for _, client := range clients {
			client.Close()
		}
	}
	all := make([]*registrar, n)
	for i := range all {
		client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: c.cluster})
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		clients = append(clients, client)
		all[i] = newRegistrar(client.Register, f, i, services)
	}
	return all, closeAll, nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
