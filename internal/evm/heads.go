package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
)

// heads holds the newest head, from any source.
type heads struct {
	mu      sync.Mutex
	cur     Header
	source  string        // endpoint or subscription that reported cur
	at      time.Time     // when cur was reported
	gap     time.Duration // between heads, as recently seen; at most longestGap
	changed chan struct{} // closed when cur changes
	live    bool          // the subscription brings heads
	pushed  Header        // the last that the subscription brought
}

// subscription is the name of the subscription as a source of heads.
const subscription = "subscription"

// longestGap bounds how long a client with Config.Lazy waits for a head on a chain that makes blocks slowly.
const longestGap = 15 * time.Second

// pace returns the time between heads, as recently seen, and when the newest one was reported, which is zero before the first.
func (hs *heads) pace() (gap time.Duration, last time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.gap, hs.at
}

// offer stores a head if it is new: a higher one, or a different one of the same source, which has reorganized or lost
// blocks. A lower head of another source only lags, unless the first source is gone; gone reports that of endpoints. A
// head that was requested before the current one arrived is not new, unless it is higher.
func (hs *heads) offer(source string, h Header, asked time.Time, gone func(endpoint string) bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if source == subscription {
		hs.pushed = h
	}
	switch {
	case h.Hash == hs.cur.Hash:
		return
	case h.Number > hs.cur.Number, hs.cur.IsZero():
	case asked.Before(hs.at):
		return
	case source == hs.source:
	case hs.source == subscription && !hs.live:
	case hs.source != subscription && gone(hs.source):
	default:
		return
	}
	now := time.Now()
	if !hs.at.IsZero() {
		hs.gap = min(max(now.Sub(hs.at), hs.gap/2), longestGap) // some heads come in bursts
	}
	hs.cur, hs.source, hs.at = h, source, now
	close(hs.changed)
	hs.changed = make(chan struct{})
}

func (hs *heads) get() (Header, <-chan struct{}) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.cur, hs.changed
}

func (hs *heads) isLive() bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.live
}

// Head returns the newest known head, the zero Header before the first.
func (c *Client) Head() Header {
	h, _ := c.heads.get()
	return h
}

// Heads returns the newest known head, the zero Header before the first, and a channel that is closed when there is another one. It is
// for a caller that waits for other things, too; see Next.
func (c *Client) Heads() (head Header, changed <-chan struct{}) { return c.heads.get() }

// Next waits for a head other than after and returns the newest. A slow caller misses those between. The head is only a
// hint; read the chain through a View. The only error is that of ctx.
func (c *Client) Next(ctx context.Context, after common.Hash) (Header, error) {
	for {
		h, changed := c.heads.get()
		if !h.IsZero() && h.Hash != after {
			return h, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Header{}, fmt.Errorf("wait for a head: %w", context.Cause(ctx))
		}
	}
}

// best returns the highest head that a usable endpoint, or the subscription, has reported.
func (c *Client) best() (best Header) {
	higher := func(h Header) {
		if h.Number > best.Number {
			best = h
		}
	}
	for _, ep := range c.endpoints {
		ep.mu.Lock()
		if ep.failures == 0 && ep.failing()[headMethod] == "" && ep.chainID == c.cfg.ChainID && ep.excluded == (Exclusion{}) {
			higher(ep.head)
		}
		ep.mu.Unlock()
	}
	c.heads.mu.Lock()
	defer c.heads.mu.Unlock()
	if c.heads.live {
		higher(c.heads.pushed)
	}
	return best
}

// gone reports whether an endpoint cannot be expected to report heads for now.
func (c *Client) gone(endpoint string) bool {
	ep, err := c.named(endpoint)
	return err != nil || ep.healthOf(time.Now(), headMethod) > standingLagging
}

// watch keeps an endpoint's state up to date and reads heads from it.
func (c *Client) watch(ctx context.Context, ep *endpoint) {
	wasGood := true
	for ctx.Err() == nil {
		idle := c.idle(ep)
		if idle == 0 {
			c.poll(ctx, ep)
		}
		if good := ep.healthOf(time.Now(), headMethod) <= standingLagging; good != wasGood {
			// Another endpoint may be the preferred one now.
			wasGood = good
			for _, other := range c.endpoints {
				if other != ep {
					other.wakeUp()
				}
			}
		}
		if idle == 0 {
			idle = c.pause(ep)
		}
		timer := time.NewTimer(idle)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-ep.wake:
		}
		timer.Stop()
	}
}

