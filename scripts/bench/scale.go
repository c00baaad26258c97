package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// million measures a directory far larger than any real one.
func million(ctx context.Context, s *suite) error {
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	// The checks that are due each minute keep both processors busy all the time. Virtual processors then sometimes
	// stop for longer than the lease of lan timing.
	c, err := s.startRollcall(ctx, time.Minute, "ROLLCALL_RAFT_TIMING=wan")
	if err != nil {
		return err
	}
	defer c.close()
	what := fmt.Sprintf("%d services, wan timing: ", s.services)
	began := time.Now()
	if err := c.fill(ctx, f, s.services); err != nil {
		return err
	}
	s.add(what+"registered, 10,000 a call from 1 client", float64(s.services)/time.Since(began).Seconds(), "/s")

	if err := s.duringSnapshots(ctx, what, c, f); err != nil {
		return err
	}
	leader, _, err := c.leader(ctx)
	if err != nil {
		return err
	}
	follower := (leader + 1) % len(c.nodes)
	for _, node := range []struct {
		name string
		i    int
	}{{"the leader", leader}, {"a follower", follower}} {
		rss, err := c.nodes[node.i].memory()
		if err != nil {
			return err
		}
		s.add(what+"memory of "+node.name, rss/1e6, "MB")
	}

	// Killed, so that it cannot prepare for the start.
	want, err := c.describe(ctx, leader)
	if err != nil {
		return err
	}
	c.nodes[follower].kill()
	began = time.Now()
	if err := c.start(follower); err != nil {
		return err
	}
	err = until(ctx, 5*time.Minute, func(ctx context.Context) error {
		d, err := c.describe(ctx, follower)
		if err == nil && d.AppliedIndex < want.AppliedIndex {
			err = fmt.Errorf("at %d of %d", d.AppliedIndex, want.AppliedIndex)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("restart of a follower: %w", err)
	}
	s.add(what+"kill -9 and restart of a follower until it is level", time.Since(began).Seconds(), "s")

	for _, p := range c.nodes {
		p.kill()
	}
	began = time.Now()
	for i := range c.nodes {
		if err := c.start(i); err != nil {
			return err
		}
	}
	err = until(ctx, 5*time.Minute, func(ctx context.Context) error {
		all, closeAll, err := c.registrars(ctx, f, 1, 1, true)
		if err != nil {
			return err
		}
		defer closeAll()
		all[0].writer.Owner.Id = "bench-after"
		all[0].services[0].Id = "after-the-restart"
		_, err = all[0].register(ctx, 1)
		return err
	})
	if err != nil {
		return fmt.Errorf("restart of all: %w", err)
	}
	s.add(what+"kill -9 and restart of all until a registration", time.Since(began).Seconds(), "s")
	return nil
}

// duringSnapshots measures single registrations before, during a client's, and during Raft's snapshots.
func (s *suite) duringSnapshots(ctx context.Context, what string, c *rollcallCluster, f *fleet) error {
	const clients = 8
	stubs, closeAll, err := c.stubs(ctx, clients, false)
	if err != nil {
		return err
	}
	defer closeAll()
	leader, _, err := c.leader(ctx)
	if err != nil {
		return err
	}
	conn, err := dialRollcall(c.cluster[leader])
	if err != nil {
		return err
	}
	defer conn.Close()

	loaded, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	calls := make([][]span, clients)
	for i, stub := range stubs {
		r := newRegistrar(func(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
			return stub.RegisterServices(ctx, req)
		}, f, i, keysPerCaller)
		r.writer.Owner.Id = fmt.Sprintf("bench-single-%d", i)
		for j, service := range r.services {
			service.Id = fmt.Sprintf("one-%02d-%04d", i, j)
		}
		wg.Go(func() {
			for loaded.Err() == nil {
				began := time.Now()
				if _, err := r.register(loaded, 1); err != nil {
					if loaded.Err() == nil {
						stop(err)
					}
					return
				}
				calls[i] = append(calls[i], span{began, time.Now()})
			}
		})
	}
	var byRaft, byClient []span
	wg.Go(func() {
		// Snapshots of any node count, because the nodes share the disk and the processors.
		var began time.Time
		for loaded.Err() == nil {
			switch underWay := c.snapshotUnderWay(); {
			case underWay && began.IsZero():
				began = time.Now()
			case !underWay && !began.IsZero():
				byRaft, began = append(byRaft, span{began, time.Now()}), time.Time{}
			}
			pause(loaded, 5*time.Millisecond)
		}
	})
	pause(loaded, s.warm)
	began := time.Now()
	// Raft checks every one to two minutes whether a snapshot is due.
	pause(loaded, map[bool]time.Duration{false: 150 * time.Second, true: 5 * time.Second}[s.short])
	before := span{began, time.Now()}
	size := int64(0)
	for range 3 {
		began := time.Now()
		if size, err = takeSnapshot(loaded, rollcallv1.NewClusterServiceClient(conn)); err != nil {
			break
		}
		byClient = append(byClient, span{began, time.Now()})
		pause(loaded, 500*time.Millisecond)
	}
	cause := context.Cause(loaded)
	stop(nil)
	wg.Wait()
	if err := errors.Join(err, cause); err != nil {
		return err
	}

	var quietly, duringRaft, duringClient []float64
	for _, call := range slices.Concat(calls...) {
		switch {
		case call.overlaps(byRaft...):
			duringRaft = append(duringRaft, ms(call.took()))
		case call.overlaps(byClient...):
			duringClient = append(duringClient, ms(call.took()))
		case call.overlaps(before):
			quietly = append(quietly, ms(call.took()))
		}
	}
	name, p99 := what+"single registrations, 8 clients, p99 before a snapshot", quantile(quietly, 0.99)
	s.add(name, p99, "ms")
	s.add(what+"single registrations, 8 clients", float64(len(quietly))/before.took().Seconds(), "/s")
	if len(duringRaft) > 0 {
		s.add(what+"single registrations, p99 during Raft's snapshots", quantile(duringRaft, 0.99), "ms").besideValue(name, p99).atMost(2)
		s.add(what+"Raft's snapshot under that load", meanSeconds(byRaft), "s")
	}
	s.add(what+"single registrations, p99 during a client's snapshot", quantile(duringClient, 0.99), "ms").besideValue(name, p99).atMost(2)
	s.add(what+"client's snapshot under that load", meanSeconds(byClient), "s")
	s.add(what+"size of a snapshot", float64(size)/1e6, "MB")
	began = time.Now()
	if _, err = takeSnapshot(ctx, rollcallv1.NewClusterServiceClient(conn)); err != nil {
		return err
	}
	s.add(what+"client's snapshot without load", time.Since(began).Seconds(), "s")
	return nil
}

// span is a period of time.
type span struct{ began, ended time.Time }

func (s span) took() time.Duration { return s.ended.Sub(s.began) }

func (s span) overlaps(others ...span) bool {
	return slices.ContainsFunc(others, func(o span) bool { return s.began.Before(o.ended) && o.began.Before(s.ended) })
}

func meanSeconds(spans []span) float64 {
	total := time.Duration(0)
	for _, s := range spans {
		total += s.took()
	}
	return total.Seconds() / float64(len(spans))
}

// snapshotUnderWay reports whether a folder of an incomplete Raft snapshot exists.
func (c *rollcallCluster) snapshotUnderWay() bool {
	for i := range c.nodes {
		found := false
		_ = filepath.WalkDir(filepath.Join(c.dir, fmt.Sprint(i), "data"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasSuffix(path, ".tmp") {
				found = true
			}
			return nil
		})
		if found {
			return true
		}
	}
	return false
}

func takeSnapshot(ctx context.Context, cluster rollcallv1.ClusterServiceClient) (int64, error) {
	stream, err := cluster.TakeSnapshot(ctx, &rollcallv1.TakeSnapshotRequest{})
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return 0, err
		}
		total += int64(len(part.GetChunk()))
	}
}

func (c *rollcallCluster) describe(ctx context.Context, node int) (*rollcallv1.DescribeResponse, error) {
	conn, err := dialRollcall(c.cluster[node])
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return rollcallv1.NewPeerServiceClient(conn).Describe(ctx, &rollcallv1.DescribeRequest{})
}
