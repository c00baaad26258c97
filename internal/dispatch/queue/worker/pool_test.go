package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPool_SlowRuns_ReserveNoMoreThanCanRun(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	started := make(chan int, 10)
	p := worker.New(2, func(n int) {
		started <- n
		<-release
	})
	require.Equal(t, 2, p.Reserve(10))
	require.Zero(t, p.Reserve(10))
	p.Add(1)
	require.Equal(t, 1, p.Reserve(10))
	require.Empty(t, p.Add(2, 1, 2))
	<-started
	<-started
	require.Zero(t, p.Reserve(10))
	require.Empty(t, p.Add(0, 3)) // it waits
	require.Equal(t, []int{3}, p.Stop())
	require.Equal(t, []int{4}, p.Add(0, 4))
	require.Zero(t, p.Reserve(1))
	close(release)
	p.Wait()
	require.Empty(t, started)
}

func TestPool_FastRuns_ReserveAhead(t *testing.T) {
	t.Parallel()
	p := worker.New(4, func(int) {})
	for room := 0; room != 8; { // the average of a busy machine falls with each run
		require.Empty(t, p.Add(p.Reserve(1), 0))
		<-p.Changed() // by the end of the run
		room = p.Reserve(100)
		p.Add(room)
		<-p.Changed()
	}
	p.Stop()
	p.Wait()
}

func TestPool_RunEnds_SignalsAndStartsTheNext(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	ran := make(chan int, 3)
	p := worker.New(1, func(n int) {
		<-release
		ran <- n
	})
	require.Empty(t, p.Add(p.Reserve(1), 1))
	require.Empty(t, p.Add(0, 2, 3))
	for want := range 3 {
		release <- struct{}{}
		require.Equal(t, want+1, <-ran)
		<-p.Changed()
	}
	p.Stop()
	p.Wait()
}
