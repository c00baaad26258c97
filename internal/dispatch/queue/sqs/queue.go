package sqs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/worker"
	outboxsqs "github.com/rollcall-dev/rollcall/internal/outbox/sqs"
)

const (
	// longPoll is how long a request waits for messages. A stop waits for its end, because SQS may be answering it: a
	// request that is broken off can hide messages for the visibility timeout.
	longPoll = 5 * time.Second
	// settleInterval is the shortest time between two rounds of results, so that results share requests.
	settleInterval = 5 * time.Millisecond
	// shutdownTimeout is how long a stop waits for an unavailable server.
	shutdownTimeout = 3 * time.Second
	// depthEvery is how often the messages are counted for the metrics.
	depthEvery = 15 * time.Second
	// malformed is the reason of a message that is given up for it.
	malformed = "the message is not a transaction's id"
)

// Queue is the queue in SQS. It implements [queue.Queue].
type Queue struct {
	*table.Dispatcher
	client     *client
	cfg        queue.Config
	polling    *queue.Outage
	settling   *queue.Outage
	collecting *queue.Outage
}

// New returns the queue of a URL. The outbox is in db, the database of the transactions. New does not connect.
func New(db *pgxpool.Pool, url string, cfg queue.Config) (*Queue, error) {
	l, urlErr := parse(url)
	cfg, cfgErr := cfg.Complete()
	if err := errors.Join(urlErr, cfgErr); err != nil {
		return nil, err
	}
	c := newClient(l, outboxsqs.Credentials(l.region))
	return &Queue{
		Dispatcher: table.NewDispatcher(db, cfg, sender{c}), client: c, cfg: cfg,
		polling: cfg.NewOutage("consumer", reason), settling: cfg.NewOutage("results", reason),
		collecting: cfg.NewOutage("collector", reason),
	}, nil
}

