package coordinator

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// peers holds a connection to each coordinator, and what each last said of itself. Safe for concurrent use.
type peers struct {
	dial      func(addr string) (*grpc.ClientConn, error)
	addresses map[raft.ServerID]string // of the configured peers; they beat what the log says

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn // by address
	facts  map[string]peerInfo
	closed bool
}

// peerInfo is what a node said of itself, and when it was asked.
type peerInfo struct {
	*rollcallv1.DescribeResponse
	asked time.Time
}

func newPeers(cfg *Config, port *clusterport.Port) *peers {
	p := &peers{
		dial: func(addr string) (*grpc.ClientConn, error) {
			return port.NewClient(addr,
				// A peer that comes back is needed within an election, not after gRPC's default of a second or more.
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
					MinConnectTimeout: time.Second,
				}),
				// A follower's connections idle until it leads. One that a partition or a new address left dead
				// looks connected, and TCP would go on trying for a quarter of an hour, in which no term could be
				// confirmed. Timeout also bounds how long Linux waits for what was sent to be acknowledged.
				grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true}),
				// So that the status of a large fleet does not wait for round trips.
				grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
			)
		},
		addresses: make(map[raft.ServerID]string),
		conns:     make(map[string]*grpc.ClientConn),
		facts:     make(map[string]peerInfo),
	}
	for _, peer := range cfg.Peers {
		p.addresses[raft.ServerID(peer.ID)] = peer.Address
	}
	return p
}

// ServerAddr lets Raft find a peer whose address changed since it was written to the log.
func (p *peers) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if addr, ok := p.addresses[id]; ok {
		return raft.ServerAddress(addr), nil
	}
	return "", &net.AddrError{Err: "not among the configured peers", Addr: string(id)} // Raft then uses the log's
}

// address is where a member is reached.
func (p *peers) address(s raft.Server) string {
	if addr, ok := p.addresses[s.ID]; ok {
		return addr
	}
	return string(s.Address)
}

func (p *peers) client(s raft.Server) (rollcallv1.PeerServiceClient, error) {
	conn, err := p.conn(p.address(s))
	if err != nil {
		return nil, err
	}
	return rollcallv1.NewPeerServiceClient(conn), nil
}

func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errStopping
	}
	if c, ok := p.conns[addr]; ok {
		return c, nil
	}
	c, err := p.dial(addr)
	if err != nil {
		return nil, err
	}
	p.conns[addr] = c
	return c, nil
}

// describe asks the servers at once and remembers what they say. A server that does not answer in time is
// missing from the result.
func (p *peers) describe(ctx context.Context, servers []raft.Server, timeout time.Duration) map[raft.ServerID]*rollcallv1.DescribeResponse {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked := time.Now()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		out = make(map[raft.ServerID]*rollcallv1.DescribeResponse)
	)
	for _, s := range servers {
		wg.Go(func() {
			client, err := p.client(s)
			if err != nil {
				return
			}
			d, err := client.Describe(ctx, &rollcallv1.DescribeRequest{}, grpc.WaitForReady(true))
			if err != nil || d.Node != string(s.ID) {
				return // somebody else at that address is as good as nobody
			}
			mu.Lock()
			out[s.ID] = d
			mu.Unlock()
		})
	}
	wg.Wait()
	p.mu.Lock()
	for id, d := range out {
		p.facts[string(id)] = peerInfo{d, asked}
	}
	p.mu.Unlock()
	return out
}

// resetBackoff has peers that did not answer tried again at once, and often for a while.
func (p *peers) resetBackoff(servers []raft.Server) {
	for _, s := range servers {
		if conn, err := p.conn(p.address(s)); err == nil { // otherwise there is nothing to hurry
			conn.ResetConnectBackoff()
		}
	}
}

// peerInfoOf is what a node last said of itself; nil if it never did.
func (p *peers) peerInfoOf(node string) *rollcallv1.DescribeResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts[node].DescribeResponse
}

// peerInfoRefresh is what a node said of itself within the last while; nil if it did not.
func (p *peers) peerInfoRefresh(node string, within time.Duration) *rollcallv1.DescribeResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.facts[node]; time.Since(f.asked) <= within {
		return f.DescribeResponse
	}
	return nil
}

func (p *peers) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// without leaves one node out.
func without(servers []raft.Server, id string) []raft.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool { return string(s.ID) == id })
}
