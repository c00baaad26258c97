package upstream

import (
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"sync"
)

// conn counts the bytes that are written to it, and can be sealed. It hides the ReadFrom of a TCP connection, which would
// write past the count.
type conn struct {
	net.Conn

	mu     sync.Mutex
	sent   int64 // includes the bytes of a Write that is running
	sealed bool
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.sent += int64(len(p))
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if n < len(p) {
		c.mu.Lock()
		c.sent -= int64(len(p) - max(n, 0))
		c.mu.Unlock()
	}
	return n, err
}

func (c *conn) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// seal makes later writes fail, and returns how many bytes were written, or are being written, at most.
func (c *conn) seal() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	return c.sent
}

// attempt is one use of a connection for a request.
type attempt struct {
	mu     sync.Mutex
	conn   *conn // nil until there is one
	before int64 // bytes written to it before the request
	reused bool  // by an earlier request
}

// trace returns hooks that record the request's connection.
func (a *attempt) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		under := info.Conn
		if secure, ok := under.(*tls.Conn); ok {
			under = secure.NetConn()
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if c, ok := under.(*conn); ok { // always
			a.conn, a.before, a.reused = c, c.count(), info.Reused
		}
	}}
}

// seal ends a failed request: nothing more of it is written. It returns how many bytes were written at most, encrypted ones
// under TLS; 0 if the request had no connection.
func (a *attempt) seal() (sent int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return 0
	}
	return a.conn.seal() - a.before
}
