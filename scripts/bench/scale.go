package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// status measures GET /status with a large fleet, from the leader and from a follower, which asks the leader.
func status(t *trial) {
	f, c := t.startFleet(), t.newCluster()
	c.fill(f, checkedServices)
	leader := c.leader().index
	url := func(node int) string { return "http://" + c.http[node%len(c.http)] + "/status" }
	t.until(30*time.Second, func(ctx context.Context) error {
		body, err := httpGet(ctx, url(leader))
		if err == nil && !bytes.Contains(body, fmt.Appendf(nil, `"totalActive":%d,`, checkedServices)) {
			err = errors.New("not all services are active")
		}
		return err
	})
	for i, from := range []string{"leader", "follower"} {
		var refused atomic.Int64
		// Readers come at intervals, not one directly after the other.
		res := t.run(load{Callers: 4, Rate: 50, Window: 3 * t.window}, func(ctx context.Context, _, _ int) (int, error) {
			if _, err := httpGet(ctx, url(leader+i)); err != nil {
				refused.Add(1) // 503: a follower that got no answer from the leader in time
			}
			return 1, ctx.Err()
		})
		what := "/status with 10,000 services, from the " + from
		t.add(what+", p99", ms(res.P99), "ms").valueAtMost(50)
		t.add(what+", refused for want of a leader", float64(refused.Load()), "")
	}
}

// million measures a directory far larger than any real one.
func million(t *trial) {
	// The checks that are due each minute keep both processors busy all the time. Virtual processors then sometimes
	// stop for longer than the lease of lan timing.
	f, c := t.startFleet(), t.startRollcall(time.Minute, "ROLLCALL_RAFT_TIMING=wan")
	what := fmt.Sprintf("%d services, wan timing: ", t.services)
	c.fill(f, t.services)
	leader := c.leader()
	began := time.Now()
	size := t.takeSnapshot(rollcallv1.NewClusterServiceClient(c.dial(leader.Address)))
	t.add(what+"client's snapshot without load", time.Since(began).Seconds(), "s")
	t.add(what+"size of a snapshot", float64(size)/1e6, "MB")
	t.add(what+"memory of the leader", t.resident(c.nodes[leader.index].PID())/1e6, "MB")

	for _, p := range c.nodes {
		p.Kill()
	}
	began = time.Now()
	c.start()
	t.until(5*time.Minute, func(ctx context.Context) error {
		leader, err := c.findLeader(ctx)
		if err != nil {
			return err
		}
		stub := rollcallv1.NewDiscoveryServiceClient(c.dial(leader.Address))
		_, err = stub.RegisterServices(ctx, &rollcallv1.RegisterServicesRequest{
			Writer:   &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "bench-after"}, Incarnation: 1, Seq: 1},
			Services: []*rollcallv1.Service{newService(t.services, f.url(t.services))},
		})
		return err
	})
	t.add(what+"kill -9 and restart of all until a registration", time.Since(began).Seconds(), "s")
}

// takeSnapshot reads a whole snapshot and returns its size.
func (t *trial) takeSnapshot(cluster rollcallv1.ClusterServiceClient) (size int) {
	stream, err := cluster.TakeSnapshot(t.ctx, &rollcallv1.TakeSnapshotRequest{})
	t.check(err)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return size
		}
		t.check(err)
		size += len(part.GetChunk())
	}
}
