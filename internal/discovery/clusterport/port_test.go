package clusterport_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a port that serves gRPC's health protocol and echoes Raft's streams.
type node struct {
	*clusterport.Port
	addr    string
	raft    raft.StreamLayer
	grpc    *grpc.Server
	logs    *logs
	metrics *prometheus.Registry
	roles   chan []pki.Role // of the peer, for each call
	stop    func() error
}

func start(t *testing.T, cfg clusterport.Config) *node {
	t.Helper()
	if cfg.Listener == nil {
		cfg.Listener = listen(t)
	}
	if cfg.Dial == nil { // outside of a bubble a busy machine's handshake may take longer than the default
		cfg.SniffTimeout = cmp.Or(cfg.SniffTimeout, time.Minute)
	}
	n := &node{
		addr:    cfg.Listener.Addr().String(),
		logs:    new(logs),
		metrics: prometheus.NewRegistry(),
		roles:   make(chan []pki.Role, 10_000),
	}
	cfg.Logger = slog.New(slog.NewJSONHandler(n.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Metrics = clusterport.NewMetrics(n.metrics)
	port, err := clusterport.New(cfg)
	require.NoError(t, err)
	n.Port, n.raft = port, port.Raft("node-1:7400")
	n.grpc = grpc.NewServer(grpc.Creds(port.ServerCredentials()), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			n.roles <- clusterport.Roles(ctx)
			return handle(ctx, req)
		}))
	grpc_health_v1.RegisterHealthServer(n.grpc, health.NewServer())

	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ran := make(chan error, 1)
	wg.Go(func() { ran <- port.Run(ctx) })
	wg.Go(func() { _ = n.grpc.Serve(port.GRPC()) })
	wg.Go(func() {
		for {
			conn, err := n.raft.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	n.stop = sync.OnceValue(func() error {
		cancel()
		n.grpc.Stop()
		wg.Wait()
		return <-ran
	})
	t.Cleanup(func() { require.NoError(t, n.stop()) })
	return n
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, n *node) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", n.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// requireClosed waits for the other side to close.
func requireClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := conn.Read(make([]byte, 1))
	require.Zero(t, n)
	require.True(t, closedByPeer(err), "%v", err)
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

// newClient returns a gRPC client from one port to another.
func newClient(t *testing.T, from *clusterport.Port, to *node) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := from.NewClient(to.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func call(ctx context.Context, client grpc_health_v1.HealthClient) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func echo(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// dialRaft opens a Raft stream from one port to another.
func dialRaft(t *testing.T, from *clusterport.Port, to *node) net.Conn {
	t.Helper()
	conn, err := from.Raft("").Dial(raft.ServerAddress(to.addr), time.Minute)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// requireRefused waits until the refusals for each reason match want.
func (n *node) requireRefused(t *testing.T, want map[string]int) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, want, n.refused(t)) }, 2*time.Minute, time.Millisecond)
}

func (n *node) refused(t *testing.T) map[string]int {
	t.Helper()
	families, err := n.metrics.Gather()
	require.NoError(t, err)
	counts := make(map[string]int)
	for _, family := range families {
		if family.GetName() != "rollcall_cluster_port_refused_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if value := int(m.GetCounter().GetValue()); value > 0 {
				counts[m.GetLabel()[0].GetValue()] = value
			}
		}
	}
	return counts
}

// logs collects log lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// lines returns the log lines with this message.
func (l *logs) lines(t *testing.T, msg string) (found []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		if fields["msg"] == msg {
			found = append(found, fields)
		}
	}
	return found
}

func TestPort_RaftAndGRPC_ShareOneAddress(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{})
	stream := dialRaft(t, n.Port, n)
	require.NoError(t, echo(stream, "append entries"))
	require.NoError(t, call(t.Context(), newClient(t, n.Port, n)))
	require.NoError(t, echo(stream, strings.Repeat("more ", 100_000)))
	require.Equal(t, pki.AllRoles(), <-n.roles, "without TLS anybody may do everything")
	require.Equal(t, "node-1:7400", n.raft.Addr().String())
	require.Equal(t, "tcp", n.raft.Addr().Network())
	require.Equal(t, n.addr, n.Addr().String())
	require.Empty(t, n.refused(t))
}

