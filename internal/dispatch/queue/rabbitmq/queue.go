package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/worker"
)

const (
	// maxHeartbeat is the longest time between two heartbeats.
	maxHeartbeat = 10 * time.Second
	// maxPrefetch is the highest number of messages that AMQP lets a consumer hold.
	maxPrefetch = 65535
	// early is how much earlier than its time a delayed message may be handled.
	early = 50 * time.Millisecond
	// depthEvery is how often the messages are counted for the metrics.
	depthEvery = 15 * time.Second
	// malformed is the reason of a message that is given up for it.
	malformed = "the message is not a transaction's id"
)

// Queue is the queue in RabbitMQ. It implements [queue.Queue].
type Queue struct {
	*table.Dispatcher
	broker     *broker
	publisher  *publisher
	cfg        queue.Config
	consuming  *queue.Outage
	settling   *queue.Outage
	collecting *queue.Outage
}

// New returns the queue of a URL. The outbox is in db, the database of the transactions. New does not connect.
func New(db *pgxpool.Pool, url string, cfg queue.Config) (*Queue, error) {
	address, n, urlErr := parse(url)
	cfg, cfgErr := cfg.Complete()
	if err := errors.Join(urlErr, cfgErr); err != nil {
		return nil, err
	}
	b := &broker{names: n, url: address, heartbeat: min(max(cfg.Visibility/3, time.Second), maxHeartbeat)}
	p := &publisher{broker: b}
	return &Queue{
		Dispatcher: table.NewDispatcher(db, cfg, sender{p}), broker: b, publisher: p, cfg: cfg,
		consuming: cfg.NewOutage("consumer", reason), settling: cfg.NewOutage("results", reason),
		collecting: cfg.NewOutage("collector", reason),
	}, nil
}

// Health returns nil while RabbitMQ and the outbox's database answer, and otherwise the cause.
func (q *Queue) Health() error {
	for _, err := range []error{q.consuming.Err(), q.settling.Err(), q.Dispatcher.Health()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the publisher's connection.
func (q *Queue) Close() error {
	q.publisher.close()
	return nil
}

// receiver is one call of Receive.
type receiver struct {
	*Queue
	ctx      context.Context // of Receive
	n        int
	pool     *worker.Pool[*received]
	handle   queue.Handler
	handlers context.Context
}

// session is a connection of a receiver.
type session struct {
	*link
	channel *amqp.Channel
	over    chan struct{} // closed when the connection has ended: its messages are delivered again
}

// Receive implements [queue.Consumer].
func (q *Queue) Receive(ctx context.Context, n int, handle queue.Handler) error {
	handlers, endHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHandlers(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(q.cfg.DrainTimeout, func() { endHandlers(queue.ErrStopped) })
	})()
	r := &receiver{Queue: q, ctx: ctx, n: max(n, 1), handle: handle, handlers: handlers}
	r.pool = worker.New(r.n, r.run)
	var background sync.WaitGroup
	background.Go(func() { q.count(ctx) })
	background.Go(func() { q.collect(ctx) })
	for ctx.Err() == nil {
		err := r.consume(ctx)
		if ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(q.consuming.Failed(err)):
		}
	}
	r.pool.Stop() // without a connection there is nothing to give back
	r.pool.Wait()
	background.Wait()
	return nil
}

