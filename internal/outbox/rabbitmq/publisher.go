package rabbitmq

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
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
	returns chan amqp.Return

	mu       sync.Mutex
	returned map[string]struct{} // by message id
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
	if err := l.within(ctx, func() error { return l.channel.Confirm(false) }); err != nil {
		l.close()
		return nil, err
	}
	p.current = &publishing{link: l, returns: l.channel.NotifyReturn(make(chan amqp.Return, maxReturns)), returned: map[string]struct{}{}}
	return p.current, nil
}

// drop closes a connection that failed. The next one declares the queue again.
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

// publish sends messages, and returns after the broker has confirmed all of them.
func (p *publisher) publish(ctx context.Context, bodies []string) error {
	s, err := p.get(ctx)
	if err != nil {
		return err
	}
	if s.blocked.Load() {
		return errBlocked
	}
	if err := s.within(ctx, func() error { return s.send(p.broker.queue, bodies) }); err != nil {
		p.drop(s)
		return err
	}
	return nil
}

// send publishes messages and waits for the confirmations.
func (s *publishing) send(queue string, bodies []string) (first error) {
	var waiting []*amqp.DeferredConfirmation
	var ids []string
	for _, body := range bodies {
		id := uuid.NewString()
		w, err := s.channel.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: id, ContentType: "text/plain", Body: []byte(body),
		})
		if err != nil {
			first = fmt.Errorf("publish: %w", err)
			break
		}
		waiting, ids = append(waiting, w), append(ids, id)
	}
	for i, w := range waiting {
		// The end of the connection ends the wait, too.
		switch acked := w.Wait(); {
		case s.wasReturned(ids[i]):
			first = errReturned
		case acked || first != nil:
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