func TestPort_RaftsOwnTransport_ReachesItsPeer(t *testing.T) {
	t.Parallel()
	l := listen(t)
	port, err := clusterport.New(clusterport.Config{Listener: l})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _ = port.Run(t.Context()) })
	addr := raft.ServerAddress(l.Addr().String())
	transport := raft.NewNetworkTransport(port.Raft(string(addr)), 2, time.Minute, io.Discard)
	require.Equal(t, addr, transport.LocalAddr())
	wg.Go(func() {
		rpc := <-transport.Consumer()
		rpc.Respond(&raft.RequestVoteResponse{Term: 7, Granted: true}, nil)
	})
	var answer raft.RequestVoteResponse
	require.NoError(t, transport.RequestVote("node-1", addr, &raft.RequestVoteRequest{Term: 7}, &answer))
	require.EqualValues(t, 7, answer.Term)
	transport.CloseStreams()
	require.NoError(t, transport.Close())
	require.NoError(t, port.Close())
	wg.Wait()
}

func TestPort_SilentConnection_IsClosed(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: 50 * time.Millisecond})
	requireClosed(t, dial(t, n))
	n.requireRefused(t, map[string]int{"silent": 1})
	require.NoError(t, n.stop())
	lines := n.logs.lines(t, "connection refused")
	require.Len(t, lines, 1)
	require.Equal(t, "DEBUG", lines[0]["level"])
	require.Equal(t, "silent", lines[0]["reason"])
}

// Over the in-memory network the port must use the bubble's time, so the limit is exact.
func TestPort_InMemoryNetwork_KeepsTheExactLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		l, err := network.Listen("node-1:7400")
		require.NoError(t, err)
		n := start(t, clusterport.Config{Listener: l, Dial: network.Dialer("node-1")})
		require.NoError(t, echo(dialRaft(t, n.Port, n), "append entries"))
		require.NoError(t, call(t.Context(), newClient(t, n.Port, n)))

		silent, err := network.Dial(t.Context(), "node-2", n.addr)
		require.NoError(t, err)
		began := time.Now()
		requireClosed(t, silent)
		require.Equal(t, time.Second, time.Since(began))
	})
}

func TestPort_UnknownProtocol_IsClosed(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]string{
		"http/1":        "GET /status HTTP/1.1\r\nHost: node-1\r\n\r\n",
		"zeros":         strings.Repeat("\x00", 4096),
		"almost grpc":   "PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n",
		"another raft":  "rollcall-raft/2\n",
		"redis command": "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, clusterport.Config{SniffTimeout: time.Minute}) // the time limit does not end it
			conn := dial(t, n)
			_, err := io.WriteString(conn, bytes)
			require.NoError(t, err)
			requireClosed(t, conn)
			n.requireRefused(t, map[string]int{"unknown_protocol": 1})
			require.NoError(t, n.stop())
		})
	}
}

func TestPort_PrefaceByteByByte_DoesNotExtendTheLimit(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: 100 * time.Millisecond})
	conn := dial(t, n)
	_, err := conn.Write([]byte("r"))
	require.NoError(t, err)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		requireClosed(t, conn)
	}()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for sent := 1; ; sent++ {
		select {
		case <-closed:
			return
		case <-ticker.C:
			require.Less(t, sent, 10_000)
			_, _ = conn.Write([]byte("rollcall-raft/1\n")[min(sent, 14):][:1]) // never the last byte
		}
	}
}

func TestPort_PrefaceInPieces_IsAccepted(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: time.Minute})
	conn := dial(t, n)
	for _, b := range []byte("rollcall-raft/1\n") {
		_, err := conn.Write([]byte{b})
		require.NoError(t, err)
	}
	require.NoError(t, echo(conn, "hello"))
}

// A thousand silent connections must not delay calls and streams, existing or new.
func TestPort_ThousandSilentConnections_DelayNoCall(t *testing.T) {
	t.Parallel()
	for name, tls := range map[string]*clusterport.TLS{"plain": nil, "tls": newCA(t).load(t, coordinator)} {
		t.Run(name, func(t *testing.T) {
			// Long enough that all connections are pending together, and that a busy machine closes no others.
			n := start(t, clusterport.Config{TLS: tls, SniffTimeout: 3 * time.Second})
			stream, client := dialRaft(t, n.Port, n), newClient(t, n.Port, n)
			require.NoError(t, call(t.Context(), client))

			var wg sync.WaitGroup
			var stop atomic.Bool
			for range 10 {
				wg.Go(func() {
					for range 100 {
						conn, err := net.Dial("tcp", n.addr)
						if err != nil {
							t.Error(err)
							return
						}
						wg.Go(func() {
							_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
							if _, err := conn.Read(make([]byte, 1)); !closedByPeer(err) {
								t.Errorf("not closed: %v", err)
							}
							_ = conn.Close()
						})
					}
				})
			}
			silence := make(chan struct{})
			go func() {
				wg.Wait()
				stop.Store(true)
				close(silence)
			}()
			rounds := 0
			for ; !stop.Load() || rounds == 0; rounds++ {
				require.NoError(t, call(t.Context(), client))
				require.NoError(t, echo(stream, "heartbeat"))
				require.NoError(t, call(t.Context(), newClient(t, n.Port, n)))
				fresh := dialRaft(t, n.Port, n)
				require.NoError(t, echo(fresh, "heartbeat"))
				require.NoError(t, fresh.Close())
			}
			<-silence
			require.Greater(t, rounds, 1)
			n.requireRefused(t, map[string]int{"silent": 1000})
			require.NoError(t, n.stop())
		})
	}
}

