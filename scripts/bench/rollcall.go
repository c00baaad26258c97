package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// rollcallCluster is three coordinators, started like a user does, and their Redis.
type rollcallCluster struct {
	dir      string
	nodes    []*process
	cluster  []string // addresses of the cluster ports
	http     []string
	interval time.Duration
	env      []string
	binary   string

	server *process
	redis  *redis.Client
}

// startRollcall starts a cluster. env has settings in addition to the common ones.
func (s *suite) startRollcall(ctx context.Context, interval time.Duration, env ...string) (c *rollcallCluster, err error) {
	dir, err := s.freshDir("rollcall")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(7)
	if err != nil {
		return nil, err
	}
	c = &rollcallCluster{dir: dir, cluster: addrs[:3], http: addrs[3:6], interval: interval, env: env, binary: s.rollcall}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	_, port, _ := net.SplitHostPort(addrs[6])
	c.server, err = start("redis", dir, nil, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	c.redis = redis.NewClient(&redis.Options{Addr: addrs[6]})
	if err := until(ctx, 10*time.Second, func(ctx context.Context) error { return c.redis.Ping(ctx).Err() }); err != nil {
		return nil, err
	}
	c.nodes = make([]*process, 3)
	for i := range c.nodes {
		if err := c.start(i); err != nil {
			return nil, err
		}
	}
	if err := until(ctx, 30*time.Second, func(ctx context.Context) error { _, _, err := c.leader(ctx); return err }); err != nil {
		return nil, err
	}
	return c, nil
}

// start starts the i-th coordinator, in the same folder each time.
func (c *rollcallCluster) start(i int) (err error) {
	var peers []string
	for i, addr := range c.cluster {
		peers = append(peers, fmt.Sprintf("coordinator-%d=%s", i, addr))
	}
	name := "coordinator-" + strconv.Itoa(i)
	c.nodes[i], err = start(name, filepath.Join(c.dir, strconv.Itoa(i)), append([]string{
		"REDIS_URL=redis://" + c.redis.Options().Addr,
		"RELAYER_COUNT=0",
		"HEALTH_CHECK_INTERVAL_MS=" + strconv.FormatInt(c.interval.Milliseconds(), 10),
	}, c.env...), c.binary, "coordinator", "--node-id", name, "--peers", strings.Join(peers, ","),
		"--listen", c.cluster[i], "--http-listen", c.http[i], "--data-dir", "data")
	return err
}

func (c *rollcallCluster) close() {
	for _, p := range c.nodes {
		if p != nil {
			p.kill()
		}
	}
	if c.redis != nil {
		c.redis.Close()
	}
	if c.server != nil {
		c.server.kill()
	}
	os.RemoveAll(c.dir)
}

// leader returns the index of the node that reports that it leads, and its epoch.
func (c *rollcallCluster) leader(ctx context.Context) (int, uint64, error) {
	for i := range c.nodes {
		conn, err := dialRollcall(c.cluster[i])
		if err != nil {
			return 0, 0, err
		}
		resp, err := rollcallv1.NewDiscoveryServiceClient(conn).Ping(ctx, &rollcallv1.PingRequest{})
		conn.Close()
		if err == nil && resp.GetLeader() != nil && resp.GetLeader().GetNode() == resp.GetNode() {
			return i, resp.GetEpoch(), nil
		}
	}
	for _, p := range c.nodes {
		if err := p.running(); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, errors.New("no node leads")
}

func dialRollcall(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(16<<20), grpc.MaxCallRecvMsgSize(16<<20)))
}

// registrar is one gateway for the coordinators: an owner whose writes are numbered. Its services change with every
// call. It is not safe for concurrent use.
type registrar struct {
	send     func(context.Context, *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error)
	writer   *rollcallv1.Writer
	services []*rollcallv1.Service
	widths   []int // of the label that changes
	next     int
	turn     int
}

// newRegistrar returns the i-th of several registrars with as many services each. Their URLs are the fleet's, so that
// the leader's checks succeed.
func newRegistrar(send func(context.Context, *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error),
	f *fleet, i, services int) *registrar {
	r := &registrar{
		send: send,
		writer: &rollcallv1.Writer{
			Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "bench-" + strconv.Itoa(i)},
			Incarnation: uint64(time.Now().UnixNano()),
		},
		services: make([]*rollcallv1.Service, services),
		widths:   make([]int, services),
		// Higher than that of any earlier registrar, so that the values differ.
		turn: int(time.Now().UnixNano()),
	}
	for j := range r.services {
		number := i*services + j
		r.services[j] = newService(number, f.url(number))
		r.widths[j] = widen(r.services[j])
	}
	return r
}

