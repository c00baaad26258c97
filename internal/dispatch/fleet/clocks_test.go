package fleet_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

// A relayer's clock is measured without further requests, reported, passed on, and warned about once.
func TestFleet_RelayersClockIsOff_IsReported(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards what follows
	var off time.Duration
	var log bytes.Buffer
	passed := make(chan map[string]time.Duration, 100)
	w := setup(t, []string{"right"}, func(cfg *fleet.Config) {
		cfg.Poll = 10 * time.Millisecond
		cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(p)
		}), nil))
		cfg.Clocks = func(_ context.Context, ahead map[string]time.Duration) error {
			passed <- maps.Clone(ahead)
			return nil
		}
	})
	mu.Lock()
	off = -6 * time.Minute
	mu.Unlock()
	behind := upstreamtest.Start(t, upstreamtest.Options{Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(off)
	}})
	w.add("behind", behind)
	w.list("behind", behind.URL())
	awaits := func(want time.Duration) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case ahead := <-passed:
				if got, known := ahead["behind"]; known && (got-want).Abs() <= 2*time.Second {
					require.Zero(t, ahead["right"])
					return
				}
			case <-deadline:
				require.FailNow(t, "the offset is not passed on")
			}
		}
	}
	awaits(-6 * time.Minute)
	awaits(-6 * time.Minute)
	require.InDelta(t, -360, w.gauge("rollcall_relay_relayer_clock_offset_seconds"), 2, "the first one")
	mu.Lock()
	off = 0
	mu.Unlock()
	awaits(0)
	awaits(0)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`msg="a relayer's clock is off; its times are converted" component=fleet service=behind ahead=-`)), log.String())
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`msg="a relayer's clock is right again" component=fleet service=behind`)), log.String())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
