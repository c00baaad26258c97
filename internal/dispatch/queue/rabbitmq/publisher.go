package rabbitmq

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// maxReturns is how many returned messages wait to be read. It exceeds the number of messages in flight, because the
// library drops returns that the publisher does not read.
const maxReturns = 1 << 14

// publisher sends messages with confirmations. It connects when it is used. It is safe for concurrent use.
type publisher struct {
	broker *broker

	mu      sync.Mutex
	current *publishing // nil while there is no connection
	closed  bool
}

// publishing is a connection of a publisher.
type publishing struct {
	*link
	channel *amqp.Channel
	returns chan amqp.Return

	mu       sync.Mutex
	returned map[string]struct{} // by message id
	declared map[string]struct{} // delay queues
}

// get returns the connection, and opens it if there is none.
func (p *publisher) get(ctx context.Context) (*publishing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.current != nil && !p.current.channel.IsClosed() {
		return p.current, nil
	}
	p.dropLocked()
	l, err := p.broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	channel, err := l.channel(ctx, p.broker.names)
	if err == nil {
		err = l.within(ctx, requestTimeout, func() error { return channel.Confirm(false) })
	}
	if err != nil {
		l.close()
		return nil, err
	}
	p.current = &publishing{
		link: l, channel: channel, returns: channel.NotifyReturn(make(chan amqp.Return, maxReturns)),
		returned: map[string]struct{}{}, declared: map[string]struct{}{},
	}
	return p.current, nil
}

// drop closes a connection that failed.
func (p *publisher) drop(failed *publishing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == failed {
		p.dropLocked()
	}
}

func (p *publisher) dropLocked() {
	if p.current != nil {
		p.current.close()
		p.current = nil
	}
}

func (p *publisher) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.dropLocked()
}

// publish sends messages and returns for each whether the broker has confirmed it, and the first error.
func (p *publisher) publish(ctx context.Context, messages []outgoing) (confirmed []bool, err error) {
	confirmed = make([]bool, len(messages))
	s, err := p.get(ctx)
	if err != nil {
		return confirmed, err
	}
	if s.blocked.Load() {
		return confirmed, errBlocked
	}
	err = s.within(ctx, requestTimeout, func() error { return s.send(messages, confirmed) })
	if err != nil {
		p.drop(s) // the next one declares the queues again
	}
	return confirmed, err
}

// send publishes messages and waits for the confirmations.
func (s *publishing) send(messages []outgoing, confirmed []bool) (first error) {
	waiting := make([]*amqp.DeferredConfirmation, len(messages))
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = uuid.NewString()
		var err error
		if waiting[i], err = s.channel.PublishWithDeferredConfirm("", m.queue, true, false, m.publishing(ids[i])); err != nil {
			first = fmt.Errorf("publish: %w", err)
			break
		}
	}
	for i, w := range waiting {
		if w == nil {
			break
		}
		// The end of the connection ends the wait, too.
		switch acked := w.Wait(); {
		case s.wasReturned(ids[i]):
			first = errReturned
		case acked:
			confirmed[i] = true
		case first != nil:
		case s.channel.IsClosed():
			first = errClosed
		default:
			first = errRefused
		}
	}
	return first
}

// wasReturned reports whether the broker has returned a message that it confirmed. The library reads the return before
// the confirmation.
func (s *publishing) wasReturned(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		select {
		case r, open := <-s.returns:
			if open {
				s.returned[r.MessageId] = struct{}{}
				continue
			}
		default:
		}
		break
	}
	_, returned := s.returned[id]
	delete(s.returned, id)
	return returned
}

// delay sends a message to a delay queue, from which it returns at a time or up to half a second or an eighth later.
func (p *publisher) delay(ctx context.Context, m outgoing, until time.Time) error {
	step := delayStep(time.Until(until))
	s, err := p.get(ctx)
	if err != nil {
		return err
	}
	m.queue, m.notBefore = p.broker.delayQueue(step), until
	s.mu.Lock()
	_, declared := s.declared[m.queue]
	s.mu.Unlock()
	if !declared {
		err := s.within(ctx, requestTimeout, func() error {
			return declare(s.channel, m.queue, amqp.Table{
				"x-message-ttl": step.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.broker.queue,
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			})
		})
		if err != nil {
			p.drop(s)
			return err
		}
		s.mu.Lock()
		s.declared[m.queue] = struct{}{}
		s.mu.Unlock()
	}
	_, err = p.publish(ctx, []outgoing{m})
	return err
}

func (b *broker) delayQueue(step time.Duration) string {
	return b.queue + ".delay." + strconv.FormatInt(step.Milliseconds(), 10)
}

// depths returns the number of messages that wait in the queue, and in the delay queues that this process uses.
func (p *publisher) depths(ctx context.Context) (waiting, delayed int, err error) {
	s, err := p.get(ctx)
	if err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	names := []string{p.broker.queue}
	for name := range s.declared {
		names = append(names, name)
	}
	s.mu.Unlock()
	numbers := make([]int, len(names))
	err = s.within(ctx, requestTimeout, func() error {
		channel, err := s.conn.Channel()
		if err != nil {
			return err
		}
		defer channel.Close()
		for i, name := range names {
			q, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return err
			}
			numbers[i] = q.Messages
		}
		return nil
	})
	for _, n := range numbers[1:] {
		delayed += n
	}
	return numbers[0], delayed, err
}

// sender implements [table.Sender].
type sender struct{ *publisher }

// Send implements [table.Sender].
func (s sender) Send(ctx context.Context, messages []queue.Message) ([]bool, error) {
	out := make([]outgoing, len(messages))
	for i, m := range messages {
		out[i] = outgoing{queue: s.broker.queue, body: []byte(m.ID.String()), enqueuedAt: m.EnqueuedAt}
	}
	return s.publish(ctx, out)
}

// Reason implements [table.Sender].
func (s sender) Reason(err error) string { return reason(err) }
