package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
)

const (
	// collectEvery is how often the messages of <queue>.dead are collected.
	collectEvery = time.Minute
	// brokerPause is the pause after an internal error of the broker, and brokerTries how often it is asked.
	brokerPause = 200 * time.Millisecond
	brokerTries = 10
	// mostForeign is how many messages of others end a collection.
	mostForeign = 1000
)

// collect moves the messages of <queue>.dead to the table, now and each minute until ctx ends. It ends early if the queue has messages of
// others, because a delivery limit deletes messages that are received again and again.
func (q *Queue) collect(ctx context.Context) {
	ticker := time.NewTicker(collectEvery)
	defer ticker.Stop()
	for {
		switch err := whileBroken(ctx, func() (bool, error) { return q.collectOnce(ctx) }); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, table.ErrForeign):
			q.collecting.Succeeded()
			q.cfg.Logger.Warn("dead letters of the broker are collected at starts only", "component", "consumer", "err", err)
			return
		case err != nil:
			q.collecting.Failed(err)
		default:
			q.collecting.Succeeded()
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

// collectOnce moves the messages that are there, and returns table.ErrForeign if it left some. It receives nothing while the database does
// not store messages, because each delivery counts towards a limit of the broker.
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
	foreign := 0
	var failed error // the first of a message
	for ; err == nil && count > 0 && foreign < mostForeign; count-- {
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
		switch stored := q.Collect(ctx, m.letter()); {
		case stored == nil:
			err = m.delivery.Ack(false)
		case errors.Is(stored, table.ErrForeign):
			foreign++
		default:
			failed = cmp.Or(failed, stored)
			err = q.Ready(ctx)
		}
	}
	// The broker answers after it has executed the deletions, and puts the messages back that are left.
	if err == nil {
		err = l.within(ctx, requestTimeout, channel.Close)
	}
	if err = cmp.Or(failed, err); err == nil && foreign > 0 {
		err = table.ErrForeign
	}
	return begun, err
}
