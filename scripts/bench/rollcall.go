package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/gateway"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// rollcallCluster is three coordinators, started like a user does, and their Redis.
type rollcallCluster struct {
	t       *trial
	dir     string
	nodes   []*testproc.Process
	cluster []string // addresses of the cluster ports
	http    []string
	env     []string
	redis   *testredis.Server
}

// startRollcall starts a cluster. env has settings in addition to the common ones.
func (t *trial) startRollcall(interval time.Duration, env ...string) *rollcallCluster {
	addrs := t.addresses(6)
	c := &rollcallCluster{t: t, dir: t.TempDir(), nodes: make([]*testproc.Process, 3), cluster: addrs[:3], http: addrs[3:],
		redis: testredis.Start(t, "--appendonly", "no")}
	c.env = append(env, "REDIS_URL="+c.redis.URL(), "RELAYER_COUNT=0", fmt.Sprint("HEALTH_CHECK_INTERVAL_MS=", interval.Milliseconds()))
	c.start()
	c.leader()
	return c
}

// newCluster starts a cluster that checks seldom.
func (t *trial) newCluster() *rollcallCluster { return t.startRollcall(10 * time.Second) }

// start starts the coordinators, in the same folders each time.
func (c *rollcallCluster) start() {
	var peers []string
	for i, addr := range c.cluster {
		peers = append(peers, fmt.Sprintf("coordinator-%d=%s", i, addr))
	}
	for i := range c.nodes {
		name := "coordinator-" + strconv.Itoa(i)
		c.nodes[i] = c.t.start(c.dir, c.env, "", c.t.rollcall, "coordinator", "--node-id", name, "--peers", strings.Join(peers, ","),
			"--listen", c.cluster[i], "--http-listen", c.http[i], "--data-dir", filepath.Join(c.dir, name))
	}
}

// leader is the leading coordinator and its position.
type leader struct {
	gateway.Leader
	index int
}

func (c *rollcallCluster) findLeader(ctx context.Context) (l leader, err error) {
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: c.cluster})
	if err != nil {
		return l, err
	}
	defer client.Close()
	l.Leader, err = client.Leader(ctx)
	l.index = slices.Index(c.cluster, l.Address)
	return l, err
}

// leader waits for a leader.
func (c *rollcallCluster) leader() (l leader) {
	c.t.until(30*time.Second, func(ctx context.Context) (err error) {
		l, err = c.findLeader(ctx)
		for _, p := range c.nodes {
			err = errors.Join(err, p.Running())
		}
		return err
	})
	return l
}

// dial connects to a coordinator until the trial ends.
func (c *rollcallCluster) dial(addr string) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(16<<20), grpc.MaxCallRecvMsgSize(16<<20)))
	c.t.check(err)
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

// registrar is one gateway for the coordinators: an owner whose writes are numbered. Its services change with every
// call. It is not safe for concurrent use.
type registrar struct {
	write    registerFunc
	writer   *rollcallv1.Writer
	services []*rollcallv1.Service
	next     int
	turn     int
}

type registerFunc = func(context.Context, *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error)

// newRegistrar returns a registrar of services with these numbers. Their URLs are the fleet's, so that the leader's
// checks succeed.
func newRegistrar(write registerFunc, f *fleet, owner string, first, services int) *registrar {
	now := time.Now().UnixNano()
	r := &registrar{
		write: write,
		writer: &rollcallv1.Writer{
			Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: owner},
			Incarnation: uint64(now),
		},
		services: make([]*rollcallv1.Service, services),
		// Higher than that of any earlier registrar, so that the values differ.
		turn: int(now),
	}
	for j := range r.services {
		r.services[j] = newService(first+j, f.url(first+j))
	}
	return r
}

func serviceID(number int) string { return fmt.Sprintf("svc-%07d", number) }

// newService returns a service of serviceBytes.
func newService(number int, url string) *rollcallv1.Service {
	s := &rollcallv1.Service{
		Id: serviceID(number), Kind: "relayer",
		WorkerRef: &rollcallv1.WorkerRef{Url: url, Node: "host-1", Labels: map[string]string{"build": ""}},
	}
	for proto.Size(s) < serviceBytes {
		s.WorkerRef.Labels["build"] += "0"
	}
	return s
}

// change changes the label of a service, and keeps its size.
func change(s *rollcallv1.Service, turn int) {
	s.WorkerRef.Labels["build"] = fmt.Sprintf("%0*d", len(s.WorkerRef.Labels["build"]), turn)
}

// register changes and writes the next n services in one call.
func (r *registrar) register(ctx context.Context, n int) (int, error) {
	r.turn++
	r.writer.Seq++
	batch := make([]*rollcallv1.Service, n)
	for i := range batch {
		batch[i] = r.services[(r.next+i)%len(r.services)]
		change(batch[i], r.turn)
	}
	r.next = (r.next + n) % len(r.services)
	resp, err := r.write(ctx, &rollcallv1.RegisterServicesRequest{Writer: r.writer, Services: batch})
	if err != nil {
		return 0, err
	}
	if int(resp.GetRegistered()) != n {
		return 0, fmt.Errorf("%d of %d services were written, %d unchanged", resp.GetRegistered(), n, resp.GetUnchanged())
	}
	return n, nil
}

// registerAll writes all services in the fewest possible calls.
func (r *registrar) registerAll(t *trial) {
	for done := 0; done < len(r.services); {
		n, err := r.register(t.ctx, min(rollcallv1.MaxServicesPerCall, len(r.services)-done))
		t.check(err)
		done += n
	}
}

// fill registers the given number of services.
func (c *rollcallCluster) fill(f *fleet, services int) {
	newRegistrar(c.registration(), f, "bench", 0, services).registerAll(c.t)
}

// registration returns a function that writes over a new connection to the leader, over bare gRPC like etcd's client.
func (c *rollcallCluster) registration() registerFunc {
	stub := rollcallv1.NewDiscoveryServiceClient(c.dial(c.leader().Address))
	return func(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
		return stub.RegisterServices(ctx, req)
	}
}

// registrations measures RegisterServices with perCall services a call.
func (c *rollcallCluster) registrations(f *fleet, l load, perCall, connections int) result {
	writes, all := make([]registerFunc, connections), make([]*registrar, l.Callers)
	for i := range writes {
		writes[i] = c.registration()
	}
	for i := range all {
		services := max(perCall, keysPerCaller)
		all[i] = newRegistrar(writes[i%connections], f, "bench-"+strconv.Itoa(i), i*services, services)
	}
	return c.t.run(l, func(ctx context.Context, caller, _ int) (int, error) { return all[caller].register(ctx, perCall) })
}

// lists measures a linearizable ListServices of one id, over one connection.
func (c *rollcallCluster) lists(f *fleet, l load) result {
	c.fill(f, l.Callers)
	stub := rollcallv1.NewDiscoveryServiceClient(c.dial(c.leader().Address))
	return c.t.run(l, func(ctx context.Context, caller, _ int) (int, error) {
		resp, err := stub.ListServices(ctx, &rollcallv1.ListServicesRequest{Ids: []string{serviceID(caller)}})
		if err == nil && len(resp.GetRecords()) != 1 {
			err = fmt.Errorf("%d records where one was expected", len(resp.GetRecords()))
		}
		return 1, err
	})
}
