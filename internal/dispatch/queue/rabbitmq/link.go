package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// connectTimeout limits the opening of a connection, with its handshakes.
	connectTimeout = 10 * time.Second
	// requestTimeout limits a request to the broker.
	requestTimeout = 10 * time.Second
	// closeTimeout limits the end of a connection.
	closeTimeout = 2 * time.Second
)

var (
	errBlocked  = errors.New("RabbitMQ blocks publishers: it lacks memory or disk space")
	errRefused  = errors.New("RabbitMQ refused a message")
	errReturned = errors.New("RabbitMQ returned a message: its queue does not exist")
	errClosed   = errors.New("the connection to RabbitMQ ended")
	errTimeout  = errors.New("RabbitMQ does not answer")
)

// broker opens connections.
type broker struct {
	names
	url       string
	heartbeat time.Duration
}

// link is a connection. The library's requests have no time limit, so a link is broken when one takes too long.
type link struct {
	conn    *amqp.Connection
	raw     net.Conn
	blocked atomic.Bool
	ended   chan *amqp.Error // receives the cause, or is closed
}

// connect opens a connection.
func (b *broker) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	l := &link{ended: make(chan *amqp.Error, 1)}
	stop := func() bool { return true }
	defer func() { stop() }()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("rollcall " + b.queue)
	conn, err := amqp.DialConfig(b.url, amqp.Config{
		Heartbeat: b.heartbeat, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			raw, err := (&net.Dialer{KeepAlive: b.heartbeat}).DialContext(ctx, network, address)
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
	conn.NotifyClose(l.ended)
	blocking := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	go func() {
		for b := range blocking { // closed with the connection
			l.blocked.Store(b.Active)
		}
	}()
	return l, nil
}

// within runs requests, and breaks the connection if they take longer than d or ctx ends.
func (l *link) within(ctx context.Context, d time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.raw.Close() })
	err := do()
	if !stop() && err != nil {
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return err
}

// channel opens a channel and declares the queue.
func (l *link) channel(ctx context.Context, n names) (channel *amqp.Channel, err error) {
	err = l.within(ctx, requestTimeout, func() error {
		if channel, err = l.conn.Channel(); err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		return declare(channel, n.queue, nil)
	})
	return channel, err
}

func declare(channel *amqp.Channel, name string, arguments amqp.Table) error {
	all := amqp.Table{"x-queue-type": "quorum"}
	maps.Copy(all, arguments)
	if _, err := channel.QueueDeclare(name, true, false, false, false, all); err != nil {
		return fmt.Errorf("declare queue %s: %w", name, err)
	}
	return nil
}

// close ends the connection. The broker executes everything before.
func (l *link) close() {
	limit := time.AfterFunc(closeTimeout, func() { _ = l.raw.Close() })
	defer limit.Stop()
	_ = l.conn.CloseDeadline(time.Now().Add(closeTimeout)) // afterwards it is closed in any case
}

// reason returns the text of an error of this package, without secrets.
func reason(err error) string {
	for _, known := range []error{errBlocked, errRefused, errReturned, errTimeout} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if answer, ok := errors.AsType[*amqp.Error](err); ok {
		return fmt.Sprintf("RabbitMQ: %d %s", answer.Code, answer.Reason)
	}
	if errors.Is(err, table.ErrDeadLetters) {
		return table.ErrDeadLetters.Error() + ": " + postgres.Reason(err)
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
