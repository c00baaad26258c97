package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
)

// listMost is how many dead letters one call looks at.
const listMost = 100_000

// brokerPause is the pause after an internal error of the broker, and brokerTries how often it is asked.
const (
	brokerPause = 200 * time.Millisecond
	brokerTries = 10
)

// scan receives each dead letter once. use returns whether to delete it, and whether to go on. All others are given back
// at the end.
func (q *Queue) scan(ctx context.Context, use func(*received) (gone, more bool, err error)) error {
	begun := false
	return whileBroken(ctx, func() (bool, error) {
		err := q.scanOnce(ctx, func(m *received) (gone, more bool, err error) {
			begun = true
			return use(m)
		})
		return begun, err
	})
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

// scanOnce is one scan.
func (q *Queue) scanOnce(ctx context.Context, use func(*received) (gone, more bool, err error)) error {
	l, err := q.broker.connect(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	channel, err := l.channel(ctx, q.broker.names)
	if err != nil {
		return err
	}
	for range listMost {
		var found bool
		var m *received
		err := l.within(ctx, requestTimeout, func() error {
			d, ok, err := channel.Get(q.broker.dead, false)
			found, m = ok, read(d)
			return err
		})
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if !found {
			break
		}
		gone, more, err := use(m)
		if gone {
			if err := m.delivery.Ack(false); err != nil {
				return fmt.Errorf("delete: %w", err)
			}
		}
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	// The broker answers after it has executed the deletions, and given back the rest.
	return l.within(ctx, requestTimeout, channel.Close)
}

// List implements [queue.DeadLetters].
func (q *Queue) List(ctx context.Context, limit int) ([]queue.DeadLetter, error) {
	if limit <= 0 {
		return nil, nil
	}
	var list []queue.DeadLetter
	err := q.scan(ctx, func(m *received) (gone, more bool, err error) {
		letter := queue.DeadLetter{ID: m.ID, Attempts: m.earlier, Reason: m.reason, EnqueuedAt: m.EnqueuedAt, DeadAt: m.deadAt}
		if letter.Reason == "" {
			letter.Reason = "moved by another program"
		}
		list = append(list, letter)
		return false, len(list) < limit, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

// Replay implements [queue.DeadLetters].
func (q *Queue) Replay(ctx context.Context, ids ...uuid.UUID) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return q.replay(ctx, func(m *received) bool { return slices.Contains(ids, m.ID) })
}

// ReplayAll implements [queue.DeadLetters].
func (q *Queue) ReplayAll(ctx context.Context) (int, error) {
	begin := time.Now()
	return q.replay(ctx, func(m *received) bool { return m.deadAt.Before(begin) })
}

func (q *Queue) replay(ctx context.Context, chosen func(*received) bool) (n int, err error) {
	err = q.scan(ctx, func(m *received) (gone, more bool, err error) {
		if !m.valid || !chosen(m) {
			return false, true, nil
		}
		_, err = q.publisher.publish(ctx, []outgoing{{queue: q.broker.queue, body: m.delivery.Body, enqueuedAt: m.EnqueuedAt}})
		if err != nil {
			return false, false, err
		}
		n++
		return true, true, nil
	})
	if err != nil {
		return n, fmt.Errorf("replay dead letters: %w", err)
	}
	return n, nil
}

// Drop implements [queue.DeadLetters].
func (q *Queue) Drop(ctx context.Context, ids ...uuid.UUID) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	err = q.scan(ctx, func(m *received) (gone, more bool, err error) {
		if gone = slices.Contains(ids, m.ID); gone {
			n++
		}
		return gone, true, nil
	})
	if err != nil {
		return n, fmt.Errorf("drop dead letters: %w", err)
	}
	return n, nil
}
