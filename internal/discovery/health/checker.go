package health

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	// maxBurst is the maximum number of concurrent checks that are not spread over the interval: first and requested
	// ones.
	maxBurst = 256
	// minInFlight is the minimum concurrency of an overloaded process. Each check costs about 20 us of a processor.
	// Even with a quarter of a processor, all of them delay a heartbeat by only a few milliseconds.
	minInFlight = 64
	// reprobeGap is the pause before the next probe of a target whose verdict is undecided.
	reprobeGap = 250 * time.Millisecond
	// voidGap is the pause before the first repeat of a void check; it doubles up to the interval.
	voidGap = 50 * time.Millisecond
	// voidSpacing is the minimum time between repeats of void checks, because fast retries do not help a machine
	// without ports.
	voidSpacing = time.Millisecond
	// tick is how often the scheduler wakes while checks run, to detect stalls of this process.
	tick = 20 * time.Millisecond
	// drainTimeout is how long a stopped checker waits for running checks.
	drainTimeout = time.Second
)

// Checker checks targets. Its methods are safe for concurrent use.
type Checker struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	prober  *prober
	// origin is the start of the intervals: a multiple of the interval since the Unix epoch, so that a target keeps
	// its phase when another process takes over.
	origin time.Time

	wake    chan struct{} // the scheduler must run
	ready   chan struct{} // results are available
	workers sync.WaitGroup
	// checks is the context of running checks; abandon cancels it.
	checks  context.Context
	abandon context.CancelFunc

	mu       sync.Mutex
	targets  map[string]*target
	queue    []*target // to be checked at once, at most maxBurst concurrently
	schedule schedule  // to be checked when due
	results  []*target // reported, not taken
	inFlight int
	limit    int // of inFlight: up to MaxInFlight, less under overload
	bursting int // part of inFlight: from the queue, or due before lastWakeMissedAt
	stopping bool
	// unclosed are removed targets that still hold a connection. closing reports whether a goroutine closes them.
	unclosed []*target
	closing  bool
	// queueNext: the queue has the next turn, before the schedule.
	queueNext bool
	// lastNotifyAt is when Ready was last signaled.
	lastNotifyAt time.Time
	// lastWakeMissedAt is when the scheduler last woke late.
	lastWakeMissedAt time.Time
	// lastStallEndedAt is the end of the last stall that alone made checks late enough for a log line.
	lastStallEndedAt time.Time
	lag              lag
	// planned is the scheduler's next planned wake time. lastStall is when it last found itself late.
	planned, lastStall time.Time
	// crowdCheckedAt is when the scheduling latency was last measured.
	crowdCheckedAt time.Time
	// lastRepeat is the latest time assigned to a repeat of a void check.
	lastRepeat time.Time
	// lastResultAt is the end of the last check with a result. resultsSince is the beginning of the results that have
	// followed each other without a longer gap than that between two checks of one target.
	lastResultAt, resultsSince time.Time
	// voidLogged is the time of the last warning about a void check.
	voidLogged time.Time
}

// New returns a checker without targets, or an error that lists all faults of the Config.
func New(cfg Config) (*Checker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	now := cfg.clock()
	checks, abandon := context.WithCancel(context.Background())
	return &Checker{
		cfg:     cfg,
		checks:  checks,
		abandon: abandon,
		log:     cfg.Logger.With("component", "health"),
		metrics: cfg.Metrics,
		prober:  newProber(cfg),
		origin:  now.Add(-time.Duration(now.UnixNano() % int64(cfg.Interval))),
		wake:    make(chan struct{}, 1),
		ready:   make(chan struct{}, 1),
		limit:   cfg.MaxInFlight,
		targets: make(map[string]*target),
	}, nil
}

// Interval returns the time between two checks of a target.
func (c *Checker) Interval() time.Duration { return c.cfg.Interval }

// Round returns the maximum time for checking n targets at once, like CheckNow, if no other requests are queued. It
// assumes minimum concurrency, every second turn for due checks, and only timeouts. The usual time is far less. It
// excludes repeats of void checks.
func (c *Checker) Round(n int) time.Duration {
	atOnce := min(minInFlight, c.cfg.MaxInFlight)
	return time.Duration(1+(2*n+atOnce-1)/atOnce) * c.cfg.Timeout
}

