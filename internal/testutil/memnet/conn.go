package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// capacity limits the bytes in flight in one direction, like socket buffers. Writers wait for space.
const capacity = 64 << 10

// conn is one end of a connection.
type conn struct {
	in, out       *stream
	local, remote address
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF stays bare, by the contract of io.Reader
		err = opError("read", string(c.remote), err)
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	if err == syscall.EPIPE && !c.in.ended() { //nolint:errorlint // as write returns it
		// The other end has closed, but this end has not received that yet: sent bytes are lost. If a writer failed
		// before its reader did, a reader in simulated time would never catch up with it.
		return len(b), nil
	}
	if err != nil {
		err = opError("write", string(c.remote), err)
	}
	return n, err
}

// Close sends the written bytes and then the end of the stream; bytes from the other end are refused from now on.
func (c *conn) Close() error {
	first := c.out.closeWrite()
	c.in.closeRead()
	if !first {
		return opError("close", string(c.remote), net.ErrClosed)
	}
	return nil
}

// reset breaks the connection on both ends.
func (c *conn) reset() {
	c.in.reset()
	c.out.reset()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// stream carries one direction of a connection.
//
// Waiters wait on changed, which every change of the state below closes and replaces, because sync.Cond has no
// deadlines.
type stream struct {
	network *Network
	link    link

	mu      sync.Mutex
	changed chan struct{}
	packets []packet
	size    int // bytes in packets
	cut     bool

	writeClosed, readClosed, broken bool
	readDeadline, writeDeadline     time.Time
}

// packet is one write in flight, or the end of the stream.
type packet struct {
	data    []byte
	end     bool
	arrives time.Time // zero while held back by a cut link
}

func newStream(n *Network, l link) *stream {
	return &stream{network: n, link: l, changed: make(chan struct{})}
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var next time.Time
		switch {
		case s.readClosed:
			return 0, net.ErrClosed
		case s.broken:
			return 0, syscall.ECONNRESET
		case passed(s.readDeadline):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(s.packets) > 0 && passed(s.packets[0].arrives):
			if s.packets[0].end {
				return 0, io.EOF
			}
			return s.takeLocked(b), nil
		case len(s.packets) > 0:
			next = s.packets[0].arrives
		}
		s.waitLocked(earliest(next, s.readDeadline))
	}
}

// takeLocked moves arrived bytes into b.
func (s *stream) takeLocked(b []byte) (n int) {
	for len(s.packets) > 0 && n < len(b) {
		p := &s.packets[0]
		if p.end || !passed(p.arrives) {
			break
		}
		moved := copy(b[n:], p.data)
		n += moved
		if p.data = p.data[moved:]; len(p.data) == 0 {
			s.packets = s.packets[1:]
		}
	}
	s.size -= n
	s.wakeLocked()
	return n
}

func (s *stream) write(b []byte) (n int, err error) {
	latency := s.network.currentLatency()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.writeClosed:
			return n, net.ErrClosed
		case s.broken:
			return n, syscall.ECONNRESET
		case s.readClosed && !s.cut: // across a cut link the writer does not learn that the reader has closed
			return n, syscall.EPIPE
		case passed(s.writeDeadline):
			return n, os.ErrDeadlineExceeded
		case n == len(b):
			return n, nil
		}
		if room := min(capacity-s.size, len(b)-n); room > 0 {
			s.sendLocked(packet{data: append([]byte(nil), b[n:n+room]...)}, latency)
			n += room
			continue
		}
		s.waitLocked(s.writeDeadline)
	}
}

// ended reports whether the end of the stream, or a break, has arrived.
func (s *stream) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken || s.readClosed {
		return true
	}
	last := len(s.packets) - 1
	return last >= 0 && s.packets[last].end && passed(s.packets[last].arrives)
}

func (s *stream) sendLocked(p packet, latency time.Duration) {
	if !s.cut {
		p.arrives = time.Now().Add(latency)
	}
	s.packets = append(s.packets, p)
	s.size += len(p.data)
	s.wakeLocked()
}

func (s *stream) closeWrite() (first bool) {
	latency := s.network.currentLatency()
	s.mu.Lock()
	first = !s.writeClosed
	if first {
		s.writeClosed = true
		s.sendLocked(packet{end: true}, latency)
	}
	s.mu.Unlock()
	s.forgetIfDone()
	return first
}

func (s *stream) closeRead() {
	s.mu.Lock()
	s.readClosed = true
	s.wakeLocked()
	s.mu.Unlock()
	s.forgetIfDone()
}

func (s *stream) reset() {
	s.mu.Lock()
	s.broken = true
	s.packets, s.size = nil, 0
	s.wakeLocked()
	s.mu.Unlock()
	s.network.forget(s)
}

func (s *stream) forgetIfDone() {
	s.mu.Lock()
	done := s.readClosed && s.writeClosed
	s.mu.Unlock()
	if done {
		s.network.forget(s)
	}
}

// setCut holds back bytes that have not arrived yet, or releases them.
func (s *stream) setCut(cut bool, latency time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut == cut {
		return
	}
	s.cut = cut
	now := time.Now()
	for i := range s.packets {
		switch p := &s.packets[i]; {
		case cut && p.arrives.After(now):
			p.arrives = time.Time{}
		case !cut && p.arrives.IsZero():
			p.arrives = now.Add(latency)
		}
	}
	s.wakeLocked()
}

func (s *stream) setDeadline(field *time.Time, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = t
	s.wakeLocked()
}

// waitLocked releases the mutex until the stream changes or until the time until; zero is never.
func (s *stream) waitLocked(until time.Time) {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	if until.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

func (s *stream) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (n *Network) currentLatency() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.latency
}

// passed reports whether t has come; zero never does.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// earliest returns the earlier of two times of which zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
