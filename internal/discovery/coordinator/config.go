package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Peer is a coordinator as the configuration names it.
type Peer struct {
	ID string
	// Address of the cluster port, host:port.
	Address string
}

// Timing is how fast Raft notices a dead leader, and how much delay it forgives.
type Timing struct {
	Heartbeat time.Duration
	Election  time.Duration
	// Lease is how long a leader trusts its quorum's last word.
	Lease time.Duration
	// Transport bounds one Raft message on the network.
	Transport time.Duration
}

// LAN suits nodes with round trips below about 10 ms, WAN those below about 150 ms.
var (
	LAN = Timing{Heartbeat: 200 * time.Millisecond, Election: 200 * time.Millisecond, Lease: 200 * time.Millisecond, Transport: time.Second}
	WAN = Timing{Heartbeat: time.Second, Election: time.Second, Lease: 500 * time.Millisecond, Transport: 2 * time.Second}
)

// Leadership is what the work of a leader may use, for one epoch.
type Leadership struct {
	Cluster, Node string
	Epoch, Term   uint64
	Directory     *fsm.Machine
	// Confirm returns nil once a quorum has said, asked after Confirm was called, that no later term has begun.
	// Safe for concurrent use; concurrent calls share rounds.
	Confirm func(context.Context) error
	// Lease is how long a confirmation may be trusted, counted from before it was asked.
	Lease time.Duration
	// Ended is closed when the leadership is over. The context that the work is given may end before that: the node
	// stops, and what is under way may be finished.
	Ended <-chan struct{}
}

// ReestablishError makes the coordinator open a new epoch, not below AtLeast, and start the leader's work again.
// Config.Lead returns it on finding a higher epoch of its own cluster outside Raft.
type ReestablishError struct{ AtLeast uint64 }

func (e *ReestablishError) Error() string {
	return fmt.Sprintf("a new epoch of at least %d is needed", e.AtLeast)
}

// Config of a coordinator. Fields without a default are required.
type Config struct {
	// ID of the node, a DNS label.
	ID string
	// Listen is the cluster port's address (":7400").
	Listen string
	// Advertise is the address at which peers and clients reach the cluster port; the peer list's by default.
	Advertise string
	// AdvertiseClient is the address for clients outside the cluster's own DNS; Advertise by default.
	AdvertiseClient string
	// HTTPAddress is told to whoever lists the members.
	HTTPAddress string
	// Peers is the cluster to bootstrap, this node included: 1, 3 or 5 of them. To a cluster that exists it only
	// says whom to ask.
	Peers []Peer
	// DataDir holds everything the node must remember.
	DataDir string
	// Timing of Raft (LAN).
	Timing Timing
	// TLS of the cluster port; nil for none.
	TLS *clusterport.TLS

	// RelayerCount is the size of the static fleet oz-relayer-0 … N-1; 0 for none.
	RelayerCount int
	// RelayerURLTemplate is a static relayer's URL, with {N} for its number.
	RelayerURLTemplate string

	// Lead is the leader's work for one epoch. Its context ends with the leadership. An error other than
	// *ReestablishError restarts it with backoff; five in a row end the process. nil does nothing.
	Lead func(context.Context, Leadership) error
	// Status appends to b what there is to report on the work of Lead in an epoch: an encoded GetStatusResponse, or
	// nothing while it is not running. nil for a Lead with nothing to report.
	Status func(b []byte, epoch uint64) ([]byte, error)

	// GoneAfter is how long an owner may be silent before its entries are free to take (3 minutes: three times
	// what a gateway lets pass between two full sets).
	GoneAfter time.Duration
	// BootstrapWait is how long an empty node waits for peers that do not answer (3 s).
	BootstrapWait time.Duration

	Version    string
	Logger     *slog.Logger          // discards by default
	Registerer prometheus.Registerer // none by default

	// Hooks for tests: an in-memory network, stores of another kind.
	Listener net.Listener
	Dial     func(ctx context.Context, addr string) (net.Conn, error)
	Stores   *Stores
}

// Stores is where Raft keeps its log, its vote and its snapshots.
type Stores struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	Closer    io.Closer
}

func (c *Config) withDefaults() error {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if err := rollcallv1.CheckDNSLabel(c.ID); err != nil {
		complain("node id %w", err)
	}
	switch len(c.Peers) {
	case 1, 3, 5:
	default:
		complain("peers: %d are named; a cluster is made of 3 or 5 coordinators, this one included (1 is for trying out)", len(c.Peers))
	}
	var self string
	seen := make(map[string]bool)
	for _, p := range c.Peers {
		if err := rollcallv1.CheckDNSLabel(p.ID); err != nil {
			complain("peers: id %w", err)
		}
		if _, port, err := net.SplitHostPort(p.Address); err != nil || port == "" {
			complain("peers: %s: address %q is not host:port", p.ID, p.Address)
		}
		if seen[p.ID] || seen[p.Address] {
			complain("peers: %s at %s is named twice", p.ID, p.Address)
		}
		seen[p.ID], seen[p.Address] = true, true
		if p.ID == c.ID {
			self = p.Address
		}
	}
	if c.Advertise == "" {
		if c.Advertise = self; self == "" {
			complain("peers: this node, %q, is not among them and no address to advertise is given", c.ID)
		}
	}
	if c.AdvertiseClient == "" {
		c.AdvertiseClient = c.Advertise
	}
	if c.DataDir == "" && c.Stores == nil {
		complain("data folder: none is given")
	}
	if c.Listen == "" {
		c.Listen = ":7400"
	}
	if c.Timing == (Timing{}) {
		c.Timing = LAN
	}
	if c.RelayerCount > 0 {
		for _, v := range c.staticFleet() {
			for _, violation := range v.Validate() {
				complain("static fleet: %s: %s", v.Id, violation)
			}
		}
	}
	if c.GoneAfter == 0 {
		c.GoneAfter = 3 * time.Minute
	}
	if c.BootstrapWait == 0 {
		c.BootstrapWait = 3 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Lead == nil {
		c.Lead = func(ctx context.Context, _ Leadership) error { <-ctx.Done(); return nil }
	}
	if c.Status == nil {
		c.Status = func(b []byte, _ uint64) ([]byte, error) { return b, nil }
	}
	return errors.Join(errs...)
}
