package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/idna"
)

// maxHeader is the maximum size of a response's header, including interim responses.
const maxHeader = 16 << 10

var (
	errHeader    = errors.New("header of the answer exceeded 16 KiB")
	errMalformed = errors.New("malformed header of the answer")
)

// httpProbe sends one GET, without redirects, over a connection that is kept between checks. It implements HTTP/1.1
// itself, in the goroutine of the check.
type httpProbe struct {
	*prober
	origin origin
	// request is the whole encoded request.
	request []byte
}

// origin is the address of HTTP checks. Targets with the same origin share the kept connection.
type origin struct {
	secure  bool
	address string
}

// http returns the probe of an http or https URL.
func (p *prober) http(base *url.URL) probe {
	u := *base
	u.Path = strings.TrimSuffix(base.Path, "/") + p.path.Path
	u.RawPath, u.Fragment, u.RawFragment = "", "", ""
	if p.path.RawQuery != "" {
		u.RawQuery = p.path.RawQuery
	}
	header := p.header
	if p.cfg.Auth.allows(base) {
		header = p.authHeader
	}
	var request bytes.Buffer
	if err := (&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: header}).Write(&request); err != nil {
		return broken(answer(fmt.Sprintf("URL cannot be asked for: %v", err)))
	}
	host, port := u.Hostname(), u.Port()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return &httpProbe{
		prober:  p,
		origin:  origin{secure: u.Scheme == "https", address: net.JoinHostPort(host, port)},
		request: bytes.Clone(request.Bytes()),
	}
}

// check sends the request, on the kept connection if it has no unread data. If that returns no response header, the
// service has closed the connection in the meantime, and check sends the request again on a new one.
func (p *httpProbe) check(ctx context.Context, deadline time.Time) error {
	conn := p.connPool.take(p.origin)
	if conn != nil && !conn.isIdle(deadline) {
		p.connPool.close(conn)
		conn = nil
	}
	if conn != nil {
		code, why, err := p.ask(ctx, conn, deadline)
		if code != 0 && code != http.StatusRequestTimeout || expired(ctx, deadline, err) {
			return p.evaluate(ctx, deadline, code, why, err)
		}
	}
	conn, err := p.connect(ctx, deadline)
	if err != nil {
		return p.timedOut(ctx, deadline, err)
	}
	code, why, err := p.ask(ctx, conn, deadline)
	return p.evaluate(ctx, deadline, code, why, err)
}

// evaluate classifies a response. A code without the whole body is not a response. why is the reason in the body, if any.
func (p *httpProbe) evaluate(ctx context.Context, deadline time.Time, code int, why string, err error) error {
	if err != nil {
		return p.timedOut(ctx, deadline, err)
	}
	switch {
	case p.expects(code):
		return nil
	case why != "":
		return answer(fmt.Sprintf("status %d: %s", code, why))
	}
	return answer(fmt.Sprintf("status %d", code))
}

// expects reports whether a code is that of a healthy service.
func (p *prober) expects(code int) bool { return p.expected[min(code, len(p.expected)-1)] }

func (p *httpProbe) connect(ctx context.Context, deadline time.Time) (*httpConn, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", p.origin.address)
	if err != nil {
		return nil, err
	}
	raw := rawConn(conn)
	if !p.origin.secure {
		return &httpConn{Conn: conn, raw: raw}, nil
	}
	cfg := p.tls()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(p.origin.address)
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // no data was sent on it
		return nil, err
	}
	return &httpConn{Conn: secured, raw: raw, secure: true}, nil
}

// ask sends the request, reads the response, and keeps or closes the connection. The code is 0 without a response
// header. why is the reason in the body of a failing response. A non-nil error means that the response was incomplete.
func (p *httpProbe) ask(ctx context.Context, conn *httpConn, deadline time.Time) (code int, why string, err error) {
	keep := false
	defer func() {
		if keep {
			p.connPool.keep(p.origin, conn)
		} else {
			p.connPool.close(conn)
		}
	}()
	// A connection that does not accept deadlines would fail to send and read as well.
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() { keep = stop() && keep }()
	if _, err := conn.Write(p.request); err != nil {
		return 0, "", err
	}
	conn.left, conn.beyond = maxHeader, errHeader
	r := readers.Get().(*bufio.Reader)
	defer readers.Put(r)
	r.Reset(conn)
	defer r.Reset(nil)
	resp, err := readHead(r) //nolint:bodyclose // closing it would read on, without end
	if err != nil {
		if conn.left == 0 {
			err = errHeader // a header line cut at the limit reads as malformed
		}
		if p.repeatsSecret(err.Error()) {
			err = errMalformed // net/http's error quotes a malformed header line
		}
		return 0, "", err
	}
	conn.left, conn.beyond = maxBody, errBody
	if !p.expects(resp.StatusCode) {
		var head []byte
		head, err = io.ReadAll(io.LimitReader(resp.Body, maxQuoted))
		why = p.quotedReason(head)
	}
	// A connection can be kept if the body was read to its end. A longer body closes it.
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if errors.Is(err, errBody) {
		return resp.StatusCode, why, nil
	}
	keep = err == nil && !resp.Close && resp.StatusCode != http.StatusSwitchingProtocols &&
		r.Buffered() == 0 && conn.raw != nil
	return resp.StatusCode, why, err
}

