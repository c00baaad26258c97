package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
)

const (
	// collectEvery is how often the messages of <queue>.dead are collected.
	collectEvery = time.Minute
	// brokerPause is the pause after an internal error of the broker, and brokerTries how often it is asked.
	brokerPause = 200 * time.Millisecond
	brokerTries = 10
)

// collect moves the messages of <queue>.dead to the table, now and each minute until ctx ends.
func (q *Queue) collect(ctx context.Context) {
	ticker := time.NewTicker(collectEvery)
	defer ticker.Stop()
	for {
		if err := whileBroken(ctx, func() (bool, error) { return q.collectOnce(ctx) }); err != nil && ctx.Err() == nil {
			q.cfg.Logger.Debug("dead letters of the broker not collected", "err", reason(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// whileBroken repeats a call that failed by an internal error of the broker before it had begun. The broker answers so until the
// process of a quorum queue runs on its node (rabbitmq/rabbitmq-server, issue 12461).
func whileBroken(ctx context.Context, call func() (begun bool, err error)) error {
	for try := 1; ; try++ {
		begun, err := call()
		if answer, ok := errors.AsType[*amqp.Error](err); !ok || answer.Code != amqp.InternalError || begun || try == brokerTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(brokerPause):
		}
	}
}

// collectOnce moves the messages that are there. It receives nothing while the database does not answer, because each delivery counts
// towards a limit of the broker.
func (q *Queue) collectOnce(ctx context.Context) (begun bool, err error) {
	if err := q.Ready(ctx); err != nil {
		return false, err
	}
	l, err := q.broker.connect(ctx)
	if err != nil {
		return false, err
	}
	defer l.close()
	var channel *amqp.Channel
	count := 0
	err = l.within(ctx, requestTimeout, func() error {
		if channel, err = l.conn.Channel(); err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		dead, err := channel.QueueDeclarePassive(q.broker.dead, true, false, false, false, nil)
		count = dead.Messages
		return err
	})
	if answer, ok := errors.AsType[*amqp.Error](err); ok && answer.Code == amqp.NotFound {
		return false, nil
	}
	for ; err == nil && count > 0; count-- {
		var found bool
		var m *received
		err = l.within(ctx, requestTimeout, func() error {
			d, ok, err := channel.Get(q.broker.dead, false)
			found, m = ok, read(d)
			return err
		})
		if err != nil || !found {
			break
		}
		begun = true
		if err = q.keep(ctx, m); err == nil {
			err = m.delivery.Ack(false)
		}
	}
	if err == nil { // the broker answers after it has executed the deletions
		err = l.within(ctx, requestTimeout, channel.Close)
	}
	return begun, err
}

// keep stores a message of <queue>.dead. A dead letter has a time, and any other message was moved by a limit of the broker.
func (q *Queue) keep(ctx context.Context, m *received) error {
	switch {
	case !m.valid:
		q.cfg.LogDeadLetter(m.Message, malformed)
		return nil
	case m.deadAt.IsZero():
		return q.Return(ctx, m.ID)
	default:
		return q.Bury(ctx, queue.DeadLetter{ID: m.ID, Attempts: m.earlier, Reason: m.reason, EnqueuedAt: m.EnqueuedAt})
	}
}
