package memnet

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// backlog is how many connections wait for Accept before dialers wait.
const backlog = 128

// Network connects nodes. It is safe for concurrent use. Use it in the synctest bubble it was made in, if any.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	streams   map[*stream]struct{} // of open connections
	cut       map[link]bool
	isolated  map[string]bool
	latency   time.Duration
	nextPort  int
	changed   chan struct{} // closed and replaced when links change
}

// link is one direction between two nodes.
type link struct{ from, to string }

// New returns a network with every link up and no latency.
func New() *Network {
	return &Network{
		listeners: make(map[string]*listener),
		streams:   make(map[*stream]struct{}),
		cut:       make(map[link]bool),
		isolated:  make(map[string]bool),
		nextPort:  40000,
		changed:   make(chan struct{}),
	}
}

// Listen accepts connections to addr, "node:port". Port 0 takes a free one, which the listener's Addr returns.
func (n *Network) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, port, err := net.SplitHostPort(addr); err != nil {
		return nil, opError("listen", addr, err)
	} else if port == "0" {
		addr = n.ephemeralLocked(host)
	}
	if n.listeners[addr] != nil {
		return nil, opError("listen", addr, syscall.EADDRINUSE)
	}
	l := &listener{network: n, addr: address(addr), conns: make(chan *conn, backlog), done: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dialer returns the Dial function of one node.
func (n *Network) Dialer(from string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) { return n.Dial(ctx, from, addr) }
}

// Dial connects the node from to a listener. It takes a round trip. While the link is cut it waits for the link or for
// ctx, so ctx needs a deadline. Without a listener it fails with ECONNREFUSED.
func (n *Network) Dial(ctx context.Context, from, addr string) (net.Conn, error) {
	to, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, opError("dial", addr, err)
	}
	if err := n.roundTrip(ctx, from, to); err != nil {
		return nil, opError("dial", addr, err)
	}

	n.mu.Lock()
	l := n.listeners[addr]
	if l == nil {
		n.mu.Unlock()
		return nil, opError("dial", addr, syscall.ECONNREFUSED)
	}
	client, server := n.connectLocked(link{from, to}, addr)
	n.mu.Unlock()

	select {
	case l.conns <- server:
	case <-l.done:
		client.reset()
		return nil, opError("dial", addr, syscall.ECONNREFUSED)
	case <-ctx.Done():
		client.reset()
		return nil, opError("dial", addr, ctx.Err())
	}
	select {
	case <-l.done: // closed meanwhile, without an Accept
		server.reset()
	default:
	}
	return client, nil
}

// roundTrip waits for the time of a packet from one node to the other and back.
func (n *Network) roundTrip(ctx context.Context, from, to string) error {
	for {
		n.mu.Lock()
		up := !n.cutLocked(link{from, to}) && !n.cutLocked(link{to, from})
		latency, changed := n.latency, n.changed
		n.mu.Unlock()
		if up && latency == 0 {
			return ctx.Err()
		}
		var arrived <-chan time.Time
		if up {
			arrived = time.After(2 * latency)
		}
		select {
		case <-arrived:
			return nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Network) connectLocked(l link, addr string) (client, server *conn) {
	up, down := newStream(n, l), newStream(n, link{l.to, l.from})
	for _, s := range []*stream{up, down} {
		s.cut = n.cutLocked(s.link)
		n.streams[s] = struct{}{}
	}
	local := address(n.ephemeralLocked(l.from))
	return &conn{in: down, out: up, local: local, remote: address(addr)},
		&conn{in: up, out: down, local: address(addr), remote: local}
}

func (n *Network) ephemeralLocked(node string) string {
	n.nextPort++
	return net.JoinHostPort(node, strconv.Itoa(n.nextPort))
}

// SetLatency sets how long bytes travel in each direction from now on.
func (n *Network) SetLatency(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = d
}

// Partition heals the network and then cuts every link between nodes of different groups. Nodes in no group
// reach all.
func (n *Network) Partition(groups ...[]string) {
	n.change(func() {
		clear(n.cut)
		clear(n.isolated)
		for i, group := range groups {
			others := slices.Concat(append(slices.Clone(groups[:i]), groups[i+1:]...)...)
			for _, a := range group {
				for _, b := range others {
					n.cut[link{a, b}] = true
				}
			}
		}
	})
}

// Cut cuts the link between a and b in both directions.
func (n *Network) Cut(a, b string) {
	n.change(func() { n.cut[link{a, b}], n.cut[link{b, a}] = true, true })
}

// CutOneWay cuts the direction from one node to another; the other direction is unchanged.
func (n *Network) CutOneWay(from, to string) {
	n.change(func() { n.cut[link{from, to}] = true })
}

// Isolate cuts a node off all others. It can still connect to itself.
func (n *Network) Isolate(node string) {
	n.change(func() { n.isolated[node] = true })
}

// Heal restores every link and releases held bytes.
func (n *Network) Heal() {
	n.change(func() {
		clear(n.cut)
		clear(n.isolated)
	})
}

// Reset breaks every connection from or to node, on both sides and at once, like the death of its process. Its
// listeners stay.
func (n *Network) Reset(node string) {
	n.mu.Lock()
	var broken []*stream
	for s := range n.streams {
		if s.link.from == node || s.link.to == node {
			broken = append(broken, s)
		}
	}
	n.mu.Unlock()
	for _, s := range broken {
		s.reset()
	}
}

// change alters links and updates the connections and dials that depend on them.
func (n *Network) change(alter func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	alter()
	for s := range n.streams {
		s.setCut(n.cutLocked(s.link), n.latency)
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *Network) cutLocked(l link) bool {
	return n.cut[l] || l.from != l.to && (n.isolated[l.from] || n.isolated[l.to])
}

func (n *Network) forget(s *stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.streams, s)
}

type listener struct {
	network *Network
	addr    address
	conns   chan *conn
	done    chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, opError("accept", string(l.addr), net.ErrClosed)
	}
}

func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[string(l.addr)] != l {
		l.network.mu.Unlock()
		return opError("close", string(l.addr), net.ErrClosed)
	}
	delete(l.network.listeners, string(l.addr))
	close(l.done)
	l.network.mu.Unlock()
	for {
		select {
		case c := <-l.conns:
			c.reset()
		default:
			return nil
		}
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

type address string

func (address) Network() string  { return "mem" }
func (a address) String() string { return string(a) }

func opError(op, addr string, err error) error {
	return &net.OpError{Op: op, Net: "mem", Addr: address(addr), Err: err}
}
