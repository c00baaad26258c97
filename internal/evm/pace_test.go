package evm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

// A refusal that arrives long after its request lowers the limit as one that arrives at once.
func TestPace_AnswersAreSlow_LimitIsTheAcceptedNumber(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, time.Second, 1100 * time.Millisecond, 3 * time.Second} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &provider{perSecond: 90}
				c := openProvider(t, Config{}, p)
				require.NoError(t, c.endpoints[0].verify(t.Context()))
				<-time.After(2 * time.Second)
				p.latency = latency
				for range 3 {
					began := time.Now()
					_, err := c.Balances(t.Context(), make([]common.Address, 100))
					require.NoError(t, err)
					require.LessOrEqual(t, time.Since(began), 3*paceWindow+3*latency)
				}
				require.Greater(t, c.endpoints[0].pace.limit(time.Now()), 45.0)
			})
		})
	}
}

// The refusals of requests that were sent before the limit was lowered do not lower it again.
func TestPaceRefuse_SentBeforeTheLastRefusal_LimitStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPace(0)
		_, _, err := p.take(t.Context(), 100, wholeLimit)
		require.NoError(t, err)
		first := time.Now()
		<-time.After(2 * time.Second)
		_, _, err = p.take(t.Context(), 200, wholeLimit)
		require.NoError(t, err)
		second := time.Now()
		<-time.After(3 * time.Second)
		require.InDelta(t, 90, p.refuse(10, first), 1, "the number that was accepted of the request's second")
		<-time.After(2 * time.Second)
		require.InDelta(t, 90, p.refuse(150, second), 1)
		<-time.After(paceMemory)
		require.InDelta(t, 120, p.refuse(50, second), 2, "nothing is known about a request that long ago")
	})
}
