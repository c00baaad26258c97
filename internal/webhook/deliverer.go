package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

func (t tuning) withDefaults(timeout time.Duration) tuning {
	t.poll = cmp.Or(t.poll, time.Second)
	t.minInterval = cmp.Or(t.minInterval, 10*time.Millisecond)
	t.lease = cmp.Or(t.lease, 2*timeout+10*time.Second)
	t.backoff = cmp.Or(t.backoff, time.Second)
	t.pause = cmp.Or(t.pause, time.Second)
	t.maxPause = cmp.Or(t.maxPause, 30*time.Second)
	t.maintenanceInterval = cmp.Or(t.maintenanceInterval, 15*time.Second)
	t.drainTimeout = cmp.Or(t.drainTimeout, 5*time.Second)
	t.shutdownTimeout = cmp.Or(t.shutdownTimeout, 3*time.Second)
	if t.jitter == nil {
		t.jitter = rand.Float64
	}
	return t
}

const (
	// maxTurn limits a turn. It is above the server's statement timeout, and applies if the server is unreachable.
	maxTurn = 20 * time.Second
	// maxDBBackoff limits the pause between two turns while the database is unavailable.
	maxDBBackoff = 5 * time.Second
	// purgeEvery is how often old deliveries are removed.
	purgeEvery = 10 * time.Minute
)

// Deliverer delivers webhooks. Any number of them, in any number of processes, share the work of a [Source].
type Deliverer struct {
	*Outbox
	cfg   Config
	log   *slog.Logger
	name  uuid.UUID // of this claimant
	names []string
	wake  chan struct{}

	sending sync.WaitGroup

	mu       sync.Mutex
	queues   []*targetQueue
	settled  []deliveryResult // results not stored yet
	stopping bool
}

// New returns a Deliverer of a source's deliveries, or an error with all problems of the Source and the Config. It does not
// close db.
func New(db *pgxpool.Pool, source Source, cfg Config) (*Deliverer, error) {
	cfg, targets, err := cfg.complete()
	if err := errors.Join(source.validate(), err); err != nil {
		return nil, err
	}
	d := &Deliverer{
		Outbox: NewOutbox(db, source),
		cfg:    cfg,
		log:    cfg.Logger.With("component", "webhook"),
		name:   uuid.New(),
		names:  cfg.Names(),
		wake:   make(chan struct{}, 1),
	}
	for _, to := range targets {
		d.queues = append(d.queues, newTargetQueue(newSender(to, cfg)))
	}
	return d, nil
}

// Names returns the names of the targets, in the form that the owner of the deliveries takes.
func (d *Deliverer) Names() []string { return d.cfg.Names() }

// Notify wakes the delivery loop. It never blocks; without it a delivery waits for a second at most.
func (d *Deliverer) Notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends. Then it claims nothing more, releases claims that it has not started, and waits some
// seconds for running attempts. It returns nil. Call it once.
func (d *Deliverer) Run(ctx context.Context) error {
	// Running attempts may continue after ctx ends. An interrupted turn would leave claims that no process uses.
	requests, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(errStopped)
	turns, endTurns := context.WithCancel(context.WithoutCancel(ctx))
	defer endTurns()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.cfg.tuning.shutdownTimeout, endTurns) })()
	var maintenance sync.WaitGroup
	maintenance.Go(func() { d.maintain(ctx) })
	d.loop(ctx, turns, requests)
	d.stop(abandon)
	maintenance.Wait()
	return nil
}

// loop runs turns until ctx ends.
func (d *Deliverer) loop(ctx, turns, requests context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake := d.wake
	troubles := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		if err := d.work(turns, requests); err != nil && ctx.Err() == nil {
			if troubles++; troubles == 1 {
				d.log.Warn("webhook database unavailable", "err", err)
			}
			// While the database is unavailable, Notify does not shorten the pause.
			wake = nil
			timer.Reset(spread(min(d.cfg.tuning.poll<<min(troubles-1, 10), maxDBBackoff), d.cfg.tuning))
			continue
		}
		if troubles > 0 {
			troubles = 0
			d.log.Info("webhook database available again")
		}
		wake = d.wake
		// Deliveries of the next moment share a turn.
		timer.Reset(d.cfg.tuning.minInterval)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(d.cfg.tuning.poll)
	}
}

