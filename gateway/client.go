package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ClientConfig configures the coordinators' addresses and the connections to them.
type ClientConfig struct {
	// Coordinators are host:port addresses of cluster ports. One coordinator that responds is enough to find the
	// others.
	Coordinators []string
	// Cluster is the only cluster id to accept; by default the id of the first leader found.
	Cluster string
	// TLS, if set, holds the CA and this client's certificate. Without it connections are in plain text.
	TLS *tls.Config
	// PingInterval is how often the confirmed leader is pinged; 500 ms by default, ±10 %.
	PingInterval time.Duration
	// DiscoveryInterval is how often all coordinators are pinged while there is no leader; 50 ms by default, ±10 %.
	DiscoveryInterval time.Duration
	// PingTimeout is how long a ping waits for its response; 200 ms by default.
	PingTimeout time.Duration
	// CallTimeout is how long one attempt of any other unary call may take; 10 s by default.
	CallTimeout time.Duration
	// Logger receives the client's log; by default there is none.
	Logger *slog.Logger
	// DialContext replaces the TCP dialer, for tests.
	DialContext func(ctx context.Context, address string) (net.Conn, error)
	// DialOptions are added to the client's own options.
	DialOptions []grpc.DialOption
}

func (c *ClientConfig) validate() error {
	c.PingInterval = cmp.Or(c.PingInterval, 500*time.Millisecond)
	c.DiscoveryInterval = cmp.Or(c.DiscoveryInterval, 50*time.Millisecond)
	c.PingTimeout = cmp.Or(c.PingTimeout, 200*time.Millisecond)
	c.CallTimeout = cmp.Or(c.CallTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if len(c.Coordinators) == 0 {
		errs = append(errs, errors.New("coordinators: at least one address is needed"))
	}
	for _, address := range c.Coordinators {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("coordinators: %q is not host:port", address))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"ping interval", c.PingInterval}, {"discovery interval", c.DiscoveryInterval},
		{"ping timeout", c.PingTimeout}, {"call timeout", c.CallTimeout},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %v is shorter than 1ms", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Leader is a coordinator that claims to lead.
type Leader struct {
	Cluster string
	Node    string
	// Address is the address at which it responded.
	Address string
	Epoch   uint64
}

// leadership is a leader with the connection for calls to it.
type leadership struct {
	Leader
	conn *grpc.ClientConn
	// done ends when another node becomes the leader. It cancels the calls to this one.
	done context.Context
	end  context.CancelFunc
}

// Client finds the leading coordinator and calls it. It follows the leader in the background from its first use to
// Close. It is safe for concurrent use.
type Client struct {
	cfg  ClientConfig
	log  *slog.Logger
	dial []grpc.DialOption

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu           sync.Mutex
	started      bool
	conns        map[string]*grpc.ClientConn // by address; an unused one becomes idle by itself
	cluster      string                      // empty until the first leader
	epoch        uint64                      // the highest that any node of the cluster reported
	leader       *leadership                 // the last one confirmed
	confirmed    bool                        // no call or ping has made the leader doubtful since
	foreignError error                       // set when only foreign coordinators respond
	answers      map[string]string           // the last response of each address, for errors
	changed      chan struct{}               // closed, and replaced, with every change of the fields above
}

// NewClient checks cfg. It does not connect yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gateway client: %w", err)
	}
	cfg.Coordinators = slices.Compact(slices.Clone(cfg.Coordinators))
	c := &Client{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "gateway"),
		dial:    dialOptions(cfg),
		conns:   map[string]*grpc.ClientConn{},
		cluster: cfg.Cluster,
		answers: map[string]string{},
		changed: make(chan struct{}),
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// maxMessage is enough for the largest batch and page with their wrapping.
const maxMessage = 16 << 20

// maxStatus is enough for the status of a million services.
const maxStatus = 256 << 20

func dialOptions(cfg ClientConfig) []grpc.DialOption {
	transport := insecure.NewCredentials()
	if cfg.TLS != nil {
		transport = credentials.NewTLS(cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// Coordinators are in the same network, so a proxy from the environment must not be used.
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(
			grpc.WaitForReady(false),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage),
		),
		// A failover takes Raft 0.3 s, so a returning coordinator must be noticed sooner. At these rates the attempts
		// cost nothing.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		// Pings detect a dead leader. Keepalive detects dead connections: a connection lost in a partition is closed 3
		// s after the client sent something on it.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
	}
	if cfg.DialContext != nil {
		opts = append(opts, grpc.WithContextDialer(cfg.DialContext))
	}
	return append(opts, cfg.DialOptions...)
}

