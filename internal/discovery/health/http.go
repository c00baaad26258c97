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

// maxHeader is how long the head of an answer may be, interim answers included.
const maxHeader = 16 << 10

var errHeader = errors.New("header of the answer exceeded 16 KiB")

// httpProbe sends one GET, without redirects, over a connection that is kept from check to check. It speaks HTTP/1.1
// itself, in the goroutine of the check: http.Transport has two goroutines and two buffers for each connection, and
// hands each request through four of them, which costs half as much again as the request.
type httpProbe struct {
	*prober
	origin origin
	// request is all of it, as sent.
	request []byte
}

// origin is where HTTP checks connect to. Targets there share the connection that is kept.
type origin struct {
	secure  bool
	address string
}

// http gives the probe of an http or https URL.
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

// check makes the request, on the connection that is kept if nothing has come on it since; again, on a new one, when it
// brings no head of an answer: the service has closed it in the meantime.
func (p *httpProbe) check(ctx context.Context, deadline time.Time) error {
	conn := p.connPool.take(p.origin)
	if conn != nil && !conn.isIdle(deadline) {
		p.connPool.close(conn)
		conn = nil
	}
	if conn != nil {
		code, why, err := p.ask(ctx, conn, deadline)
		if code != 0 && code != http.StatusRequestTimeout || expired(ctx, deadline, err) {
			return p.judge(ctx, deadline, code, why, err)
		}
	}
	conn, err := p.connect(ctx, deadline)
	if err != nil {
		return p.timedOut(ctx, deadline, err)
	}
	code, why, err := p.ask(ctx, conn, deadline)
	return p.judge(ctx, deadline, code, why, err)
}

// judge says what an answer means. A code without the whole body is none. why is the reason in the body, if any.
func (p *httpProbe) judge(ctx context.Context, deadline time.Time, code int, why string, err error) error {
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

// expects reports whether a code means that the service is well.
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
		_ = conn.Close() // nothing was said on it
		return nil, err
	}
	return &httpConn{Conn: secured, raw: raw, secure: true}, nil
}

// ask sends the request, reads the answer, and keeps or closes the connection. The code is 0 when no head came. why is
// the reason that the body of a failing answer gives. A non-nil error says that the answer did not come whole.
func (p *httpProbe) ask(ctx context.Context, conn *httpConn, deadline time.Time) (code int, why string, err error) {
	keep := false
	defer func() {
		if keep {
			p.connPool.keep(p.origin, conn)
		} else {
			p.connPool.close(conn)
		}
	}()
	// A connection that does not take deadlines would not send or read either.
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
			err = errHeader // a line cut short by it reads as malformed
		}
		return 0, "", err
	}
	conn.left, conn.beyond = maxBody, errBody
	if !p.expects(resp.StatusCode) {
		var head []byte
		head, err = io.ReadAll(io.LimitReader(resp.Body, maxQuoted))
		why = p.quotedReason(head)
	}
	// Read to the end, the connection can be kept. A longer body closes it.
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

// get is what http.ReadResponse has to know of the request.
var get = &http.Request{Method: http.MethodGet}

// readHead reads up to the body of the answer that counts.
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

// close closes the connection that is kept. Another target at the same origin will open one of its own.
func (p *httpProbe) close() {
	if conn := p.connPool.take(p.origin); conn != nil {
		p.connPool.close(conn)
	}
}

// expired reports whether it was time that ended a check.
func expired(ctx context.Context, deadline time.Time, err error) bool {
	return ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(deadline)
}

// timedOut names the deadline when it is what ended the check.
func (p *prober) timedOut(ctx context.Context, deadline time.Time, err error) error {
	if expired(ctx, deadline, err) && !errors.Is(err, errLate) {
		return fmt.Errorf("no answer within %v", p.cfg.Timeout)
	}
	return err
}

// httpConn is a connection of HTTP checks.
type httpConn struct {
	net.Conn
	// raw is the socket's; nil when nobody can look at what waits on it, and then the connection is not kept.
	raw    syscall.RawConn
	secure bool
	// left is how much may be read before beyond is what reading gives.
	left   int
	beyond error
	// counted among those kept, also while it is used.
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

// rawConn gives a connection's socket; nil if it has none to look at.
func rawConn(conn net.Conn) syscall.RawConn {
	if c, ok := conn.(syscall.Conn); ok && canLook {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// isIdle reports whether nothing waits on a connection that was kept: what does was sent before the request that is to
// follow, and is no answer to it. A service that is shut down or has waited for too long says so like this.
func (c *httpConn) isIdle(deadline time.Time) bool {
	if c.secure {
		// What was decrypted is in no socket. With its time over already, Read gives just that.
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	_ = c.SetReadDeadline(deadline)
	return noUnreadData(c.raw)
}

// readers lend a buffer to an answer that is being read; a connection at rest has none.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 2<<10) }}

// connPool keeps connections between checks: one for each origin, and not more than limit. When there are more origins,
// those that have one keep it: closing the one least lately used would make all of them lose theirs before its turn.
// It is safe for concurrent use.
type connPool struct {
	limit int

	mu     sync.Mutex
	idle   map[origin]*httpConn
	count  int // of those kept, also while they are used
	closed bool
}

// take gives the connection kept for an origin, nil if there is none.
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
	_ = conn.Close() // all that was wanted from it has been read
	if conn.counted {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count--
	}
}

// closeAll closes what is kept, and keeps nothing more.
func (c *connPool) closeAll() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, conn := range idle {
		c.close(conn)
	}
}
