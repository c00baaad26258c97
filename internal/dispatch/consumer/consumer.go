package consumer

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/batch"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// Store is the part of the store that a consumer calls.
type Store interface {
	Begin(ctx context.Context, starts []store.Start) ([]store.Begun, error)
	Accepted(ctx context.Context, accepted []store.Acceptance) error
	Requeue(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error)
	Fail(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error)
	Park(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error)
	Release(ctx context.Context, id, holder uuid.UUID, request store.Request) error
	ReportBlocked(ctx context.Context, id uuid.UUID) (bool, error)
	Owners(ctx context.Context, relayerTxs []string) (map[string]uuid.UUID, error)
}

// Relayers are the live relayers.
type Relayers interface {
	// Choose chooses a relayer for one submission; false if none is available.
	Choose(Want) (Choice, bool)
	// Besides reports whether there is another usable relayer than those with the given ids, available now or in a moment.
	Besides(ids []string) bool
	// At returns the relayer of a route, also one that is not live any more; false if nothing is known of it.
	At(dispatch.Route) (Relayer, bool)
}

// Want restricts a choice.
type Want struct {
	// Scope is the scope that the relayer must have. If Resume is false it is ignored.
	Scope  string
	Resume bool
	// Exclude lists relayers that are not to be chosen, by their ids.
	Exclude []string
	// Keyed excludes relayers without idempotency keys.
	Keyed bool
	// Avoid is a scope that the relayer must not have; "" excludes none.
	Avoid string
}

// Choice is a chosen relayer. Done must be called: with the result of the submission, or with nil if there was none.
// Later calls do nothing.
type Choice struct {
	Route dispatch.Route
	// Network is the relayer's network, by its own name for it.
	Network string
	Relayer Relayer
	Done    func(*upstream.Result)
}

// Relayer is a relayer's API. An *upstream.Client implements it.
type Relayer interface {
	Submit(ctx context.Context, s upstream.Submission) upstream.Result
	Lookup(ctx context.Context, ref upstream.Ref, m upstream.Match) ([]upstream.Transaction, error)
}

// Queue has the ids of the transactions to submit. A *queue.Queue implements it.
type Queue interface {
	Receive(ctx context.Context, handle outbox.Handler) error
}

// Config configures a Consumer. Fields without a default are required.
type Config struct {
	Queue    Queue
	Store    Store
	Relayers Relayers
	// Lease is how long a consumer may submit one transaction. It is above the limit of a request. Default 45 s.
	Lease time.Duration
	// Settled is after how long a request without idempotency key has certainly ended at the relayer. Default 90 s.
	Settled time.Duration
	// ParkNotFound parks a transaction that a relayer without idempotency keys answered with a 500 and does not list. By default it is
	// queued again.
	ParkNotFound bool
	// RejectedFor is how long after its acceptance a transaction that some relayers reject waits for the others. Default 10 min.
	RejectedFor time.Duration
	// ClockMargin is how far a relayer's clock may be behind the one that its answers show. Default 15 s.
	ClockMargin time.Duration
	// Tracer makes a span of each submission. Default: none.
	Tracer     trace.Tracer
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Consumer submits transactions. Run may be called once.
type Consumer struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	begins  *batch.Group[store.Start, store.Begun]
	accepts *batch.Group[store.Acceptance, struct{}]

	begun atomic.Int64 // attempts that have chosen a relayer
}

// New returns a Consumer.
func New(cfg Config) *Consumer {
	cfg.Lease = cmp.Or(cfg.Lease, 45*time.Second)
	if cfg.Tracer == nil {
		cfg.Tracer = tracing.Off()
	}
	cfg.Settled = cmp.Or(cfg.Settled, 90*time.Second)
	cfg.RejectedFor = cmp.Or(cfg.RejectedFor, 10*time.Minute)
	cfg.ClockMargin = cmp.Or(cfg.ClockMargin, 15*time.Second)
	return &Consumer{
		cfg: cfg, log: cfg.Logger.With("component", "consumer"), metrics: newMetrics(cfg.Registerer),
		begins: batch.New(batch.Config{}, cfg.Store.Begin),
		accepts: batch.New(batch.Config{}, func(ctx context.Context, all []store.Acceptance) ([]struct{}, error) {
			return make([]struct{}, len(all)), cfg.Store.Accepted(ctx, all)
		}),
	}
}

// Run submits until ctx ends. It then finishes what it has begun, and returns nil. While it has no relayer it takes no entries,
// because another consumer may have one.
func (c *Consumer) Run(ctx context.Context) error {
	defer c.accepts.Wait()
	defer c.begins.Wait()
	for c.awaitRelayer(ctx) {
		receiving, stop := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			defer stop()
			c.awaitNoRelayer(receiving)
		})
		err := c.cfg.Queue.Receive(receiving, func(handling context.Context, w outbox.Work) outbox.Result {
			id, err := uuid.Parse(w.ID)
			if err != nil {
				return outbox.GiveUp("the id is not a transaction's")
			}
			return c.handle(handling, receiving.Done(), id)
		})
		stop()
		watch.Wait()
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitRelayer waits until a relayer can be chosen, and reports whether ctx has not ended.
func (c *Consumer) awaitRelayer(ctx context.Context) bool {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for ctx.Err() == nil && !c.relayerAvailable() {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return ctx.Err() == nil
}

// awaitNoRelayer waits until no relayer could be chosen for as long as patience, and no attempt goes on: the end of one can make
// its relayer available again. It returns early if ctx ends.
func (c *Consumer) awaitNoRelayer(ctx context.Context) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for last := time.Now(); time.Since(last) < patience; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.begun.Load() > 0 || c.relayerAvailable() {
			last = time.Now()
		}
	}
	c.log.Warn("no relayer available: no entries are taken until there is one")
}

