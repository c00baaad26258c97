package director_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/director"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The test runs all of discovery on a simulated network: coordinators with directors, gateways, an in-memory Redis,
// and services that pass or fail their checks.

// Under partitions, losses and restarts, no leader's command may remove a healthy service from the set. No leader may
// write under an epoch lower than one that Redis has recorded. After recovery the set must be the defined and healthy
// services.
func TestDirector_PartitionsLossesAndRestarts_KeepsHealthyServices(t *testing.T) {
	t.Parallel()
	seeds := 32
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { systemScenario(t, uint64(seed)) })
		})
	}
}

func systemScenario(t *testing.T, seed uint64) {
	s := newSystem(t, seed, health.Config{Interval: time.Second})
	s.awaitExact()
	s.net.Isolate(s.writer())
	<-time.After(3 * time.Second)
	for range 25 {
		s.misfortune()
		s.change()
		s.pass(100, 2500)
		if s.random.IntN(2) == 0 {
			s.net.Heal()
			s.toRedis.set(nil)
			s.pass(0, 2000)
		}
	}
	s.net.Heal()
	s.toRedis.set(nil)
	for id := range s.stopped {
		s.start(id)
	}
	s.awaitExact()

	epoch := uint64(0)
	for _, w := range s.redis.Log() {
		require.GreaterOrEqual(t, w.Token.Epoch, epoch, "%s wrote under an old epoch", w.Leader)
		epoch = w.Token.Epoch
		for _, change := range w.Sets {
			for _, m := range change.Remove {
				require.NotContains(t, s.steady, m.ID, "epoch %d, seq %d: %s", w.Token.Epoch, w.Token.Seq, m.Reason)
			}
		}
	}
	t.Logf("seed %d: %d writes, last epoch %d", seed, len(s.redis.Log()), epoch)
	require.Greater(t, epoch, uint64(2), "another node led at least once")
}

// Checks may take ten seconds, and every service takes that long. A leader that is deposed or stopped must end long
// before, and the next one must lead.
func TestDirector_ServicesHang_HandoverIsNotDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t, 1, health.Config{Interval: 11 * time.Second, Timeout: 10 * time.Second, Probe: func(ctx context.Context, _ health.Target) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		<-time.After(4 * time.Second) // all are being checked
		first := s.writer()
		s.net.Isolate(first)
		<-time.After(2 * time.Second)
		second := s.writer()
		require.NotEqual(t, first, second)
		began := time.Now()
		s.stop(first)
		require.Less(t, time.Since(began), 3*time.Second, "the deposed one")

		s.net.Heal()
		s.start(first)
		<-time.After(2 * time.Second)
		require.Equal(t, second, s.writer())
		began = time.Now()
		s.stop(second)
		require.Less(t, time.Since(began), 4*time.Second, "the stopped one")
		<-time.After(2 * time.Second)
		require.NotEqual(t, second, s.writer())
	})
}

type system struct {
	t      *testing.T
	random *rand.Rand
	net    *memnet.Network
	redis  *mirrortest.Memory

	peers   []coordinator.Peer
	stores  map[string]*coordinator.Stores
	nodes   map[string]*running
	stopped map[string]bool
	edges   map[string]*edge
	toRedis *cuts
	fleet   *fleet
	checks  health.Config
	// steady services are always defined and healthy.
	steady []string
}

// running is a running coordinator.
type running struct {
	stop context.CancelFunc
	done chan error
}

func newSystem(t *testing.T, seed uint64, checks health.Config) *system {
	s := &system{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), net: memnet.New(), redis: mirrortest.NewMemory(),
		stores: map[string]*coordinator.Stores{}, nodes: map[string]*running{}, stopped: map[string]bool{},
		edges: map[string]*edge{}, toRedis: new(cuts), fleet: &fleet{down: map[string]bool{}}, checks: checks,
	}
	if s.checks.Probe == nil {
		s.checks.Probe = s.fleet.probe
	}
	s.net.SetLatency(time.Duration(1+s.random.IntN(10)) * time.Millisecond)
	for i := range 3 {
		id := fmt.Sprintf("c%d", i+1)
		s.peers = append(s.peers, coordinator.Peer{ID: id, Address: id + ":7400"})
		mem := raft.NewInmemStore()
		s.stores[id] = &coordinator.Stores{Log: mem, Stable: mem, Snapshots: raft.NewInmemSnapshotStore()}
	}
	t.Cleanup(s.stopAll)
	for i := range 2 {
		e := s.startEdge(fmt.Sprintf("edge-%d", i))
		for id := range e.services {
			s.steady = append(s.steady, id)
		}
	}
	for _, p := range s.peers {
		s.start(p.ID)
	}
	return s
}

