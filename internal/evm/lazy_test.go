package evm

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// polls returns how often the fake was asked for its head.
func (f *fake) polls() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.seen {
		if c.Method == "eth_getBlockByNumber" && string(c.Params[0]) == `"latest"` {
			n++
		}
	}
	return n
}

// awaitPolls waits for n more polls of the fake.
func (f *fake) awaitPolls(n int) {
	f.t.Helper()
	n += f.polls()
	require.Eventually(f.t, func() bool { return f.polls() >= n }, patient, time.Millisecond)
}

func TestLazy_OnlyThePreferredEndpoint_IsPolled(t *testing.T) {
	t.Parallel()
	preferred, other := newFake(t), newFake(t)
	c := open(t, Config{
		Endpoints: []string{preferred.url(), other.url()}, Lazy: true, PollInterval: time.Millisecond, HealthInterval: time.Millisecond, Silence: time.Hour,
	})
	run(t, c)
	preferred.awaitPolls(100)
	require.LessOrEqual(t, other.polls(), 1, "at the start")

	preferred.onRequest(func(w http.ResponseWriter, _ []fakeCall, _ bool) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	other.awaitPolls(50)
	preferred.onRequest(nil)
	preferred.awaitPolls(10)
	before := other.polls()
	preferred.awaitPolls(100)
	require.LessOrEqual(t, other.polls(), before+1, "one that had begun")
}

func TestLazy_EndpointThatFailedACall_IsPolledUntilItRecovers(t *testing.T) {
	t.Parallel()
	preferred, other := newFake(t), newFake(t)
	c := open(t, Config{
		Endpoints: []string{preferred.url(), other.url()}, Lazy: true, PollInterval: time.Millisecond, HealthInterval: time.Millisecond, Silence: 300 * time.Millisecond,
	})
	var head atomic.Uint64
	for _, f := range []*fake{preferred, other} { // it never rests
		f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
			return blockJSON(numberOf(params[0], 100+head.Add(1)), 1), ""
		})
	}
	run(t, c)
	preferred.awaitPolls(10)
	other.onRequest(func(w http.ResponseWriter, _ []fakeCall, _ bool) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, err := c.Logs(t.Context(), c.Endpoints()[1], tenBlocks)
	require.True(t, IsNoAnswer(err))
	require.False(t, c.Status().Endpoints[1].OK)
	other.onRequest(nil)
	require.Eventually(t, func() bool { return c.Status().Endpoints[1].OK }, patient, time.Millisecond)
}

func TestLazy_SubscriptionThatDelivers_NoEndpointIsPolled(t *testing.T) {
	t.Parallel()
	preferred, other := newFake(t), newFake(t)
	p, url, _ := newPusher(t)
	c := open(t, Config{
		Endpoints: []string{preferred.url(), other.url()}, Subscribe: url, Lazy: true,
		PollInterval: time.Millisecond, HealthInterval: time.Millisecond, Silence: time.Hour,
	})
	run(t, c)
	<-p.came
	preferred.awaitPolls(10) // before the first head
	head := Header{}
	next := func(n uint64) {
		t.Helper()
		p.push(n)
		var err error
		for head.Number < n {
			head, err = c.Next(t.Context(), head.Hash)
			require.NoError(t, err)
		}
	}
	next(101)
	require.Eventually(t, c.heads.isLive, patient, time.Millisecond)
	before := preferred.polls() + other.polls()
	for n := uint64(102); n < 400; n++ {
		next(n)
	}
	require.LessOrEqual(t, preferred.polls()+other.polls(), before+2, "those that had begun")
}

func TestLazy_SubscriptionAndPreferredEndpointStall_HeadsComeFromTheOther(t *testing.T) {
	t.Parallel()
	preferred, other := newFake(t), newFake(t)
	p, url, _ := newPusher(t)
	c := open(t, Config{
		Endpoints: []string{preferred.url(), other.url()}, Subscribe: url, Lazy: true,
		PollInterval: 5 * time.Millisecond, HealthInterval: 5 * time.Millisecond, Silence: 100 * time.Millisecond,
	})
	run(t, c)
	<-p.came
	require.Eventually(t, func() bool { p.push(101); return c.Head().Number == 101 && c.heads.isLive() }, patient, 5*time.Millisecond)
	other.set(func() { other.head = 120 })
	require.Eventually(t, func() bool { return c.Head().Number == 120 }, patient, time.Millisecond)
	select {
	case <-p.came: // the silent subscription was left
	case <-time.After(patient):
		t.Fatal("not subscribed again")
	}
}

func TestLazy_SlowBlocks_AreNoSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, lazy := range []bool{true, false} {
			c, err := Open(Config{ChainID: 1, Endpoints: []string{"http://a"}, Silence: 2 * time.Second, Lazy: lazy})
			require.NoError(t, err)
			defer c.Close()
			n := uint64(0)
			after := func(d time.Duration) time.Duration {
				<-time.After(d)
				n++
				c.heads.offer("a", head(n, 1), time.Now(), c.gone)
				return c.silence()
			}
			require.Equal(t, 2*time.Second, after(time.Hour), "the first head")
			if !lazy {
				require.Equal(t, 2*time.Second, after(12*time.Second))
				continue
			}
			require.Equal(t, 14*time.Second, after(12*time.Second))
			require.Equal(t, 8*time.Second, after(0), "a burst")
			require.Equal(t, 5*time.Second, after(time.Second))
			require.Equal(t, 17*time.Second, after(time.Hour), "at most")
		}
	})
}
