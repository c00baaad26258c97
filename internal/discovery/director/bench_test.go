package director

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	page "github.com/rollcall-dev/rollcall/internal/discovery/status"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// BenchmarkStatus measures the director's part of /status with a fleet of 10,000.
func BenchmarkStatus(b *testing.B) {
	d := large(b)
	measure(b, func() { require.Len(b, d.Status().Services, 10_000) })
}

// BenchmarkStatusPage measures all of /status at the leader, from the director to the response.
func BenchmarkStatusPage(b *testing.B) {
	d := large(b)
	s, err := page.Open(b.Context(), page.Config{Listen: "127.0.0.1:0", Node: "n-1"})
	require.NoError(b, err)
	s.Start(page.Cluster{
		Directory: newDirectory(1), Led: func() bool { return true },
		Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) { return d.Status(), nil },
	})
	run(b, s.Run)
	client := http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	measure(b, func() {
		res, err := client.Get("http://" + s.Addr().String() + "/status")
		require.NoError(b, err)
		size, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		require.NoError(b, err)
		require.Greater(b, size, int64(1_000_000))
	})
}

// large returns a director of 10,000 services, each checked once.
func large(b *testing.B) *Director {
	dir := newDirectory(1)
	for i := range 10_000 {
		dir.register(relayer(fmt.Sprintf("relayer-%d", i)))
	}
	d, err := New(Config{
		Cluster: "c-1", Node: "n-1", Epoch: 1, Directory: dir,
		Confirm: func(context.Context) error { return nil },
		Health:  health.Config{Interval: time.Minute, Probe: func(context.Context, health.Target) error { return nil }},
		Mirror:  mirror.Config{Store: mirrortest.NewMemory()},
	})
	require.NoError(b, err)
	run(b, func(ctx context.Context) error {
		_, err := d.Run(ctx)
		return err
	})
	require.Eventually(b, func() bool { return d.writer.ActiveOf("relayer") == 10_000 }, 2*time.Minute, time.Millisecond)
	return d
}

// run runs a function until the end of the benchmark.
func run(b *testing.B, run func(context.Context) error) {
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	b.Cleanup(func() {
		stop()
		require.NoError(b, <-done)
	})
}

// measure also reports the processor time per iteration, because wall time is unreliable on a busy machine.
func measure(b *testing.B, do func()) {
	b.ReportAllocs()
	before := processorTime(b)
	for b.Loop() {
		do()
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func processorTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
