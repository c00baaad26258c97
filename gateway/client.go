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

// ClientConfig says where the coordinators are and how to talk to them.
type ClientConfig struct {
	// Coordinators are host:port addresses of cluster ports. One that answers is enough to find the others.
	Coordinators []string
	// Cluster is the only cluster id to accept; by default that of the first leader found.
	Cluster string
	// TLS, if set, holds the CA and this client's certificate; without it connections are in plain text.
	TLS *tls.Config
	// PingInterval is how often a known leader is pinged; 500 ms by default, ±10 %.
	PingInterval time.Duration
	// DiscoveryInterval is how often all coordinators are pinged while none is known; 50 ms by default, ±10 %.
	DiscoveryInterval time.Duration
	// PingTimeout is how long a ping waits for its answer; 200 ms by default.
	PingTimeout time.Duration
	// CallTimeout is how long one attempt of any other unary call may take; 10 s by default.
	CallTimeout time.Duration
	// Logger is silent by default.
	Logger *slog.Logger
	// DialContext replaces the TCP dialer, for tests.
	DialContext func(ctx context.Context, address string) (net.Conn, error)
	// DialOptions are added to the client's own.
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

// Leader is a coordinator that has said itself that it leads.
type Leader struct {
	Cluster string
	Node    string
	// Address is where it answered.
	Address string
	Epoch   uint64
}

// leadership is a leader with what calls to it need.
type leadership struct {
	Leader
	conn *grpc.ClientConn
	// done ends when another node is found to lead, and with it the calls to this one.
	done context.Context
	end  context.CancelFunc
}

// Client finds the leading coordinator and calls it. From its first use to Close it follows the leader in the
// background. It is safe for concurrent use.
type Client struct {
	cfg  ClientConfig
	log  *slog.Logger
	dial []grpc.DialOption

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu           sync.Mutex
	started      bool
	conns        map[string]*grpc.ClientConn // by address; one that nobody calls goes idle by itself
	cluster      string                      // "" until known
	epoch        uint64                      // the highest told by any node of the cluster
	leader       *leadership                 // the last one confirmed
	confirmed    bool                        // and nothing speaks against it since
	foreignError error                       // why nobody is believed, when only foreign coordinators answer
	answers      map[string]string           // the last words of each address, for errors
	changed      chan struct{}               // closed, and replaced, with every change of the fields above
}

// NewClient checks cfg; it connects to nothing yet.
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

// maxMessage leaves room for the largest batch and page with what wraps them.
const maxMessage = 16 << 20

// maxStatus leaves room for the status of a million services.
const maxStatus = 256 << 20

func dialOptions(cfg ClientConfig) []grpc.DialOption {
	transport := insecure.NewCredentials()
	if cfg.TLS != nil {
		transport = credentials.NewTLS(cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// Coordinators are neighbours: a proxy named in the environment is not for them.
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(
			grpc.WaitForReady(false),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage),
		),
		// A failover takes raft 0.3 s, so a coordinator that is back has to be noticed in less; at these rates
		// trying is free.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		// Pings find a dead leader; this is for the connections below them, so that one that a partition left
		// behind is given up 3 s after something was sent on it.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
	}
	if cfg.DialContext != nil {
		opts = append(opts, grpc.WithContextDialer(cfg.DialContext))
	}
	return append(opts, cfg.DialOptions...)
}

// Close ends all calls and connections. It may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	c.end() // under the lock, so that no task starts once they are waited for
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

// Conn is the connection to the coordinator at address; the Client keeps it and closes it.
func (c *Client) Conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, ErrClosed
	}
	if conn, ok := c.conns[address]; ok {
		return conn, nil
	}
	// passthrough leaves the name to the dialer, which resolves it again for every connection: containers and
	// pods come back with other addresses.
	conn, err := grpc.NewClient("passthrough:///"+address, c.dial...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c.conns[address] = conn
	return conn, nil
}

// Ping asks the coordinator at address who leads, and waits at most PingTimeout.
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

// Leader returns the leading coordinator, and looks for one until ctx ends: then the error is ErrNoLeader and
// lists what each coordinator said. ForeignClusterError comes at once.
func (c *Client) Leader(ctx context.Context) (Leader, error) {
	l, err := c.waitLeader(ctx)
	if err != nil {
		return Leader{}, err
	}
	return l.Leader, nil
}

// LeaderConn returns a connection to the leader, for the services this package doesn't wrap.
func (c *Client) LeaderConn(ctx context.Context) (*grpc.ClientConn, Leader, error) {
	l, err := c.waitLeader(ctx)
	if err != nil {
		return nil, Leader{}, err
	}
	return l.conn, l.Leader, nil
}

// Leaders yields each leader, and each new epoch of one, as it is found, until ctx ends or the Client is closed.
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

// snapshot returns the confirmed leader, nil when there is none for now, with a channel that closes when that
// changes. Its first call starts to follow the leader.
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

// missing says why there is no leader to call; nil when there is one, or none was needed yet.
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

// jitter spreads d by a tenth both ways, so that clients do not march in step.
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
