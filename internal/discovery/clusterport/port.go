package clusterport

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

// The prefaces are the first bytes of a plain connection. Both have the same length, so that one read decides and
// takes nothing of Raft's stream beyond the preface.
const (
	grpcPreface = "PRI * HTTP/2.0\r\n"
	raftPreface = "rollcall-raft/1\n"
	prefaceLen  = len(grpcPreface)

	tlsHandshake = 0x16 // first byte of a TLS connection
)

// Config is the configuration of a port.
type Config struct {
	// Listener accepts the connections. The port owns it from New on.
	Listener net.Listener
	// TLS makes every connection mutual TLS; nil for plain TCP.
	TLS *TLS
	// Dial connects to other ports; a net.Dialer by default.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// SniffTimeout is the time limit for identifying a connection and passing it on; 1 s by default.
	SniffTimeout time.Duration
	// MaxPending is the maximum number of connections being identified; 1,024 by default. Above it the oldest is
	// closed.
	MaxPending int
	// Logger receives the port's log; by default there is none.
	Logger *slog.Logger
	// Metrics are unregistered by default.
	Metrics *Metrics
}

func (c *Config) withDefaults() error {
	c.SniffTimeout = cmp.Or(c.SniffTimeout, time.Second)
	c.MaxPending = cmp.Or(c.MaxPending, 1024)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler)).With("component", "clusterport")
	c.Metrics = cmp.Or(c.Metrics, NewMetrics(nil))
	if c.Dial == nil {
		var dialer net.Dialer
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}
	}
	var problems []error
	if c.Listener == nil {
		problems = append(problems, errors.New("no listener"))
	}
	if c.SniffTimeout < 0 {
		problems = append(problems, fmt.Errorf("sniff timeout %s is negative", c.SniffTimeout))
	}
	if c.MaxPending < 0 {
		problems = append(problems, fmt.Errorf("max pending %d is negative", c.MaxPending))
	}
	if c.TLS != nil {
		if err := c.TLS.requireRole(pki.RoleCoordinator); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// Port routes the connections of one listener to gRPC and Raft, and dials other ports. It is safe for concurrent use.
type Port struct {
	cfg        Config
	grpc, raft *queue

	mu      sync.Mutex
	pending *list.List // of net.Conn, oldest first; nil once closed

	done     chan struct{} // closed by Close
	lastWarn atomic.Int64  // UnixNano of the last refusal logged as a warning
}

// New returns a port that accepts no connections until Run.
func New(cfg Config) (*Port, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("cluster port: %w", err)
	}
	addr := cfg.Listener.Addr()
	return &Port{
		cfg:     cfg,
		grpc:    newQueue(addr),
		raft:    newQueue(addr),
		pending: list.New(),
		done:    make(chan struct{}),
	}, nil
}

// Addr returns the address of the listener.
func (p *Port) Addr() net.Addr { return p.cfg.Listener.Addr() }

// GRPC returns the listener for grpc.Server.Serve, to be served with [Port.ServerCredentials]. Closing it refuses
// further gRPC connections and leaves the port open.
func (p *Port) GRPC() net.Listener { return p.grpc }

// Run accepts connections until ctx ends or Close is called. It then closes the port and returns nil.
func (p *Port) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer func() {
		_ = p.Close()
		wg.Wait()
	}()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	if p.cfg.TLS != nil {
		wg.Go(p.watchCertificate)
	}

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 5*time.Millisecond, time.Second
	for {
		conn, err := p.cfg.Listener.Accept()
		if err == nil {
			pause.Reset()
			if release, ok := p.admit(conn); ok {
				wg.Go(func() { p.route(conn, release) })
			} else {
				_ = conn.Close()
			}
			continue
		}
		if p.closed() {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("cluster port: %w", err)
		}
		p.cfg.Metrics.acceptErrors.Inc()
		p.cfg.Logger.Warn("accept failed", "err", err)
		select {
		case <-time.After(pause.NextBackOff()):
		case <-p.done:
		}
	}
}

// watchCertificate checks the certificate files periodically, also without connections.
func (p *Port) watchCertificate() {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		p.cfg.Metrics.expiry.Set(float64(p.cfg.TLS.Expiry().Unix()))
		select {
		case <-ticker.C:
		case <-p.done:
			return
		}
	}
}

// Close stops the port: it accepts no more connections, and closes those not passed on yet. gRPC and Raft own the
// others. Close is idempotent and does not wait for Run.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		return nil
	}
	for e := p.pending.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	p.pending = nil
	close(p.done)
	_ = p.grpc.Close()
	_ = p.raft.Close()
	if err := p.cfg.Listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close cluster port: %w", err)
	}
	return nil
}

func (p *Port) closed() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// route passes conn to gRPC or Raft, or closes it. release is the function from admit.
func (p *Port) route(conn net.Conn, release func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.SniffTimeout)
	defer cancel()
	to, sorted, err := p.identify(ctx, conn)
	if !release() {
		err = errEvicted
	}
	if err == nil {
		err = to.deliver(ctx, sorted)
	}
	if err != nil {
		_ = conn.Close()
		p.refused(conn, err)
	}
}