func TestPort_TooManyPending_ClosesTheOldest(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: time.Hour, MaxPending: 4})
	var silent []net.Conn
	for range 4 {
		silent = append(silent, dial(t, n))
	}
	require.NoError(t, call(t.Context(), newClient(t, n.Port, n)))
	requireClosed(t, silent[0])
	require.NoError(t, echo(dialRaft(t, n.Port, n), "and the freed place is used again"))
	require.NoError(t, silent[1].SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := silent[1].Read(make([]byte, 1))
	require.False(t, closedByPeer(err), "%v", err)
	n.requireRefused(t, map[string]int{"too_many": 1})
}

// shortOfFiles is a listener whose Accept fails for a while.
type shortOfFiles struct {
	net.Listener
	failures atomic.Int32
}

func (l *shortOfFiles) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestRun_AcceptFails_IsRetried(t *testing.T) {
	t.Parallel()
	l := &shortOfFiles{Listener: listen(t)}
	l.failures.Store(4)
	n := start(t, clusterport.Config{Listener: l})
	require.NoError(t, call(t.Context(), newClient(t, n.Port, n)))
	require.Len(t, n.logs.lines(t, "accept failed"), 4)
}

func TestRun_StoppedBetweenAccepts_Ends(t *testing.T) {
	t.Parallel()
	l := &shortOfFiles{Listener: listen(t)}
	l.failures.Store(1 << 30)
	n := start(t, clusterport.Config{Listener: l})
	require.NoError(t, n.stop())
}

func TestRun_ListenerLost_Fails(t *testing.T) {
	t.Parallel()
	l := listen(t)
	port, err := clusterport.New(clusterport.Config{Listener: l})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorIs(t, port.Run(t.Context()), net.ErrClosed)
}

// gRPC must be able to stop before Raft, because a node shuts down in that order.
func TestPort_GRPCStopped_RaftGoesOn(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: time.Minute})
	stream := dialRaft(t, n.Port, n)
	n.grpc.Stop()
	conn := dial(t, n)
	_, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	require.NoError(t, err)
	requireClosed(t, conn)
	require.NoError(t, echo(stream, "still here"))
	require.NoError(t, echo(dialRaft(t, n.Port, n), "here too"))
	n.requireRefused(t, map[string]int{"not_served": 1})
}

func TestPort_ProtocolNotServed_IsClosedInTime(t *testing.T) {
	t.Parallel()
	l := listen(t)
	port, err := clusterport.New(clusterport.Config{Listener: l, SniffTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _ = port.Run(t.Context()) })
	conn, err := port.Raft("").Dial(raft.ServerAddress(l.Addr().String()), time.Minute)
	require.NoError(t, err)
	requireClosed(t, conn)
	require.NoError(t, conn.Close())
	require.NoError(t, port.Close())
	wg.Wait()
}

func TestClose_Running_EndsListenersButNotStreams(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{SniffTimeout: time.Hour})
	stream := dialRaft(t, n.Port, n)
	require.NoError(t, echo(stream, "x"))
	silent := dial(t, n)
	require.NoError(t, call(t.Context(), newClient(t, n.Port, n))) // by now the silent connection is pending
	require.NoError(t, n.Close())
	require.NoError(t, n.Close(), "close again")
	requireClosed(t, silent)
	require.NoError(t, echo(stream, "what was handed on lives"))
	_, err := n.GRPC().Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = n.raft.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = net.Dial("tcp", n.addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, stream.Close())
	require.NoError(t, n.stop())
	require.Empty(t, n.logs.lines(t, "connection refused"), "an end by request is no refusal")
}

func TestRun_ClosedBefore_ReturnsNil(t *testing.T) {
	t.Parallel()
	port, err := clusterport.New(clusterport.Config{Listener: listen(t)})
	require.NoError(t, err)
	require.NoError(t, port.Close())
	require.NoError(t, port.Run(t.Context()))
}

func TestRaftDial_Timeout_NamesTheAddress(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	_, err := n.raft.Dial("black.hole:7400", 10*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "black.hole:7400")
}

func TestNew_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := clusterport.New(clusterport.Config{SniffTimeout: -1, MaxPending: -1})
	require.ErrorContains(t, err, "no listener")
	require.ErrorContains(t, err, "sniff timeout")
	require.ErrorContains(t, err, "max pending")
}
