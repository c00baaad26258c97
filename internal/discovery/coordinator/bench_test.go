package coordinator_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// startOnDisk runs three coordinators of this process on loopback and real disks, for profiles. Their total cost is
// the cost on a machine that runs three. scripts/bench compares with peers.
func startOnDisk(b *testing.B) *grpc.ClientConn {
	var listeners []net.Listener
	var peers []coordinator.Peer
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		listeners = append(listeners, l)
		peers = append(peers, coordinator.Peer{ID: fmt.Sprintf("c%d", i+1), Address: l.Addr().String()})
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(peers))
	for i, p := range peers {
		n, err := coordinator.Open(ctx, coordinator.Config{ID: p.ID, Peers: peers, Listener: listeners[i], DataDir: b.TempDir(), Logger: benchLogger(b)})
		require.NoError(b, err)
		go func() { done <- n.Run(ctx) }()
	}
	b.Cleanup(func() {
		cancel()
		for range peers {
			require.NoError(b, <-done)
		}
	})
	var leader *grpc.ClientConn
	require.Eventually(b, func() bool {
		for _, p := range peers {
			conn, err := grpc.NewClient(p.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(b, err)
			resp, err := rollcallv1.NewDiscoveryServiceClient(conn).Ping(ctx, &rollcallv1.PingRequest{})
			if err == nil && resp.Leader.GetNode() == p.ID {
				leader = conn
				return true
			}
			require.NoError(b, conn.Close())
		}
		return false
	}, 2*time.Minute, 50*time.Millisecond)
	b.Cleanup(func() { require.NoError(b, leader.Close()) })
	return leader
}

// benchLogger logs problems, such as an election.
func benchLogger(b *testing.B) *slog.Logger {
	return slog.New(slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

var benchID atomic.Int64

// benchService returns a new service of about 200 encoded bytes.
func benchService() *rollcallv1.Service {
	id := fmt.Sprintf("svc-%012d", benchID.Add(1))
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
		Url: "http://" + id + ".example.internal:3000", Node: strings.Repeat("n", 110),
	}}
}

func BenchmarkRegister(b *testing.B) {
	for _, size := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", size), func(b *testing.B) {
			client := rollcallv1.NewDiscoveryServiceClient(startOnDisk(b))
			if size == 1 {
				b.SetParallelism(64)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
					for range size {
						req.Services = append(req.Services, benchService())
					}
					if _, err := client.RegisterServices(context.Background(), req); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "services/s")
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N*size), "cpu-µs/service")
		})
	}
}

func BenchmarkListOne(b *testing.B) {
	client := rollcallv1.NewDiscoveryServiceClient(startOnDisk(b))
	s := benchService()
	_, err := client.RegisterServices(b.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{s}})
	require.NoError(b, err)
	b.SetParallelism(64)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := client.ListServices(context.Background(), &rollcallv1.ListServicesRequest{Ids: []string{s.Id}}); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// cpuTime returns the processor time of this process: the client and three coordinators.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
