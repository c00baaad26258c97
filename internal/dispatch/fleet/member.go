package fleet

import (
	"container/list"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

const (
	// loadTimeout bounds a reading of a relayer's load.
	loadTimeout = 2 * time.Second
	// memory is the time constant of averages: after it, an older sample counts a third.
	memory = 2 * time.Second
	// quick is the latency below which differences say nothing.
	quick = 20 * time.Millisecond
	// silentReadings is after how many failed readings of its load a relayer is the last resort.
	silentReadings = 2
	// firstPause and longestPause are how long a relayer is passed over after its first fault and after many. longestPause also bounds the
	// pause that a relayer asks for, because one client's transaction may be the reason: it may exceed a gas budget until midnight.
	firstPause, longestPause = time.Second, 30 * time.Second
	// silencePenalty is the factor of a relayer that sends only half of its transactions, or counts only half of them.
	silencePenalty = 50
	// mostSilence bounds the factor of one that sends or counts none, at about five thousand.
	mostSilence = 0.99
	// fewUnmined is how many transactions without news prove nothing.
	fewUnmined = 8
	// countMemory is the time constant in which a relayer that did not count its transactions is forgiven without a proof of either. A
	// relayer that gets little has too few transactions for one, and would otherwise get its share again at once.
	countMemory = time.Minute
	// mostRejections bounds by how much rejections in a row slow the forgiveness down: to half a minute.
	mostRejections = 4
	// leastSuccess bounds the factor of failures, at about a hundred thousand: above the cost of a relayer that has a hundred requests, of
	// seconds each.
	leastSuccess = 0.003
)

// member is a live relayer.
type member struct {
	fleet   *Fleet
	id, url string
	client  *upstream.Client
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	stop    context.CancelFunc
	done    chan struct{}
	wake    chan struct{}
	// chainAt is when the relayer was last asked for its chain; zero if it is to be asked. Only run uses it.
	chainAt time.Time

	mu             sync.Mutex
	info           *upstream.Info // nil: to be looked up
	other          bool           // no relayer behind the URL has the configured id or network, and the chain, or its host is not allowed
	pending        int            // as the relayer reported
	outstanding    store.Outstanding
	uncounted      float64     // average share of the unmined transactions that the relayer does not count
	accepted       []time.Time // by this process, since the readings above
	failedReadings int
	inFlight       *list.List // of time.Time, the oldest first
	latency        float64    // seconds
	success        float64    // 0 to 1
	sampledAt      time.Time
	faults         int // in a row
	rejections     int // in a row
	pausedUntil    time.Time
}

func newMember(ctx context.Context, f *Fleet, id, url string, client *upstream.Client) *member {
	ctx, stop := context.WithCancel(ctx)
	m := &member{
		fleet: f, id: id, url: url, client: client, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1),
		inFlight: list.New(), success: 1, sampledAt: time.Now(),
	}
	m.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: id, MaxRequests: 1, Timeout: firstPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures > 0 },
		IsExcluded:  func(err error) bool { return errors.Is(err, errUnused) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				f.metrics.opened.WithLabelValues(id).Inc()
			}
		},
	})
	go m.run(ctx)
	return m
}

// end ends the readings, and closes the client when they have ended. Requests in flight go on.
func (m *member) end() {
	m.stop()
	<-m.done
	_ = m.client.Close()
}

// run reads the relayer's id and load, and again after each readNow, until ctx ends.
func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for {
		m.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
	}
}

// read reads the load as the relayer counts it, and as the store does. Both readings begin at the same time, so that they can be
// compared, however long they take: transactions that are accepted between two moments may be mined in between, and would make up for
// those that the relayer does not count.
func (m *member) read(ctx context.Context) {
	began := time.Now()
	var counted store.Outstanding
	var err error
	var counting sync.WaitGroup
	counting.Go(func() { counted, err = m.fleet.counts.Do(ctx, m.id) })
	answered := m.readLoad(ctx)
	counting.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if answered || err == nil {
		m.forget(began)
	}
	if err == nil {
		m.setOutstanding(counted, answered, began)
	}
}

