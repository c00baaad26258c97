package tracker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// mined returns a rule by which a node returns this count at the block of a round; times 0 is always.
func mined(count string, times uint64) proxy.Rule {
	r := counting(count, times)
	r.When = func(c proxy.Call) bool { return strings.Contains(string(c.Params), "blockHash") }
	return r
}

// key returns the first key.
func (f *fixture) key() *relayer.Key {
	f.t.Helper()
	keys, err := f.Store.Keys(f.t.Context())
	require.NoError(f.t, err)
	return keys[0]
}

// commitNonces makes blocks until the first key's count is n. A block may be made before the pool has taken all.
func (f *fixture) commitNonces(n uint64) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		f.chain.Commit()
		count, err := f.chain.Client().NonceAt(f.t.Context(), f.ring.Addresses()[0], nil)
		return err == nil && count == n
	}, 2*time.Minute, 10*time.Millisecond)
}

// executed requires a transaction to be mined and final.
func (f *fixture) executed() {
	f.t.Helper()
	f.commitUntil(f.send(), relayer.Confirmed)
}

// rounds returns a channel that receives a tracker's rounds while the test listens.
func rounds(o *relayertest.Options) <-chan struct{} {
	c := make(chan struct{})
	edit := o.Tracker
	o.Tracker = func(cfg *tracker.Config) {
		if edit != nil {
			edit(cfg)
		}
		cfg.Events = relayertest.OnRound(cfg.Events, tell(c))
	}
	return c
}

// A count of 2^40 in one or two responses changes nothing.
func TestCheckCounts_FalseOnce_IsIgnored(t *testing.T) {
	for name, count := range map[string]string{"plus 3000": "0xbb8", "2^40": "0x10000000000", "2^64-1": "0xffffffffffffffff"} {
		t.Run(name, func(t *testing.T) {
			var node *proxy.Proxy
			var done <-chan struct{}
			f := setup(t, 1, func(o *relayertest.Options) { node, done = before(t, o), rounds(o) })
			f.executed()
			node.SetRules(mined(count, 2))
			for node.Injected()["count "+count] < 2 {
				f.chain.Commit()
				<-done
			}
			for range 10 {
				<-done
			}
			f.executed()
			require.Equal(t, uint64(2), f.key().NextNonce)
			require.True(t, f.key().Usable())
			f.settled()
		})
	}
}

// A count above the bound that the only endpoint repeats stops the key. Nothing is signed for it until an operator enables
// it.
func TestCheckCounts_Jump_StopsTheKey(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 2, func(o *relayertest.Options) { node = before(t, o) })
	f.executed()
	key := f.key().Address
	lie := mined("0x10000000000", 0)
	lie.When = func(c proxy.Call) bool {
		return strings.Contains(string(c.Params), "blockHash") && strings.Contains(strings.ToLower(string(c.Params)), strings.ToLower(key.Hex()))
	}
	node.SetRules(lie)
	require.Eventually(t, func() bool { return !f.key().Enabled }, 2*time.Minute, 10*time.Millisecond)
	require.Contains(t, f.key().DisabledReason, relayer.NonceJump)
	require.LessOrEqual(t, f.key().NextNonce, uint64(1))
	require.Eventually(t, func() bool { return strings.Contains(f.Health().Reason, relayer.NonceJump) }, 2*time.Minute, 10*time.Millisecond)
	f.becomesReady() // there is another key
	missing, err := f.Store.Gap(t.Context(), key, f.key().Generation, 0)
	require.NoError(t, err)
	require.Zero(t, missing)
	f.executed() // by the other key
	node.SetRules()
	f.executed()
	require.False(t, f.key().Enabled, "an operator decides")
	ended, err := f.Store.EndJump(t.Context(), key)
	require.NoError(t, err)
	require.True(t, ended)
	f.executed()
	f.executed()
	require.True(t, f.key().Enabled)
	f.settled()
}

