package evm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

const (
	// verifyEvery is how often an endpoint must report its chain again, because its host name may start to point
	// elsewhere.
	verifyEvery = time.Minute
	// wrongFor is how long an endpoint that reported another chain is not asked at all. Its operator may correct it.
	wrongFor = 10 * time.Second
	// A failing endpoint is not asked for a pause that doubles from minBackoff to maxBackoff.
	minBackoff = 250 * time.Millisecond
	maxBackoff = 30 * time.Second
	// A rate-limited endpoint that names no delay is not asked for a pause that doubles between these.
	minLimitBackoff = time.Second
	maxLimitBackoff = time.Minute
	// pendingPardon is when an endpoint without pending state is asked for it again. It may have been starting up. A
	// simulation without pending state reports a failure for calls that depend on a pending transaction.
	pendingPardon = time.Minute
	// unsupportedPardon is when an endpoint is asked again for a method, or a form of its parameters, that it did not support.
	unsupportedPardon = 10 * time.Minute
)

// endpoint is one node, or a provider's front for many, with its recorded state.
type endpoint struct {
	identity
	index int // in Config.Endpoints
	cfg   *Config
	log   *slog.Logger
	conn  conn
	pace  *pace
	wake  chan struct{} // wakes the watcher

	noBlockHash     atomic.Pointer[time.Time] // until then EIP-1898's block parameter is not used
	noBlockReceipts atomic.Pointer[time.Time] // until then receipts are read by transaction hash only
	noPending       atomic.Pointer[time.Time] // until then it simulates on top of the newest block only

	verifying chan struct{} // full while its chain id is read; all other callers wait for that

	mu        sync.Mutex
	verified  time.Time // when it last reported the right chain; zero if it must do so before it is used
	chainID   uint64    // as last reported
	reported  time.Time // when it last reported its chain
	genesis   common.Hash
	anchored  Header // the block that it last returned for an Anchor
	head      Header
	seen      time.Time // when head was read
	lag       uint64    // blocks behind the best endpoint, when head was read
	lagging   bool      // too far behind then
	behind    time.Time // since when it has reported head while another endpoint had a later block; zero: it had not
	syncing   bool      // as it said itself, while its head was old
	syncingAt time.Time // when it was last asked
	failures  int       // in a row
	failedAt  time.Time // when a request last got no answer
	until     time.Time // not asked until then
	limited   bool      // until comes from a rate limit
	warned    time.Time // when its failure was last logged
	reason    string    // of the last failure; empty if it is healthy
	batches   batchSize
	methods   map[string]*methodHealth
	excluded  Exclusion // why it must not be used; zero if it may be
}

func newEndpoint(cfg *Config, index int, name string, u *url.URL) *endpoint {
	id := identity{name: name, redact: redactor(u)}
	ep := &endpoint{
		identity: id, index: index, cfg: cfg, log: cfg.Logger.With("component", "chain", "endpoint", name),
		wake: make(chan struct{}, 1), verifying: make(chan struct{}, 1), batches: batchSize{size: cfg.BatchSize},
		methods: map[string]*methodHealth{},
	}
	if u.Scheme == "ws" || u.Scheme == "wss" {
		ep.conn = newWSConn(id, u.String(), cfg.MaxResponse)
	} else {
		ep.conn = newHTTPConn(id, u, cfg.MaxResponse)
	}
	if ep.pace = newPace(cfg.maxRPS(index)); cfg.Beside != nil {
		ep.pace = cfg.Beside.endpoints[index].pace
	}
	cfg.Metrics.up.WithLabelValues(name) // 0 until it reports its head
	return ep
}

// endpointHealth ranks endpoints, the best first.
type endpointHealth int

const (
	standingGood       endpointHealth = iota // answers, right chain
	standingUnverified                       // must report its chain first
	standingLagging                          // answers, behind the others
	standingFailing                          // gave no answer recently, or failed one of the methods
	standingLimited                          // rate-limited, as a whole or for one of the methods: not used until that ends
	standingWrong                            // another chain: not used
	standingExcluded                         // by Client.Exclude: not used
)

