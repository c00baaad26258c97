package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An intake under load waits a little for others, and never longer than that; without load it does not wait.
func TestCollect_Linger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Pool{arrivals: make(chan *arrival)}
		p.cfg.Group = 5
		arrive := func(n int, each time.Duration) {
			for range n {
				<-time.After(each)
				p.arrivals <- new(arrival)
			}
		}
		collect := func(late <-chan time.Time) (size int, took time.Duration) {
			began := time.Now()
			return len(p.collect(new(arrival), late)), time.Since(began)
		}
		go arrive(3, 900*time.Microsecond)
		size, took := collect(time.After(linger))
		require.Equal(t, 3, size, "two arrive within it")
		require.Equal(t, linger, took)
		<-p.arrivals

		go arrive(4, 100*time.Microsecond)
		size, took = collect(time.After(linger))
		require.Equal(t, 5, size, "a full group")
		require.Equal(t, 400*time.Microsecond, took)

		for range 2 {
			go arrive(1, 0)
		}
		synctest.Wait()
		size, took = collect(nil)
		require.Equal(t, 3, size, "all that wait")
		require.Zero(t, took)
	})
}
