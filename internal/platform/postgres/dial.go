package postgres

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// unacknowledged is how long the peer's kernel may leave sent data or probes unacknowledged before a connection counts
// as lost. The kernel's default is a quarter of an hour for data, and two hours for probes.
const unacknowledged = 10 * time.Second

// dialer returns a dialer whose connections end soon after the other host disappears.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: unacknowledged / 2, Interval: unacknowledged / 5, Count: 3},
		Control:         setUserTimeout,
	}
}

// dialWithin returns a dial function whose connections also end if the server does not answer: it froze, or a device in
// between drops all packets. limit is the time for that; 0 means no limit.
func dialWithin(limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer().DialContext(ctx, network, address)
		if err != nil || limit == 0 {
			return conn, err
		}
		return &impatient{Conn: conn, limit: limit}, nil
	}
}

// impatient is a connection on which a read or a write fails after limit. The driver does not read from an idle
// connection. So a read waits for the answer to a statement, which the server itself limits.
type impatient struct {
	net.Conn
	limit time.Duration

	mu    sync.Mutex
	bound bool // the caller has set a deadline, as pgx does when a context ends: that one applies
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

// answerLimit returns how long to wait for the answer of a server with a statement timeout: a third longer than that.
// It returns 0 if there is none. It takes the value of statement_timeout, in milliseconds or with a unit.
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