// healthOf returns the health of the endpoint for calls of the methods.
func (ep *endpoint) healthOf(now time.Time, methods ...string) endpointHealth {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	s := standingGood
	switch {
	case ep.chainID != 0 && ep.chainID != ep.cfg.ChainID && now.Sub(ep.reported) < wrongFor:
		s = standingWrong
	case ep.chainID != 0 && ep.chainID != ep.cfg.ChainID: // the next call asks for its chain first
		s = standingFailing
	case ep.excluded != (Exclusion{}):
		s = standingExcluded
	case now.Before(ep.until) && ep.limited:
		s = standingLimited
	case now.Before(ep.until):
		s = standingFailing
	case ep.verified.IsZero():
		s = standingUnverified
	case ep.syncing || ep.lagging:
		s = standingLagging
	}
	for _, method := range methods {
		s = max(s, ep.methodStanding(method, now))
	}
	return s
}

// ask verifies the endpoint's chain if that is due and sends the calls, split into batches that the endpoint accepts.
// It returns an answer for each call. If the endpoint gives no answer to some, ask returns an error. Then the earlier
// answers are filled in, and the later ones have errMissing.
func (ep *endpoint) ask(ctx context.Context, calls []call) ([]answer, error) {
	if err := ep.verify(ctx); err != nil {
		return nil, err
	}
	return ep.send(ctx, calls, false)
}

// askPatiently is ask for a caller that can ask no other endpoint instead. A rate limit may pass while it waits.
func (ep *endpoint) askPatiently(ctx context.Context, calls []call) ([]answer, error) {
	if err := ep.verify(ctx); err != nil {
		return nil, err
	}
	return ep.send(ctx, calls, true)
}

// send is ask without verification.
func (ep *endpoint) send(ctx context.Context, calls []call, patient bool) ([]answer, error) {
	answers := make([]answer, len(calls))
	for i := range answers {
		answers[i].err = errMissing
	}
	q := newQuery(ep, calls, func(i int, a answer) { answers[i] = a })
	q.patient = q.patient || patient
	return answers, q.run(ctx)
}

// admit waits until the endpoint's pace allows at least one of n calls, and returns how many may be sent.
func (ep *endpoint) admit(ctx context.Context, n int, k kind) (int, error) {
	granted, wait, err := ep.pace.take(ctx, n, ep.cfg.portion(), k)
	switch {
	case err != nil:
		return 0, &TransportError{Endpoint: ep.name, Err: err}
	case granted == 0:
		return 0, &RateLimitError{Endpoint: ep.name, RetryAfter: wait, Reason: "too many calls wait for their turn"}
	}
	return granted, nil
}

// slowDown lowers the endpoint's pace because it refused some calls of a request that was sent at a time.
func (ep *endpoint) slowDown(refused int, sentAt time.Time) {
	limit := ep.pace.refuse(refused, sentAt)
	ep.log.Debug("endpoint refused calls because of a rate limit", "calls", refused, "calls_per_second", int(limit))
}

// exchanged is the outcome of a request.
type exchanged struct {
	err    error // there are no answers
	ended  bool  // its time was over, or its caller canceled it
	counts bool  // the error counts against the endpoint
}

// exchange sends one request, within the timeout. The caller records its outcome.
func (ep *endpoint) exchange(ctx context.Context, calls []call, batch bool) ([]answer, exchanged) {
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, ep.cfg.Timeout)
	defer cancel()
	start := time.Now()
	answers, err := ep.conn.do(ctx, calls, batch)
	took := time.Since(start)
	if limit := ep.answerLimit(calls, err); limit != nil {
		answers, err = []answer{{err: limit}}, nil
	}
	ex := exchanged{err: err}
	outcome := ""
	switch {
	case err == nil:
	case isBatchRefused(err):
		outcome = outcomeError
	case isRateLimit(err):
		outcome = outcomeLimited
	default:
		outcome = outcomeTransport
		if ex.ended = ctx.Err() != nil; ex.ended {
			outcome = outcomeTimeout
		}
		// A request that its caller canceled early proves nothing about the endpoint.
		ex.counts = asked.Err() == nil || took >= min(ep.cfg.Timeout, time.Second) && !errors.Is(asked.Err(), context.Canceled)
	}
	ep.cfg.Metrics.count(ep.name, calls, answers, took, outcome)
	return answers, ex
}