// Close ends all calls and closes all connections. It may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	c.end() // with c.mu held, so that no task starts after Wait
	c.mu.Unlock()
	c.tasks.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for address, conn := range c.conns {
		errs = append(errs, conn.Close())
		delete(c.conns, address)
	}
	return errors.Join(errs...)
}

// Conn returns the connection to the coordinator at address. The Client keeps it and closes it.
func (c *Client) Conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, ErrClosed
	}
	if conn, ok := c.conns[address]; ok {
		return conn, nil
	}
	// passthrough leaves name resolution to the dialer, which resolves again for every connection, because containers
	// and pods return with other addresses.
	conn, err := grpc.NewClient("passthrough:///"+address, c.dial...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c.conns[address] = conn
	return conn, nil
}

// Ping asks the coordinator at address for the leader, and waits at most PingTimeout.
func (c *Client) Ping(ctx context.Context, address string) (*rollcallv1.PingResponse, error) {
	conn, err := c.Conn(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.PingTimeout)
	defer cancel()
	resp, err := rollcallv1.NewDiscoveryServiceClient(conn).Ping(ctx, &rollcallv1.PingRequest{})
	if err != nil {
		return nil, fmt.Errorf("ping %s: %w", address, FromStatus(err))
	}
	return resp, nil
}

// Leader returns the leading coordinator, and searches for it until ctx ends. Then it returns ErrNoLeader with each
// coordinator's last response. It returns ForeignClusterError at once.
func (c *Client) Leader(ctx context.Context) (Leader, error) {
	l, err := c.waitLeader(ctx)
	if err != nil {
		return Leader{}, err
	}
	return l.Leader, nil
}

// LeaderConn returns a connection to the leader, for services that this package does not wrap.
func (c *Client) LeaderConn(ctx context.Context) (*grpc.ClientConn, Leader, error) {
	l, err := c.waitLeader(ctx)
	if err != nil {
		return nil, Leader{}, err
	}
	return l.conn, l.Leader, nil
}

// Leaders yields each leader and each new epoch when it is found, until ctx ends or the Client is closed.
func (c *Client) Leaders(ctx context.Context) iter.Seq[Leader] {
	return func(yield func(Leader) bool) {
		var last Leader
		for {
			l, changed, err := c.snapshot()
			if errors.Is(err, ErrClosed) {
				return
			}
			if l != nil && l.Leader != last {
				last = l.Leader
				if !yield(last) {
					return
				}
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}

// snapshot returns the confirmed leader, or nil, and a channel that is closed on the next change. The first call
// starts following the leader.
func (c *Client) snapshot() (*leadership, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, nil, ErrClosed
	}
	if !c.started {
		c.started = true
		c.tasks.Go(c.follow)
	}
	if !c.confirmed {
		return nil, c.changed, c.foreignError
	}
	return c.leader, c.changed, nil
}

// waitLeader waits for a confirmed leader.
func (c *Client) waitLeader(ctx context.Context) (*leadership, error) {
	for {
		l, changed, err := c.snapshot()
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-changed:
		case <-c.life.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, &noLeaderError{cause: ctx.Err(), words: c.lastResponses()}
		}
	}
}

// missing returns why there is no leader to call. It returns nil if there is one, or if none was needed yet.
func (c *Client) missing() error {
	c.mu.Lock()
	started, sure, refusal := c.started, c.confirmed, c.foreignError
	c.mu.Unlock()
	switch {
	case !started || sure:
		return nil
	case refusal != nil:
		return refusal
	}
	return &noLeaderError{words: c.lastResponses()}
}

func (c *Client) lastResponses() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var words []string
	for _, address := range slices.Sorted(maps.Keys(c.answers)) {
		words = append(words, address+": "+c.answers[address])
	}
	return strings.Join(words, "; ")
}

// jitter varies d by ±10 %, so that clients do not call in step.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
