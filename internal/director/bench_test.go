package director

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/health"
	"github.com/rollcall-dev/rollcall/internal/mirror"
	"github.com/rollcall-dev/rollcall/internal/mirror/mirrortest"
)

// BenchmarkStatus is /status's part of a fleet of 10,000, while each is checked once a second.
func BenchmarkStatus(b *testing.B) {
	dir := newDirectory(1)
	for i := range 10_000 {
		dir.register(relayer(fmt.Sprintf("relayer-%d", i)))
	}
	d, err := New(Config{
		Cluster: "c-1", Node: "n-1", Epoch: 1, Directory: dir,
		Confirm: func(context.Context) error { return nil },
		Health:  health.Config{Interval: time.Second, Probe: func(context.Context, health.Target) error { return nil }},
		Mirror:  mirror.Config{Store: mirrortest.NewMemory()},
	})
	require.NoError(b, err)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	require.Eventually(b, func() bool { return d.writer.ActiveOf("relayer") == 10_000 }, time.Minute, time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		require.Len(b, d.Status().Services, 10_000)
	}
	stop()
	require.NoError(b, <-done)
}
