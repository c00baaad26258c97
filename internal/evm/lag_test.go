package evm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blocksEvery makes the endpoint's blocks come at this interval, the newest one at the given time.
func (f *fake) blocksEvery(interval time.Duration, newest time.Time) {
	f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		n := numberOf(params[0], f.head)
		at := newest.Add(-time.Duration(f.head-n) * interval).Unix()
		return fmt.Sprintf(`{"number":"%#x","hash":"0x%064x","parentHash":"0x%064x","timestamp":"%#x"}`, n, n+1, n, at), ""
	})
}

// Ten blocks of a fast chain are less than the permitted lag.
func TestEndpoint_LagsOnFastChain_IsUsed(t *testing.T) {
	t.Parallel()
	behind, ahead := newFake(t), newFake(t)
	behind.set(func() { behind.head = 90 })
	now := time.Now()
	behind.blocksEvery(250*time.Millisecond, now.Add(-2500*time.Millisecond))
	ahead.blocksEvery(250*time.Millisecond, now)
	c := open(t, Config{Endpoints: []string{behind.url(), ahead.url()}})
	for _, i := range []int{0, 1, 0} {
		c.poll(t.Context(), c.endpoints[i])
	}
	require.EqualValues(t, 10, c.Status().Endpoints[0].Lag)
	require.True(t, c.Status().Endpoints[0].OK)
	behind.blocksEvery(250*time.Millisecond, now.Add(-8*time.Second))
	c.poll(t.Context(), c.endpoints[0])
	require.Equal(t, "10 blocks behind the best endpoint", c.Status().Endpoints[0].Reason)
}

// On a chain that makes few blocks, an endpoint that has stopped stays one block behind.
func TestEndpoint_ShowsSameBlockForLong_ComesAfterOthers(t *testing.T) {
	t.Parallel()
	stuck, ahead := newFake(t), newFake(t)
	stuck.set(func() { stuck.head = 99 })
	c := open(t, Config{Endpoints: []string{stuck.url(), ahead.url()}, MaxLag: 50 * time.Millisecond})
	c.poll(t.Context(), c.endpoints[1])
	c.poll(t.Context(), c.endpoints[0])
	require.True(t, c.Status().Endpoints[0].OK)
	require.Eventually(t, func() bool {
		c.poll(t.Context(), c.endpoints[0])
		return !c.Status().Endpoints[0].OK
	}, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, "1 blocks behind the best endpoint", c.Status().Endpoints[0].Reason)
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 100, v.Header().Number)
	stuck.set(func() { stuck.head = 100 })
	c.poll(t.Context(), c.endpoints[0])
	require.True(t, c.Status().Endpoints[0].OK)
}

// An old block is no fault of an endpoint unless it says that it is syncing, or the operator sets a limit.
func TestEndpoint_OldHead_IsFaultOnlyWhileSyncing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result, err string // of eth_syncing
		age         time.Duration
		limit       time.Duration
		reason      string
	}{
		"not syncing":              {result: "false", age: time.Hour},
		"no such method":           {err: `{"code":-32601,"message":"the method eth_syncing does not exist"}`, age: time.Hour},
		"has all blocks":           {result: `{"currentBlock":"0x64","highestBlock":"0x64"}`, age: time.Hour},
		"syncing":                  {result: `{"currentBlock":"0x64","highestBlock":"0x65"}`, age: time.Hour, reason: "it is syncing, and its newest block is 1h0m"},
		"syncing in its own words": {result: `{"stage":"headers"}`, age: time.Hour, reason: "it is syncing"},
		"syncing, new block":       {result: `{"stage":"headers"}`},
		"limit":                    {result: "false", age: time.Hour, limit: time.Minute, reason: "its newest block is 1h0m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.blocksEvery(time.Second, time.Now().Add(-test.age))
			f.always("eth_syncing", test.result, test.err)
			c := open(t, Config{Endpoints: []string{f.url()}, MaxHeadAge: test.limit})
			c.poll(t.Context(), c.endpoints[0])
			c.poll(t.Context(), c.endpoints[0])
			ep := c.Status().Endpoints[0]
			require.Equal(t, test.reason == "", ep.OK)
			require.Contains(t, ep.Reason, test.reason)
			require.LessOrEqual(t, f.count("eth_syncing"), 1)
			if test.reason != "" && test.limit == 0 { // until it has caught up
				f.blocksEvery(time.Second, time.Now())
				c.poll(t.Context(), c.endpoints[0])
				require.True(t, c.Status().Endpoints[0].OK)
			}
		})
	}
}

// A gateway that does not let eth_syncing pass, or fails it, still reads heads. It is not asked again for long.
func TestEndpoint_OldHead_GatewayRejectsSyncing_IsGood(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"forbidden": http.StatusForbidden, "bad gateway": http.StatusBadGateway, "limited": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.blocksEvery(time.Second, time.Now().Add(-time.Hour))
			f.breakFor("eth_syncing", func(_ *fake, w http.ResponseWriter) { w.WriteHeader(status) })
			c := open(t, Config{Endpoints: []string{f.url()}})
			ep := c.endpoints[0]
			for range 3 {
				c.poll(t.Context(), ep)
				require.True(t, c.Status().Endpoints[0].OK)
				require.True(t, ep.isVerified())
				require.Equal(t, standingGood, ep.healthOf(time.Now(), headMethod))
				ep.mu.Lock()
				ep.syncingAt = ep.syncingAt.Add(-syncingEvery)
				ep.mu.Unlock()
			}
			require.Equal(t, 1, f.count("eth_syncing"))
			require.NotEmpty(t, c.Status().Endpoints[0].Failing["eth_syncing"])
			ep.mu.Lock()
			ep.syncingAt = ep.syncingAt.Add(-unsupportedPardon)
			ep.mu.Unlock()
			f.onRequest(nil)
			c.poll(t.Context(), ep)
			require.Empty(t, c.Status().Endpoints[0].Failing)
		})
	}
}