// Set adds targets, or replaces those with the same id. A target with a new id or URL is unknown and is checked at
// once. Otherwise the verdict is kept.
func (c *Checker) Set(targets ...Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := len(c.queue)
	for _, given := range targets {
		if t, ok := c.targets[given.ID]; ok {
			if t.result.URL == given.URL {
				t.result.Target = given
				continue
			}
			c.drop(t)
		}
		t := &target{
			id:     given.ID,
			phase:  time.Duration(xxhash.Sum64String(given.ID) % uint64(c.cfg.Interval)),
			result: Result{Target: given},
		}
		c.targets[given.ID] = t
		c.enqueue(t)
	}
	if len(c.queue) > waiting {
		signal(c.wake)
	}
}

// Remove removes targets. Results of their running checks are dropped. Like Set, it does not wait until their
// connections are closed; Run does.
func (c *Checker) Remove(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if t, ok := c.targets[id]; ok {
			delete(c.targets, id)
			c.drop(t)
		}
	}
}

// CheckNow checks targets at once, at most 256 at a time, in addition to their schedule. Each check begins after the
// call. Unknown ids are ignored.
func (c *Checker) CheckNow(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := len(c.queue)
	for _, id := range ids {
		t, ok := c.targets[id]
		switch {
		case !ok:
		case t.place == running:
			t.recheck = true
		case t.place == scheduled:
			heap.Remove(&c.schedule, t.index)
			t.due = time.Time{}
			c.enqueue(t)
		}
	}
	if len(c.queue) > waiting {
		signal(c.wake)
	}
}

// Ready receives a value after results for Take have arrived: at once if a verdict has changed. Results with unchanged
// verdicts may be delayed by 20 ms, to collect more of them.
func (c *Checker) Ready() <-chan struct{} { return c.ready }

// Take appends to buf the latest result of every target that was checked since the last call.
func (c *Checker) Take(buf []Result) []Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.results {
		t.reported = false
		if t.place != gone {
			buf = append(buf, t.result)
		}
	}
	clear(c.results)
	c.results = c.results[:0]
	return buf
}

// Run checks until ctx ends, then waits for running checks: a second at most, or until Abandon. An abandoned check has
// no verdict. Call it once.
func (c *Checker) Run(ctx context.Context) error {
	defer c.abandon()
	c.run(ctx)
	c.stop()
	limit := time.AfterFunc(drainTimeout, c.abandon)
	defer limit.Stop()
	c.workers.Wait()
	c.mu.Lock()
	last := append(slices.Collect(maps.Values(c.targets)), c.unclosed...)
	c.unclosed = nil
	c.mu.Unlock()
	for _, t := range last {
		t.close()
	}
	c.prober.close()
	c.metrics.behind.Set(0)
	return nil
}

// Abandon cancels running checks and starts no more, because their results are no longer valid. Run must still be
// stopped.
func (c *Checker) Abandon() {
	c.stop()
	c.abandon()
}

// stop prevents new checks.
func (c *Checker) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
}

// run is the timer goroutine. It starts due checks, and detects late wake-ups.
func (c *Checker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due []*target
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
		}
		c.mu.Lock()
		now := c.cfg.clock()
		late := c.noticeStall(now)
		c.adaptConcurrency(now)
		for t := c.next(now); t != nil; t = c.next(now) {
			due = append(due, t)
		}
		if len(c.results) > 0 && now.Sub(c.lastNotifyAt) >= tick {
			c.signalReady(now)
		}
		behind := c.behind(now)
		began, ended := c.lag.notice(now, behind, c.cfg.Interval, c.catchingUp(now))
		lag, services, limit := c.lag, len(c.targets), c.limit
		c.planned = c.plan(now)
		wait := c.planned.Sub(now)
		c.mu.Unlock()
		c.metrics.behind.Set(behind.Seconds())
		switch {
		case began:
			c.log.Warn("health checks fall behind: more are due than can be made",
				"late", behind, "services", services, "at_a_time", limit)
		case ended:
			c.log.Info("health checks are on time again", "after", lag.late.Sub(lag.since), "worst", lag.worst)
		}
		if late > 0 {
			c.metrics.stalls.Inc()
			c.log.Warn("checker was held up", "late", late)
		}
		for i, t := range due {
			due[i] = nil
			c.workers.Go(func() { c.worker(t) })
		}
		due = due[:0]
		timer.Reset(wait)
	}
}

