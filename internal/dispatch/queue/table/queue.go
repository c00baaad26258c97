package table

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/worker"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// poll is how often an idle receiver or dispatcher looks at the table, if no NOTIFY arrives.
	poll = time.Second
	// minInterval is the shortest time between two turns, so that messages and results share turns.
	minInterval = 5 * time.Millisecond
	// shutdownTimeout is how long a stop waits for an unavailable database.
	shutdownTimeout = 3 * time.Second
	// countEvery is how often the entries are counted for the metrics.
	countEvery = 15 * time.Second
)

// Queue is the queue in the table. It implements [queue.Queue].
type Queue struct {
	*deadLetters
	*notifier
	db     *pgxpool.Pool
	cfg    queue.Config
	outage *queue.Outage
}

// New returns the queue in db, the database of the transactions. It neither connects nor closes db.
func New(db *pgxpool.Pool, cfg queue.Config) (*Queue, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return &Queue{
		deadLetters: &deadLetters{db}, notifier: newNotifier(db, cfg), db: db, cfg: cfg, outage: cfg.NewOutage("consumer", postgres.Reason),
	}, nil
}

// Health returns nil while the database answers, and otherwise the cause.
func (q *Queue) Health() error {
	if err := q.outage.Err(); err != nil {
		return err
	}
	return q.notifier.outage.Err()
}

// Close does nothing, because the caller closes the database.
func (q *Queue) Close() error { return nil }

// receiver is one call of Receive.
type receiver struct {
	*Queue
	claimant *claimant
	pool     *worker.Pool[*claim]
	handle   queue.Handler
	handlers context.Context
	wake     chan struct{}

	mu      sync.Mutex
	held    map[*claim]struct{} // claims without a result
	results []result            // not stored yet
}

// Receive implements [queue.Consumer].
func (q *Queue) Receive(ctx context.Context, n int, handle queue.Handler) error {
	handlers, endHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHandlers(nil)
	r := &receiver{
		Queue: q, claimant: newClaimant(q.db, q.cfg.Visibility), handle: handle, handlers: handlers,
		wake: make(chan struct{}, 1), held: map[*claim]struct{}{},
	}
	r.pool = worker.New(max(n, 1), r.run)

	var background sync.WaitGroup
	background.Go(func() { listen(ctx, q.db, r.signal) })
	background.Go(func() { countQueue(ctx, q.db, q.cfg) })
	// The stop does not interrupt a turn at once: it would leave claims that no process uses.
	turns, endTurns := context.WithCancel(context.WithoutCancel(ctx))
	defer endTurns()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(shutdownTimeout, endTurns) })()
	r.loop(ctx, turns)

	for _, c := range r.pool.Stop() {
		r.settle(result{claim: c, outcome: returned})
	}
	limit := time.AfterFunc(q.cfg.DrainTimeout, func() { endHandlers(queue.ErrStopped) })
	defer limit.Stop()
	ended := make(chan struct{})
	go func() { r.pool.Wait(); close(ended) }()
	r.drain(context.WithoutCancel(ctx), ended)
	background.Wait()
	return nil
}

func (r *receiver) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// loop runs turns until ctx ends.
func (r *receiver) loop(ctx, turns context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-r.pool.Changed():
		case <-timer.C:
		}
		pause := minInterval
		full, err := r.turn(turns, true)
		if err != nil {
			pause = r.outage.Failed(err)
		} else {
			r.outage.Succeeded()
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(r.interval())
		if full {
			timer.Reset(0)
		}
	}
}

// interval is the longest time between two turns: the poll, or the time in which claims must be extended.
func (r *receiver) interval() time.Duration { return min(poll, r.cfg.Visibility/6) }

// drain stores results, and extends the claims of running handlers, until they have ended and all is stored.
func (r *receiver) drain(ctx context.Context, ended <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since when the database fails
	for {
		stopped := false
		select {
		case <-ended:
			stopped = true
		case <-r.pool.Changed():
		case <-timer.C:
		}
		turn, cancel := context.WithTimeout(ctx, shutdownTimeout)
		_, err := r.turn(turn, false)
		cancel()
		switch {
		case err == nil && stopped:
			return
		case err == nil:
			failing = time.Time{}
			timer.Reset(r.interval())
			continue
		case failing.IsZero():
			failing = time.Now()
		}
		if stopped && time.Since(failing) > shutdownTimeout {
			r.cfg.Logger.Warn("queue messages will be repeated: their results could not be stored", "component", "consumer",
				"count", len(r.results), "err", err)
			return
		}
		timer.Reset(r.outage.Failed(err))
		<-timer.C
		timer.Reset(0)
	}
}

// turn runs one turn and starts the claimed messages. full reports that there may be more entries to claim.
func (r *receiver) turn(ctx context.Context, claiming bool) (full bool, err error) {
	room := 0
	if claiming {
		room = r.pool.Reserve(chunk)
	}
	now := time.Now()
	r.mu.Lock()
	results := r.results
	r.results = nil
	var extend []*claim
	for c := range r.held {
		if c.until.Sub(now) < r.cfg.Visibility*2/3 {
			extend = append(extend, c)
		}
	}
	r.mu.Unlock()
	if room == 0 && len(results) == 0 && len(extend) == 0 {
		return false, nil
	}

	claims, err := r.claimant.turn(ctx, results, extend, room)
	r.mu.Lock()
	if err != nil {
		r.results = append(results, r.results...)
	} else {
		for _, c := range extend {
			c.until = now.Add(r.cfg.Visibility)
		}
	}
	for _, c := range claims {
		r.held[c] = struct{}{}
	}
	r.mu.Unlock()
	for _, c := range r.pool.Add(room, claims...) {
		r.settle(result{claim: c, outcome: returned})
	}
	return room > 0 && len(claims) == room, err
}

// settle queues a result to be stored in the next turn.
func (r *receiver) settle(s result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, s.claim)
	r.results = append(r.results, s)
}

// run handles one message. It runs concurrently.
func (r *receiver) run(c *claim) {
	r.mu.Lock()
	expired := time.Now().After(c.until)
	r.mu.Unlock()
	switch {
	case expired: // this process was frozen, or the database was unavailable: another process may have the message
		r.settle(result{claim: c, outcome: returned})
		return
	case c.failures > r.cfg.MaxAttempts:
		r.bury(c, queue.LostReason(c.failures-1, c.reason))
		return
	}
	record := r.cfg.Metrics.Start(c.Message)
	v := worker.Handle(r.handlers, r.cfg.Logger, r.handle, c.Message)
	record(v)
	switch {
	case v.Kind == queue.KindDone:
		r.settle(result{claim: c, outcome: done})
	case v.Kind == queue.KindLater:
		r.settle(result{claim: c, outcome: later, delay: v.Delay})
	case v.Kind == queue.KindDead || c.failures >= r.cfg.MaxAttempts:
		r.bury(c, v.Reason)
	default:
		r.settle(result{claim: c, outcome: failed, delay: v.Delay, reason: v.Reason})
	}
}

// bury makes a message a dead letter.
func (r *receiver) bury(c *claim, reason string) {
	r.cfg.LogDeadLetter(c.Message, reason)
	r.settle(result{claim: c, outcome: dead, reason: reason})
}
