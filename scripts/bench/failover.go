package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Rows of failover.
const (
	peerKilledRow = "etcd: leader killed to next write"
	registeredRow = "leader killed to a gateway registered with the new one"
	mirroredRow   = "leader killed to first Redis write of the new epoch"
)

// failover measures kill -9 of the leader, of a new cluster each time, after it has settled.
func failover(t *trial) {
	f := t.startFleet()
	for kill := range t.kills {
		progress("kill %d of %d", kill+1, t.kills)
		t.check(t.try(t.ctx, func(t *trial) {
			c := t.startEtcd()
			t.pause(settle)
			t.sample(peerKilledRow, c.failover().Seconds(), "s")
		}))
		t.check(t.try(t.ctx, func(t *trial) { t.newCluster().failover(f) }))
	}
	t.versus(peerKilledRow, registeredRow, "s").valueAtMost(0.5)
	t.report(mirroredRow, "s").beside(registeredRow, median(t.samples[registeredRow])).notAfter(0.1)
}

// settle is how long a new cluster is left alone before its leader is killed.
const settle = time.Second

// failover kills the leader. It samples the time until a gateway, with the default polling, has written with a new
// leader, and the time until Redis has a write of the new epoch.
func (c *rollcallCluster) failover(f *fleet) {
	ctx, cancel := context.WithTimeout(c.t.ctx, time.Minute)
	var wg sync.WaitGroup
	c.t.Cleanup(wg.Wait)
	c.t.Cleanup(cancel)
	var after atomic.Uint64 // epoch
	registered, mirrored := make(chan time.Time, 1000), make(chan time.Time, 1)
	g, err := gateway.New(gateway.Config{
		ClientConfig: gateway.ClientConfig{Coordinators: c.cluster},
		ID:           "bench",
		Source:       &source{fleet: f},
		OnWrite: func(w gateway.Write) {
			if w.Epoch > after.Load() {
				registered <- time.Now()
			}
		},
	})
	c.t.check(err)
	// first returns when the event happened.
	first := func(event string, at <-chan time.Time) time.Time {
		select {
		case at := <-at:
			return at
		case <-ctx.Done():
			c.t.Fatal(event + " was not seen")
			return time.Time{}
		}
	}
	wg.Go(func() { _ = g.Run(ctx) }) // an error shows as a missing write
	first("the first registration", registered)
	c.t.pause(settle)
	old := c.leader()
	after.Store(old.Epoch)
	for len(registered) > 0 {
		<-registered
	}
	wg.Go(func() {
		// The pause of a millisecond is the error of the measurement.
		for ; ctx.Err() == nil; pause(ctx, time.Millisecond) {
			value, err := c.redis.Client().HGet(ctx, "relayer:meta", "epoch").Result()
			if seen, _ := strconv.ParseUint(value, 10, 64); err == nil && seen > old.Epoch {
				mirrored <- time.Now()
				return
			}
		}
	})
	killed := time.Now()
	c.nodes[old.index].Kill()
	c.t.sample(registeredRow, first("a registration after the kill", registered).Sub(killed).Seconds(), "s")
	c.t.sample(mirroredRow, first("a claim after the kill", mirrored).Sub(killed).Seconds(), "s")
}

// source defines services that differ each time, so that registering them is a write.
type source struct {
	fleet *fleet
	turn  int
}

func (s *source) Services(context.Context) (gateway.Set, error) {
	s.turn++
	set := gateway.Set{Complete: true}
	for i := range 100 {
		service := newService(i, s.fleet.url(i))
		change(service, s.turn)
		set.Services = append(set.Services, service)
	}
	return set, nil
}

func (s *source) Changed() <-chan struct{} { return nil }

// elections checks that no election happens under load: 64 gateways register one service a call as fast as they can,
// one writes 10,000 a call each second, and there are 10,000 checks a second.
func elections(t *trial) {
	const batch, singles = 10_000, 64
	f, c := t.startFleet(), t.startRollcall(time.Second)
	// Each follows the current leader, like a gateway does. The last one writes the batches.
	all := make([]*registrar, singles+1)
	for i := range all {
		client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: c.cluster})
		t.check(err)
		t.Cleanup(func() { client.Close() })
		all[i] = newRegistrar(client.Register, f, "bench-"+strconv.Itoa(i), i, max(1, (i/singles)*batch))
		all[i].registerAll(t)
	}
	t.pause(3 * time.Second) // the first checks
	term := c.term()
	var (
		wg          sync.WaitGroup
		failed      atomic.Int64
		ones, large result
		err1, err2  error
	)
	register := func(first, n int) call {
		return func(ctx context.Context, caller, _ int) (int, error) {
			done, err := all[first+caller].register(ctx, n)
			if err != nil && ctx.Err() == nil {
				failed.Add(1)
				progress("call failed: %v", err)
			}
			return done, ctx.Err()
		}
	}
	seen := f.arrivals(t, time.Second, func() {
		wg.Go(func() { ones, err1 = load{Callers: singles, Window: t.calm}.run(t.ctx, register(0, 1)) })
		wg.Go(func() {
			large, err2 = load{Callers: 1, Rate: 1, Window: t.calm}.run(t.ctx, register(singles, batch))
		})
		wg.Wait()
		t.check(errors.Join(err1, err2))
	})
	load := fmt.Sprintf("%.0f s of combined load", t.calm.Seconds())
	t.add("elections in "+load, float64(c.term()-term), "").valueAtMost(0)
	t.add(load+": calls failed", float64(failed.Load()), "")
	t.add(load+": single registrations, 64 clients", ones.PerSecond, "/s")
	t.add(load+": batches of 10,000", large.PerSecond/batch, "/s")
	t.add(load+": checks", seen.PerSecond, "/s")
}

// term returns the number of elections so far.
func (c *rollcallCluster) term() (term uint64) {
	cluster := rollcallv1.NewClusterServiceClient(c.dial(c.leader().Address))
	resp, err := cluster.ListMembers(c.t.ctx, &rollcallv1.ListMembersRequest{})
	c.t.check(err)
	for _, m := range resp.GetMembers() {
		term = max(term, m.GetTerm())
	}
	return term
}