// work runs one turn and starts the claimed deliveries.
func (d *Deliverer) work(ctx, requests context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	now := time.Now()
	d.mu.Lock()
	settled := d.settled
	d.settled = nil
	wants := make([]demand, len(d.queues))
	for i, l := range d.queues {
		wants[i] = demand{target: l.name, n: l.demand(now), retryNow: l.retryNow}
		if wants[i].n > 0 {
			wants[i].since = l.since(now)
		}
		l.retryNow = false
	}
	d.mu.Unlock()

	claims, gaveUp, more, err := d.syncBatch(ctx, settled, wants)
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.settled = append(settled, d.settled...)
		for i, w := range wants {
			d.queues[i].retryNow = d.queues[i].retryNow || w.retryNow
		}
		return err
	}
	for _, p := range gaveUp {
		d.cfg.Metrics.deadLettersTotal.WithLabelValues(p.target).Inc()
		d.log.Warn("webhook given up", "target", p.target, "webhook", p.id, "subject", p.subject, "err", p.reason)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.queues {
		l.add(slices.DeleteFunc(slices.Clone(claims), func(c *claim) bool { return c.target != l.name }))
		if more {
			l.sweepAt = time.Time{}
		}
		d.start(requests, l)
	}
	// There may be more to claim. The next attempt that ends starts a turn; without a running attempt only this does.
	if more {
		d.Notify()
	}
	return nil
}

// start sends as many deliveries of a queue as its window allows. d.mu is held.
func (d *Deliverer) start(requests context.Context, l *targetQueue) {
	for c := d.next(l); c != nil; c = d.next(l) {
		d.sending.Go(func() { d.send(requests, l, c) })
	}
}

// send delivers claims of a queue, one after the other, until none is left for it. A goroutine for each would grow its
// stack each time.
func (d *Deliverer) send(requests context.Context, l *targetQueue, c *claim) {
	for c != nil {
		d.deliver(requests, l, c)
		d.mu.Lock()
		c = d.next(l)
		d.start(requests, l)
		d.mu.Unlock()
	}
}

// next returns the next claim to send; nil if a queue's window allows none. d.mu is held.
func (d *Deliverer) next(l *targetQueue) *claim {
	for {
		now := time.Now()
		if d.stopping || now.Before(l.resumeAt) {
			d.releaseClaims(l)
			return nil
		}
		c := l.next(now)
		if c == nil || !now.Add(d.cfg.Timeout).After(c.until) {
			return c
		}
		// The claim would expire during the attempt. It waited for slower attempts, or this process was frozen.
		l.abandoned()
		d.queueResult(deliveryResult{claim: c, verdict: returned})
	}
}

// releaseClaims releases the claims of a queue that have not been started. d.mu is held.
func (d *Deliverer) releaseClaims(l *targetQueue) {
	for _, c := range l.drop() {
		d.queueResult(deliveryResult{claim: c, verdict: returned})
	}
}

// queueResult queues a result to be stored in the next turn. d.mu is held.
func (d *Deliverer) queueResult(s deliveryResult) {
	d.settled = append(d.settled, s)
	d.Notify()
}