// consume receives messages over one connection, until that ends or ctx ends. In the latter case it returns when all
// handlers have ended and their results were sent.
func (r *receiver) consume(ctx context.Context) error {
	l, err := r.broker.connect(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	channel, err := l.channel(ctx, r.broker.names)
	if err != nil {
		return err
	}
	s := &session{link: l, channel: channel, over: make(chan struct{})}
	defer close(s.over)
	canceled := channel.NotifyCancel(make(chan string, 1)) // the queue was deleted
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	var deliveries <-chan amqp.Delivery
	const tag = "rollcall"
	err = l.within(ctx, requestTimeout, func() error {
		// As many as run: a message that waits here could be handled by another process.
		if err := channel.Qos(min(r.n, maxPrefetch), 0, false); err != nil {
			return fmt.Errorf("limit the messages: %w", err)
		}
		deliveries, err = channel.Consume(r.broker.queue, tag, false, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("consume: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.consuming.Succeeded()
	for {
		select {
		case <-ctx.Done():
			r.drain(s, tag, deliveries)
			return nil
		case <-canceled:
			return errors.New("the queue was deleted")
		case cause := <-closed:
			return orClosed(cause)
		case cause := <-l.ended:
			return orClosed(cause)
		case d, open := <-deliveries:
			if !open {
				deliveries = nil // the cause follows
				continue
			}
			m := read(d)
			m.session = s
			r.pool.Add(0, m)
		}
	}
}

func orClosed(cause *amqp.Error) error {
	if cause == nil {
		return errClosed
	}
	return cause
}

// drain gives back the messages that were not started, and waits for the others.
func (r *receiver) drain(s *session, tag string, deliveries <-chan amqp.Delivery) {
	err := s.within(context.WithoutCancel(r.ctx), requestTimeout, func() error { return s.channel.Cancel(tag, false) })
	if err == nil && deliveries != nil {
		for d := range deliveries { // closed by Cancel, or by the end of the connection
			_ = d.Nack(false, true) // an error means that the connection has ended: the message is delivered again
		}
	}
	for _, m := range r.pool.Stop() {
		_ = m.delivery.Nack(false, true)
	}
	r.pool.Wait()
}

// run handles one message. It runs concurrently.
func (r *receiver) run(m *received) {
	switch {
	case !m.valid:
		r.bury(m, malformed)
		return
	case time.Until(m.notBefore) > early: // it was delayed for a part of its time
		again := m.copied(r.broker.queue)
		again.attempts, again.failures = m.Attempts-1, m.failures-1
		r.replace(m, again, m.notBefore)
		return
	case m.failures > r.cfg.MaxAttempts:
		r.bury(m, queue.LostReason(m.failures-1, m.reason))
		return
	}
	record := r.cfg.Metrics.Start(m.Message)
	v := worker.Handle(r.handlers, r.cfg.Logger, r.handle, m.Message)
	record(v)
	again := m.copied(r.broker.queue)
	switch {
	case v.Kind == queue.KindDone:
		_ = m.delivery.Ack(false) // an error means that the connection has ended: the message is delivered again
		return
	case v.Kind == queue.KindDead, v.Kind == queue.KindFailed && m.failures >= r.cfg.MaxAttempts:
		r.bury(m, v.Reason)
		return
	case v.Kind == queue.KindLater:
		again.failures--
	default:
		again.reason = v.Reason
	}
	var until time.Time
	if v.Delay > 0 {
		until = time.Now().Add(v.Delay)
	}
	r.replace(m, again, until)
}

// bury makes a message a dead letter.
func (r *receiver) bury(m *received, why string) {
	r.cfg.LogDeadLetter(m.Message, why)
	r.settle(m, func(ctx context.Context) error {
		if !m.valid { // no row could have it
			return nil
		}
		return r.Bury(ctx, queue.DeadLetter{ID: m.ID, Attempts: m.Attempts, Reason: why, EnqueuedAt: m.EnqueuedAt})
	})
}

// replace sends a copy of a message, at once or through a delay queue, and then acknowledges the message.
func (r *receiver) replace(m *received, with outgoing, until time.Time) {
	r.settle(m, func(ctx context.Context) error { return r.send(ctx, with, until) })
}

// settle stores the result of a message, and then acknowledges the message. It retries while the message's connection lives, and so
// keeps one of the receiver's places: a broker or a database that refuses results is not flooded with repetitions.
func (r *receiver) settle(m *received, store func(context.Context) error) {
	ctx := context.WithoutCancel(r.ctx)
	for {
		err := store(ctx)
		if err == nil {
			r.settling.Succeeded()
			_ = m.delivery.Ack(false) // an error means that the connection has ended: the message is delivered again
			return
		}
		pause := time.NewTimer(r.settling.Failed(err))
		stopped := r.ctx.Done()
		select {
		case <-m.session.over:
			pause.Stop()
			return
		case <-stopped:
			pause.Stop()
			_ = m.delivery.Nack(false, true)
			return
		case <-pause.C:
		}
	}
}

func (r *receiver) send(ctx context.Context, m outgoing, until time.Time) error {
	if !until.IsZero() {
		return r.publisher.delay(ctx, m, until)
	}
	_, err := r.publisher.publish(ctx, []outgoing{m})
	return err
}

// count sets the metrics until ctx ends.
func (q *Queue) count(ctx context.Context) {
	ticker := time.NewTicker(depthEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		waiting, delayed, err := q.publisher.depths(context.WithoutCancel(ctx))
		if err != nil {
			q.cfg.Logger.Debug("queue messages not counted", "err", reason(err))
			continue
		}
		q.cfg.Metrics.Depth("waiting", waiting)
		q.cfg.Metrics.Depth("delayed", delayed)
	}
}