// registrars connects n registrars to the leader, over bare gRPC like etcd's client: with a connection each or one for
// all.
func (c *rollcallCluster) registrars(ctx context.Context, f *fleet, n, services int, shared bool) ([]*registrar, func(), error) {
	stubs, closeAll, err := c.stubs(ctx, n, shared)
	if err != nil {
		return nil, nil, err
	}
	all := make([]*registrar, n)
	for i, stub := range stubs {
		all[i] = newRegistrar(func(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
			return stub.RegisterServices(ctx, req)
		}, f, i, services)
	}
	return all, closeAll, nil
}

// stubs returns clients of the leader.
func (c *rollcallCluster) stubs(ctx context.Context, n int, shared bool) ([]rollcallv1.DiscoveryServiceClient, func(), error) {
	leader, _, err := c.leader(ctx)
	if err != nil {
		return nil, nil, err
	}
	return dialStubs(c.cluster[leader], n, shared)
}

// dialStubs returns n clients of one server, over one connection or over one each.
func dialStubs(addr string, n int, shared bool) ([]rollcallv1.DiscoveryServiceClient, func(), error) {
	var conns []*grpc.ClientConn
	closeAll := func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
	stubs := make([]rollcallv1.DiscoveryServiceClient, n)
	for i := range stubs {
		if i == 0 || !shared {
			conn, err := dialRollcall(addr)
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			conns = append(conns, conn)
		}
		stubs[i] = rollcallv1.NewDiscoveryServiceClient(conns[len(conns)-1])
	}
	return stubs, closeAll, nil
}

// widen sets the length of a service's label so that the whole has serviceBytes, and returns it.
func widen(s *rollcallv1.Service) int {
	width := 0
	for proto.Size(s) < serviceBytes {
		width++
		s.WorkerRef.Labels["build"] = strings.Repeat("0", width)
	}
	return width
}

// register changes and writes the next n services in one call.
func (r *registrar) register(ctx context.Context, n int) (int, error) {
	r.turn++
	r.writer.Seq++
	batch := make([]*rollcallv1.Service, n)
	for i := range batch {
		j := (r.next + i) % len(r.services)
		batch[i] = r.services[j]
		batch[i].WorkerRef.Labels["build"] = fmt.Sprintf("%0*d", r.widths[j], r.turn)
	}
	r.next = (r.next + n) % len(r.services)
	resp, err := r.send(ctx, &rollcallv1.RegisterServicesRequest{Writer: r.writer, Services: batch})
	if err != nil {
		return 0, err
	}
	if int(resp.GetRegistered()) != n {
		return 0, fmt.Errorf("%d of %d services were written, %d unchanged", resp.GetRegistered(), n, resp.GetUnchanged())
	}
	return n, nil
}

// registerAll writes all services in the fewest possible calls.
func (r *registrar) registerAll(ctx context.Context) error {
	for done := 0; done < len(r.services); {
		n, err := r.register(ctx, min(rollcallv1.MaxServicesPerCall, len(r.services)-done))
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// registrations measures RegisterServices with perCall services a call.
func (c *rollcallCluster) registrations(ctx context.Context, f *fleet, l load, perCall int, shared bool) (result, error) {
	all, closeAll, err := c.registrars(ctx, f, l.Callers, max(perCall, keysPerCaller), shared)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) { return all[caller].register(ctx, perCall) })
}

// lists measures a linearizable ListServices of one id.
func (c *rollcallCluster) lists(ctx context.Context, f *fleet, l load, shared bool) (result, error) {
	all, closeAll, err := c.registrars(ctx, f, l.Callers, 1, true)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	for _, r := range all {
		if err := r.registerAll(ctx); err != nil {
			return result{}, err
		}
	}
	stubs, closeStubs, err := c.stubs(ctx, l.Callers, shared)
	if err != nil {
		return result{}, err
	}
	defer closeStubs()
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) {
		resp, err := stubs[caller].ListServices(ctx, &rollcallv1.ListServicesRequest{Ids: []string{all[caller].services[0].Id}})
		if err == nil && len(resp.GetRecords()) != 1 {
			err = fmt.Errorf("%d records where one was expected", len(resp.GetRecords()))
		}
		return 1, err
	})
}