// Nothing can be sent without the key, so that a load balancer must not choose this relayer.
func TestCheckCounts_JumpOfTheOnlyKey_NotReady(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	f.executed()
	f.becomesReady()
	node.SetRules(mined("0x10000000000", 0))
	require.Eventually(t, func() bool {
		h := f.Health()
		return !h.Ready && strings.Contains(h.Reason, relayer.NonceJump)
	}, 2*time.Minute, 10*time.Millisecond)
}

// The preferred endpoint always counts too many. The other one does not, and the relayer works.
func TestCheckCounts_OneEndpointLies_TheOtherDecides(t *testing.T) {
	for name, count := range map[string]string{"plus 20": "0x14", "plus 3000": "0xbb8", "2^40": "0x10000000000"} {
		t.Run(name, func(t *testing.T) {
			var node *proxy.Proxy
			var done <-chan struct{}
			f := setup(t, 1, func(o *relayertest.Options) {
				honest := o.RPC[0]
				node, done = before(t, o), rounds(o)
				o.RPC = append(o.RPC, honest)
			})
			node.SetRules(counting(count, 0))
			for range 10 {
				f.chain.Commit()
				<-done
			}
			f.executed()
			f.executed()
			require.Equal(t, uint64(2), f.key().NextNonce)
			require.True(t, f.key().Usable())
			node.SetRules()
			f.settled()
		})
	}
}

// The only endpoint of two that answers counts too many. Its word does not stop the key: it works again with the other one.
func TestCheckCounts_JumpAtOneEndpointWhileTheOtherIsAway_KeyWaits(t *testing.T) {
	var liar, honest *proxy.Proxy
	var done <-chan struct{}
	f := setup(t, 1, func(o *relayertest.Options) {
		url := o.RPC[0]
		liar, done = before(t, o), rounds(o)
		honest = before(t, &relayertest.Options{RPC: []string{url}})
		o.RPC = append(o.RPC, honest.URL())
	})
	f.executed()
	honest.SetDown(true)
	liar.SetRules(counting("0x10000000000", 0))
	for liar.Injected()["count 0x10000000000"] < 20 {
		f.chain.Commit()
		<-done
	}
	require.True(t, f.key().Enabled)
	honest.SetDown(false)
	f.executed()
	require.Equal(t, uint64(2), f.key().NextNonce)
	liar.SetRules()
	f.settled()
}

// Another sender uses the key: the count that all endpoints agree on advances its next nonce, without a gap to fill.
func TestCheckCounts_OthersUseTheKey_Raises(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) { o.RPC = append(o.RPC, o.RPC[0]) })
	for nonce := range uint64(3) {
		f.identical(nonce)
	}
	f.chain.Commit()
	require.Eventually(t, func() bool { return f.key().NextNonce == 3 }, 2*time.Minute, 10*time.Millisecond)
	f.executed()
	f.settled()
}

// One response that is too low, while another sender's transactions are mined, does not permanently prevent advancing the
// nonce.
func TestCheckCounts_TooLowOnce_RaisesLater(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		honest := o.RPC[0]
		node = before(t, o)
		o.RPC = []string{honest, node.URL()} // rounds read from the first; only comparisons query the second
	})
	f.executed()
	node.SetRules(mined("0x0", 1))
	for nonce := uint64(1); nonce < 4; nonce++ {
		f.identical(nonce)
	}
	f.commitNonces(4)
	require.Eventually(t, func() bool { return f.key().NextNonce == 4 }, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, uint64(1), node.Injected()["count 0x0"])
	f.executed()
	f.settled()
}

// A new process allocates no nonce before a round has compared its keys, although other processes have before. Requests are
// queued.
func TestCheckCounts_AtStart_NothingIsGivenOutBefore(t *testing.T) {
	f := setup(t, 1)
	f.executed()
	f.Stop()
	for nonce := uint64(1); nonce < 4; nonce++ {
		f.identical(nonce) // by a process whose record of it was lost
	}
	f.commitNonces(4)
	held := make(chan struct{})
	f.options.Tracker = func(c *tracker.Config) { c.Chain = &heldCounts{Chain: c.Chain, held: held} }
	r := relayertest.Launch(t, f.options)
	f.Relayer = r
	require.Eventually(t, func() bool {
		return r.ChainIdentity.Err() == nil && strings.Contains(r.Health().Reason, "nonces: not compared with the chain yet")
	}, 2*time.Minute, 10*time.Millisecond)
	require.False(t, r.Health().Ready)
	tx := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Nil(t, tx.Nonce)
	close(held)
	require.Equal(t, uint64(4), *f.commitUntil(tx, relayer.Confirmed).Nonce)
	f.settled()
}