// plan returns the scheduler's next wake time, once next returns nil. c.mu is held.
func (c *Checker) plan(now time.Time) time.Time {
	wait := time.Hour
	if len(c.schedule) > 0 {
		// At most once per millisecond, so that checks due together start together. A check above the concurrency
		// limit starts when another one ends.
		if wait = c.schedule[0].due.Sub(now); wait <= 0 {
			wait = tick
		}
		wait = max(time.Millisecond, wait)
	}
	if c.inFlight > 0 || len(c.results) > 0 {
		wait = min(wait, tick)
	}
	if c.lag.on {
		wait = min(wait, c.cfg.Interval)
	}
	return now.Add(wait)
}

// signalReady signals Ready. c.mu is held.
func (c *Checker) signalReady(now time.Time) {
	c.lastNotifyAt = now
	signal(c.ready)
}

// noticeStall detects whether this process stalled since the last plan, and returns for how long. Checks that became
// due in the meantime count as a burst. c.mu is held.
func (c *Checker) noticeStall(now time.Time) (late time.Duration) {
	if c.planned.IsZero() || now.Sub(c.planned) <= lateLimit {
		return 0
	}
	late = now.Sub(c.planned)
	c.lastStall, c.lastWakeMissedAt = now, now
	if late > behindLimit/2 {
		c.lastStallEndedAt = now
	}
	return late
}

// catchingUp reports whether checks are late because this process was frozen. After an interval, in which all targets
// can be checked once, late checks have another cause. c.mu is held.
func (c *Checker) catchingUp(now time.Time) bool {
	return len(c.schedule) > 0 && !c.schedule[0].due.After(c.lastStallEndedAt) && now.Sub(c.lastStallEndedAt) < c.cfg.Interval
}

// behind returns how late the longest-due check is; 0 if none is late. c.mu is held.
func (c *Checker) behind(now time.Time) time.Duration {
	if len(c.schedule) == 0 {
		return 0
	}
	return max(0, now.Sub(c.schedule[0].due))
}

// adaptConcurrency reduces the concurrency while this process's processors are too busy to read responses in time, and
// raises it again afterwards. c.mu is held.
func (c *Checker) adaptConcurrency(now time.Time) {
	if now.Sub(c.crowdCheckedAt) < tick || c.limit == c.cfg.MaxInFlight && c.inFlight <= minInFlight {
		return
	}
	c.crowdCheckedAt = now
	w := c.cfg.newConcurrencyLimiter()
	if w.late > 0.01 {
		c.lastStall = now
	}
	if w.crowded > 0.05 {
		c.limit = max(c.limit/2, min(minInFlight, c.cfg.MaxInFlight))
	} else {
		c.limit = min(c.limit*5/4, c.cfg.MaxInFlight)
	}
}

// next returns the next target to check, or nil if there is none or the concurrency limit is reached. Queued and due
// checks alternate, each in its order, so that under any overload all get their turn. c.mu is held.
func (c *Checker) next(now time.Time) *target {
	if c.stopping || c.inFlight >= c.limit {
		return nil
	}
	var t *target
	if c.queueNext {
		t = c.nextQueued()
	}
	if t == nil {
		t = c.nextDue(now)
	}
	if t == nil {
		t = c.nextQueued()
	}
	if t == nil {
		return nil
	}
	c.queueNext = !c.queueNext
	if t.inBurst {
		c.bursting++
	}
	if t.probe == nil {
		t.probe = c.prober.probe(t.result.Target)
	}
	t.place = running
	t.recheck = false
	c.inFlight++
	return t
}

// nextQueued removes and returns the first queued target. c.mu is held.
func (c *Checker) nextQueued() *target {
	for c.bursting < maxBurst && len(c.queue) > 0 {
		t := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		if t.place == queued {
			t.inBurst = true
			return t
		}
	}
	return nil
}

// nextDue removes and returns the longest-due target. c.mu is held.
func (c *Checker) nextDue(now time.Time) *target {
	if len(c.schedule) == 0 || c.schedule[0].due.After(now) {
		return nil
	}
	// After a stall all checks that became due in it are due at once, without being spread.
	missed := !c.schedule[0].due.After(c.lastWakeMissedAt)
	if missed && c.bursting >= maxBurst {
		return nil
	}
	t := heap.Pop(&c.schedule).(*target)
	t.inBurst = missed
	return t
}

