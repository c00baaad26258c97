package health

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// slowToClose is a healthy service whose connection closes slowly.
type slowToClose struct {
	takes  time.Duration
	closed func()
}

func (slowToClose) check(context.Context, time.Time) error { return nil }

func (s slowToClose) close() {
	<-time.After(s.takes)
	s.closed()
}

func TestChecker_DoesNotWaitForConnectionsToClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := start(t, new(world), Config{Interval: time.Minute})
		targets := relayers(4)
		c.Set(targets...)
		pause(time.Second)
		closed := 0
		c.mu.Lock()
		for _, known := range c.targets {
			known.probe = slowToClose{5 * time.Second, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				closed++
			}}
		}
		c.mu.Unlock()
		take(c)

		began := time.Now()
		c.Remove(targets[0].ID)
		targets[1].URL += "1"
		c.Set(targets[1:]...)
		require.Len(t, c.targets, 3)
		pause(0)
		require.Contains(t, take(c), targets[1].ID, "checks continue")
		c.Remove(targets[2].ID)
		require.Zero(t, time.Since(began))
		pause(16 * time.Second)
		c.mu.Lock()
		require.Equal(t, 3, closed)
		require.False(t, c.closing)
		c.mu.Unlock()
	})
}

// Run must end only after all connections are closed, whichever targets are removed meanwhile.
func TestRun_Stopped_WaitsForConnectionsToClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Probe: new(world).probe, newConcurrencyLimiter: func() waits { return waits{} }})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		c.Set(relayers(3)...)
		pause(time.Second)
		closed := make(chan struct{}, 3)
		c.mu.Lock()
		for _, known := range c.targets {
			known.probe = slowToClose{time.Second, func() { closed <- struct{}{} }}
		}
		c.mu.Unlock()
		c.Remove("relayer-0")
		c.stop()
		c.Remove("relayer-1")
		stop()
		require.NoError(t, <-done)
		require.Len(t, closed, 3)
	})
}
