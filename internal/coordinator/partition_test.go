package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/linear"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// simDirectory lets a checked client call whichever node it is told leads.
type simDirectory struct {
	c  *simCluster
	at string
}

// elsewhere follows a refusal's hint, or tries another node.
func (d *simDirectory) elsewhere(err error) {
	for _, detail := range status.Convert(err).Details() {
		if nl, ok := detail.(*rollcallv1.NotLeader); ok && nl.Leader != nil {
			d.at = nl.Leader.Node
			return
		}
	}
	for i, p := range d.c.peers {
		if p.ID == d.at {
			d.at = d.c.peers[(i+1)%len(d.c.peers)].ID
			return
		}
	}
}

func (d *simDirectory) Write(ctx context.Context, call linear.Call) (linear.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	w := gatewayWriter(call.Owner, 1, call.Seq)
	var a linear.Answer
	var err error
	if call.Kind == linear.Deregister {
		req := &rollcallv1.DeregisterServicesRequest{Writer: w}
		for id := range call.Values {
			req.Ids = append(req.Ids, id)
		}
		var resp *rollcallv1.DeregisterServicesResponse
		if resp, err = d.c.client(d.at).DeregisterServices(ctx, req); err == nil {
			a.Removed = int(resp.Removed)
		}
	} else {
		req := &rollcallv1.RegisterServicesRequest{Writer: w, FullSet: call.Kind == linear.Replace, AllowEmpty: true}
		for id, url := range call.Values {
			s := service(id)
			s.WorkerRef.Url = url
			req.Services = append(req.Services, s)
		}
		var resp *rollcallv1.RegisterServicesResponse
		if resp, err = d.c.client(d.at).RegisterServices(ctx, req); err == nil {
			a = linear.Answer{Registered: int(resp.Registered), Unchanged: int(resp.Unchanged), Removed: int(resp.Removed)}
		}
	}
	if err == nil {
		return a, nil
	}
	switch status.Code(err) {
	case codes.AlreadyExists, codes.PermissionDenied:
		return a, linear.ErrConflict
	case codes.FailedPrecondition:
		d.elsewhere(err)
		return a, errors.Join(linear.ErrNotDone, wait(ctx))
	case codes.Unavailable:
		d.elsewhere(err)
		if len(status.Convert(err).Details()) > 0 { // said by a node, not by the network
			return a, errors.Join(linear.ErrNotDone, wait(ctx))
		}
		return a, linear.ErrUnknown
	case codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
		d.elsewhere(err)
		return a, linear.ErrUnknown
	default:
		return a, err
	}
}

// wait keeps a refused client from asking again at once.
func wait(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
	return nil
}

func (d *simDirectory) List(ctx context.Context, ids []string) (map[string]linear.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	resp, err := d.c.client(d.at).ListServices(ctx, &rollcallv1.ListServicesRequest{Ids: ids})
	if err != nil {
		d.elsewhere(err)
		return nil, errors.Join(err, wait(ctx))
	}
	found := make(map[string]linear.Entry)
	for _, r := range resp.Records {
		found[r.Service.Id] = linear.Entry{Owner: r.Owner.Id, Value: r.Service.WorkerRef.Url}
	}
	return found, nil
}

// Whatever is cut off and healed, every answer fits one order of the calls.
func TestPartitionsKeepTheDirectoryLinearizable(t *testing.T) {
	seeds := 8
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { partitionScenario(t, uint64(seed)) }) //nolint:gosec // small
		})
	}
}

func partitionScenario(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
	c := newSimCluster(t, 3, nil)
	c.net.SetLatency(time.Duration(5+random.IntN(10)) * time.Millisecond)
	leader, _ := c.leader()
	for _, p := range c.peers {
		c.client(p.ID) // connections are made before clients run side by side
	}

	history := linear.NewHistory()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var clients errgroup.Group
	for i := range 6 {
		client := &linear.Client{
			Number: i, Shard: i / 2, Owner: fmt.Sprintf("g-%d", i), History: history, Timeout: 2 * time.Second,
			Directory: &simDirectory{c: c, at: leader}, Rand: rand.New(rand.NewPCG(seed, uint64(i+1))), //nolint:gosec // repeatable
		}
		clients.Go(func() error { return client.Run(ctx, 1<<20) })
	}

	ids := []string{"c1", "c2", "c3"}
	for ctx.Err() == nil {
		switch random.IntN(4) {
		case 0:
			c.net.Isolate(ids[random.IntN(3)])
			c.net.SetLatency(time.Duration(5+random.IntN(10)) * time.Millisecond)
		case 1:
			c.net.Cut(ids[random.IntN(3)], ids[random.IntN(3)])
		case 2:
			c.net.CutOneWay(ids[random.IntN(3)], ids[random.IntN(3)])
		case 3:
			c.net.Reset(ids[random.IntN(3)])
		}
		pass(time.Duration(200+random.IntN(1500)) * time.Millisecond)
		c.net.Heal()
		pass(time.Duration(random.IntN(1500)) * time.Millisecond)
	}
	require.NoError(t, clients.Wait())
	c.net.Heal()
	c.leader()
	t.Logf("%d calls, %d unknown", history.Len(), history.Unknown())
	require.Greater(t, history.Len(), 200)
	require.NoError(t, history.Check(time.Minute))
	if seed == 0 { // as slow as refuting anything
		require.ErrorContains(t, history.CheckWithout(time.Minute), "not linearizable")
	}
}
