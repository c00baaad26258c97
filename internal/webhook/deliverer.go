package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

func (t tuning) withDefaults(timeout time.Duration) tuning {
	t.lease = cmp.Or(t.lease, 2*timeout+10*time.Second)
	t.backoff = cmp.Or(t.backoff, time.Second)
	t.pause = cmp.Or(t.pause, time.Second)
	t.maxPause = cmp.Or(t.maxPause, 30*time.Second)
	return t
}

// heldPause is for how long a process claims nothing after it found a delivery held.
const heldPause = 2 * time.Second

// abandonEvery is how often deliveries whose target is no longer configured become dead letters.
const abandonEvery = 10 * time.Minute

// Deliverer delivers webhooks. Any number of them, in any number of processes, share the work of a [Source].
type Deliverer struct {
	box     *outbox.Outbox
	source  Source
	cfg     Config
	log     *slog.Logger
	worker  *outbox.Worker
	targets map[string]*target // by lane
	held    atomic.Int64       // Unix nanoseconds until which nothing is claimed
}

// New returns a Deliverer of a source's deliveries, or an error with all problems of the Config. It does not close db.
func New(db *pgxpool.Pool, source Source, cfg Config) (*Deliverer, error) {
	cfg, targets, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	source.Table.KeepDone = cfg.Retention != KeepNone
	d := &Deliverer{source: source, cfg: cfg, log: cfg.Logger.With("component", "webhook"), targets: map[string]*target{}}
	if d.box, err = outbox.New(db, source.Table); err != nil {
		return nil, err
	}
	all := 0
	for _, to := range targets {
		d.targets[source.Prefix+to.name] = newTarget(newSender(to, cfg))
		all += to.limit
	}
	// The worker claims for a target as many deliveries as its window has room for, and has room for all windows. So no delivery
	// waits in this process behind one to another target.
	d.worker, err = d.box.NewWorker(outbox.Config{
		Handle: d.deliver, Concurrency: all, Limits: d.limit, Prefix: source.Prefix, Lease: cfg.tuning.lease, RetryFor: cfg.RetryFor,
		Partitions: source.Partitions, Partition: source.Partition,
		DrainTimeout: cfg.DrainTimeout,
		Retention:    max(cfg.Retention, 1), // also if none is kept, because an earlier configuration may have kept some
		Component:    "webhook", Logger: cfg.Logger, Observer: observer{d: d},
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Names returns the names of the targets, in the form that the owner of the deliveries takes.
func (d *Deliverer) Names() []string { return d.cfg.Names() }

// Notify makes the Deliverer look for deliveries at once. It never blocks; without it a delivery waits for a second at most.
func (d *Deliverer) Notify() { d.worker.Wake() }

// Turned returns when the loop of Run last turned; the zero time before the first turn.
func (d *Deliverer) Turned() time.Time { return d.worker.Turned() }

// Run delivers until ctx ends. Then it claims nothing more, and waits for running attempts, for Config.DrainTimeout. It returns nil.
// Call it once.
func (d *Deliverer) Run(ctx context.Context) error {
	var background sync.WaitGroup
	background.Go(func() { d.abandon(ctx) })
	background.Go(func() {
		d.box.KeepCounting(ctx, d.source.Prefix, d.log, func(counts []outbox.Count) { d.cfg.Metrics.show(counts, d.source.Prefix) })
	})
	err := d.worker.Run(ctx)
	background.Wait()
	for _, t := range d.targets {
		t.sender.close()
	}
	return err
}

// limit returns how many deliveries of a lane may be sent at a time: none to a target that is not configured, nor
// while deliveries are held.
func (d *Deliverer) limit(lane string) int {
	t, now := d.targets[lane], time.Now()
	if t == nil || now.UnixNano() < d.held.Load() {
		return 0
	}
	return t.allowed(now)
}

// deliver makes one attempt, and returns its result.
func (d *Deliverer) deliver(ctx context.Context, w outbox.Work) outbox.Result {
	if d.source.Held != nil && d.source.Held(w) {
		d.held.Store(time.Now().Add(heldPause).UnixNano())
		time.AfterFunc(heldPause, d.worker.Wake)
		return outbox.Returned()
	}
	t, m := d.targets[w.Lane], d.cfg.Metrics
	inFlight := m.inFlight.WithLabelValues(t.name)
	inFlight.Inc()
	begin := time.Now()
	fail := d.attempt(ctx, t, w)
	end := time.Now()
	inFlight.Dec()
	if fail != nil && ctx.Err() != nil { // this process stops, or has lost the claim
		return outbox.Returned()
	}
	m.duration.WithLabelValues(t.name).Observe(end.Sub(begin).Seconds())
	if fail == nil {
		m.attempts.WithLabelValues(t.name, "delivered").Inc()
		m.delay.WithLabelValues(t.name).Observe(w.Age().Seconds())
		if d.source.Delivered != nil {
			d.source.Delivered(w)
		}
		if t.succeeded() {
			d.back(ctx, t, w.Lane)
		}
		return outbox.Finished()
	}
	m.attempts.WithLabelValues(t.name, "failed").Inc()
	d.log.Debug("webhook not delivered", "target", t.name, "webhook", w.ID, "subject", w.Subject, "attempt", w.Attempts, "err", fail.reason)
	if fail.permanent { // the failure is not the target's
		return outbox.GiveUp(fail.reason)
	}
	wait := min(fail.retryAfter, d.cfg.MaxBackoff)
	resumeAt, down := t.failed(end, w.Subject, wait, d.cfg.tuning)
	if down {
		m.down.WithLabelValues(t.name).Set(1)
		d.log.Warn("webhook target is down", "target", t.name, "err", fail.reason)
	}
	if resumeAt.After(end) {
		time.AfterFunc(resumeAt.Sub(end), d.worker.Wake)
	}
	return outbox.Retry(fail.reason, max(wait, outbox.Backoff(w.Failures, d.cfg.tuning.backoff, d.cfg.MaxBackoff)))
}

// attempt makes one attempt; nil means success.
func (d *Deliverer) attempt(ctx context.Context, t *target, w outbox.Work) *failure {
	event, payload, err := d.source.Read(w)
	if err != nil {
		return &failure{reason: err.Error(), permanent: true}
	}
	return t.sender.send(ctx, w.ID, event, payload)
}

// back records that a target is back, and makes its deliveries in backoff due. Without the latter they are tried at their times.
func (d *Deliverer) back(ctx context.Context, t *target, lane string) {
	d.cfg.Metrics.down.WithLabelValues(t.name).Set(0)
	d.log.Info("webhook target is back", "target", t.name)
	if _, err := d.box.Hasten(ctx, lane); err != nil {
		d.log.Warn("webhooks in backoff not tried at once", "target", t.name, "err", err)
	}
}

// observer updates the metrics that the worker knows.
type observer struct {
	outbox.Unobserved
	d *Deliverer
}

// Died counts a dead letter.
func (o observer) Died(w outbox.Work, _ string) {
	o.d.cfg.Metrics.deadLettersTotal.WithLabelValues(o.d.targets[w.Lane].name).Inc()
}

// abandon makes deliveries dead letters whose target is no longer configured, until ctx ends.
func (d *Deliverer) abandon(ctx context.Context) {
	ticker := time.NewTicker(abandonEvery)
	defer ticker.Stop()
	former := func(lane string) bool { return strings.HasPrefix(lane, d.source.Prefix) && d.targets[lane] == nil }
	for {
		n, err := d.box.Abandon(ctx, former, d.cfg.RetryFor, "no target has this name")
		if n > 0 {
			d.log.Warn("webhooks given up: no target has their name any more", "count", n)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			d.log.Warn("webhooks of former targets not given up", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
