package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// maxMessage exceeds MaxBytesPerCall, so that the node, not gRPC, refuses an oversize batch with a reason.
	maxMessage = 2*rollcallv1.MaxBytesPerCall + 1<<20
	// transferLimit is how long a leader waits for another node to take over the leadership.
	transferLimit = 2 * time.Second
	// drainLimit is how long a shutdown waits for running calls.
	drainLimit = 2 * time.Second
	// stopLimit is how long any other step of a shutdown may take.
	stopLimit = 10 * time.Second
)

// Node is one coordinator. Run does the work; the methods that only read are safe for concurrent use.
type Node struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics

	machine *fsm.Machine
	stores  *Stores
	stableState
	port   *clusterport.Port
	grpc   *grpc.Server
	health *health.Server // of the gRPC health protocol
	peers  *peers

	// raft is nil until the node may join.
	raft      atomic.Pointer[raft.Raft]
	transport *raft.NetworkTransport // set with raft
	watchdog  *watchdog              // set with raft
	snapshot  *snapshotter
	// replication tracks how the followers keep up, while this node leads.
	replication replication
	// leader is nil unless this node is the established leader.
	leader atomic.Pointer[leader]
	// stopping ends streams and refuses calls.
	stopping context.Context
	stop     context.CancelCauseFunc
	// transferring is held by the one running leadership transfer.
	transferring chan struct{}
	// importing is held by the one running import.
	importing sync.Mutex
	// fatal receives the error that ends the process: a disk that fails or hangs, or an unreadable log.
	fatal  chan error
	failed atomic.Bool
}

// Open checks the configuration, opens the stores and binds the port. The caller must then call Run or Close.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "coordinator", "node", cfg.ID),
		metrics: NewMetrics(cfg.Registerer),
		machine: fsm.New(),
		stores:  cfg.Stores,
		fatal:   make(chan error, 1),

		transferring: make(chan struct{}, 1),
	}
	n.stopping, n.stop = context.WithCancelCause(context.Background())
	if n.stores == nil {
		s, err := raftstore.Open(raftstore.Config{Dir: cfg.DataDir, Fatal: n.fail, Logger: cfg.Logger})
		if err != nil {
			return nil, err
		}
		n.stores = &Stores{Log: s.Logs(), Stable: s.Stable(), Snapshots: s.Snapshots(), Closer: s}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.closeStores())
		}
	}()
	if err := n.load(n.stores.Stable); err != nil {
		return nil, err
	}
	listener := cfg.Listener
	if listener == nil {
		var lc net.ListenConfig
		if listener, err = lc.Listen(ctx, "tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("open cluster port: %w", err)
		}
	}
	n.port, err = clusterport.New(clusterport.Config{
		Listener: listener, TLS: cfg.TLS, Dial: cfg.Dial, Logger: cfg.Logger, Metrics: clusterport.NewMetrics(cfg.Registerer),
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	n.peers = newPeers(&n.cfg, n.port)
	n.grpc = n.newServer()
	return n, nil
}

// Addr returns the address of the cluster port.
func (n *Node) Addr() net.Addr { return n.port.Addr() }

// Directory returns the node's replica.
func (n *Node) Directory() *fsm.Machine { return n.machine }

// fail ends Run with an error at once. It may be called from any goroutine. Only the first call has an effect.
func (n *Node) fail(err error) {
	if n.failed.CompareAndSwap(false, true) {
		n.fatal <- err
	}
}

// Run takes part in the cluster until ctx ends, then hands the leadership over and returns nil. After an error the
// process must end, and a supervisor should restart it. After a failed disk or an unreadable log, Run returns without
// waiting for Raft, whose goroutines then hang.
func (n *Node) Run(ctx context.Context) error {
	// After a fatal error the work is not stopped, so that the caller's last line is the only one about it.
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	forward := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })
	done := make(chan error, 1)
	go func() {
		defer stop(nil)
		done <- n.serve(working)
	}()
	select {
	case err := <-done:
		return err
	case err := <-n.fatal:
		forward()
		return err
	}
}

// serve is the part of Run that returns only after its goroutines have ended.
func (n *Node) serve(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, n.Close()) }()

	g, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stopServing := context.WithCancel(gctx)
	defer stopServing()
	watching, stopWatching := context.WithCancel(gctx)
	defer stopWatching()
	g.Go(func() error { return n.port.Run(serving) })
	g.Go(func() error { return n.watchHealth(serving) })
	g.Go(func() error {
		if err := n.grpc.Serve(n.port.GRPC()); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		// working ends with ctx, or with gctx when another goroutine failed.
		working, cancel := context.WithCancelCause(gctx)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		err := n.work(working, func() { g.Go(func() error { return n.watch(watching) }) })
		n.stop(errStopping)
		if r := n.raft.Load(); r != nil && r.State() == raft.Leader && len(n.otherVoters(r)) > 0 {
			// No node has taken over, and none can while this node leads. Raft ends most running calls with an unknown
			// outcome, and their callers then call the next leader. Raft forgets some calls; drain cancels those. A
			// sole voter has no successor, and can still finish its calls.
			err = errors.Join(err, n.stopRaft())
		}
		n.drain()
		// Raft stops before the port it listens on, because it would log an error otherwise.
		err = errors.Join(err, n.stopRaft())
		stopWatching() // not earlier, because it ends a process whose disk hangs
		stopServing()
		return err
	})
	return g.Wait()
}

// withStopTimeout runs one step of a shutdown. It ends the process if the step takes longer than stopLimit, for
// example on a hung disk.
func (n *Node) withStopTimeout(step string, f func()) {
	limit := time.AfterFunc(stopLimit, func() {
		n.fail(fmt.Errorf("stop: %s has not ended for %v; the disk may hang; ending all the same", step, stopLimit))
	})
	defer limit.Stop()
	f()
}

