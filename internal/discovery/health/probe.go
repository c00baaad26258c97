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
	// lateLimit is how late this process's timers may be before a failure is no longer held against a service.
	lateLimit = 50 * time.Millisecond
	// maxBody is how much of an answer is read, so that its connection can be kept.
	maxBody = 64 << 10
	// maxReason bounds what a service can put into logs and into Redis.
	maxReason = 200

	userAgent = "rollcall-health"
)

// probe checks one URL, one call at a time.
type probe interface {
	// check returns nil when the service is healthy. It ends at the deadline, or when ctx does; that has none itself,
	// for a timer of its own in each check would be most of what some checks cost.
	check(ctx context.Context, deadline time.Time) error
	// close drops what the probe holds; no check runs.
	close()
}

// answer is an error in the service's own words: it was reached and said no.
type answer string

func (a answer) Error() string { return string(a) }

// errLate is a failure that came so late after its own deadline that this process must have been held up.
var errLate = errors.New("deadline noticed too late")

// definite reports whether the failure is the service's word, however late it was read.
func definite(err error) bool {
	var a answer
	return errors.As(err, &a) || errors.Is(err, syscall.ECONNREFUSED)
}

// local reports whether this machine was at fault: it lacked what a check needs. An unreachable network is not
// among these; it may just as well be the service's.
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

// reason says in a short line why a check failed.
func reason(err error) string {
	s := strings.ToValidUTF8(err.Error(), "?")
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s = "connection closed before the answer was complete"
	}
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// prober makes probes, and holds what they share.
type prober struct {
	cfg      Config
	path     *url.URL
	expected [600]bool
	connPool connPool
	// Headers of HTTP checks; never changed.
	header, authHeader http.Header
}

// newProber takes a complete Config.
func newProber(cfg Config) *prober {
	p := &prober{
		cfg:      cfg,
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

// schemes are those of URLs that can be checked.
var schemes = [...]string{"http", "https", "grpc", "grpcs", "tcp"}

// probe makes the probe for a target. One with a URL that nothing can check fails each check with the reason.
func (p *prober) probe(t Target) probe {
	if p.cfg.Probe != nil {
		return probeFunc(func(ctx context.Context) error { return p.cfg.Probe(ctx, t) })
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return broken("URL does not parse")
	}
	if slices.Contains(schemes[:], u.Scheme) && u.Hostname() == "" {
		return broken("URL names no host") // a dial would take it for this one
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
			_ = conn.Close() // it was opened; how it closes does not matter
			return nil
		})
	default:
		return broken(answer(fmt.Sprintf("URL has the scheme %.20q, which cannot be checked", u.Scheme)))
	}
}

// probeFunc is a probe that holds nothing. Its context has the deadline.
type probeFunc func(ctx context.Context) error

func (f probeFunc) check(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return f(ctx)
}

func (probeFunc) close() {}

func broken(why answer) probe { return probeFunc(func(context.Context) error { return why }) }

// dial connects within the connect timeout, name resolution included.
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