// get is the request in the form that http.ReadResponse requires.
var get = &http.Request{Method: http.MethodGet}

// readHead reads the header of the final response, and skips interim ones.
func readHead(r *bufio.Reader) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, get)
		if err != nil {
			return nil, err
		}
		interim := resp.StatusCode >= 100 && resp.StatusCode <= 199 && resp.StatusCode != http.StatusSwitchingProtocols
		if !interim {
			return resp, nil
		}
	}
}

// close closes the kept connection. Another target at the same origin will open a new one.
func (p *httpProbe) close() {
	if conn := p.connPool.take(p.origin); conn != nil {
		p.connPool.close(conn)
	}
}

// expired reports whether a check ended because of its deadline or context.
func expired(ctx context.Context, deadline time.Time, err error) bool {
	return ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(deadline)
}

// timedOut returns the timeout as the error if it ended the check.
func (p *prober) timedOut(ctx context.Context, deadline time.Time, err error) error {
	if expired(ctx, deadline, err) && !errors.Is(err, errLate) {
		return fmt.Errorf("no answer within %v", p.cfg.Timeout)
	}
	return err
}

// httpConn is a connection of HTTP checks.
type httpConn struct {
	net.Conn
	// raw is the socket; nil if its unread data cannot be checked, and then the connection is not kept.
	raw    syscall.RawConn
	secure bool
	// left is how many more bytes may be read before Read returns beyond.
	left   int
	beyond error
	// counted: included in connPool.count, also while in use.
	counted bool
}

var errBody = errors.New("body of the answer exceeded 64 KiB")

func (c *httpConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, c.beyond
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// rawConn returns a connection's socket, or nil if it has none that can be checked.
func rawConn(conn net.Conn) syscall.RawConn {
	if c, ok := conn.(syscall.Conn); ok && canLook {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// isIdle reports whether a kept connection has no unread data. Unread data predates the next request and cannot be its
// response. A service that shuts down or times out closes its side this way.
func (c *httpConn) isIdle(deadline time.Time) bool {
	if c.secure {
		// Decrypted data is not in the socket. With an expired deadline, Read returns only that data.
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	_ = c.SetReadDeadline(deadline)
	return noUnreadData(c.raw)
}

// readers provides a buffer for the response being read; an idle connection has none.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 2<<10) }}

// connPool keeps connections between checks: one per origin, and at most limit. If there are more origins, those with
// a connection keep it. Closing the least recently used one would make every origin lose its connection before its
// next check. It is safe for concurrent use.
type connPool struct {
	limit int

	mu     sync.Mutex
	idle   map[origin]*httpConn
	count  int // of kept connections, including those in use
	closed bool
}

// take removes and returns the connection kept for an origin, or nil.
func (c *connPool) take(at origin) *httpConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.idle[at]
	delete(c.idle, at)
	return conn
}

// keep keeps a connection, or closes it.
func (c *connPool) keep(at origin, conn *httpConn) {
	if !c.kept(at, conn) {
		c.close(conn)
	}
}

func (c *connPool) kept(at origin, conn *httpConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.idle[at] != nil || !conn.counted && c.count >= c.limit {
		return false
	}
	if !conn.counted {
		conn.counted = true
		c.count++
	}
	c.idle[at] = conn
	return true
}

// close closes a connection that was taken, or never kept.
func (c *connPool) close(conn *httpConn) {
	_ = conn.Close() // everything needed has been read
	if conn.counted {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count--
	}
}

// closeAll closes the kept connections. From then on none are kept.
func (c *connPool) closeAll() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, conn := range idle {
		c.close(conn)
	}
}