func (s *system) pass(least, most int) {
	<-time.After(time.Duration(least+s.random.IntN(most-least)) * time.Millisecond)
}

func (s *system) start(id string) {
	delete(s.stopped, id)
	l, err := s.net.Listen(id + ":7400")
	require.NoError(s.t, err)
	cfg := coordinator.Config{ID: id, Peers: s.peers, Listener: l, Dial: s.net.Dialer(id), Stores: s.stores[id], Lead: s.lead(id)}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(s.t.Output(), nil)).With("node", id)
	}
	node, err := coordinator.Open(s.t.Context(), cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, done: make(chan error, 1)}
	s.nodes[id] = r
	go func() { r.done <- node.Run(ctx) }()
}

// lead returns a coordinator's work: a director, for one epoch.
func (s *system) lead(id string) func(context.Context, coordinator.Leadership) (uint64, error) {
	return func(ctx context.Context, l coordinator.Leadership) (uint64, error) {
		d, err := director.New(director.Config{
			Cluster: l.Cluster, Node: l.Node, Epoch: l.Epoch, Directory: l.Directory, Confirm: l.Confirm, Lease: l.Lease, Ended: l.Ended,
			Health: s.checks,
			Mirror: mirror.Config{Store: &way{s.redis, s.toRedis, id}},
		})
		if err != nil {
			return 0, err
		}
		return d.Run(ctx)
	}
}

func (s *system) stop(id string) {
	r := s.nodes[id]
	delete(s.nodes, id)
	r.stop()
	require.NoError(s.t, <-r.done)
}

func (s *system) stopAll() {
	s.net.Heal()
	s.toRedis.set(nil)
	for _, e := range s.edges {
		e.stop()
		if err := <-e.done; err != nil {
			s.t.Error(err)
		}
	}
	for _, id := range slices.Collect(maps.Keys(s.nodes)) {
		s.stop(id)
	}
	<-time.After(2 * late) // messages in flight on the simulated network, or to Redis, arrive
}

// writer returns the coordinator that wrote to Redis last.
func (s *system) writer() string {
	log := s.redis.Log()
	return log[len(log)-1].Leader
}

// misfortune injects a random fault.
func (s *system) misfortune() {
	node := func() string { return s.peers[s.random.IntN(len(s.peers))].ID }
	switch s.random.IntN(9) {
	case 0:
		s.net.Isolate(node())
	case 1:
		s.net.Cut(node(), node())
	case 2:
		s.net.CutOneWay(node(), node())
	case 3:
		s.net.Reset(node())
	case 4:
		s.net.Isolate(fmt.Sprintf("edge-%d", s.random.IntN(len(s.edges))))
	case 5: // the current writer: its writes in flight arrive late
		s.toRedis.set(map[string]bool{s.writer(): true})
	case 6:
		s.redis.Flush()
	case 7: // the leader, if it is the one: loses its peers, but keeps gateways and possibly Redis
		id := node()
		for _, p := range s.peers {
			if p.ID != id {
				s.net.Cut(id, p.ID)
			}
		}
	case 8:
		if id := node(); !s.stopped[id] {
			s.stop(id)
			s.stopped[id] = true
		} else {
			s.start(id)
		}
	}
	s.net.SetLatency(time.Duration(1+s.random.IntN(15)) * time.Millisecond)
}