// readLoad reads the relayer's own count, and reports whether it answered.
func (m *member) readLoad(ctx context.Context) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	m.mu.Lock()
	info := m.info
	m.mu.Unlock()
	searched := info == nil
	stale := time.Since(m.chainAt) > chainEvery
	found, err := m.fleet.identify(ctx, m.client, info, stale)
	if err == nil && stale && found.Usable() {
		m.chainAt = time.Now()
	}
	var load upstream.Load
	if err == nil {
		load, err = m.client.Load(ctx, found.Ref())
	}
	if err != nil {
		m.chainAt = time.Time{} // another relayer may answer next
	}
	missing := errors.Is(err, upstream.ErrNoRelayer) || errors.Is(err, upstream.ErrOtherNetwork)
	other := searched && missing || refusal(err) != ""
	m.fleet.matched(m.id, other, err)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.other = other || m.other && err != nil
	if other {
		m.info = nil
		return false
	}
	if err != nil {
		if m.failedReadings++; m.failedReadings == silentReadings {
			m.fleet.log.Warn("load of a relayer cannot be read", "service", m.id, "err", err)
		}
		if missing || errors.Is(err, upstream.ErrOtherScope) {
			m.info = nil
			if !searched {
				m.readNow() // the relayer that answers now is looked up
			}
		}
		return false
	}
	if m.info == nil && !searched { // a submission has proved it wrong meanwhile
		return false
	}
	found.Paused, found.Disabled = found.Paused || load.Paused, found.Disabled || load.Disabled
	m.info, m.pending, m.failedReadings = &found, load.Pending, 0
	return true
}

// setOutstanding stores the load as the store knew it, and compares the relayer's count with it if the relayer answered. m.mu is held.
func (m *member) setOutstanding(o store.Outstanding, answered bool, began time.Time) {
	m.outstanding = o
	reported := m.pending
	for _, at := range m.accepted {
		if !at.After(began) {
			reported++
		}
	}
	switch {
	case answered && o.Count > fewUnmined:
		m.uncounted = (m.uncounted + max(0, float64(o.Count-reported))/float64(o.Count)) / 2
	case answered && m.pending > 0 && reported >= o.Count:
		m.uncounted /= 2
	default:
		m.uncounted *= math.Exp(-m.fleet.cfg.Poll.Seconds() / countMemory.Seconds())
	}
}

// forget drops the acceptances that a reading includes. The relayer and the store may need a moment to count one.
func (m *member) forget(readAt time.Time) {
	n := 0
	for n < len(m.accepted) && m.accepted[n].Before(readAt.Add(-100*time.Millisecond)) {
		n++
	}
	m.accepted = append(m.accepted[:0], m.accepted[n:]...)
}

// suits reports whether the member may be chosen for a submission.
func (m *member) suits(w consumer.Want, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.info == nil, !m.info.Usable(), m.info.ChainID == 0, now.Before(m.pausedUntil):
		return false
	case w.Resume && m.info.Scope != w.Scope, w.Keyed && m.info.Scope == "", w.Avoid != "" && m.info.Scope == w.Avoid:
		return false
	}
	return !slices.Contains(w.Exclude, m.id) && m.breaker.State() != gobreaker.StateOpen
}

// scope returns the relayer's idempotency scope; "" if it has none, or is not known yet.
func (m *member) scope() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.info == nil {
		return ""
	}
	return m.info.Scope
}

// usable reports whether the member can be chosen once its pause and its breaker's have ended.
func (m *member) usable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.info != nil && m.info.Usable()
}

// mismatched reports whether no relayer behind the URL has the configured id or network, and the chain, or its host is not allowed.
func (m *member) mismatched() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.other
}

// answering reports whether the relayer answered the last reading.
func (m *member) answering() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.info != nil && m.failedReadings == 0
}

// silent reports whether the relayer does not answer readings.
func (m *member) silent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failedReadings >= silentReadings
}

// cost returns what one more submission costs here, given the fleet's usual latency. The package's documentation explains it.
func (m *member) cost(now time.Time, usual float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	load := max(m.pending, m.outstanding.Count) + len(m.accepted) + m.inFlight.Len()
	latency, success := m.averages(now, usual)
	if oldest := m.inFlight.Front(); oldest != nil {
		latency = max(latency, now.Sub(oldest.Value.(time.Time)).Seconds())
	}
	silence := m.uncounted
	if m.outstanding.Stuck > 0 {
		silence = max(silence, float64(m.outstanding.Stuck)/float64(m.outstanding.Count))
	}
	success = max(success, leastSuccess)
	silence = min(silence, mostSilence)
	return float64(load+1) * max(1, latency/quick.Seconds()) / (success * success) * (1 + silencePenalty*silence/(1-silence))
}