// silence returns how long a subscription may bring no head. With Config.Lazy, blocks that come slowly are no silence: polls for the
// next one would cost calls.
func (c *Client) silence() time.Duration {
	if gap, _ := c.heads.pace(); c.cfg.Lazy {
		return c.cfg.Silence + gap
	}
	return c.cfg.Silence
}

// idle returns how long the endpoint need not be asked for its head, because heads come from elsewhere; 0 if it is due.
func (c *Client) idle(ep *endpoint) time.Duration {
	_, last := c.heads.pace()
	left := time.Until(last.Add(c.silence()))
	if !c.cfg.Lazy || left <= 0 { // or before the first head
		return 0
	}
	// An endpoint that has failed or lags is asked until it has recovered.
	ep.mu.Lock()
	failed := ep.failures > 0
	ep.mu.Unlock()
	if failed || ep.healthOf(time.Now(), headMethod) > standingUnverified {
		return 0
	}
	// So are those before the one that brings the heads.
	if eps := c.candidates(headMethod); !c.heads.isLive() && (len(eps) == 0 || ep.index <= eps[0].index) {
		return 0
	}
	return left
}

// pause returns how long to wait before the endpoint is asked for its head again.
func (c *Client) pause(ep *endpoint) time.Duration {
	ep.mu.Lock()
	rest := time.Until(ep.until)
	if m := ep.methods[headMethod]; m != nil {
		rest = max(rest, time.Until(m.until))
	}
	wrong := ep.chainID != 0 && ep.chainID != c.cfg.ChainID
	ep.mu.Unlock()
	if rest > 0 {
		return rest
	}
	if c.cfg.Lazy && wrong {
		return verifyEvery
	}
	if !c.heads.isLive() {
		if eps := c.candidates(headMethod); len(eps) > 0 && eps[0] == ep {
			return c.cfg.PollInterval
		}
	}
	return c.cfg.HealthInterval
}

func (c *Client) poll(ctx context.Context, ep *endpoint) {
	if s := ep.healthOf(time.Now(), headMethod); s == standingWrong {
		_, _ = ep.identify(ctx) // its operator may have corrected it; errors are recorded
		return
	} else if s == standingLimited {
		return
	}
	if h, err := c.newest(ctx, ep); err == nil { // errors are recorded, too
		ep.checkSyncing(ctx, h)
	}
}

const (
	// quietAge is the age of an endpoint's newest block above which it is asked whether it is syncing. No block for as long is
	// no fault by itself: a chain may make blocks only when there are transactions.
	quietAge = time.Minute
	// syncingEvery is how often it is asked then. If that fails, it is asked again after unsupportedPardon.
	syncingEvery = 10 * time.Second
)

