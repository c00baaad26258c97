package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// poll is how often an idle worker or dispatcher looks at the table, if no NOTIFY arrives.
	poll = time.Second
	// minInterval is the shortest time between two turns, so that claims and results share turns.
	minInterval = 5 * time.Millisecond
	// shutdownTimeout is how long a stop waits for an unavailable database.
	shutdownTimeout = 3 * time.Second
	// overLimitPause is after how long a broker gets an entry again that exceeded the limit of its lane.
	overLimitPause = time.Second
	// purgeEvery is how often KeepPurging deletes entries.
	purgeEvery = 10 * time.Minute
)

// Handler works on an entry. Its context does not end with that of [Worker.Run], so that it can finish. It ends with [ErrStopped]
// after Config.DrainTimeout, and with [ErrLeaseLost] when another process may work on the entry. The handler must return soon after
// that.
type Handler func(context.Context, Work) Result

var (
	// ErrStopped is the cause of the end of a handler's context after Config.DrainTimeout.
	ErrStopped = errors.New("the worker stops")
	// ErrLeaseLost is the cause of the end of a handler's context when its lease ended. Its result is stored only if no other
	// process has claimed the entry meanwhile.
	ErrLeaseLost = errors.New("the lease of the entry was lost")
)

// Config configures a [Worker].
type Config struct {
	// Handle works on an entry. Required.
	Handle Handler
	// Concurrency is how many handlers run concurrently, from 1. Default 1.
	Concurrency int
	// Lease is how long a claim lasts, at least 1 s; it is extended while the handler runs. Default 60 s.
	Lease time.Duration
	// MaxFailures is after how many failures an entry is dead. A claim that ends without a result counts, because the entry may
	// have killed its process. Default 0: no maximum.
	MaxFailures int
	// RetryFor is for how long after its first failure an entry is retried. Default 0: for ever.
	RetryFor time.Duration
	// DrainTimeout is how long running handlers may continue after a stop before their contexts end. Default 40 s.
	DrainTimeout time.Duration
	// Retention is how long finished entries of a table with KeepDone are kept. Default 0: until an operator purges them.
	Retention time.Duration
	// Prefix restricts the worker to lanes with a prefix. Default: all lanes.
	Prefix string
	// Partitions and Partition restrict the worker to entries with partition mod Partitions = Partition. Default 0: all entries.
	Partitions, Partition int
	// Limits returns how many entries of a lane this process may work on concurrently; with 0 it claims none. It is called for each
	// lane in each turn. Call [Worker.Wake] after a limit grew. Default: no limit but Concurrency.
	Limits func(lane string) int
	// Transport delivers the ids of entries that a [Dispatcher] sent. Default: the worker claims entries from the table.
	Transport Transport
	// Component is the name in log lines. Default "outbox".
	Component string
	// Logger receives state changes and dead entries. Default: discard.
	Logger *slog.Logger
	// Observer receives what the worker does. Default: none.
	Observer Observer
}

// complete returns the Config with defaults, or all its problems.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.Handle == nil {
		errs = append(errs, errors.New("the handler is missing"))
	}
	c.Concurrency = cmp.Or(c.Concurrency, 1)
	if c.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency %d: must be at least 1", c.Concurrency))
	}
	c.Lease = cmp.Or(c.Lease, time.Minute)
	if c.Lease < time.Second {
		errs = append(errs, fmt.Errorf("lease %v: must be at least 1s", c.Lease))
	}
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 40*time.Second)
	if c.MaxFailures < 0 || c.RetryFor < 0 || c.DrainTimeout < 0 || c.Retention < 0 {
		errs = append(errs, errors.New("maximum of failures, retry window, drain timeout and retention must not be negative"))
	}
	if c.Partitions < 0 || c.Partition < 0 || c.Partition >= max(c.Partitions, 1) {
		errs = append(errs, fmt.Errorf("partition %d of %d: must be from 0 and below the number of partitions", c.Partition, c.Partitions))
	}
	if c.Limits == nil {
		c.Limits = func(string) int { return math.MaxInt }
	}
	c.Component = cmp.Or(c.Component, "outbox")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = c.Logger.With("component", c.Component)
	if c.Observer == nil {
		c.Observer = Unobserved{}
	}
	return c, errors.Join(errs...)
}

// mine reports whether the worker claims from a lane.
func (c Config) mine(k laneKey) bool {
	return (c.Partitions == 0 || int(k.partition)%c.Partitions == c.Partition) && strings.HasPrefix(k.lane, c.Prefix)
}

// Worker claims entries and works on them. Any number of them, in any number of processes, share the entries of a table.
type Worker struct {
	*Outbox
	cfg      Config
	pool     *pool
	lanes    *lanes
	wake     chan struct{}
	outage   *outage
	receiver *outage
	handlers context.Context // of all handlers
	turned   atomic.Int64    // Unix nanoseconds

	acknowledging sync.WaitGroup

	mu      sync.Mutex
	held    map[*claim]struct{} // claims without a result
	working map[string]int      // number of held claims by lane
	results []settlement        // not stored yet
	arrived []Message           // not claimed yet
}