// averages returns latency and success as of now. Without new samples, a relayer's latency becomes the usual one: a lower one would
// attract submissions to an overloaded relayer only because the others are measured. A relayer's failures are forgiven, the later the
// more requests in a row it rejected: beside busy relayers, one that rejects everything would be the cheapest again after milliseconds.
func (m *member) averages(now time.Time, usual float64) (latency, success float64) {
	age := now.Sub(m.sampledAt)
	return usual + (m.latency-usual)*keep(age, memory), 1 - (1-m.success)*keep(age, memory<<min(m.rejections, mostRejections))
}

// keep returns how much a sample of an age still counts, 0 to 1.
func keep(age, constant time.Duration) float64 {
	return math.Exp(-age.Seconds() / constant.Seconds())
}

// usual is the average latency of the recent submissions to all relayers.
type usual struct {
	mu      sync.Mutex
	seconds float64
	addedAt time.Time
}

func (u *usual) latency() float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seconds
}

func (u *usual) add(now time.Time, seconds float64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seconds = seconds + (u.seconds-seconds)*keep(now.Sub(u.addedAt), memory)
	u.addedAt = now
}

// errFault and errUnused are the breaker's errors.
var (
	errFault  = errors.New("fault")
	errUnused = errors.New("not used")
)

// take chooses the member, unless its breaker refuses.
func (m *member) take(now time.Time) (consumer.Choice, bool) {
	report, err := m.breaker.Allow()
	if err != nil {
		return consumer.Choice{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.info == nil {
		report(errUnused)
		return consumer.Choice{}, false
	}
	flight := m.inFlight.PushBack(now)
	var once sync.Once
	return consumer.Choice{
		Route:   dispatch.Route{Relayer: m.id, URL: m.url, RelayerID: m.info.RelayerID, Scope: m.info.Scope},
		Network: m.info.Network,
		Relayer: m.client,
		Done: func(r *upstream.Result) {
			once.Do(func() {
				m.returned(r, flight)
				switch {
				case r == nil, r.Busy, local(r):
					report(errUnused)
				case r.Fault:
					report(errFault)
				default:
					report(nil)
				}
			})
		},
	}, true
}

// local reports whether a submission ended without an answer for a reason of this process, such as its lease: it proves nothing about
// the relayer.
func local(r *upstream.Result) bool { return r.Code == 0 && !r.Fault }

// returned takes the result of a submission into account; nil if it was not made.
func (m *member) returned(r *upstream.Result, flight *list.Element) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight.Remove(flight)
	if r == nil {
		return
	}
	now := time.Now()
	m.fleet.metrics.submitted.WithLabelValues(m.id, r.Outcome.String()).Inc()
	if local(r) {
		return
	}
	latency, success := m.averages(now, m.fleet.usual.latency())
	switch {
	case r.Fault:
		if now.After(m.pausedUntil) { // otherwise it is one more of the requests that were in flight at the first fault
			m.faults++
		}
		pause := min(firstPause<<min(max(m.faults-1, 0), 8), longestPause)
		m.pausedUntil = now.Add(min(max(pause, r.RetryAfter), longestPause))
		success /= 2
	case r.Outcome == upstream.NotDone && r.Stale:
		// The relayer's scope has changed, and all requests in flight get this answer. It is forgiven soon, unlike a rejection.
		success /= 2
	case r.Outcome == upstream.Rejected, r.Outcome == upstream.NotDone && !r.Busy:
		// Its own balance, policy or settings may be the reason, and it must not attract more because it rejects fast. It is not paused,
		// because a client's invalid requests, or those that no key can pay for, would pause all relayers.
		success /= 2
		m.rejections++
	default:
		m.faults, m.rejections = 0, 0
		success += (1 - success) / 4
		took := r.Took.Seconds()
		m.fleet.usual.add(now, took)
		// The peak counts, so that a relayer that becomes slow is left at once.
		latency = max(took, took+(m.latency-took)*keep(now.Sub(m.sampledAt), memory))
	}
	if r.Busy {
		m.pausedUntil = now.Add(min(max(firstPause, r.RetryAfter), longestPause))
	}
	if r.Outcome == upstream.Accepted {
		m.accepted = append(m.accepted, now)
	}
	m.latency, m.success, m.sampledAt = latency, success, now
	if r.Stale {
		m.info = nil
	}
	if r.Stale || r.Fault {
		m.readNow()
	}
}

// readNow makes run read the relayer's load at once.
func (m *member) readNow() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// number returns the N of oz-relayer-N.
func number(id string) (string, bool) {
	n, ok := strings.CutPrefix(id, "oz-relayer-")
	if !ok || n == "" || n[0] == '0' && n != "0" || strings.Trim(n, "0123456789") != "" {
		return "", false
	}
	return n, true
}