// record records that a request got no answer.
func (ep *endpoint) record(calls []call, ex exchanged) {
	if ex.counts {
		ep.failed(ex.err)
		ep.methodsFailed(calls, ex.err)
	}
}

func (ep *endpoint) succeeded() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.failures == 0 {
		return
	}
	ep.failures, ep.until, ep.limited, ep.reason, ep.warned = 0, time.Time{}, false, "", time.Time{}
	ep.log.Info("endpoint answers again")
}

func (ep *endpoint) failed(err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.verified = time.Time{} // another node may answer after the failure
	ep.failedAt = time.Now()
	ep.reason = reasonOf(err)
	ep.backOff(backoff(ep.failures, minBackoff, maxBackoff), false)
	if ep.warns() {
		ep.log.Warn("endpoint failed", "err", err)
	}
}

func (ep *endpoint) limit(err error) {
	e, ok := errors.AsType[*RateLimitError](err)
	if !ok {
		return
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	// An endpoint that cannot report its chain is of no use for other methods.
	if tracked(e.Method) && e.Method != "eth_chainId" {
		ep.methodFailed(e.Method, limitPrefix+e.Reason, true)
		e.RetryAfter = max(0, time.Until(ep.methods[e.Method].until))
		return
	}
	if e.RetryAfter <= 0 {
		e.RetryAfter = backoff(ep.failures, minLimitBackoff, maxLimitBackoff)
	}
	ep.reason = limitPrefix + e.Reason
	ep.backOff(e.RetryAfter, true)
	if ep.warns() {
		ep.log.Warn("endpoint limits the rate", "err", err)
	}
}

// warnEvery is how often the failure of an endpoint is logged while it lasts.
const warnEvery = time.Minute

// warns reports whether a failure should be logged: the first one, then one a minute. ep.mu is held.
func (ep *endpoint) warns() bool {
	if time.Since(ep.warned) < warnEvery {
		return false
	}
	ep.warned = time.Now()
	return true
}

// backOff stops use of the endpoint for d. Of concurrent failures only the first counts.
func (ep *endpoint) backOff(d time.Duration, limited bool) {
	now := time.Now()
	if now.Before(ep.until) && ep.limited == limited {
		return
	}
	ep.failures++
	ep.until, ep.limited = now.Add(d), limited
	ep.down()
}

// down sets the up metric of the endpoint to 0, if it has reported a head. A client that only forwards calls shares its
// metrics with the client that watches heads. Its callers' requests fail for odd reasons, and it would not set the
// metric to 1 again. ep.mu is held.
func (ep *endpoint) down() {
	if !ep.seen.IsZero() {
		ep.cfg.Metrics.up.WithLabelValues(ep.name).Set(0)
	}
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*TransportError](err); ok {
		if errors.Is(e.Err, context.DeadlineExceeded) {
			return "timeout"
		}
		return e.Err.Error()
	}
	return err.Error()
}

// backoff returns a delay that doubles from least to most with each failure, minus up to a quarter of jitter, so that
// processes do not retry in step.
func backoff(failures int, least, most time.Duration) time.Duration {
	d := min(least<<min(failures, 16), most)
	return d - rand.N(d/4+1)
}

// verify checks, once a minute and after each failure, that the endpoint is on the right chain.
func (ep *endpoint) verify(ctx context.Context) error {
	if err := ep.exclusion(); err != nil {
		return err
	}
	if ep.isVerified() {
		return nil
	}
	came := time.Now()
	select {
	case ep.verifying <- struct{}{}:
		defer func() { <-ep.verifying }()
	case <-ctx.Done():
		return &TransportError{Endpoint: ep.name, Err: ctx.Err()}
	}
	if ep.isVerified() {
		return nil
	}
	if reason, ok := ep.failedSince(came); ok {
		return &TransportError{Endpoint: ep.name, Err: errors.New(reason)}
	}
	_, err := ep.identify(ctx)
	if e, ok := errors.AsType[*TransportError](err); ok {
		return &TransportError{Endpoint: ep.name, Err: e.Err} // a request may have been sent, but not the caller's
	}
	return err
}

