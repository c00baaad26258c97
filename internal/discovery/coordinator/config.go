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

// Peer is a coordinator in the configuration.
type Peer struct {
	ID string
	// Address is the cluster port's address, host:port.
	Address string
}

// Timing is how fast Raft detects a dead leader, and how much delay it tolerates.
type Timing struct {
	Heartbeat time.Duration
	Election  time.Duration
	// Lease is how long the last confirmation of a leader's quorum is valid.
	Lease time.Duration
	// Transport is the time limit of one Raft message on the network.
	Transport time.Duration
}

// LAN suits nodes with round trips below about 10 ms, WAN those below about 150 ms.
var (
	LAN = Timing{Heartbeat: 200 * time.Millisecond, Election: 200 * time.Millisecond, Lease: 200 * time.Millisecond, Transport: time.Second}
	WAN = Timing{Heartbeat: time.Second, Election: time.Second, Lease: 500 * time.Millisecond, Transport: 2 * time.Second}
)

// Leadership is the interface of a leader's work to the coordinator, for one epoch.
type Leadership struct {
	Cluster, Node string
	Epoch, Term   uint64
	Directory     *fsm.Machine
	// Confirm returns nil once a quorum, asked after the call, has confirmed that no later term has begun. It is safe
	// for concurrent use; concurrent calls share rounds.
	Confirm func(context.Context) error
	// Lease is how long a confirmation is valid, counted from before the request was sent.
	Lease time.Duration
	// Ended is closed when the leadership is over. The context of the work may end earlier, when the node stops;
	// running checks may then still finish.
	Ended <-chan struct{}
}

// Config is the configuration of a coordinator. Fields without a default are required.
type Config struct {
	// ID is the node's id, a DNS label.
	ID string
	// Listen is the cluster port's address (":7400").
	Listen string
	// Advertise is the address at which peers and clients reach the cluster port; by default the address in the peer
	// list.
	Advertise string
	// AdvertiseClient is the address for clients outside the cluster's own DNS; Advertise by default.
	AdvertiseClient string
	// HTTPAddress is reported in member lists.
	HTTPAddress string
	// Peers is the cluster to bootstrap, including this node: 1, 3 or 5 of them. If the cluster exists, they are only
	// the nodes to ask.
	Peers []Peer
	// DataDir holds all durable state of the node.
	DataDir string
	// Timing is Raft's timing (LAN).
	Timing Timing
	// TLS is the configuration of the cluster port; nil for none.
	TLS *clusterport.TLS

	// RelayerCount is the size of the static fleet oz-relayer-0 … N-1; 0 for none.
	RelayerCount int
	// RelayerURLTemplate is a static relayer's URL, with {N} for its number.
	RelayerURLTemplate string

	// Lead is the leader's work for one epoch. Its context ends with the leadership. It returns a higher epoch of its own
	// cluster that it found outside Raft. The coordinator then opens an epoch above that one and calls Lead again. An
	// error restarts Lead with backoff; five in a row end the process. A nil Lead does nothing.
	Lead func(context.Context, Leadership) (higher uint64, err error)
	// Status returns the report of Lead's work in an epoch, or nil while Lead is not running. The coordinator adds to it.
	// Status is nil if Lead has no report.
	Status func(epoch uint64) *rollcallv1.GetStatusResponse

	// GoneAfter is how long an owner may be silent before other owners may take its entries. Default: 3 minutes, which are
	// three of a gateway's intervals between full sets.
	GoneAfter time.Duration
	// BootstrapWithout are the ids of peers that an empty node does not wait for before it founds a cluster: a minority.
	// The operator guarantees that they hold no older cluster.
	BootstrapWithout []string

	Version    string
	Logger     *slog.Logger          // discards by default
	Registerer prometheus.Registerer // none by default

	// Listener, Dial and Stores are test hooks: an in-memory network, other stores.
	Listener net.Listener
	Dial     func(ctx context.Context, addr string) (net.Conn, error)
	Stores   *Stores
}

// Stores holds the stores of Raft's log, its vote and its snapshots.
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
	absent := make(map[string]bool)
	for _, id := range c.BootstrapWithout {
		if absent[id] = true; !seen[id] || id == c.ID {
			complain("bootstrap without: %q is not another one of the peers", id)
		}
	}
	if len(absent) > (len(c.Peers)-1)/2 {
		complain("bootstrap without: %d of %d peers are a majority; the others could elect no leader", len(absent), len(c.Peers))
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
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Lead == nil {
		c.Lead = func(ctx context.Context, _ Leadership) (uint64, error) { <-ctx.Done(); return 0, nil }
	}
	if c.Status == nil {
		c.Status = func(uint64) *rollcallv1.GetStatusResponse { return nil }
	}
	return errors.Join(errs...)
}
