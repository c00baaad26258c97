package postgres_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fault is what a proxy does to a COMMIT, or to a connection.
type fault int

const (
	loseCommit    fault = iota + 1 // it never reaches the server
	loseAnswer                     // the server executed it, and the connection ends before the answer
	withholdReply                  // the server executed it, and the answer never arrives
	endSecond                      // the second connection ends as soon as it is opened
)

// faulty starts a proxy before the database that forwards everything except for the fault.
func faulty(t *testing.T, database string, f fault) (through string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for n := 1; ; n++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if n == 2 && f == endSecond {
				_ = client.Close()
				continue
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, client, server)
			mu.Unlock()
			l := &link{client: client, server: server, fault: f}
			wg.Go(l.up)
			wg.Go(l.down)
		}
	})
	u.Host = listener.Addr().String()
	return u.String()
}

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	fault          fault

	mu        sync.Mutex
	committed bool // a COMMIT was sent to the server
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (l *link) up() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if bytes.Contains(buf[:n], []byte("commit\x00")) {
			if l.fault == loseCommit {
				return
			}
			l.mu.Lock()
			l.committed = true
			l.mu.Unlock()
		}
		if _, e := l.server.Write(buf[:n]); e != nil || err != nil {
			return
		}
	}
}

func (l *link) down() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		l.mu.Lock()
		committed := l.committed
		l.mu.Unlock()
		if committed && l.fault == withholdReply {
			_, _ = io.Copy(io.Discard, l.server)
			return
		}
		if committed && l.fault == loseAnswer {
			return
		}
		if _, e := l.client.Write(buf[:n]); e != nil || err != nil {
			return
		}
	}
}