// change makes gateways define other services, and services fail and recover.
func (s *system) change() {
	for name, e := range s.edges {
		e.mu.Lock()
		for i := range 5 {
			id := fmt.Sprintf("%s-passing-%d", name, i)
			switch s.random.IntN(4) {
			case 0:
				delete(e.services, id)
			case 1:
				e.services[id] = s.service(id)
			}
			s.fleet.set(id, s.random.IntN(3) == 0)
		}
		for _, id := range s.steady {
			if e.services[id] != nil && s.random.IntN(3) == 0 {
				e.services[id] = s.service(id) // its URL changes
			}
		}
		e.mu.Unlock()
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
}

// service defines a service at one of its URLs.
func (s *system) service(id string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
		Url: fmt.Sprintf("http://%s:%d", id, 3000+s.random.IntN(3)), Labels: map[string]string{"at": fmt.Sprint(s.random.Uint32())},
	}}
}

// awaitExact waits until the set is exactly the defined and healthy services, and remains so.
func (s *system) awaitExact() {
	s.t.Helper()
	var want []string
	for _, e := range s.edges {
		for id := range e.services {
			if !s.fleet.isDown(id) {
				want = append(want, id)
			}
		}
	}
	slices.Sort(want)
	var got []string
	stays := 0
	for range 600 {
		if got = s.redis.Members("relayer:active"); slices.Equal(want, got) {
			stays++
		} else {
			stays = 0
		}
		if stays == 50 {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	require.Equal(s.t, want, got, "after a minute")
	require.FailNow(s.t, "the set does not settle")
}

// edge is a gateway and its source.
type edge struct {
	stop    context.CancelFunc
	done    chan error
	changed chan struct{}

	mu       sync.Mutex
	services map[string]*rollcallv1.Service
}

func (s *system) startEdge(name string) *edge {
	e := &edge{done: make(chan error, 1), changed: make(chan struct{}, 1), services: map[string]*rollcallv1.Service{}}
	for i := range 3 {
		id := fmt.Sprintf("%s-steady-%d", name, i)
		e.services[id] = s.service(id)
	}
	cfg := gateway.Config{ID: name, Source: e, ClientConfig: gateway.ClientConfig{DialContext: s.net.Dialer(name)}}
	for _, p := range s.peers {
		cfg.Coordinators = append(cfg.Coordinators, p.Address)
	}
	g, err := gateway.New(cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() { e.done <- g.Run(ctx) }()
	s.edges[name] = e
	return e
}

func (e *edge) Services(context.Context) (gateway.Set, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return gateway.Set{Services: slices.Collect(maps.Values(e.services)), Complete: true}, nil
}

func (e *edge) Changed() <-chan struct{} { return e.changed }

// fleet is the services' health.
type fleet struct {
	mu   sync.Mutex
	down map[string]bool
}

func (f *fleet) set(id string, down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down[id] = down
}

func (f *fleet) isDown(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down[id]
}

func (f *fleet) probe(_ context.Context, t health.Target) error {
	<-time.After(time.Millisecond)
	if f.isDown(t.ID) {
		return errors.New("connection refused")
	}
	return nil
}

// cuts holds the coordinators that are cut off from Redis.
type cuts struct {
	mu  sync.Mutex
	off map[string]bool
}

func (c *cuts) set(off map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
}

func (c *cuts) has(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.off[node]
}

// way is one coordinator's connection to Redis. While it is cut, reads fail, and writes arrive late without an answer.
type way struct {
	redis mirror.Store
	cuts  *cuts
	node  string
}

const late = 5 * time.Second

func (w *way) Read(ctx context.Context, kinds []string) (mirror.View, error) {
	<-time.After(time.Millisecond)
	if w.cuts.has(w.node) {
		<-ctx.Done()
		return mirror.View{}, ctx.Err()
	}
	return w.redis.Read(ctx, kinds)
}

func (w *way) Write(ctx context.Context, write mirror.Write) (mirror.Reply, error) {
	<-time.After(time.Millisecond)
	if w.cuts.has(w.node) {
		time.AfterFunc(late, func() { _, _ = w.redis.Write(context.WithoutCancel(ctx), write) })
		<-ctx.Done()
		return mirror.Reply{}, ctx.Err()
	}
	return w.redis.Write(ctx, write)
}
