package httpserver

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// reserve is the divisor of the limit that gives the number of extra connections while every connection has a request.
const reserve = 32

// listener limits the number of its open connections.
type listener struct {
	net.Listener
	most, mostExtra int
	closed          chan struct{}
	freed           chan struct{} // has a value when a connection has ended, or become idle

	mu          sync.Mutex
	open, extra int
	idle        *list.List // of *conn, the one that has been idle for longest first
	closeOnce   sync.Once
}

func newListener(socket net.Listener, most int) *listener {
	return &listener{
		Listener: socket, most: most, mostExtra: most/reserve + 1, closed: make(chan struct{}), freed: make(chan struct{}, 1), idle: list.New(),
	}
}

// conn is one of a listener's connections. The listener's mutex guards its mutable fields.
type conn struct {
	net.Conn
	of    *listener
	extra bool          // beyond the limit; never changes
	place *list.Element // among the idle ones; nil: it has a request, or has ended
	ended bool
}

// Accept waits for a connection, and then for a free slot. Only one goroutine calls it.
func (l *listener) Accept() (net.Conn, error) {
	socket, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		if c := l.admit(socket); c != nil {
			return c, nil
		}
		select {
		case <-l.freed:
		case <-l.closed:
			_ = socket.Close()
			return nil, net.ErrClosed
		}
	}
}

// admit returns a connection with a slot for the socket, or nil if there is none.
func (l *listener) admit(socket net.Conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.idle.Front(); e != nil && l.open >= l.most; e = e.Next() {
		c := e.Value.(*conn) // it holds nothing else
		if !c.extra || l.extra >= l.mostExtra {
			_ = l.end(c)
			break
		}
	}
	switch {
	case l.open < l.most:
		l.open++
		return &conn{Conn: socket, of: l}
	case l.extra < l.mostExtra:
		l.extra++
		return &conn{Conn: socket, of: l, extra: true}
	}
	return nil
}

// end closes a connection and frees its slot, once. l.mu is held.
func (l *listener) end(c *conn) error {
	if !c.ended {
		c.ended = true
		l.busy(c)
		if c.extra {
			l.extra--
		} else {
			l.open--
		}
		l.signal()
	}
	return c.Conn.Close()
}

func (l *listener) busy(c *conn) {
	if c.place != nil {
		l.idle.Remove(c.place)
		c.place = nil
	}
}

func (l *listener) signal() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// follow updates a connection's state; it is net/http's hook. A connection that has not sent anything yet is idle, too.
func (l *listener) follow(of net.Conn, state http.ConnState) {
	c, ok := of.(*conn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy(c)
	if (state == http.StateNew || state == http.StateIdle) && !c.ended {
		c.place = l.idle.PushBack(c)
		l.signal()
	}
}

// Close closes the connection and frees its slot.
func (c *conn) Close() error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return c.of.end(c)
}

// Close stops listening. It drops connections that wait for a slot.
func (l *listener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
