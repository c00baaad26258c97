package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// connectTimeout limits the opening of a connection, with its handshakes.
	connectTimeout = 10 * time.Second
	// requestTimeout limits a request to the broker.
	requestTimeout = 10 * time.Second
	// closeTimeout limits the end of a connection.
	closeTimeout = 2 * time.Second
	// heartbeat is the time between two heartbeats. A connection that misses two ends.
	heartbeat = 10 * time.Second
)

var (
	errBlocked  = errors.New("RabbitMQ blocks publishers: it lacks memory or disk space")
	errRefused  = errors.New("RabbitMQ refused a message")
	errReturned = errors.New("RabbitMQ returned a message: its queue does not exist")
	errDeleted  = errors.New("the queue in RabbitMQ was deleted")
	errClosed   = errors.New("the connection to RabbitMQ ended")
	errTimeout  = errors.New("RabbitMQ does not answer")
)

// broker opens connections.
type broker struct {
	url, queue string
	closing    context.Context // ends requests when the transport closes
}

// link is a connection with a channel. The library's requests have no time limit, so a link is broken when one takes too long.
type link struct {
	closing context.Context // the broker's
	conn    *amqp.Connection
	raw     net.Conn
	channel *amqp.Channel
	blocked atomic.Bool
}

// connect opens a connection and a channel, and declares the queue.
func (b *broker) connect(ctx context.Context) (*link, error) {
	l, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	err = l.within(ctx, func() error {
		if l.channel, err = l.conn.Channel(); err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		if _, err := l.channel.QueueDeclare(b.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return fmt.Errorf("declare the queue: %w", err)
		}
		return nil
	})
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (b *broker) dial(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	defer context.AfterFunc(b.closing, cancel)()
	l := &link{closing: b.closing}
	stop := func() bool { return true }
	defer func() { stop() }()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("rollcall " + b.queue)
	conn, err := amqp.DialConfig(b.url, amqp.Config{
		Heartbeat: heartbeat, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			raw, err := (&net.Dialer{KeepAlive: heartbeat}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			l.raw = raw
			stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
			return raw, nil
		},
	})
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", errTimeout, ctx.Err())
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	l.conn = conn
	blocking := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	go func() {
		for b := range blocking { // closed with the connection
			l.blocked.Store(b.Active)
		}
	}()
	return l, nil
}

// within runs requests, and breaks the connection if they take too long, ctx ends, or the transport closes.
func (l *link) within(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer context.AfterFunc(l.closing, cancel)()
	stop := context.AfterFunc(ctx, func() { _ = l.raw.Close() })
	err := do()
	if !stop() && err != nil {
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return err
}

// close ends the connection. The broker executes everything before.
func (l *link) close() {
	limit := time.AfterFunc(closeTimeout, func() { _ = l.raw.Close() })
	defer limit.Stop()
	_ = l.conn.CloseDeadline(time.Now().Add(closeTimeout)) // afterwards it is closed in any case
}

// readable returns an error for people, without secrets: the library's errors may contain the URL.
func readable(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(reason(err))
}

func reason(err error) string {
	for _, known := range []error{errBlocked, errRefused, errReturned, errDeleted, errTimeout} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if answer, ok := errors.AsType[*amqp.Error](err); ok {
		return fmt.Sprintf("RabbitMQ: %d %s", answer.Code, answer.Reason)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return lookup.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errTimeout.Error()
	}
	return errClosed.Error()
}
