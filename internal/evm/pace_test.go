package evm

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
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
		_, _, err := p.take(t.Context(), 100, wholeLimit, reads)
		require.NoError(t, err)
		first := time.Now()
		<-time.After(2 * time.Second)
		_, _, err = p.take(t.Context(), 200, wholeLimit, reads)
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

// raws returns transactions for a provider.
func raws(n int) []Raw {
	txs := make([]Raw, n)
	for i := range txs {
		hash := common.BigToHash(big.NewInt(int64(i + 1)))
		txs[i] = Raw{Hash: hash, Bytes: hash.Bytes()}
	}
	return txs
}

// Callers that would wait for a slow endpoint use the next one, whether the calls are many or one caller has many of them.
func TestMaxRPS_PreferredIsSlow_NextEndpointIsUsed(t *testing.T) {
	t.Parallel()
	const n = 200
	txs := raws(n)
	for name, ask := range map[string]func(context.Context, *Client) error{
		"sends": func(ctx context.Context, c *Client) error {
			var group errgroup.Group
			for i := range txs {
				group.Go(func() error { return errOf(c.Send(ctx, txs[i:i+1])) })
			}
			return group.Wait()
		},
		"send of many": func(ctx context.Context, c *Client) error { return errOf(c.Send(ctx, txs)) },
		"reads": func(ctx context.Context, c *Client) error {
			var group errgroup.Group
			for range n {
				group.Go(func() error { _, err := c.Balances(ctx, make([]common.Address, 1)); return err })
			}
			return group.Wait()
		},
		"read of many": func(ctx context.Context, c *Client) error {
			_, err := c.Balances(ctx, make([]common.Address, n))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				slow, quick := &provider{perSecond: 5}, &provider{perSecond: 1000}
				c := openProvider(t, Config{MaxRPS: []int{5, 0}}, slow, quick)
				began := time.Now()
				require.NoError(t, ask(t.Context(), c))
				require.LessOrEqual(t, time.Since(began), 3*paceWindow, "one to verify the chain, one for the calls")
				require.Positive(t, slow.accepted)
				require.Zero(t, slow.refused+quick.refused)
				require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now(), sendMethod, "eth_getBalance"))
			})
		})
	}
}

// Callers wait for the last endpoint, because there is no other.
func TestMaxRPS_AllAreSlow_CallersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := &provider{perSecond: 25}, &provider{perSecond: 25}
		c := openProvider(t, Config{MaxRPS: []int{25}}, a, b)
		require.NoError(t, errOf(c.Send(t.Context(), raws(200))))
		_, err := c.Balances(t.Context(), make([]common.Address, 200))
		require.NoError(t, err)
		require.Zero(t, a.refused+b.refused)
	})
}

// errOf returns the error of the first transaction that no endpoint has.
func errOf(results []Result) error {
	for _, r := range results {
		if !r.Outcome.Done() {
			return fmt.Errorf("%s: %w", r.Outcome, r.Err)
		}
	}
	return nil
}

// Sends that continue in the background at a slow endpoint are few, end in time, and leave it some calls for reads.
func TestSendToAll_OneEndpointIsSlow_BackgroundIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow, quick := &provider{perSecond: 5}, &provider{perSecond: 100_000}
		c := openProvider(t, Config{MaxRPS: []int{5, 0}, Timeout: 5 * time.Second}, slow, quick)
		txs := raws(2000)
		began := time.Now()
		for i := range txs {
			require.NoError(t, errOf(c.SendToAll(t.Context(), txs[i:i+1])))
		}
		require.Zero(t, time.Since(began))
		synctest.Wait()
		require.LessOrEqual(t, c.endpoints[0].pace.waiting[wholeLimit][sends], 5*20+5, "those that have their turn in time")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.LatestOf(ctx, c.endpoints[0].name)
		require.NoError(t, err)
		c.background.Wait()
		require.LessOrEqual(t, time.Since(began), 25*time.Second)
		require.Greater(t, slow.accepted, 50, "it still receives what it can")
		require.Zero(t, slow.refused)
		require.Zero(t, c.endpoints[0].pace.waiting[wholeLimit][sends])
	})
}

// The wait for an endpoint's pace ends at a node that gives no turn.
func TestAnchors_PaceIsUsedUp_Ends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy, free := &provider{perSecond: 1}, &provider{perSecond: 1000}
		c := openProvider(t, Config{MaxRPS: []int{1, 0}, Timeout: time.Second}, busy, free)
		var group errgroup.Group
		for range 50 {
			group.Go(func() error { _, err := c.LatestOf(t.Context(), c.endpoints[0].name); return err })
		}
		synctest.Wait()
		began := time.Now()
		anchors := c.Anchors(t.Context(), 3, 0)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Error(t, anchors[0].Err)
		require.NoError(t, anchors[1].Err)
		require.NoError(t, group.Wait())
	})
}
