package evm

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
)

func head(n uint64, branch byte) Header {
	return Header{Number: n, Hash: common.Hash{0: branch, 31: byte(n)}}
}

func TestHeads_Offer_OnlyNewerMovesTheHead(t *testing.T) {
	t.Parallel()
	now := time.Now()
	gone := map[string]bool{}
	isGone := func(ep string) bool { return gone[ep] }
	hs := heads{changed: make(chan struct{})}
	offer := func(source string, h Header) bool {
		_, changed := hs.get()
		now = time.Now().Add(time.Second) // requested after all previous ones
		hs.offer(source, h, now, isGone)
		select {
		case <-changed:
			cur, _ := hs.get()
			require.Equal(t, h, cur)
			return true
		default:
			return false
		}
	}
	require.True(t, offer("a", head(5, 1)), "the first")
	require.False(t, offer("b", head(5, 1)), "the same of another")
	require.False(t, offer("b", head(4, 1)), "another that is behind")
	require.False(t, offer("b", head(5, 2)), "another on another branch as high")
	require.True(t, offer("a", head(5, 2)), "a reorganization of the same")
	require.True(t, offer("a", head(3, 2)), "which may lose blocks")
	require.True(t, offer("b", head(6, 1)), "a higher one of another")
	gone["b"] = true
	require.True(t, offer("a", head(4, 1)), "a lower one once nothing comes from the other")
	hs.live = true
	require.True(t, offer(subscription, head(7, 1)))
	require.False(t, offer("a", head(6, 1)), "behind the subscription")
	hs.live = false
	require.True(t, offer("a", head(6, 1)), "which has ended")
	hs.offer("a", head(6, 3), time.Now().Add(-time.Hour), isGone)
	cur, _ := hs.get()
	require.Equal(t, head(6, 1), cur, "an answer that was overtaken")
}

func TestNext_SlowReader_GetsNewestHead(t *testing.T) {
	t.Parallel()
	c := open(t, Config{Endpoints: []string{"http://127.0.0.1:1"}})
	for n := uint64(1); n <= 9; n++ {
		c.heads.offer("a", head(n, 1), time.Now(), c.gone)
	}
	h, err := c.Next(t.Context(), head(3, 1).Hash)
	require.NoError(t, err)
	require.Equal(t, head(9, 1), h)
	require.Equal(t, h, c.Head())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Next(ctx, h.Hash)
	require.ErrorIs(t, err, context.Canceled)
}

// pusher serves the subscriptions of a node.
type pusher struct {
	mu   sync.Mutex
	subs []func(header any)
	came chan struct{} // one for each subscription
}

// NewHeads serves eth_subscribe("newHeads").
func (p *pusher) NewHeads(ctx context.Context) (*rpc.Subscription, error) {
	notifier, ok := rpc.NotifierFromContext(ctx)
	if !ok {
		return nil, rpc.ErrNotificationsUnsupported
	}
	sub := notifier.CreateSubscription()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = append(p.subs, func(header any) { _ = notifier.Notify(sub.ID, header) })
	p.came <- struct{}{}
	return sub, nil
}

// ChainId serves eth_chainId.
func (p *pusher) ChainId() hexutil.Uint64 { return simulatedID }

func (p *pusher) push(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, send := range p.subs {
		send(map[string]any{
			"number": hexutil.Uint64(n), "hash": common.Hash{0: 1, 31: byte(n)}, "parentHash": common.Hash{}, "timestamp": hexutil.Uint64(n),
		})
	}
}

func newPusher(t *testing.T) (p *pusher, url string, cut func()) {
	t.Helper()
	p = &pusher{came: make(chan struct{}, 100)}
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("eth", p))
	srv := httptest.NewServer(server.WebsocketHandler([]string{"*"}))
	t.Cleanup(func() {
		server.Stop()
		srv.Close()
	})
	return p, strings.Replace(srv.URL, "http", "ws", 1), func() {
		p.mu.Lock()
		p.subs = nil
		p.mu.Unlock()
		srv.CloseClientConnections()
		server.Stop()
	}
}