// runUntilStop runs f until ctx ends. From then on f is a step of a shutdown.
func (n *Node) runUntilStop(ctx context.Context, step string, f func() error) error {
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() { n.withStopTimeout(step, func() { <-ended }) })()
	defer close(ended)
	return f()
}

// watch runs the watchdog until ctx ends.
func (n *Node) watch(ctx context.Context) error {
	if err := n.watchdog.run(ctx); err != nil {
		n.fail(err) // Raft hangs, so waiting for it would never end
	}
	return nil
}

// work joins the cluster and follows it until ctx ends. It calls watch once Raft runs.
func (n *Node) work(ctx context.Context, watch func()) error {
	var (
		r      *raft.Raft
		notify <-chan bool
	)
	err := n.runUntilStop(ctx, "joining the cluster", func() (err error) {
		r, notify, err = n.join(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.lead(gctx, r, notify) })
	watch()
	// Raft cannot cancel any of these while it accesses the disk, and a snapshot keeps even a healthy disk busy for long.
	g.Go(func() error {
		return n.runUntilStop(gctx, "writing a snapshot", func() error { return n.snapshot.run(gctx) })
	})
	g.Go(func() error { return n.observeMembers(gctx, r) })
	g.Go(func() error {
		return n.runUntilStop(gctx, "noting the vote", func() error { return n.requestVote(gctx, r) })
	})
	return g.Wait()
}

// drain ends the running calls. Streams are already stopping; other calls get drainLimit. Calls that have not returned
// by then are canceled and abandoned. Raft forgets writes in its channels when it shuts down, and GracefulStop would
// wait for their handlers forever.
func (n *Node) drain() {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		n.grpc.GracefulStop()
	}()
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	select {
	case <-drained:
	case <-limit.C:
		n.grpc.Stop()
	}
}

// Close releases the resources of Open. It is idempotent, and Run calls it. After a fatal error it does nothing, and
// the end of the process releases everything. Closing the stores would wait for the hung disk. Closing the port would
// make Raft log an error after the caller's last line.
func (n *Node) Close() error {
	n.stop(errStopping)
	if n.failed.Load() {
		return nil
	}
	var errs []error
	n.grpc.Stop()
	errs = append(errs, n.stopRaft())
	n.peers.close()
	errs = append(errs, n.port.Close(), n.closeStores())
	return errors.Join(errs...)
}

// stopRaft stops Raft, once. It does nothing after a fatal error, because it would wait for the hung disk.
func (n *Node) stopRaft() error {
	if n.failed.Load() {
		return nil
	}
	r := n.raft.Swap(nil)
	if r == nil {
		return nil
	}
	defer n.transport.CloseStreams() // Raft closes the listener, but not the connections that it dialed
	var err error
	n.withStopTimeout("Raft", func() { err = r.Shutdown().Error() })
	if err != nil {
		return fmt.Errorf("stop raft: %w", err)
	}
	return nil
}

func (n *Node) closeStores() error {
	if n.stores == nil || n.stores.Closer == nil {
		return nil
	}
	var err error
	n.withStopTimeout("closing the stores", func() { err = n.stores.Closer.Close() })
	return err
}

func (n *Node) raftConfig() *raft.Config {
	cfg := RaftConfig(n.cfg.Timing)
	cfg.LocalID = raft.ServerID(n.cfg.ID)
	cfg.Logger = raftstore.NewHCLog(n.cfg.Logger.With("component", "raft", "node", n.cfg.ID))
	return cfg
}

// RaftConfig returns the product's Raft options, without the node's id. Benchmarks use it to compare with Raft alone.
func RaftConfig(t Timing) *raft.Config {
	c := raft.DefaultConfig()
	c.HeartbeatTimeout = t.Heartbeat
	c.ElectionTimeout = t.Election
	c.LeaderLeaseTimeout = t.Lease
	c.CommitTimeout = 20 * time.Millisecond
	c.BatchApplyCh = true
	// A lagging follower gets up to this many entries at once, if they fit one message (appendBudget). Raft reads them
	// all from the log first, up to 4 MiB each.
	c.MaxAppendEntries = 16
	c.SnapshotInterval = time.Minute
	c.SnapshotThreshold = 8192
	c.TrailingLogs = maxTrailing
	c.ShutdownOnRemove = false
	return c
}

// startRaft starts Raft.
func (n *Node) startRaft() (*raft.Raft, chan bool, error) {
	cfg := n.raftConfig()
	// Raft blocks on this channel. lead drains it at once, and the buffer covers lead's start.
	notify := make(chan bool, 64)
	cfg.NotifyCh = notify

	stream, err := newClusterStream(n.port.Raft(n.cfg.Advertise), n.identity(), n.log)
	if err != nil {
		return nil, nil, err
	}
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: n.peers,
		Logger:                cfg.Logger,
		Stream:                stream,
		MaxPool:               4,
		// One message in flight per follower, because pipelining can block one until the leader restarts.
		MaxRPCsInFlight: 1,
		Timeout:         n.cfg.Timing.Transport,
	})
	n.snapshot = newSnapshotter(n.machine, n.log, n.fail)
	trans := &transport{NetworkTransport: network, replication: &n.replication}
	r, err := raft.NewRaft(cfg, n.snapshot, n.stores.Log, n.stores.Stable, n.stores.Snapshots, trans)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start raft: %w", err), trans.Close())
	}
	n.snapshot.raft = r
	n.watchdog = newWatchdog(r, &n.replication)
	n.metrics.follow(n, r)
	n.transport = network
	n.raft.Store(r)
	return r, notify, nil
}