// Health returns nil while SQS and the outbox's database answer, and otherwise the cause.
func (q *Queue) Health() error {
	for _, err := range []error{q.polling.Err(), q.settling.Err(), q.Dispatcher.Health()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes idle connections.
func (q *Queue) Close() error {
	q.client.close()
	return nil
}

// sender implements [table.Sender].
type sender struct{ client *client }

// Send implements [table.Sender].
func (s sender) Send(ctx context.Context, messages []queue.Message) ([]bool, error) {
	confirmed := make([]bool, len(messages))
	indexes := make([]int, len(messages))
	for i := range indexes {
		indexes[i] = i
	}
	var mu sync.Mutex
	var first error
	each(indexes, func(part []int) {
		var out []outgoing
		for _, i := range part {
			out = append(out, outgoing{body: messages[i].ID.String(), enqueuedAt: messages[i].EnqueuedAt})
		}
		errs := s.client.send(ctx, s.client.queue, out)
		mu.Lock()
		defer mu.Unlock()
		for j, i := range part {
			confirmed[i] = errs[j] == nil
			if first == nil {
				first = errs[j]
			}
		}
	})
	if missing(first) {
		if err := s.client.ensure(ctx); err != nil {
			return confirmed, err
		}
	}
	return confirmed, first
}

// Reason implements [table.Sender].
func (s sender) Reason(err error) string { return reason(err) }

// receiver is one call of Receive.
type receiver struct {
	*Queue
	pool     *worker.Pool[*received]
	handle   queue.Handler
	handlers context.Context
	wake     chan struct{} // a result was queued
	polled   chan struct{} // a poll has ended

	mu       sync.Mutex
	held     map[*received]struct{} // messages without a result
	results  []result               // not stored yet
	running  int                    // polls
	polls    int                    // how many may run
	resumeAt time.Time              // when the next one may start
}

// result is what to do with a received message: send its copy or store its dead letter, if there is one, and then delete it, or show it
// again.
type result struct {
	message *received
	copy    *outgoing
	letter  *queue.DeadLetter
	show    bool
	after   time.Duration // when to show it
}

// Receive implements [queue.Consumer].
func (q *Queue) Receive(ctx context.Context, n int, handle queue.Handler) error {
	handlers, endHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHandlers(nil)
	r := &receiver{
		Queue: q, handle: handle, handlers: handlers, wake: make(chan struct{}, 1), polled: make(chan struct{}, 1),
		held: map[*received]struct{}{}, polls: 1,
	}
	r.pool = worker.New(max(n, 1), r.run)
	working := context.WithoutCancel(ctx)

	var counting, settling sync.WaitGroup
	counting.Go(func() { q.count(ctx) })
	counting.Go(func() { q.collect(ctx) })
	ended := make(chan struct{})
	settling.Go(func() { r.settle(working, ended) })
	r.fetch(ctx, working)

	for _, m := range r.pool.Stop() {
		r.giveBack(m)
	}
	limit := time.AfterFunc(q.cfg.DrainTimeout, func() { endHandlers(queue.ErrStopped) })
	defer limit.Stop()
	r.pool.Wait()
	close(ended)
	settling.Wait()
	counting.Wait()
	return nil
}

// fetch receives messages while there is room for them, until ctx ends and all requests have ended. One long poll runs
// while the queue is empty, and more while they return full batches.
func (r *receiver) fetch(ctx, working context.Context) {
	var polls sync.WaitGroup
	defer polls.Wait()
	for {
		room, pause := r.nextPoll()
		if room > 0 {
			polls.Go(func() { r.poll(working, room) })
			continue
		}
		var resume <-chan time.Time
		if pause > 0 {
			resume = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.polled:
		case <-r.pool.Changed():
		case <-resume:
		}
	}
}

// nextPoll returns the room for another poll, or 0 and for how long to pause.
func (r *receiver) nextPoll() (room int, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pause = time.Until(r.resumeAt); pause > 0 {
		return 0, pause
	}
	if r.running < r.polls {
		if room = r.pool.Reserve(batch); room > 0 {
			r.running++
		}
	}
	return room, 0
}

// poll receives up to room messages and starts them.
func (r *receiver) poll(ctx context.Context, room int) {
	messages, err := r.client.receive(ctx, r.client.queue, room, longPoll, r.cfg.Visibility)
	if missing(err) && r.client.create {
		err = r.client.ensure(ctx)
	}
	r.mu.Lock()
	r.running--
	switch {
	case err != nil:
		r.polls = 1
		r.resumeAt = time.Now().Add(r.polling.Failed(err))
	case len(messages) == min(room, batch):
		r.polls = min(2*r.polls, concurrent)
	case len(messages) == 0:
		r.polls = 1
	}
	for _, m := range messages {
		r.held[m] = struct{}{}
	}
	r.mu.Unlock()
	if err == nil {
		r.polling.Succeeded()
	}
	for _, m := range r.pool.Add(room, messages...) {
		r.giveBack(m)
	}
	select {
	case r.polled <- struct{}{}:
	default:
	}
}

// giveBack shows a message to other consumers at once.
func (r *receiver) giveBack(m *received) { r.end(result{message: m, show: true}) }

// end queues the result of a message.
func (r *receiver) end(s result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, s.message)
	r.results = append(r.results, s)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run handles one message. It runs concurrently.
func (r *receiver) run(m *received) {
	r.mu.Lock()
	expired := time.Now().After(m.until)
	r.mu.Unlock()
	switch {
	case expired: // this process was frozen, or SQS was unavailable: another process may have the message
		r.giveBack(m)
		return
	case !m.valid:
		r.bury(m, malformed)
		return
	case m.failures > r.cfg.MaxAttempts:
		r.bury(m, queue.LostReason(m.failures-1, ""))
		return
	}
	record := r.cfg.Metrics.Start(m.Message)
	v := worker.Handle(r.handlers, r.cfg.Logger, r.handle, m.Message)
	record(v)
	switch {
	case v.Kind == queue.KindDone:
		r.end(result{message: m})
	case v.Kind == queue.KindLater:
		again := m.copied()
		again.failures--
		again.delay = v.Delay
		r.end(result{message: m, copy: &again})
	case v.Kind == queue.KindDead || m.failures >= r.cfg.MaxAttempts:
		r.bury(m, v.Reason)
	default:
		r.end(result{message: m, show: true, after: v.Delay})
	}
}

// bury makes a message a dead letter.
func (r *receiver) bury(m *received, reason string) {
	r.cfg.LogDeadLetter(m.Message, reason)
	done := result{message: m}
	if m.valid { // otherwise no row could have it
		done.letter = &queue.DeadLetter{ID: m.ID, Attempts: m.Attempts, Reason: reason, EnqueuedAt: m.EnqueuedAt}
	}
	r.end(done)
}

// settle stores results and extends the visibility of held messages, until ended is closed and all is stored.
func (r *receiver) settle(ctx context.Context, ended <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since when results cannot be stored
	for {
		stopped := false
		select {
		case <-ended:
			stopped = true
		case <-r.wake:
		case <-timer.C:
		}
		r.extend(ctx)
		r.mu.Lock()
		results := r.results
		r.results = nil
		r.mu.Unlock()
		again, err := r.store(ctx, results)
		r.mu.Lock()
		r.results = append(r.results, again...)
		left := len(r.results)
		r.mu.Unlock()
		pause := settleInterval
		if err == nil {
			r.settling.Succeeded()
			failing = time.Time{}
			if stopped && left == 0 {
				return
			}
		} else {
			pause = r.settling.Failed(err)
			if failing.IsZero() {
				failing = time.Now()
			}
			if stopped && time.Since(failing) > shutdownTimeout {
				r.cfg.Logger.Warn("queue messages will be repeated: their results could not be stored", "component", "consumer",
					"count", left, "err", reason(err))
				return
			}
		}
		timer.Reset(pause)
		<-timer.C
		timer.Reset(min(time.Second, r.cfg.Visibility/6))
		if err != nil {
			timer.Reset(0)
		}
	}
}

// extend hides the messages longer that are still held.
func (r *receiver) extend(ctx context.Context) {
	now := time.Now()
	r.mu.Lock()
	var messages []*received
	for m := range r.held {
		if m.until.Sub(now) < r.cfg.Visibility*2/3 {
			messages = append(messages, m)
		}
	}
	r.mu.Unlock()
	each(messages, func(part []*received) {
		var entries []entry
		for _, m := range part {
			entries = append(entries, entry{m.handle, r.cfg.Visibility})
		}
		errs := r.client.hide(ctx, r.client.queue, entries)
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, m := range part {
			if errs[i] == nil {
				m.until = now.Add(r.cfg.Visibility)
			}
		}
	})
}

// store stores results. It returns those that must be repeated, with the first error. A result is given up when its
// message is visible again: another process may have it.
func (r *receiver) store(ctx context.Context, results []result) (again []result, err error) {
	var mu sync.Mutex
	failed := func(s result, e error) {
		if refused, ok := errors.AsType[*partialError](e); ok && refused.ours && s.copy == nil && s.letter == nil {
			return // the message is visible or deleted
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			err = e
		}
		if time.Now().Before(s.message.until) {
			again = append(again, s)
		}
	}
	var copies, letters, ends, shows []result
	for _, s := range results {
		switch {
		case s.show:
			shows = append(shows, s)
		case s.copy != nil:
			copies = append(copies, s)
		case s.letter != nil:
			letters = append(letters, s)
		default:
			ends = append(ends, s)
		}
	}
	each(copies, func(part []result) {
		var out []outgoing
		for _, s := range part {
			out = append(out, *s.copy)
		}
		for i, e := range r.client.send(ctx, r.client.queue, out) {
			if e != nil {
				failed(part[i], e)
				continue
			}
			done := part[i]
			done.copy = nil // it is sent: only the deletion is left
			mu.Lock()
			ends = append(ends, done)
			mu.Unlock()
		}
	})
	each(letters, func(part []result) {
		var out []queue.DeadLetter
		for _, s := range part {
			out = append(out, *s.letter)
		}
		e := r.Bury(ctx, out...)
		for _, done := range part {
			if e != nil {
				failed(done, e)
				continue
			}
			done.letter = nil
			mu.Lock()
			ends = append(ends, done)
			mu.Unlock()
		}
	})
	each(ends, func(part []result) {
		for i, e := range r.client.remove(ctx, r.client.queue, entries(part)) {
			if e != nil {
				failed(part[i], e)
			}
		}
	})
	each(shows, func(part []result) {
		for i, e := range r.client.hide(ctx, r.client.queue, entries(part)) {
			if e != nil {
				failed(part[i], e)
			}
		}
	})
	return again, err
}

func entries(results []result) (list []entry) {
	for _, s := range results {
		list = append(list, entry{s.message.handle, s.after})
	}
	return list
}

// count sets the metrics of the queue until ctx ends.
func (q *Queue) count(ctx context.Context) {
	ticker := time.NewTicker(depthEvery)
	defer ticker.Stop()
	for {
		if waiting, handled, delayed, err := q.client.depth(ctx, q.client.queue); err == nil {
			q.cfg.Metrics.Depth("waiting", waiting)
			q.cfg.Metrics.Depth("handled", handled)
			q.cfg.Metrics.Depth("delayed", delayed)
		} else if ctx.Err() == nil {
			q.cfg.Logger.Debug("queue messages not counted", "err", reason(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