// failedSince reports to waiting callers whether the attempt that they waited for failed.
func (ep *endpoint) failedSince(t time.Time) (reason string, failed bool) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.reason, ep.failedAt.After(t)
}

func (ep *endpoint) isVerified() bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return !ep.verified.IsZero() && time.Since(ep.verified) < verifyEvery
}

// identify reads the endpoint's chain id and first block, with further calls in the same batch if given. It returns the
// answers from the one about the first block on.
func (ep *endpoint) identify(ctx context.Context, more ...call) ([]answer, error) {
	answers, err := ep.send(ctx, append([]call{{method: "eth_chainId"}, genesisBlock()}, more...), false)
	if err != nil {
		return nil, err
	}
	if answers[0].err != nil {
		return nil, ep.rejectEndpoint(answers[0].err)
	}
	id, err := parseUint(answers[0].result)
	if err != nil {
		return nil, ep.rejectEndpoint(fmt.Errorf("chain id: %w", err))
	}
	genesis, genesisErr := headerOf(answers[1])

	ep.mu.Lock()
	defer ep.mu.Unlock()
	changed := ep.chainID != id
	if ep.chainID, ep.reported = id, time.Now(); changed {
		ep.showExcluded()
	}
	if id != ep.cfg.ChainID {
		ep.verified = time.Time{}
		ep.down()
		wrong := &WrongChainError{Endpoint: ep.name, Want: ep.cfg.ChainID, Have: id}
		if changed {
			ep.warned = time.Time{}
		}
		if ep.warns() {
			ep.log.Error("endpoint is not used", "err", wrong)
		}
		return nil, wrong
	}
	if genesisErr == nil { // a node that has pruned its first block may still be used
		if ep.genesis != (common.Hash{}) && ep.genesis != genesis.Hash {
			ep.log.Error("endpoint returns another genesis block than before; its chain has been reset",
				"before", ep.genesis, "now", genesis.Hash)
		}
		ep.genesis = genesis.Hash
	}
	ep.verified = time.Now()
	return answers[1:], nil
}

// rejectEndpoint records a failure of an endpoint that answers without a valid result, such as its chain id.
func (ep *endpoint) rejectEndpoint(err error) error {
	e := ep.transportError(true, err)
	ep.failed(e)
	return e
}

// stuckFactor is the multiple of Config.MaxLag for which an endpoint may show the same block while others have a later one. On
// a chain that makes a block now and then it never gets many blocks behind.
const stuckFactor = 6

// observe records the endpoint's head.
func (ep *endpoint) observe(h, best Header) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	now := time.Now()
	moved := h.Hash != ep.head.Hash
	ep.head, ep.seen, ep.lag, ep.lagging = h, now, 0, false
	switch {
	case best.Number <= h.Number:
		ep.behind = time.Time{}
	case moved || ep.behind.IsZero():
		ep.behind = now
	}
	if best.Number > h.Number {
		ep.lag = best.Number - h.Number
		ep.lagging = ep.lag > ep.cfg.MaxLagBlocks && best.Time.Sub(h.Time) > ep.cfg.MaxLag || now.Sub(ep.behind) > stuckFactor*ep.cfg.MaxLag
	}
	ep.cfg.Metrics.head.WithLabelValues(ep.name).Set(float64(h.Number))
	ep.cfg.Metrics.headTime.WithLabelValues(ep.name).Set(float64(h.Time.Unix()))
	up := 0.0
	if !ep.syncing && !ep.lagging && ep.excluded == (Exclusion{}) {
		up = 1
	}
	ep.cfg.Metrics.up.WithLabelValues(ep.name).Set(up)
}

// wakeUp wakes the endpoint's watcher.
func (ep *endpoint) wakeUp() {
	select {
	case ep.wake <- struct{}{}:
	default:
	}
}