func (c *Consumer) relayerAvailable() bool {
	choice, ok := c.cfg.Relayers.Choose(Want{})
	if ok {
		choice.Done(nil)
	}
	return ok
}

const (
	// triesPerEntry is how many relayers one delivery of an entry tries.
	triesPerEntry = 3
	// patience is how long an entry waits for a relayer before it is put back, and lookAgain how often it looks. After it the
	// consumer takes no more entries, so that those put back go to others.
	patience  = 5 * time.Second
	lookAgain = 100 * time.Millisecond
	// shortestPause and longestPause bound the pause of an entry whose transaction no relayer takes now.
	shortestPause, longestPause = time.Second, 30 * time.Second
	// afterBlocked is the pause of a call whose equal is unresolved.
	afterBlocked = 2 * time.Second
	// afterUnknown is the pause after an unknown outcome.
	afterUnknown = time.Second
	// afterDatabase is the pause after a failure of the database.
	afterDatabase = time.Second
)

// handle submits one transaction. It does not wait for a relayer after draining is closed.
func (c *Consumer) handle(ctx context.Context, draining <-chan struct{}, id uuid.UUID) outbox.Result {
	d := &delivery{}
	result := outbox.Later(shortestPause)
	for range triesPerEntry {
		choice, ok := c.choose(ctx, draining, d)
		if !ok {
			// A row that an earlier attempt has begun needs a relayer of its scope, so there is nothing to do for it either.
			c.metrics.waits.WithLabelValues("no relayer").Inc()
			break
		}
		var next bool
		if result, next = c.attempt(ctx, id, choice, d); !next {
			return result
		}
		select {
		case <-draining: // a request to another relayer would outlast the time that a stopping consumer has
			return result
		default:
		}
	}
	return result
}

// delivery is one delivery of an entry.
type delivery struct {
	tried    []string // relayers that did not take its transaction
	rejected []string // those among them that rejected it
	avoid    string   // the scope that it was withdrawn from
}

func (d *delivery) want() Want { return Want{Exclude: d.tried, Avoid: d.avoid} }

// choose chooses a relayer. If there is none at all, it waits for one.
func (c *Consumer) choose(ctx context.Context, draining <-chan struct{}, d *delivery) (Choice, bool) {
	choice, ok := c.cfg.Relayers.Choose(d.want())
	if ok || len(d.tried) > 0 {
		return choice, ok
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return Choice{}, false
		case <-draining:
			return Choice{}, false
		case <-limit.C:
			return Choice{}, false
		case <-tick.C:
			if choice, ok := c.cfg.Relayers.Choose(Want{}); ok {
				return choice, true
			}
		}
	}
}

// attempt begins the transaction at a chosen relayer. next reports that the transaction is queued again, and that another
// relayer may be tried at once; if there is none, v is the result.
func (c *Consumer) attempt(ctx context.Context, id uuid.UUID, choice Choice, d *delivery) (v outbox.Result, next bool) {
	defer choice.Done(nil) // also after a panic: the relayer would seem to hang
	c.begun.Add(1)
	defer c.begun.Add(-1)
	s := &submission{Consumer: c, id: id, holder: uuid.New(), deadline: time.Now().Add(c.cfg.Lease), delivery: d}
	begun, err := c.begins.Do(ctx, store.Start{ID: id, Holder: s.holder, Route: choice.Route, Lease: c.cfg.Lease})
	if err != nil {
		c.log.Warn("submission not begun", "tx", id, "err", err)
		return outbox.Later(afterDatabase), false
	}
	s.tx = begun.Transaction
	ctx = tracing.Extract(ctx, s.tx.Traceparent) // log lines about the transaction carry the ids of its trace
	if begun.State == store.Fresh {
		return s.post(ctx, choice, false)
	}
	choice.Done(nil)
	switch begun.State {
	case store.Resumed:
		return s.resume(ctx), false
	case store.Held:
		return outbox.Later(max(time.Until(begun.Until), 100*time.Millisecond)), false
	case store.Blocked:
		c.metrics.waits.WithLabelValues("unresolved call").Inc()
		want := d.want()
		want.Keyed = true
		if keyed, ok := c.cfg.Relayers.Choose(want); ok {
			return c.attempt(ctx, id, keyed, d)
		}
		c.reportBlocked(ctx, s.tx)
		return outbox.Later(afterBlocked), false
	case store.Avoided:
		d.avoid = s.tx.WithdrawnFrom
		if other, ok := c.cfg.Relayers.Choose(d.want()); ok {
			return c.attempt(ctx, id, other, d)
		}
		c.metrics.waits.WithLabelValues("no relayer of another scope").Inc()
		return outbox.Later(pause(s.tx.AcceptedAt)), false
	case store.Missing:
		return outbox.GiveUp("there is no such transaction"), false
	default: // settled
		return outbox.Finished(), false
	}
}

// reportBlocked shows the client and the operator why a transaction waits.
func (c *Consumer) reportBlocked(ctx context.Context, tx *dispatch.Transaction) {
	if tx.Reason == store.BlockedReason {
		return
	}
	reported, err := c.cfg.Store.ReportBlocked(ctx, tx.ID)
	switch {
	case err != nil:
		c.log.WarnContext(ctx, "blocked transaction not reported", "tx", tx.ID, "err", err)
	case reported:
		c.log.WarnContext(ctx, "transaction blocked by an equal call with an unknown outcome: `rollcall tx resolve` ends that", "tx", tx.ID)
	}
}
