package tcpproxy_test

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/testutil/tcpproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server that answers with what it gets, and returns a connection to it through a proxy.
func echo(t *testing.T) (p *tcpproxy.Proxy, dial func() net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	p, address := tcpproxy.Open(t, "tcp://user@"+l.Addr().String()+"/path")
	host, ok := strings.CutPrefix(address, "tcp://user@")
	require.True(t, ok)
	return p, func() net.Conn {
		c, err := net.Dial("tcp", strings.TrimSuffix(host, "/path"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// send sends a line, and returns the answer.
func send(c net.Conn, line string) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

func TestProxy_Down_ClosesConnectionsUntilItIsUp(t *testing.T) {
	t.Parallel()
	p, dial := echo(t)
	c := dial()
	answer, err := send(c, "one")
	require.NoError(t, err)
	require.Equal(t, "one", answer)
	p.SetDown(true)
	_, err = send(c, "two")
	require.Error(t, err)
	_, err = send(dial(), "three")
	require.Error(t, err)
	p.SetDown(false)
	answer, err = send(dial(), "four")
	require.NoError(t, err)
	require.Equal(t, "four", answer)
}

func TestProxy_HoldAt_WithholdsTheTextAlone(t *testing.T) {
	t.Parallel()
	p, dial := echo(t)
	reached := p.HoldAt("stop")
	held, other := dial(), dial()
	answers := make(chan string)
	go func() {
		answer, _ := send(held, "stop here")
		answers <- answer
	}()
	<-reached
	answer, err := send(other, "go on")
	require.NoError(t, err)
	require.Equal(t, "go on", answer)
	select {
	case <-answers:
		t.Fatal("it was forwarded")
	default:
	}
	p.Release()
	require.Equal(t, "stop here", <-answers)
}
