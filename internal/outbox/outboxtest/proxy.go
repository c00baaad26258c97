package outboxtest

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"
)

// fault is what a proxy does with a request and its connection.
type fault int

const (
	pass      fault = iota
	cutBefore       // the request never reaches the server, and the connection ends
	cutAfter        // the server executes the request, and the connection ends before the answer
	silence         // nothing passes any more, and the connection stays open
	deafen          // the request is answered, and nothing passes afterwards
)

// proxy forwards connections to the database. A request is all that the driver sends up to the message after which the server
// answers.
type proxy struct {
	url string

	mu     sync.Mutex
	strike func(request string) fault // of each request; nil: pass
	down   bool                       // connections are refused
	conns  map[net.Conn]struct{}
}

// proxy starts a proxy before the database. It ends with the test.
func (e *env) proxy() *proxy {
	e.t.Helper()
	u, err := url.Parse(e.url)
	require.NoError(e.t, err)
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(e.t, err)
	u.Host = listener.Addr().String()
	p := &proxy{url: u.String(), conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	e.t.Cleanup(func() {
		_ = listener.Close()
		p.setDown(true)
		wg.Wait()
	})
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil || !p.admit(client, server) {
				_ = client.Close()
				continue
			}
			l := &link{proxy: p, client: client, server: server}
			wg.Go(l.up)
			wg.Go(l.downstream)
		}
	})
	return p
}

func (p *proxy) admit(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.down {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return !p.down
}

// setDown ends all connections and refuses new ones, or accepts them again.
func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for c := range p.conns {
			_ = c.Close()
		}
		clear(p.conns)
	}
}

// onRequest sets the function that chooses the fault of each request. It is called for one request at a time.
func (p *proxy) onRequest(strike func(request string) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strike = strike
}

func (p *proxy) faultOf(request []byte) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.strike == nil {
		return pass
	}
	return p.strike(string(request))
}

// link is one connection through a proxy.
type link struct {
	proxy          *proxy
	client, server net.Conn

	mu    sync.Mutex
	fault fault // of the current request
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// up forwards requests.
func (l *link) up() {
	defer l.close()
	var request []byte
	for typed := false; ; typed = true { // the first message has no type
		message, err := readMessage(l.client, typed)
		if err != nil {
			return
		}
		request = append(request, message...)
		if typed && !strings.ContainsRune("SQp", rune(message[0])) { // Sync, Query, and an answer to the login
			continue
		}
		f := pass
		if typed && message[0] != 'p' {
			f = l.proxy.faultOf(request)
		}
		l.mu.Lock()
		l.fault = f
		l.mu.Unlock()
		switch f {
		case cutBefore:
			return
		case silence:
			_, _ = io.Copy(io.Discard, l.client) // until the driver gives up
			return
		}
		if _, err := l.server.Write(request); err != nil {
			return
		}
		if f == deafen {
			_, _ = io.Copy(io.Discard, l.client)
			return
		}
		request = nil
	}
}

// downstream forwards answers.
func (l *link) downstream() {
	defer l.close()
	for {
		message, err := readMessage(l.server, true)
		if err != nil {
			return
		}
		l.mu.Lock()
		f := l.fault
		l.mu.Unlock()
		switch {
		case f == silence:
			continue
		case f == cutAfter && message[0] == 'Z': // the end of the answer
			return
		case f == cutAfter:
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
		if f == deafen && message[0] == 'Z' {
			l.mu.Lock()
			l.fault = silence
			l.mu.Unlock()
		}
	}
}

// readMessage reads a message of Postgres's protocol.
func readMessage(from io.Reader, typed bool) ([]byte, error) {
	head := make([]byte, 4, 256)
	if typed {
		head = head[:5]
	}
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	message := append(head, make([]byte, size)...)
	_, err := io.ReadFull(from, message[len(head):])
	return message, err
}