// admit adds conn to the pending connections, and closes the oldest if there are too many. A peer of our protocols
// sends its preface at once, so the oldest connection is most likely silent. release reports whether conn was still
// pending. ok is false on a closed port.
func (p *Port) admit(conn net.Conn) (release func() bool, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		return nil, false
	}
	if p.pending.Len() >= p.cfg.MaxPending {
		_ = p.pending.Remove(p.pending.Front()).(net.Conn).Close()
	}
	at := p.pending.PushBack(conn)
	p.cfg.Metrics.pending.Set(float64(p.pending.Len()))
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pending == nil {
			return false
		}
		before := p.pending.Len()
		p.pending.Remove(at) // no effect if at was removed before
		p.cfg.Metrics.pending.Set(float64(p.pending.Len()))
		return p.pending.Len() < before
	}, true
}

// identify determines the protocol of conn. The returned connection has no deadline.
func (p *Port) identify(ctx context.Context, conn net.Conn) (*queue, net.Conn, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, nil, &refusal{reason: reasonSilent, err: err}
	}
	identify := p.identifyPlain
	if p.cfg.TLS != nil {
		identify = p.identifyTLS
	}
	to, sorted, err := identify(conn)
	if err != nil {
		return nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, &refusal{reason: reasonSilent, err: err}
	}
	return to, sorted, nil
}

func (p *Port) identifyPlain(conn net.Conn) (*queue, net.Conn, error) {
	preface := make([]byte, prefaceLen)
	if n, err := io.ReadFull(conn, preface); err != nil {
		return nil, nil, &refusal{reason: reasonSilent, err: fmt.Errorf("after %d bytes: %w", n, err)}
	}
	switch string(preface) {
	case grpcPreface:
		return p.grpc, &replayConn{Conn: conn, unread: preface}, nil
	case raftPreface:
		return p.raft, conn, nil
	}
	if preface[0] == tlsHandshake {
		return nil, nil, &refusal{reason: reasonTLS, err: errors.New("peer speaks TLS, this port does not")}
	}
	return nil, nil, &refusal{reason: reasonUnknown, err: fmt.Errorf("starts with %q", preface)}
}

func (p *Port) identifyTLS(raw net.Conn) (*queue, net.Conn, error) {
	conn := tls.Server(raw, p.cfg.TLS.serverConfig())
	if err := conn.Handshake(); err != nil {
		reason := reasonTLS
		if silent(err) {
			reason = reasonSilent
		}
		return nil, nil, &refusal{reason: reason, err: err}
	}
	switch conn.ConnectionState().NegotiatedProtocol {
	case ALPNgRPC:
		return p.grpc, conn, nil
	case ALPNRaft:
		return p.raft, conn, nil
	}
	return nil, nil, &refusal{reason: reasonTLS, err: errors.New("no application protocol agreed on")}
}

// refused counts and logs a closed connection. A TLS error may be an operator's mistake, so only that is a warning, at
// most one per second, because any client can cause it.
func (p *Port) refused(conn net.Conn, err error) {
	if p.closed() {
		return
	}
	reason := reasonNotServed
	if refused, ok := errors.AsType[*refusal](err); ok {
		reason = refused.reason
	}
	p.cfg.Metrics.refused.WithLabelValues(reason).Inc()
	level := slog.LevelDebug
	if now, last := time.Now().UnixNano(), p.lastWarn.Load(); reason == reasonTLS &&
		now-last >= int64(time.Second) && p.lastWarn.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	p.cfg.Logger.Log(context.Background(), level, "connection refused",
		"remote", conn.RemoteAddr().String(), "reason", reason, "err", err)
}

// refusal is the reason why a connection was closed before it was passed on.
type refusal struct {
	reason string // label of the metric
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

var errEvicted = &refusal{reason: reasonEvicted, err: errors.New("too many connections at once")}

// silent reports whether err means that the peer sent nothing, or nothing more.
func silent(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)
}

// replayConn reads the preface again before the rest of the connection.
type replayConn struct {
	net.Conn
	unread []byte
}

func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.unread) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// queue is the listener of one protocol.
type queue struct {
	addr  net.Addr
	conns chan net.Conn // unbuffered, so that every connection has an owner
	done  chan struct{}
	close func()
}

func newQueue(addr net.Addr) *queue {
	q := &queue{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	q.close = sync.OnceFunc(func() { close(q.done) })
	return q
}

func (q *queue) deliver(ctx context.Context, conn net.Conn) error {
	select {
	case q.conns <- conn:
		return nil
	case <-q.done:
		return errors.New("protocol is not served")
	case <-ctx.Done():
		return fmt.Errorf("not accepted: %w", ctx.Err())
	}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *queue) Addr() net.Addr { return q.addr }

func (q *queue) Close() error {
	q.close()
	return nil
}
