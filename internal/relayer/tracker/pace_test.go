package tracker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

var firstKey, secondKey = common.Address{1}, common.Address{2}

// rejected returns attempts of a key that nodes last answered with an error, at the first n nonces.
func rejected(key common.Address, n int, lastError string) (attempts []*relayer.Attempt) {
	for nonce := range uint64(n) {
		attempts = append(attempts, &relayer.Attempt{From: key, Nonce: nonce, LastError: lastError})
	}
	return attempts
}

// batches sends what is due, and returns the size of each batch. The outcome of each attempt is by its key and nonce.
func batches(p paces, due []*relayer.Attempt, outcome func(*relayer.Attempt) evm.Outcome) (sizes []int, sent *resends) {
	sent = newResends(p, due, time.Now())
	for {
		batch := sent.batch()
		if len(batch) == 0 {
			return sizes, sent
		}
		sizes = append(sizes, len(batch))
		results := make([]evm.Result, len(batch))
		for i, a := range batch {
			results[i].Outcome = outcome(a)
		}
		sent.sent(batch, results, time.Now())
	}
}

func all(o evm.Outcome) func(*relayer.Attempt) evm.Outcome {
	return func(*relayer.Attempt) evm.Outcome { return o }
}

// Four transactions that nodes refuse, on a chain whose fees fall with each block: each round wants to send all of them. One a
// second is the most, the lowest nonce is the probe, and the sends become rarer.
func TestPace_NodesRefuse_OneASecondAndEverRarer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, begun := paces{}, time.Now()
		due := rejected(firstKey, 4, "underpriced")
		var sends []time.Duration
		for time.Since(begun) < 5*time.Minute {
			pace := p.of(firstKey)
			if pace.early = true; pace.ignoresPauses(time.Now()) {
				sizes, sent := batches(p, due, all(evm.Underpriced))
				require.Equal(t, []int{1}, sizes)
				require.Equal(t, due[1:], sent.left, "the lowest nonce is sent")
				sends = append(sends, time.Since(begun))
				pace.sentEarly(time.Now(), sent.accepted[firstKey])
			}
			<-time.After(100 * time.Millisecond)
		}
		for i, gap := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			require.Equal(t, gap*time.Second, sends[i+1]-sends[i])
		}
	})
}

// Pauses that end in each round, as those of many rows do, yield one send a second.
func TestPace_PausesEnd_OneASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, begun, sends := paces{}, time.Now(), 0
		for time.Since(begun) < 30*time.Second {
			sizes, _ := batches(p, rejected(firstKey, 500, "refused"), all(evm.Refused))
			for _, n := range sizes {
				sends += n
			}
			<-time.After(50 * time.Millisecond)
		}
		require.Equal(t, 30, sends)
	})
}

// Nodes accept again what they refused: the backlog leaves in one round. A refusal ends that, for its key alone.
func TestPace_NodesAcceptAgain_BatchesDouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sizes, sent := batches(paces{}, rejected(firstKey, 100, "pool full"), all(evm.Accepted))
		require.Equal(t, []int{1, 2, 4, 8, 16, 32, 37}, sizes)
		require.Empty(t, sent.left)

		p := paces{}
		due := append(rejected(firstKey, 100, "pool full"), rejected(secondKey, 3, "pool full")...)
		sizes, sent = batches(p, due, func(a *relayer.Attempt) evm.Outcome {
			if a.From == firstKey && a.Nonce >= 5 {
				return evm.PoolFull
			}
			return evm.Accepted
		})
		require.Equal(t, []int{1 + 1, 2 + 2, 4}, sizes)
		require.Len(t, sent.left, 93)
		require.False(t, p.of(firstKey).ready(time.Now()))
		require.True(t, p.of(secondKey).ready(time.Now()))
		<-time.After(resendInterval)
		require.True(t, p.of(firstKey).ready(time.Now()))
	})
}

// Attempts that nodes have merely lost, or could not receive, are sent at once, also while refused ones of the key have to wait.
func TestPace_NotRefused_AtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := paces{}
		_, _ = batches(p, rejected(firstKey, 1, "refused"), all(evm.Refused))
		require.False(t, p.of(firstKey).ready(time.Now()))
		for _, lastError := range []string{"", "unknown", "not sent", "rate limited"} {
			due := append(rejected(firstKey, 1, "refused"), rejected(firstKey, 200, lastError)[1:]...)
			sizes, sent := batches(p, due, all(evm.Accepted))
			require.Equal(t, []int{199}, sizes, "%q", lastError)
			require.Equal(t, due[:1], sent.left)
		}
	})
}

// A failure to reach a node is no refusal. It ends the round's sends nevertheless.
func TestPace_NoAnswer_EndsRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sizes, sent := batches(paces{}, rejected(firstKey, 10, "refused"), all(evm.Unknown))
		require.Equal(t, []int{1}, sizes)
		require.False(t, sent.accepted[firstKey])
	})
}
