package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// lateLimit is how late this process's timers may be before a failure no longer counts against a service.
	lateLimit = 50 * time.Millisecond
	// maxBody is how much of a response is read, so that its connection can be kept.
	maxBody = 64 << 10
	// maxReason limits text from a service in logs and in Redis.
	maxReason = 200

	userAgent = "rollcall-health"
)

// probe checks one URL, one call at a time.
type probe interface {
	// check returns nil if the service is healthy. It ends at the deadline, or when ctx does. ctx has no deadline,
	// because a timer per check would be most of the cost of some checks.
	check(ctx context.Context, deadline time.Time) error
	// close releases the probe's resources; no check runs.
	close()
}

// answer is an error from the service itself: it was reached and reported a failure.
type answer string

func (a answer) Error() string { return string(a) }

// errLate is a failure detected so long after its own deadline that this process must have stalled.
var errLate = errors.New("deadline noticed too late")

// definite reports whether the failure comes from the service itself, however late it was read.
func definite(err error) bool {
	var a answer
	return errors.As(err, &a) || errors.Is(err, syscall.ECONNREFUSED)
}

// local reports whether this machine lacked resources for the check. An unreachable network does not count, because
// the service's network may be at fault.
func local(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// reason returns in a short line why a check failed.
func reason(err error) string {
	s := strings.Map(printable, strings.ToValidUTF8(err.Error(), "?")) // it may quote the service
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s = "connection closed before the answer was complete"
	}
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// prober creates probes, and holds their shared state.
type prober struct {
	cfg      Config
	path     *url.URL
	expected [600]bool
	connPool connPool
	// secrets are the texts that no reason may contain; never changed.
	secrets []string
	// header and authHeader are the headers of HTTP checks; never changed.
	header, authHeader http.Header
}

// newProber returns a prober for a complete Config.
func newProber(cfg Config) *prober {
	p := &prober{
		cfg:      cfg,
		secrets:  secrets(cfg.Auth.Value),
		header:   http.Header{"User-Agent": {userAgent}},
		connPool: connPool{limit: max(1, maxOpenFiles()/2), idle: make(map[origin]*httpConn)},
	}
	p.path, _ = url.Parse(cfg.Path) // validated
	for _, code := range cfg.Codes {
		p.expected[code] = true
	}
	if cfg.Auth.Header != "" {
		p.authHeader = p.header.Clone()
		p.authHeader.Set(cfg.Auth.Header, cfg.Auth.Value)
	}
	return p
}

func (p *prober) tls() *tls.Config {
	if p.cfg.TLS == nil {
		return &tls.Config{}
	}
	return p.cfg.TLS.Clone()
}

func (p *prober) close() { p.connPool.closeAll() }

// schemes are the URL schemes that can be checked.
var schemes = [...]string{"http", "https", "grpc", "grpcs", "tcp"}

// probe returns the probe for a target. With a URL that cannot be checked, each check fails with the reason.
func (p *prober) probe(t Target) probe {
	if p.cfg.Probe != nil {
		return probeFunc(func(ctx context.Context) error { return p.cfg.Probe(ctx, t) })
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return broken("URL does not parse")
	}
	if slices.Contains(schemes[:], u.Scheme) && u.Hostname() == "" {
		return broken("URL names no host") // a dial would use the local host
	}
	switch u.Scheme {
	case "http", "https":
		return p.http(u)
	case "grpc", "grpcs":
		return &grpcProbe{prober: p, url: u}
	case "tcp":
		return probeFunc(func(ctx context.Context) error {
			conn, err := p.dial(ctx, "tcp", u.Host)
			if err != nil {
				return err
			}
			_ = conn.Close() // it was opened; an error of closing is irrelevant
			return nil
		})
	default:
		return broken(answer(fmt.Sprintf("URL has the scheme %.20q, which cannot be checked", u.Scheme)))
	}
}

// probeFunc is a probe without resources. Its context has the deadline.
type probeFunc func(ctx context.Context) error

func (f probeFunc) check(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return f(ctx)
}

func (probeFunc) close() {}

func broken(why answer) probe { return probeFunc(func(context.Context) error { return why }) }

// dial connects within the connect timeout, including name resolution.
func (p *prober) dial(ctx context.Context, network, address string) (net.Conn, error) {
	start := p.cfg.clock()
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ConnectTimeout)
	defer cancel()
	conn, err := p.cfg.Dial(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	if timeout, ok := errors.AsType[net.Error](err); ctx.Err() == nil && (!ok || !timeout.Timeout()) {
		return nil, err
	}
	if p.cfg.clock().Sub(start) > p.cfg.ConnectTimeout+lateLimit {
		return nil, errLate
	}
	step := "connect"
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		step = "name lookup"
	}
	return nil, fmt.Errorf("%s: no answer within %v", step, p.cfg.ConnectTimeout)
}
