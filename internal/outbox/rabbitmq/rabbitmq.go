package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

const (
	// maxPrefetch is the highest number of messages that AMQP lets a consumer hold.
	maxPrefetch = 65535
	// idleAfter is for how long Receive waits for a message. It exceeds two heartbeats, which show that the broker answers.
	idleAfter = 25 * time.Second
	// holdFor is after how long a message is given back that was not acknowledged, or waits for a Receive. It exceeds the time of a turn.
	holdFor = 30 * time.Second
	// consumerTag is the consumer's name in its channel.
	consumerTag = "rollcall"
)

// Transport is a queue in RabbitMQ. It implements [outbox.Transport].
type Transport struct {
	broker    *broker
	publisher *publisher
	prefetch  int
	closing   context.CancelFunc // ends connecting and requests, which hold mu

	mu      sync.Mutex
	session *session // nil while there is no connection
	closed  bool
}

// session is a connection on which messages arrive.
type session struct {
	*link
	deliveries <-chan amqp.Delivery
	canceled   chan string      // the broker has deleted the queue
	ended      chan *amqp.Error // receives the cause, or is closed

	// The Transport guards these.
	receivers int         // calls of Receive
	unused    *time.Timer // gives the waiting messages back when Receive is not called for holdFor
	stopped   bool        // no more messages arrive
}

// New returns the transport of a URL, or its problem. It does not connect. Up to prefetch messages, at least one, wait in this process
// for a call of Receive, at most for half a minute. Meanwhile no other process gets them, so prefetch is the number of handlers.
func New(url string, prefetch int) (*Transport, error) {
	address, queue, err := parse(url)
	if err != nil {
		return nil, err
	}
	ctx, closing := context.WithCancel(context.Background())
	b := &broker{url: address, queue: queue, closing: ctx}
	return &Transport{broker: b, publisher: &publisher{broker: b}, prefetch: min(max(prefetch, 1), maxPrefetch), closing: closing}, nil
}

// Close closes the connections. Messages that were not acknowledged are delivered again.
func (t *Transport) Close() error {
	t.closing()
	t.publisher.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.endLocked()
	return nil
}

func (t *Transport) endLocked() {
	if t.session != nil {
		t.session.unused.Stop()
		t.session.close()
		t.session = nil
	}
}

// end closes a session.
func (t *Transport) end(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session == s {
		t.endLocked()
	}
}

// Send implements [outbox.Transport].
func (t *Transport) Send(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return readable(t.publisher.publish(ctx, ids))
}

// Receive implements [outbox.Transport].
func (t *Transport) Receive(ctx context.Context, n int) ([]outbox.Message, error) {
	s, err := t.consume(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, readable(err)
	}
	defer t.received(s)
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	var messages []outbox.Message
	select {
	case <-ctx.Done():
		t.giveBack(context.WithoutCancel(ctx), s, 1)
		return nil, ctx.Err()
	case <-idle.C:
		return nil, nil
	case d, open := <-s.deliveries:
		if !open {
			cause := s.cause()
			t.end(s)
			return nil, readable(cause)
		}
		messages = append(messages, hold(d))
	}
	for len(messages) < n {
		select {
		case d, open := <-s.deliveries:
			if open {
				messages = append(messages, hold(d))
				continue
			}
		default:
		}
		break
	}
	return messages, nil
}

// consume returns the session for a call of Receive, and begins one if there is none.
func (t *Transport) consume(ctx context.Context) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	if t.session != nil && t.session.stopped {
		t.endLocked()
	}
	if t.session != nil {
		t.session.receivers++
		t.session.unused.Stop()
		return t.session, nil
	}
	l, err := t.broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		link: l, receivers: 1, canceled: l.channel.NotifyCancel(make(chan string, 1)), ended: l.channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	err = l.within(ctx, func() error {
		if err := l.channel.Qos(t.prefetch, 0, false); err != nil {
			return fmt.Errorf("limit the messages: %w", err)
		}
		s.deliveries, err = l.channel.Consume(t.broker.queue, consumerTag, false, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("consume: %w", err)
		}
		return nil
	})
	if err != nil {
		l.close()
		return nil, err
	}
	s.unused = time.AfterFunc(holdFor, func() { t.giveBack(context.Background(), s, 0) })
	s.unused.Stop()
	t.session = s
	return s, nil
}

// received ends a call of Receive.
func (t *Transport) received(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.receivers--; s.receivers == 0 && t.session == s && !s.stopped {
		s.unused.Reset(holdFor)
	}
}

// cause returns the reason for which a session's deliveries have ended. The library closes both channels with the connection.
func (s *session) cause() error {
	select {
	case _, deleted := <-s.canceled:
		if deleted {
			return errDeleted
		}
	default:
	}
	select {
	case cause := <-s.ended:
		if cause != nil {
			return cause
		}
	case <-time.After(closeTimeout):
	}
	return errClosed
}

// giveBack makes the messages that wait in this process available to others, if at most the given number of calls of Receive run. The
// session goes on for acknowledgements; a later Receive begins another one.
func (t *Transport) giveBack(ctx context.Context, s *session, receivers int) {
	t.mu.Lock()
	if s.stopped || t.session != s || s.receivers > receivers {
		t.mu.Unlock()
		return
	}
	s.stopped = true
	t.mu.Unlock()
	if err := s.within(ctx, func() error { return s.channel.Cancel(consumerTag, false) }); err != nil {
		t.end(s) // which gives back all of them
		return
	}
	for d := range s.deliveries { // closed by Cancel, or by the end of the connection
		_ = d.Nack(false, true) // an error means that the connection has ended: the message is delivered again
	}
}

// held is the receipt of a message.
type held struct {
	delivery amqp.Delivery
	release  *time.Timer
}

// hold gives a message back after some time, unless it is acknowledged before.
func hold(d amqp.Delivery) outbox.Message {
	return outbox.Message{ID: string(d.Body), Receipt: &held{d, time.AfterFunc(holdFor, func() { _ = d.Nack(false, true) })}}
}

// Acknowledge implements [outbox.Transport].
func (t *Transport) Acknowledge(_ context.Context, messages []outbox.Message) error {
	for _, m := range messages {
		h := m.Receipt.(*held)
		if !h.release.Stop() { // it was given back, or acknowledged before: the broker would end the channel
			continue
		}
		if err := h.delivery.Ack(false); err != nil {
			return readable(err)
		}
	}
	return nil
}