// worker checks a target, and then every other target that is due.
func (c *Checker) worker(t *target) {
	for t != nil {
		t = c.check(t)
	}
}

// check runs one check and returns the worker's next target.
func (c *Checker) check(t *target) (next *target) {
	start := c.cfg.clock()
	if !t.due.IsZero() {
		late := start.Sub(t.due)
		c.metrics.lateness.Observe(late.Seconds())
		if c.cfg.Lateness != nil {
			c.cfg.Lateness(t.id, late)
		}
	}
	c.metrics.inFlight.Inc()
	err := t.probe.check(c.checks, time.Now().Add(c.cfg.Timeout))
	end := c.cfg.clock()
	c.metrics.inFlight.Dec()
	o := outcome{err: err, start: start, end: end}

	c.mu.Lock()
	c.recordOutcome(t, &o)
	next = c.next(end)
	if next == nil && len(c.schedule) > 0 && c.schedule[0].due.Before(c.planned) {
		signal(c.wake)
	}
	isGone := t.place == gone
	c.mu.Unlock()

	if isGone {
		t.close()
	}
	c.report(&o)
	return next
}

// outcome is the outcome of one check.
type outcome struct {
	err        error
	start, end time.Time

	// The fields below are set by recordOutcome.
	inconclusive string // why there is no result: "late", "local" or "abandoned"; otherwise empty
	result       Result // after the check
	changed      bool   // the verdict has changed
	warn         bool   // log a warning
}

// recordOutcome applies the outcome of a check and sets when the target's next one is due. c.mu is held.
func (c *Checker) recordOutcome(t *target, o *outcome) {
	c.inFlight--
	if t.inBurst {
		c.bursting--
	}
	o.inconclusive = c.inconclusiveReason(o)
	if c.lacksAddress(t, o) {
		o.inconclusive = ""
	} else if o.inconclusive == "" {
		c.noteResult(o.end)
	}
	before := t.result.Verdict
	undecided := false
	if o.inconclusive == "" {
		undecided = t.applyOutcome(o.err, c.cfg.Rise, c.cfg.Fall)
		t.result.At = o.end
		t.result.Latency = o.end.Sub(o.start)
	}
	o.result = t.result
	o.changed = t.result.Verdict != before
	if t.place == gone {
		return // check closes it
	}
	if o.inconclusive == "" && !t.reported {
		t.reported = true
		c.results = append(c.results, t)
	}
	if o.changed || len(c.results) >= maxBurst {
		c.signalReady(o.end)
	}
	regular := c.nextPhase(t, o.start)
	switch {
	case t.recheck:
		t.due = time.Time{}
		c.enqueue(t)
		return
	case o.inconclusive != "":
		t.due = c.repeatAt(t, o.end)
		if o.end.Sub(c.voidLogged) > time.Second {
			c.voidLogged = o.end
			o.warn = true
		}
	case undecided:
		t.due = o.end.Add(reprobeGap)
	default:
		t.due = regular
	}
	if t.due.After(regular) {
		t.due = regular
	}
	t.place = scheduled
	heap.Push(&c.schedule, t)
}

// inconclusiveReason returns why a check has no result for its target; otherwise empty. c.mu is held.
func (c *Checker) inconclusiveReason(o *outcome) string {
	switch {
	case o.err == nil || definite(o.err):
		return ""
	case c.checks.Err() != nil:
		return "abandoned"
	case local(o.err):
		return "local"
	case errors.Is(o.err, errLate),
		o.end.Sub(o.start) > c.cfg.Timeout+lateLimit,
		c.lastStall.After(o.start),
		o.end.Sub(c.planned) > lateLimit: // the scheduler has not detected the stall yet
		return "late"
	default:
		return ""
	}
}

// resultGap is the maximum time between the ends of two regular checks of one target.
func (c *Checker) resultGap() time.Duration { return c.cfg.Interval + c.cfg.Timeout + lateLimit }

// noteResult records that a check ended with a result. c.mu is held.
func (c *Checker) noteResult(at time.Time) {
	if at.Sub(c.lastResultAt) > c.resultGap() {
		c.resultsSince = at
	}
	c.lastResultAt = at
}

