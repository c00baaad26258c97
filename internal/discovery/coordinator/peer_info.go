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

// peers holds a connection to each coordinator, and each one's last description. It is safe for concurrent use.
type peers struct {
	dial      func(addr string) (*grpc.ClientConn, error)
	addresses map[raft.ServerID]string // of the configured peers; they override the log's

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn // by address
	facts  map[string]peerInfo
	closed bool
}

// peerInfo is a node's description of itself, with the time of the request.
type peerInfo struct {
	*rollcallv1.DescribeResponse
	asked time.Time
}

func newPeers(cfg *Config, port *clusterport.Port) *peers {
	p := &peers{
		dial: func(addr string) (*grpc.ClientConn, error) {
			return port.NewClient(addr,
				// A returning peer is needed within an election, not after gRPC's default of a second or more.
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
					MinConnectTimeout: time.Second,
				}),
				// A follower's connections are idle until it leads. A connection that died in a partition or with an
				// address change looks connected, and TCP would retry for a quarter of an hour. No term could be
				// confirmed in that time. Timeout also limits how long Linux waits for acknowledgement of sent data.
				grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true}),
				// Large windows, so that the status of a large fleet does not wait for round trips.
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

// ServerAddr returns the configured address of a peer, which may have changed since it was written to the log.
func (p *peers) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if addr, ok := p.addresses[id]; ok {
		return raft.ServerAddress(addr), nil
	}
	return "", &net.AddrError{Err: "not among the configured peers", Addr: string(id)} // Raft then uses the log's
}

// address returns the address of a member.
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

// describe calls all servers concurrently and stores their descriptions. The result lacks servers that do not respond
// in time.
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
				return // another node at that address counts as no response
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

// resetBackoff makes gRPC retry unreachable peers at once, and frequently for a while.
func (p *peers) resetBackoff(servers []raft.Server) {
	for _, s := range servers {
		if conn, err := p.conn(p.address(s)); err == nil { // otherwise there is no backoff to reset
			conn.ResetConnectBackoff()
		}
	}
}

// peerInfoOf returns a node's last description; nil if there is none.
func (p *peers) peerInfoOf(node string) *rollcallv1.DescribeResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts[node].DescribeResponse
}

// peerInfoRefresh returns a node's description if it is not older than within; otherwise nil.
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

// without returns the servers except one.
func without(servers []raft.Server, id string) []raft.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s raft.Server) bool { return string(s.ID) == id })
}
