package postgres

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// unacknowledged is how long the other end's kernel may leave unanswered what was sent, data or probes, before a
// connection counts as lost. The kernel's own patience is a quarter of an hour for data, and two hours for probes.
const unacknowledged = 10 * time.Second

// dialer makes connections that end soon after the other host vanished without a word.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: unacknowledged / 2, Interval: unacknowledged / 5, Count: 3},
		Control:         setUserTimeout,
	}
}

// dialWithin makes connections that also end where the other host is there and its server says nothing: it froze, or what
// stands in between swallows everything. limit is for how long; 0: for ever.
func dialWithin(limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer().DialContext(ctx, network, address)
		if err != nil || limit == 0 {
			return conn, err
		}
		return &impatient{Conn: conn, limit: limit}, nil
	}
}

// impatient is a connection on which a read or a write fails after some time. The driver does not read from an idle
// connection, so a read waits for the answer to a statement, which the server itself bounds.
type impatient struct {
	net.Conn
	limit time.Duration

	mu    sync.Mutex
	bound bool // somebody has set a deadline, as pgx does when a context ends: that one holds
}

func (c *impatient) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bound = !t.IsZero()
	return c.Conn.SetDeadline(t)
}

func (c *impatient) Read(b []byte) (int, error) {
	if err := c.bind(c.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *impatient) Write(b []byte) (int, error) {
	if err := c.bind(c.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *impatient) bind(set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bound {
		return nil
	}
	return set(time.Now().Add(c.limit))
}

// answerLimit is how long a server that bounds its statements is waited for, a third longer than that; 0 where it does not
// bound them. It takes the value of statement_timeout, in milliseconds or with a unit.
func answerLimit(statementTimeout string) time.Duration {
	text := strings.ReplaceAll(strings.ReplaceAll(statementTimeout, " ", ""), "min", "m")
	if _, err := strconv.ParseUint(text, 10, 31); err == nil {
		text += "ms"
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 {
		return 0
	}
	return limit + limit/3
}