// lacksAddress reports whether a void check counts as a failure: for two intervals this machine has had no address for
// the target, while other targets had results all the time. Such a target may have an address of a family that this
// machine lacks, and would otherwise keep its verdict for ever. If no target has results, the fault is that of this
// machine. c.mu is held.
func (c *Checker) lacksAddress(t *target, o *outcome) bool {
	if o.inconclusive != "local" || !errors.Is(o.err, syscall.EADDRNOTAVAIL) {
		t.noAddressSince = time.Time{}
		return false
	}
	if t.noAddressSince.IsZero() {
		t.noAddressSince = o.end
	}
	// Results after a gap do not count at once: the other targets may have been void, too, until a moment ago.
	since := t.noAddressSince
	if c.resultsSince.After(since) {
		since = c.resultsSince
	}
	return !c.lastResultAt.IsZero() && o.end.Sub(c.lastResultAt) <= c.resultGap() && o.end.Sub(since) >= 2*c.cfg.Interval
}

// repeatAt returns when a void check is repeated. c.mu is held.
func (c *Checker) repeatAt(t *target, now time.Time) time.Time {
	gap := min(voidGap<<min(t.voids, 12), c.cfg.Interval)
	t.voids++
	at := now.Add(gap)
	if earliest := c.lastRepeat.Add(voidSpacing); at.Before(earliest) {
		at = earliest
	}
	c.lastRepeat = at
	return at
}

// nextPhase returns the target's first regular time after the given one.
func (c *Checker) nextPhase(t *target, after time.Time) time.Time {
	first := c.origin.Add(t.phase)
	if after.Before(first) {
		return first
	}
	return first.Add((after.Sub(first)/c.cfg.Interval + 1) * c.cfg.Interval)
}

// enqueue adds a target that is in no other place to the queue. c.mu is held.
func (c *Checker) enqueue(t *target) {
	t.place = queued
	c.queue = append(c.queue, t)
}

// drop removes a target from its place. c.mu is held.
func (c *Checker) drop(t *target) {
	switch t.place {
	case scheduled:
		heap.Remove(&c.schedule, t.index)
		c.closeLater(t)
	case queued:
		c.closeLater(t) // next skips it
	case running, gone: // check closes it
	}
	t.place = gone
}

// closeLater closes a target's connection in another goroutine, because closing thousands takes long, and one under
// TLS may take seconds. Once the checker is stopping, Run closes them. c.mu is held.
func (c *Checker) closeLater(t *target) {
	if t.probe == nil {
		return
	}
	c.unclosed = append(c.unclosed, t)
	if !c.closing && !c.stopping {
		c.closing = true
		c.workers.Go(c.closeUnclosed)
	}
}

// closeUnclosed closes unclosed targets until there are none.
func (c *Checker) closeUnclosed() {
	for {
		c.mu.Lock()
		batch := c.unclosed
		c.unclosed, c.closing = nil, len(batch) > 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, t := range batch {
			t.close()
		}
	}
}

// report counts and logs a check.
func (c *Checker) report(o *outcome) {
	duration := o.end.Sub(o.start)
	level, result := slog.LevelDebug, "healthy"
	switch {
	case o.inconclusive == "abandoned":
		return
	case o.inconclusive == "late":
		c.metrics.voidLate.Inc()
		result = "void"
	case o.inconclusive == "local":
		c.metrics.voidLocal.Inc()
		result = "void"
	case o.err != nil:
		c.metrics.failures.Inc()
		level, result = slog.LevelInfo, "unhealthy"
	default:
		c.metrics.successes.Inc()
	}
	if o.inconclusive == "" {
		c.metrics.duration.Observe(duration.Seconds())
	}
	if o.warn || o.err != nil && o.changed {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !c.log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 7)
	attrs = append(attrs,
		slog.String("service", o.result.ID),
		slog.String("kind", o.result.Kind),
		slog.Float64("healthCheckDuration", float64(duration.Microseconds())/1000), // milliseconds
		slog.String("result", result))
	if o.err == nil {
		c.log.LogAttrs(ctx, level, "health check", attrs...)
		return
	}
	attrs = append(attrs, slog.String("url", o.result.URL), slog.String("reason", reason(o.err)))
	if o.inconclusive != "" {
		attrs = append(attrs, slog.String("void", o.inconclusive))
		c.log.LogAttrs(ctx, level, "health check void", attrs...)
		return
	}
	attrs = append(attrs, slog.Int("failures", o.result.Failures))
	c.log.LogAttrs(ctx, level, "health check failed", attrs...)
}

// signal sends on a channel of capacity one, unless a value is pending.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