// NewWorker returns a Worker, or all problems of the Config.
func (o *Outbox) NewWorker(cfg Config) (*Worker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("worker of %s: %w", o.table.Name, err)
	}
	w := &Worker{
		Outbox: o, cfg: cfg, lanes: &lanes{mine: cfg.mine}, wake: make(chan struct{}, 1),
		held: map[*claim]struct{}{}, working: map[string]int{},
	}
	w.outage = newOutage("worker", cfg.Logger, cfg.Observer, postgres.Reason)
	w.receiver = newOutage("receiver", cfg.Logger, cfg.Observer, error.Error)
	w.pool = &pool{n: cfg.Concurrency, run: w.work}
	return w, nil
}

// Health returns nil while the database and the broker answer, and otherwise the cause.
func (w *Worker) Health() error { return cmp.Or(w.outage.health(), w.receiver.health()) }

// Turned returns when the loop of Run last turned, also if the database did not answer; the zero time before the first turn. An idle
// worker turns once a second.
func (w *Worker) Turned() time.Time {
	if at := w.turned.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Wake makes the worker look at the table at once. It never blocks.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. Then it claims nothing more, gives back the claims that it has not started, waits for running handlers,
// and returns nil. While the database is unavailable it retries. Call it once.
func (w *Worker) Run(ctx context.Context) error {
	handlers, endHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHandlers(nil)
	w.handlers = handlers
	var background sync.WaitGroup
	if w.cfg.Retention > 0 {
		background.Go(func() { w.KeepPurging(ctx, w.cfg.Prefix, w.cfg.Retention, w.cfg.Logger) })
	}
	if w.cfg.Transport != nil {
		background.Go(func() { w.receive(ctx) })
	} else {
		background.Go(func() { w.listen(ctx, w.Wake) })
	}
	// The stop does not interrupt a turn at once: it would leave claims that no process uses.
	turns, endTurns := context.WithCancel(context.WithoutCancel(ctx))
	defer endTurns()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(shutdownTimeout, endTurns) })()
	w.loop(ctx, turns)

	for _, c := range w.pool.stop() {
		w.settle(c, Returned())
	}
	limit := time.AfterFunc(w.cfg.DrainTimeout, func() { endHandlers(ErrStopped) })
	defer limit.Stop()
	ended := make(chan struct{})
	go func() { w.pool.wg.Wait(); close(ended) }()
	w.drain(context.WithoutCancel(ctx), ended)
	w.acknowledging.Wait()
	background.Wait()
	return nil
}

// loop runs turns until ctx ends.
func (w *Worker) loop(ctx, turns context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		pause := minInterval
		more, err := w.turn(turns, true)
		if err != nil {
			pause = w.outage.failed(err)
		} else {
			w.outage.succeeded()
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(w.interval())
		if more {
			timer.Reset(0)
		}
	}
}

// interval is the longest time between two turns: the poll, or the time in which claims must be extended. It differs by up to a quarter
// each time. Otherwise a worker that postpones an entry by the time of a poll gets it again each time, and no other worker ever, as
// the test of package consumer about a consumer that dies before the answer is stored shows.
func (w *Worker) interval() time.Duration {
	most := min(poll, w.cfg.Lease/6)
	return most - most/4 + rand.N(most/2)
}

// drain stores results, and extends the claims of running handlers, until they have ended and all is stored.
func (w *Worker) drain(ctx context.Context, ended <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since when the database fails
	for stopped := false; ; {
		select {
		case <-ended:
			stopped, ended = true, nil
		case <-w.wake:
		case <-timer.C:
		}
		turn, cancel := context.WithTimeout(ctx, shutdownTimeout)
		_, err := w.turn(turn, false)
		cancel()
		switch {
		case err == nil && stopped:
			return
		case err == nil:
			failing = time.Time{}
			timer.Reset(w.interval())
			continue
		case failing.IsZero():
			failing = time.Now()
		}
		if stopped && time.Since(failing) > shutdownTimeout {
			w.cfg.Logger.Warn("entries will be repeated: their results could not be stored", "table", w.table.Name, "count", len(w.results), "err", err)
			return
		}
		timer.Reset(w.outage.failed(err))
		<-timer.C
		timer.Reset(0)
	}
}

