package tcpproxy

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Proxy is a way to a server. Its methods are safe for concurrent use.
type Proxy struct {
	t        testing.TB
	listener net.Listener
	to       string
	work     sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
	hold  *hold // nil: nothing is held
}

// hold is what a Proxy withholds.
type hold struct {
	text     []byte
	once     sync.Once
	reached  chan struct{} // closed when a client has sent the text
	released chan struct{}
}

// Open starts a proxy before the server of a URL, and returns it with the URL through it. It ends with the test.
func Open(t testing.TB, address string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatalf("URL of a server: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	p := &Proxy{t: t, listener: l, to: u.Host, conns: map[net.Conn]struct{}{}}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.SetDown(true)
		p.Release()
		p.work.Wait()
	})
	return p, strings.Replace(address, u.Host, l.Addr().String(), 1)
}

// SetDown closes all connections, and those that come, until it is up again.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for c := range p.conns {
			_ = c.Close()
		}
	}
}

// HoldAt withholds what a client sends from a text on, until Release. The text must be in one packet. The returned channel is closed when
// a client has sent it. Connections on which it does not come are not affected.
func (p *Proxy) HoldAt(text string) (reached <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != nil {
		p.t.Error("a proxy holds one text at a time")
		return p.hold.reached
	}
	p.hold = &hold{text: []byte(text), reached: make(chan struct{}), released: make(chan struct{})}
	return p.hold.reached
}

// Release forwards what is withheld.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != nil {
		close(p.hold.released)
		p.hold = nil
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.admit(client, server)
		p.work.Go(func() { p.forward(server, client, true) })
		p.work.Go(func() { p.forward(client, server, false) })
	}
}

// admit records the two sides of a connection, and closes them if the proxy is down.
func (p *Proxy) admit(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
		if p.down {
			_ = c.Close()
		}
	}
}

// forward copies until either side ends, and closes both.
func (p *Proxy) forward(to, from net.Conn, up bool) {
	var last io.Writer = to
	if up {
		last = withheld{p, to}
	}
	_, _ = io.Copy(last, from) // the end of either side
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, from)
}

// withheld is the way of a connection to the server.
type withheld struct {
	p  *Proxy
	to net.Conn
}

// Write implements [io.Writer].
func (w withheld) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	h := w.p.hold
	w.p.mu.Unlock()
	if h != nil && bytes.Contains(b, h.text) {
		h.once.Do(func() { close(h.reached) })
		<-h.released
	}
	return w.to.Write(b)
}