// deliver makes one attempt and records its result.
func (d *Deliverer) deliver(requests context.Context, l *targetQueue, c *claim) {
	m := d.cfg.Metrics
	inFlight := m.inFlight.WithLabelValues(l.name)
	inFlight.Inc()
	begin := time.Now()
	fail := l.sender.send(requests, c)
	end := time.Now()
	inFlight.Dec()
	if hook := d.cfg.tuning.sentAfter; hook != nil {
		hook(c)
	}
	if fail != nil && errors.Is(context.Cause(requests), errStopped) {
		d.mu.Lock()
		defer d.mu.Unlock()
		l.abandoned()
		d.queueResult(deliveryResult{claim: c, verdict: returned})
		return
	}
	m.duration.WithLabelValues(l.name).Observe(end.Sub(begin).Seconds())
	if fail == nil {
		m.attempts.WithLabelValues(l.name, "delivered").Inc()
		m.delay.WithLabelValues(l.name).Observe(max(0, end.Sub(c.queuedAt).Seconds()))
		d.succeeded(l, c)
		return
	}
	m.attempts.WithLabelValues(l.name, "failed").Inc()
	d.log.Debug("webhook not delivered", "target", l.name, "webhook", c.delivery, "subject", c.subject, "revision", c.revision,
		"attempt", c.number, "err", fail.reason)
	d.failed(l, c, fail)
}

func (d *Deliverer) succeeded(l *targetQueue, c *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.succeeded() {
		d.cfg.Metrics.down.WithLabelValues(l.name).Set(0)
		d.log.Info("webhook target is back", "target", l.name)
	}
	d.queueResult(deliveryResult{claim: c, verdict: delivered})
}

func (d *Deliverer) failed(l *targetQueue, c *claim, fail *failure) {
	now := time.Now()
	wait := min(fail.retryAfter, d.cfg.MaxBackoff)
	d.mu.Lock()
	defer d.mu.Unlock()
	if fail.permanent {
		l.abandoned() // the failure is not the target's
		d.queueResult(deliveryResult{claim: c, verdict: permanent, reason: fail.reason})
		return
	}
	if l.failed(now, c.subject, wait, d.cfg.tuning) {
		d.cfg.Metrics.down.WithLabelValues(l.name).Set(1)
		d.log.Warn("webhook target is down", "target", l.name, "err", fail.reason)
	}
	d.queueResult(deliveryResult{
		claim: c, verdict: failed, reason: fail.reason,
		delay: max(wait, backoff(c.number, d.cfg.MaxBackoff, d.cfg.tuning)),
	})
}

// stop releases claims that have not been started, waits for running attempts, and stores their results.
func (d *Deliverer) stop(abandon context.CancelCauseFunc) {
	d.mu.Lock()
	d.stopping = true
	for _, l := range d.queues {
		d.releaseClaims(l)
	}
	d.mu.Unlock()
	limit := time.AfterFunc(d.cfg.tuning.drainTimeout, func() { abandon(errStopped) })
	defer limit.Stop()
	d.sending.Wait()
	for _, l := range d.queues {
		l.sender.close()
	}
	if len(d.settled) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.tuning.shutdownTimeout)
	defer cancel()
	if _, _, _, err := d.syncBatch(ctx, d.settled, nil); err != nil {
		d.log.Warn("webhooks will be repeated: what was delivered could not be noted", "count", len(d.settled), "err", err)
	}
}

// maintain updates metrics and purges old deliveries until ctx ends.
func (d *Deliverer) maintain(ctx context.Context) {
	ticker := time.NewTicker(d.cfg.tuning.maintenanceInterval)
	defer ticker.Stop()
	var purged time.Time
	for {
		if counts, err := d.Counts(ctx); err == nil {
			d.cfg.Metrics.show(counts)
		} else if ctx.Err() == nil {
			d.log.Debug("webhooks not counted", "err", err)
		}
		if time.Since(purged) >= purgeEvery {
			purged = time.Now()
			d.purge(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// purge removes old deliveries. It makes those whose target is no longer configured dead letters.
func (d *Deliverer) purge(ctx context.Context) {
	// It runs even if Retention keeps none, because an earlier configuration may have kept some.
	n, err := d.Purge(ctx, max(0, d.cfg.Retention))
	if n > 0 {
		d.log.Debug("old webhooks removed", "count", n)
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("old webhooks not removed", "err", err)
	}
	n, err = d.deadLetterOrphans(ctx, d.names, d.cfg.RetryFor)
	if n > 0 {
		d.log.Warn("webhooks given up: no target has their name any more", "count", n)
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("webhooks of former targets not given up", "err", err)
	}
}