// checkSyncing asks an endpoint whose newest block is old whether it is syncing. A syncing endpoint comes after the others. A
// node without eth_syncing is not syncing. The endpoint has just reported its head, so a failure counts against this method
// only: gateways reject methods that they do not know with an HTTP status.
func (ep *endpoint) checkSyncing(ctx context.Context, newest Header) {
	quiet, now := time.Since(newest.Time) > quietAge, time.Now()
	ep.mu.Lock()
	due := quiet && now.Sub(ep.syncingAt) >= syncingEvery
	if due {
		ep.syncingAt = now
	}
	ep.mu.Unlock()
	if quiet && !due {
		return
	}
	syncing := false
	if due {
		a, err := ep.askSyncing(ctx)
		if err != nil {
			return
		}
		syncing = a.err == nil && isSyncing(a.result)
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.syncing != syncing {
		ep.log.Info("endpoint has begun or ended to sync", "syncing", syncing, "head", newest.Number)
	}
	if ep.syncing = syncing; syncing {
		ep.down()
	}
}

// askSyncing asks for eth_syncing.
func (ep *endpoint) askSyncing(ctx context.Context) (answer, error) {
	if _, err := ep.admit(ctx, 1, reads); err != nil {
		return answer{}, err
	}
	calls := []call{{method: "eth_syncing", answers: anyError}}
	answers, ex := ep.exchange(ctx, calls, false)
	if ex.err == nil {
		ep.recordAnswers(calls, answers)
		return answers[0], nil
	}
	if ex.counts || isRateLimit(ex.err) {
		ep.methodsFailed(calls, ex.err)
		ep.mu.Lock()
		defer ep.mu.Unlock()
		if !ep.syncing { // otherwise it must be found soon that this has ended
			ep.syncingAt = time.Now().Add(unsupportedPardon - syncingEvery)
		}
	}
	return answer{}, ex.err
}

// isSyncing reports whether the result of eth_syncing means that the node lacks blocks. Some nodes return an object also when
// they have them all.
func isSyncing(result json.RawMessage) bool {
	var blocks struct {
		Current *hexutil.Uint64 `json:"currentBlock"`
		Highest *hexutil.Uint64 `json:"highestBlock"`
	}
	switch text := string(bytes.TrimSpace(result)); {
	case text == "false" || isNull(result):
		return false
	case json.Unmarshal(result, &blocks) != nil || blocks.Current == nil || blocks.Highest == nil:
		return true
	}
	return *blocks.Highest > *blocks.Current
}

// newest reads an endpoint's head.
func (c *Client) newest(ctx context.Context, ep *endpoint) (Header, error) {
	asked, best := time.Now(), c.best()
	answers, err := ep.ask(ctx, []call{blockByTag("latest")})
	if err != nil {
		return Header{}, err
	}
	h, err := sealedHeaderOf(answers[0])
	if IsNoAnswer(err) {
		return Header{}, err
	}
	if err != nil {
		return Header{}, ep.rejectEndpoint(fmt.Errorf("newest block: %w", err))
	}
	ep.observe(h, best)
	c.heads.offer(ep.name, h, asked, c.gone)
	return h, nil
}

// follow subscribes to heads and subscribes again whenever the subscription ends.
func (c *Client) follow(ctx context.Context) {
	u, err := url.Parse(c.cfg.Subscribe)
	if err != nil {
		return // checked by Open
	}
	id := identity{name: u.Host, redact: redactor(u)}
	log := c.log.With("endpoint", id.name)
	for failures := 0; ctx.Err() == nil; failures++ {
		brought, err := c.subscribe(ctx, id)
		c.setLive(false)
		if ctx.Err() != nil {
			return
		}
		if brought {
			failures = 0
		}
		log.Warn("subscription to heads ended", "err", id.transportError(true, err).Err)
		timer := time.NewTimer(backoff(failures, minBackoff, maxBackoff))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (c *Client) setLive(live bool) {
	c.heads.mu.Lock()
	was := c.heads.live
	c.heads.live = live
	c.heads.mu.Unlock()
	if was != live {
		for _, ep := range c.endpoints {
			ep.wakeUp()
		}
	}
}

var errSilent = errors.New("the chain has heads that the subscription did not bring")

// subscribe offers heads until the subscription ends or misses some. brought reports whether there were any.
func (c *Client) subscribe(ctx context.Context, id identity) (brought bool, err error) {
	setup, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if err := c.exclusion(id.name); err != nil {
		return false, err
	}
	client, err := rpc.DialOptions(setup, c.cfg.Subscribe, rpc.WithWebsocketMessageSizeLimit(c.cfg.MaxResponse))
	if err != nil {
		return false, err
	}
	defer client.Close()
	var raw json.RawMessage
	if err := client.CallContext(setup, &raw, "eth_chainId"); err != nil {
		return false, fmt.Errorf("read the chain id: %w", err)
	}
	if chainID, err := parseUint(raw); err != nil {
		return false, fmt.Errorf("read the chain id: %w", err)
	} else if chainID != c.cfg.ChainID {
		return false, &WrongChainError{Endpoint: id.name, Want: c.cfg.ChainID, Have: chainID}
	}
	incoming := make(chan Header)
	sub, err := client.EthSubscribe(setup, incoming, "newHeads")
	if err != nil {
		return false, fmt.Errorf("subscribe to heads: %w", err)
	}
	defer sub.Unsubscribe()
	c.log.Debug("subscribed to heads", "endpoint", id.name)
	known := c.Head().Number // the subscription need not bring heads up to this one
	// With Config.Lazy no endpoint is polled while it is live, so polls go on until it has brought a head.
	if !c.cfg.Lazy {
		c.setLive(true)
	}
	silence := time.NewTimer(c.silence())
	defer silence.Stop()
	for {
		select {
		case h := <-incoming:
			if err := c.exclusion(id.name); err != nil {
				return brought, err
			}
			brought, known = true, h.Number
			c.heads.offer(subscription, h, time.Now(), c.gone)
			c.setLive(true)
			silence.Reset(c.silence())
		case <-silence.C:
			// A chain may make no blocks for long. Polls show whether it does.
			c.setLive(false)
			if c.Head().Number > known {
				return brought, errSilent
			}
			silence.Reset(c.silence())
		case err := <-sub.Err():
			if err == nil {
				err = rpc.ErrClientQuit
			}
			return brought, err
		case <-ctx.Done():
			return brought, ctx.Err()
		}
	}
}