// turn runs one turn and starts the claimed entries. more reports that there may be more to claim.
func (w *Worker) turn(ctx context.Context, claiming bool) (more bool, err error) {
	w.turned.Store(time.Now().UnixNano())
	t := turn{lease: w.cfg.Lease, retryFor: w.cfg.RetryFor, allowed: w.allowed, notify: w.cfg.Transport != nil}
	if claiming && w.cfg.Transport == nil {
		t.lanes, t.most = w.lanes, w.pool.reserve(chunk)
	}
	now := time.Now()
	w.mu.Lock()
	t.settle, w.results = w.results, nil
	var messages []Message
	if claiming {
		messages, w.arrived = w.arrived, nil
	}
	for c := range w.held {
		if c.until.Sub(now) < w.cfg.Lease*2/3 {
			t.extend = append(t.extend, c)
		}
	}
	w.mu.Unlock()
	for _, m := range messages {
		if storable(m.ID) {
			t.ids = append(t.ids, m.ID)
		}
	}
	if t.most == 0 && len(messages) == 0 && len(t.settle) == 0 && len(t.extend) == 0 {
		return false, nil
	}

	if err := w.run(ctx, &t); err != nil {
		w.mu.Lock()
		w.results = append(t.settle, w.results...)
		w.arrived = append(messages, w.arrived...)
		w.mu.Unlock()
		w.pool.add(t.most, nil)
		return false, err
	}
	w.reportDead(&t)
	w.mu.Lock()
	for _, c := range t.extend {
		w.renewed(c, now, t.kept[c.number])
	}
	claims, over := w.hold(t.claims)
	w.mu.Unlock()
	for _, c := range over {
		r := Returned()
		if w.cfg.Transport != nil {
			r.Delay = overLimitPause
		}
		w.settle(c, r)
	}
	for _, c := range w.pool.add(t.most+len(messages), claims) {
		w.settle(c, Returned())
	}
	if len(messages) > 0 {
		w.acknowledging.Go(func() { w.acknowledge(context.WithoutCancel(ctx), messages) })
	}
	return t.more, nil
}

// renewed records the result of an extension that began at a time. w.mu is held.
func (w *Worker) renewed(c *claim, begin time.Time, kept bool) {
	c.until = time.Time{}
	if kept {
		c.until = begin.Add(w.cfg.Lease)
	}
	if c.watch != nil {
		c.watch.Reset(time.Until(c.until))
	}
}

// hold adds claims to those that are held. It returns the claims to work on, and those that exceed the limit of their lane: a claim
// of ids does not know their lanes, and a lane may have several partitions. w.mu is held.
func (w *Worker) hold(all []*claim) (claims, over []*claim) {
	for _, c := range all {
		w.held[c] = struct{}{}
		w.working[c.Lane]++
		if w.working[c.Lane] > w.cfg.Limits(c.Lane) {
			over = append(over, c)
		} else {
			claims = append(claims, c)
		}
	}
	return claims, over
}

// allowed returns how many more entries of a lane may be claimed.
func (w *Worker) allowed(lane string) int {
	w.mu.Lock()
	working := w.working[lane]
	w.mu.Unlock()
	return w.cfg.Limits(lane) - working
}

// reportDead logs the entries that became dead.
func (w *Worker) reportDead(t *turn) {
	for _, s := range t.settle {
		if t.dead[s.claim.number] {
			w.cfg.Observer.Died(s.claim.Work, s.Reason)
			w.cfg.Logger.Warn("entry given up", "table", w.table.Name, "id", s.claim.ID, "lane", s.claim.Lane, "attempts", s.claim.Attempts, "err", s.Reason)
		}
	}
}

// settle queues a result to be stored in the next turn.
func (w *Worker) settle(c *claim, r Result) {
	w.mu.Lock()
	delete(w.held, c)
	if w.working[c.Lane]--; w.working[c.Lane] == 0 {
		delete(w.working, c.Lane)
	}
	w.results = append(w.results, settlement{c, r})
	w.mu.Unlock()
	w.Wake()
}

// work handles one claim. It runs concurrently.
func (w *Worker) work(c *claim) {
	ctx, lost := context.WithCancelCause(w.handlers)
	defer lost(nil)
	w.mu.Lock()
	left := time.Until(c.until)
	c.watch = time.AfterFunc(left, func() { lost(ErrLeaseLost) })
	w.mu.Unlock()
	defer c.watch.Stop()
	switch {
	case left <= 0: // this process was frozen, or the database was unavailable: another process may have the entry
		w.settle(c, Returned())
		return
	case w.cfg.MaxFailures > 0 && c.Failures > w.cfg.MaxFailures:
		reason := fmt.Sprintf("failed or was claimed without a result %d times", c.Failures-1)
		if c.Reason != "" {
			reason += ", the latest failure: " + c.Reason
		}
		w.settle(c, GiveUp(reason).normal())
		return
	}
	w.cfg.Observer.Began(c.Work)
	begin := time.Now()
	r := w.handle(ctx, c)
	w.cfg.Observer.Handled(c.Work, r, time.Since(begin))
	if r.Kind == KindRetry && w.cfg.MaxFailures > 0 && c.Failures >= w.cfg.MaxFailures {
		r = GiveUp(r.Reason)
	}
	w.settle(c, r)
}

// handle calls the handler, and returns its valid result. If the handler panics, the entry has failed: one entry must not end the
// process, and with it the work on all others, in each process in turn.
func (w *Worker) handle(ctx context.Context, c *claim) (r Result) {
	defer func() {
		if panicked := recover(); panicked != nil {
			w.cfg.Logger.Error("handler panicked", "table", w.table.Name, "id", c.ID, "attempts", c.Attempts, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
			r = Retry(fmt.Sprintf("the handler panicked: %v", panicked), failurePause).normal()
		}
	}()
	return w.cfg.Handle(ctx, c.Work).normal()
}
