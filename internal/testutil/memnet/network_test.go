package memnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns a connection from a to b.
func pair(t *testing.T, n *memnet.Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen("b:0")
	require.NoError(t, err)
	defer l.Close()
	a, err = n.Dial(t.Context(), "a", l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	n, err := io.WriteString(c, text)
	require.NoError(t, err)
	require.Len(t, text, n)
}

func receive(t *testing.T, c net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

// TestConn_Conformance runs the Go project's own suite for net.Conn.
func TestConn_Conformance(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		n := memnet.New()
		l, err := n.Listen("b:1")
		if err != nil {
			return nil, nil, nil, err
		}
		a, err = n.Dial(context.Background(), "a", "b:1")
		if err != nil {
			return nil, nil, nil, err
		}
		b, err = l.Accept()
		return a, b, func() { _, _, _ = a.Close(), b.Close(), l.Close() }, err
	})
}

func TestListen_Addresses(t *testing.T) {
	t.Parallel()
	n := memnet.New()
	l, err := n.Listen("node-1:7400")
	require.NoError(t, err)
	require.Equal(t, "node-1:7400", l.Addr().String())
	_, err = n.Listen("node-1:7400")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = n.Listen("node-1")
	require.Error(t, err)
	_, err = n.Dial(t.Context(), "node-2", "node-1:7401")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	c, err := n.Dialer("node-2")(t.Context(), "node-1:7400")
	require.NoError(t, err)
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	require.NoError(t, err)
	require.Equal(t, "node-2", host)
	require.Equal(t, "node-1:7400", c.RemoteAddr().String())

	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET, "no listener will accept it")
	again, err := n.Listen("node-1:7400")
	require.NoError(t, err, "a restarted node takes its address again")
	require.NoError(t, again.Close())
}

func TestDial_BacklogFull_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("b:1")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for {
			if _, err = n.Dial(ctx, "a", "b:1"); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Close())
	})
}

func TestWrite_BufferFull_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, memnet.New())
		sent := bytes.Repeat([]byte("0123456789"), 100_000)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		accepted, err := a.Write(sent)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, accepted, len(sent)/4)
		require.NoError(t, a.SetWriteDeadline(time.Time{}))

		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := a.Write(sent[accepted:]); err != nil {
				t.Error(err)
			}
			_ = a.Close()
		})
		received, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, received))
		wg.Wait()
	})
}

func TestSetLatency_DelaysDialAndBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(30 * time.Millisecond)
		start := time.Now()
		a, b := pair(t, n)
		require.Equal(t, 60*time.Millisecond, time.Since(start), "dialing is a round trip")
		start = time.Now()
		send(t, a, "one")
		<-time.After(10 * time.Millisecond)
		send(t, a, "two")
		require.NoError(t, a.Close())
		receive(t, b, "one")
		require.Equal(t, 30*time.Millisecond, time.Since(start))
		receive(t, b, "two")
		require.Equal(t, 40*time.Millisecond, time.Since(start))
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestCut_HoldsBytesUntilHealed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := pair(t, n)
		send(t, a, "before ")
		n.Cut("a", "b")
		send(t, a, "during ")
		receive(t, b, "before ")
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var netErr net.Error
		require.ErrorAs(t, err, &netErr)
		require.True(t, netErr.Timeout())

		require.NoError(t, b.SetReadDeadline(time.Time{}))
		time.AfterFunc(time.Hour, n.Heal)
		start := time.Now()
		receive(t, b, "during ")
		require.Equal(t, time.Hour, time.Since(start))
	})
}

func TestCut_BytesInFlight_AreHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(10 * time.Millisecond)
		a, b := pair(t, n)
		send(t, a, "x")
		n.Cut("a", "b")
		time.AfterFunc(time.Second, n.Heal)
		start := time.Now()
		receive(t, b, "x")
		require.Equal(t, time.Second+10*time.Millisecond, time.Since(start))
	})
}

func TestClose_AcrossAPartition_IsNotDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := pair(t, n)
		n.Cut("a", "b")
		require.NoError(t, b.Close())
		send(t, a, "into the void")
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		n.Heal()
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(time.Time{}))
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		_, err = a.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

// A writer learns that the other end has closed no sooner than its reader does, whatever the delay.
func TestClose_OneWayCut_WriterLearnsNoSoonerThanReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(10 * time.Millisecond)
		a, b := pair(t, n)
		n.CutOneWay("b", "a")
		require.NoError(t, b.Close())
		send(t, a, "into the void")
		n.Heal()
		send(t, a, "again")
		_, err := a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		_, err = a.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

func TestDial_LinkIsCut_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("b:1")
		require.NoError(t, err)
		defer l.Close()
		n.Isolate("b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = n.Dial(ctx, "a", "b:1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		c, err := n.Dial(t.Context(), "b", "b:1")
		require.NoError(t, err, "an isolated node reaches itself")
		require.NoError(t, c.Close())

		time.AfterFunc(time.Minute, n.Heal)
		start := time.Now()
		c, err = n.Dial(t.Context(), "a", "b:1")
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, c.Close())
	})
}

// TestLinks_CutAndHealed checks which nodes can reach each other.
func TestLinks_CutAndHealed(t *testing.T) {
	t.Parallel()
	nodes := []string{"a", "b", "c", "d"}
	for name, tc := range map[string]struct {
		change func(*memnet.Network)
		down   []string // links, as two letters
	}{
		"all up":      {func(*memnet.Network) {}, nil},
		"one cut":     {func(n *memnet.Network) { n.Cut("a", "b") }, []string{"ab", "ba"}},
		"cuts add up": {func(n *memnet.Network) { n.Cut("a", "b"); n.Cut("c", "d") }, []string{"ab", "ba", "cd", "dc"}},
		"isolated":    {func(n *memnet.Network) { n.Isolate("c") }, []string{"ca", "cb", "cd", "ac", "bc", "dc"}},
		"partitioned": {func(n *memnet.Network) { n.Partition([]string{"a", "b"}, []string{"c"}) }, []string{"ac", "bc", "ca", "cb"}},
		"partition replaces": {func(n *memnet.Network) {
			n.Isolate("d")
			n.Cut("a", "b")
			n.Partition([]string{"a"}, []string{"c"})
		}, []string{"ac", "ca"}},
		"healed": {func(n *memnet.Network) { n.Isolate("d"); n.Cut("a", "b"); n.Heal() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New()
				for _, node := range nodes {
					l, err := n.Listen(node + ":1")
					require.NoError(t, err)
					defer l.Close()
				}
				tc.change(n)
				var down []string
				for _, from := range nodes {
					for _, to := range nodes {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						c, err := n.Dial(ctx, from, to+":1")
						if err != nil {
							require.ErrorIs(t, err, context.DeadlineExceeded)
							down = append(down, from+to)
						} else {
							_ = c.Close()
						}
						cancel()
					}
				}
				require.ElementsMatch(t, tc.down, down)
			})
		})
	}
}

func TestCutOneWay_OtherDirectionPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := pair(t, n)
		n.CutOneWay("a", "b")
		send(t, b, "heard")
		receive(t, a, "heard")
		send(t, a, "lost")
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := b.Read(make([]byte, 4))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestReset_ClosesConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := pair(t, n)
		other, _ := pair(t, n)
		send(t, a, "unread")
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := a.Read(make([]byte, 1))
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a reader that waited: %v", err)
			}
		})
		synctest.Wait()
		n.Cut("a", "b")
		n.Reset("b")
		wg.Wait()
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = other.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}