func TestSubscription_Silent_IsPolledAndReplaced(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	p, url, _ := newPusher(t)
	c := open(t, Config{
		Endpoints: []string{f.url()}, Subscribe: url, PollInterval: 5 * time.Millisecond, HealthInterval: time.Hour,
		Silence: 100 * time.Millisecond,
	})
	run(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	<-p.came
	pushed := func(n uint64) { // again until it arrives: the subscription may just be replaced
		t.Helper()
		require.Eventually(t, func() bool { p.push(n); return c.Head().Number == n }, patient, 5*time.Millisecond)
	}
	pushed(101)

	f.set(func() { f.head = 120 }) // the subscription does not bring it
	require.Eventually(t, func() bool { return c.Head().Number == 120 }, patient, time.Millisecond)
	select {
	case <-p.came: // subscribed again
	case <-ctx.Done():
		t.Fatal("not subscribed again")
	}
	pushed(121)
}

func TestBackoff_GrowsToItsLimit(t *testing.T) {
	t.Parallel()
	for failures := range 40 {
		d := backoff(failures, minBackoff, maxBackoff)
		full := min(minBackoff<<min(failures, 16), maxBackoff)
		require.LessOrEqual(t, d, full)
		require.GreaterOrEqual(t, d, full*3/4)
	}
}

func TestEndpoint_FailsRepeatedly_PauseGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := Open(Config{ChainID: 1, Endpoints: []string{"http://a", "http://b"}})
		require.NoError(t, err)
		defer c.Close()
		ep := c.endpoints[0]
		for _, ep := range c.endpoints {
			ep.verified, ep.chainID = time.Now(), 1
		}
		require.Equal(t, "a", c.candidates()[0].name)
		var last time.Duration
		for i := range 12 {
			ep.failed(&TransportError{Endpoint: "a", Err: context.DeadlineExceeded})
			ep.failed(&TransportError{Endpoint: "a", Err: context.DeadlineExceeded}) // concurrent: counts once
			require.Equal(t, i+1, ep.failures)
			require.Equal(t, "b", c.candidates()[0].name)
			require.Len(t, c.candidates(), 2, "as a last resort it is still there")
			d := time.Until(ep.until)
			require.LessOrEqual(t, d, maxBackoff)
			require.Greater(t, d, min(last, maxBackoff/2))
			last = d
			<-time.After(d)
			require.Equal(t, standingUnverified, ep.healthOf(time.Now()), "then it has to say again which chain it is of")
		}
		require.Equal(t, "timeout", c.Status().Endpoints[0].Reason)

		ep.limit(&RateLimitError{Endpoint: "a", RetryAfter: 5 * time.Second, Reason: "slower"})
		require.Len(t, c.candidates(), 1)
		require.Equal(t, 5*time.Second, c.pause(ep))
		<-time.After(5 * time.Second)
		ep.verified = time.Now()
		require.Equal(t, "a", c.candidates()[0].name)
		ep.succeeded()
		require.Zero(t, ep.failures)
		<-time.After(verifyEvery)
		require.False(t, ep.isVerified())
	})
}

// Heads from polls and from a subscription show by themselves that a block has no log with a topic.
func TestHeads_OfANode_AreProven(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		s := newSim(t)
		cfg := Config{Endpoints: []string{s.URL()}, PollInterval: 10 * time.Millisecond}
		if scheme == "ws" {
			cfg.Subscribe = s.WSURL()
		}
		c := open(t, cfg)
		run(t, c)
		emitter := s.deployEmitter(t)
		emitted := s.emit(t, emitter, common.Hash{0xa}, 1)
		h, changed := c.Heads()
		for h.Hash != emitted.BlockHash {
			<-changed
			h, changed = c.Heads()
		}
		require.True(t, h.Proven(), scheme)
		require.False(t, h.Excludes(common.Hash{0xa}), scheme)
		require.True(t, h.Excludes(common.Hash{0xb}), scheme)
	}
}

// An excluded node brings no heads by a port or spelling of its own, unless that may be another node's.
func TestExclusion_OfSubscription_ByHost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		endpoints, host string
		excluded        bool
	}{
		"another port":   {"http://geth:1 http://b", "geth:2", true},
		"no port":        {"https://A http://b", "a", true},
		"the same port":  {"ws://geth:1 ws://geth:2", "geth:1", true},
		"IPv6":           {"http://[::1]:1 http://b", "[::1]:2", true},
		"which is meant": {"http://geth:1 http://geth:2", "geth:3", false},
		"another host":   {"http://geth:1 http://b", "c:1", false},
	} {
		c, err := Open(Config{ChainID: 1, Endpoints: strings.Fields(test.endpoints), Lazy: true})
		require.NoError(t, err)
		c.Exclude(c.Status().Endpoints[0].Endpoint, Exclusion{Reason: "test"})
		require.Equal(t, test.excluded, c.exclusion(test.host) != nil, name)
		c.Close()
	}
}