// heldCounts blocks comparisons until a channel is closed.
type heldCounts struct {
	tracker.Chain
	held <-chan struct{}
}

func (h *heldCounts) Counts(ctx context.Context, block common.Hash, addrs []common.Address) []evm.Counts {
	select {
	case <-h.held:
		return h.Chain.Counts(ctx, block, addrs)
	case <-ctx.Done():
		return []evm.Counts{{Err: ctx.Err()}}
	}
}

// One false count during the comparison after a database failover moves no key.
func TestCompare_FalseOnce_IsIgnored(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	f.executed()
	lie := counting("0x10000000000", 1)
	lie.When = func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") }
	node.SetRules(lie)
	f.exec(`UPDATE relayer_pools SET timeline = '00000000'`)
	require.Eventually(t, func() bool {
		over, err := f.Store.FailedOver(t.Context())
		return err == nil && !over
	}, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, uint64(1), f.key().NextNonce)
	f.executed()
	f.settled()
}

// The preferred endpoint counts nothing of a key that another sender has used before. The other endpoint's count shows that
// there is no gap.
func TestFill_OneEndpointCountsTooLow_FillsNothing(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		honest := o.RPC[0]
		node = before(t, o)
		o.RPC = append(o.RPC, honest)
	})
	for nonce := range uint64(3) {
		f.identical(nonce)
	}
	f.chain.Commit()
	require.Eventually(t, func() bool { return f.key().NextNonce == 3 }, 2*time.Minute, 10*time.Millisecond)
	f.executed()
	node.SetRules(counting("0x0", 0))
	require.Eventually(t, func() bool { return node.Injected()["count 0x0"] >= 100 }, 2*time.Minute, 10*time.Millisecond)
	require.Zero(t, f.key().PendingCount)
	node.SetRules()
	f.executed()
	f.settled()
}

// An endpoint reports too low a count at the round's block once, and does not respond any more. The key's lowest transaction is
// bumped nevertheless.
func TestCheckCounts_TooLowOnceThenSilent_Bumps(t *testing.T) {
	var first, silent *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node := o.RPC[0]
		first = before(t, o)
		o.RPC = []string{node}
		silent = before(t, o)
		o.RPC = []string{first.URL(), silent.URL()}
		o.Tracker = func(c *tracker.Config) {
			c.BumpAfter = map[relayer.Speed]time.Duration{relayer.Fast: 200 * time.Millisecond}
		}
	})
	f.executed()
	f.executed()
	silent.SetRules(mined("0x0", 1))
	f.exec(`UPDATE relayer_keys SET registered_at = now()`) // all endpoints are asked
	require.Eventually(t, func() bool { return silent.Injected()["count 0x0"] == 1 }, 2*time.Minute, 10*time.Millisecond)
	silent.SetDown(true)
	first.SetRules(known)
	tx := f.send()
	require.Eventually(t, func() bool {
		f.chain.Commit()
		return f.latest(tx).Number > 1
	}, 2*time.Minute, 200*time.Millisecond)
}

// An existing gap is filled within the hourly limit.
func TestFill_PerHour_IsBounded(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) { c.NoopsPerHour = 3 }
	})
	f.executed()
	f.exec(`UPDATE relayer_keys SET next_nonce = 1::bigint << 40`)
	require.Eventually(t, func() bool { return f.key().PendingCount == 3 }, 2*time.Minute, 10*time.Millisecond)
	_, err := f.Store.FillNonceGaps(t.Context(), f.key().Address, f.key().Generation, 1, 3)
	require.ErrorIs(t, err, store.ErrFillLimit)
	require.Equal(t, 3, f.key().PendingCount)
}
