package batch

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const (
	waitFor = 20 * time.Second
	tick    = time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Calls that arrive during a batch form the next one, of at most Size calls, and each gets its own result.
func TestDo_CallsDuringABatch_ShareTheNext(t *testing.T) {
	t.Parallel()
	begun, release := make(chan int, 100), make(chan struct{})
	g := New(Config{Concurrency: 1, Size: 10}, func(_ context.Context, in []int) (out []string, err error) {
		begun <- len(in)
		<-release
		for _, n := range in {
			out = append(out, strconv.Itoa(n))
		}
		return out, nil
	})
	var calls sync.WaitGroup
	call := func(n int) {
		calls.Go(func() {
			out, err := g.Do(t.Context(), n)
			if err != nil || out != strconv.Itoa(n) {
				t.Errorf("%d: %q, %v", n, out, err)
			}
		})
	}
	call(0)
	require.Equal(t, 1, <-begun)
	for n := 1; n <= 15; n++ {
		call(n)
	}
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.waiting) == 15
	}, waitFor, tick)
	release <- struct{}{}
	require.Equal(t, 10, <-begun)
	release <- struct{}{}
	require.Equal(t, 5, <-begun)
	release <- struct{}{}
	calls.Wait()
	g.Wait()
	require.Zero(t, g.running)
}

// A caller that stops waiting learns whether its call was withdrawn or may take effect.
func TestDo_CallerStops_OutcomeIsExact(t *testing.T) {
	t.Parallel()
	begun, release := make(chan int, 100), make(chan struct{})
	g := New(Config{Concurrency: 1}, func(_ context.Context, in []int) ([]int, error) {
		begun <- len(in)
		<-release
		return in, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	results := make(chan error, 2)
	do := func() {
		_, err := g.Do(ctx, 1)
		results <- err
	}
	go do()
	<-begun
	go do()
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.waiting) == 1
	}, waitFor, tick)
	stop()
	first, second := <-results, <-results
	if errors.Is(second, ErrUnknown) {
		first, second = second, first
	}
	require.ErrorIs(t, first, ErrUnknown)
	require.ErrorIs(t, second, context.Canceled)
	require.NotErrorIs(t, second, ErrUnknown)
	close(release)
	g.Wait()
	require.Empty(t, begun, "the withdrawn call ran")
}

// An error of the function is every call's.
func TestDo_Error_IsEveryCalls(t *testing.T) {
	t.Parallel()
	failure := errors.New("broken")
	g := New(Config{}, func(context.Context, []int) ([]int, error) { return nil, failure })
	_, err := g.Do(t.Context(), 1)
	require.ErrorIs(t, err, failure)
	g = New(Config{}, func(context.Context, []int) ([]int, error) { return nil, nil })
	_, err = g.Do(t.Context(), 1)
	require.ErrorContains(t, err, "1 calls has 0 results")
	g.Wait()
}
