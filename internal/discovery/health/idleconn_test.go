//go:build unix

package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// come waits until a connection has unread data, and does not read it.
func come(t *testing.T, conn net.Conn) {
	raw := rawConn(conn)
	require.NotNil(t, raw)
	require.NoError(t, raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		return err != syscall.EAGAIN
	}))
}

// Data that a service sends on a kept connection before the next request must not count as its response.
func TestHTTPKeptConnection_DataBeforeTheRequest_IsNotItsResponse(t *testing.T) {
	t.Parallel()
	cert := httptest.NewTLSServer(nil)
	cert.Close()
	const unavailable = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	// exactly returns a response of so many bytes, including the header.
	exactly := func(size int) string {
		head := func(n int) string { return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %04d\r\n\r\n", n) }
		n := size - len(head(0))
		return head(n) + strings.Repeat("x", n)
	}
	body := "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + strings.Repeat("x", 9000)
	for name, sent := range map[string]struct {
		// answer holds the first bytes that the service sends; it sends late after the answer was read.
		answer, late string
		closed       bool
	}{
		"a late 503":                     {answer: ok, late: unavailable},
		"a late 503, then closed":        {answer: ok, late: unavailable, closed: true},
		"one more answer of a dead one":  {answer: ok, late: ok},
		"closed":                         {answer: ok, closed: true},
		"a long answer twice":            {answer: body + body},
		"a long answer, and a 503":       {answer: body + unavailable},
		"a 503 where a buffer ends":      {answer: exactly(4<<10) + unavailable},
		"a 503 where another ends":       {answer: exactly(8<<10) + unavailable},
		"a long answer, and one of them": {answer: body + ok},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(name+", TLS "+strconv.FormatBool(secure), func(t *testing.T) {
				t.Parallel()
				var done sync.WaitGroup
				done.Add(1)
				read := make(chan struct{})
				wrap := func(serve func(net.Conn)) func(net.Conn) {
					return func(conn net.Conn) {
						if secure {
							conn = tls.Server(conn, &tls.Config{
								Certificates: cert.TLS.Certificates, DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true,
							})
						}
						serve(conn)
					}
				}
				url, opened := script(t, wrap(func(conn net.Conn) {
					answers(sent.answer)(conn)
					<-read
					_, _ = io.WriteString(conn, sent.late)
					if sent.closed {
						_ = conn.Close()
					}
					done.Wait()
				}), wrap(answers(ok)))
				defer done.Done()
				cfg := patient
				if secure {
					url = strings.Replace(url, "http:", "https:", 1)
					cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
					cfg.TLS.RootCAs.AddCert(cert.Certificate())
				}
				var first net.Conn
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					if first == nil {
						first = conn
					}
					return conn, err
				}
				check := probeOf(t, cfg, url)
				require.NoError(t, check())
				close(read)
				if sent.late != "" || sent.closed {
					come(t, first)
				}
				require.NoError(t, check())
				require.Equal(t, 2, opened(), "asked again where it was answered before")
			})
		}
	}
}
