package sqs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
)

const (
	// listHide is how long a dead letter stays hidden if the process that lists it dies.
	listHide = 5 * time.Minute
	// listWait is how long a request for dead letters waits. With less than a second, SQS asks only some of its servers.
	listWait = time.Second
	// showLimit is how long a call tries to show the letters again that it received.
	showLimit = 30 * time.Second
	// listMost is how many dead letters one call looks at. SQS hides at most 120,000 messages at a time.
	listMost = 100_000
)

// hiddenError means that dead letters are hidden, although no call holds them.
type hiddenError struct {
	n     int // 0: unknown, and possibly none
	cause string
}

func (e *hiddenError) Error() string {
	letters := "dead letters may"
	if e.n > 0 {
		letters = strconv.Itoa(e.n) + " dead letters"
	}
	return fmt.Sprintf("%s stay hidden for up to %v, because %s; repeat the command then", letters, listHide, e.cause)
}

// scan receives dead letters until use returns false for a batch, or there are no more. Afterwards it shows all of them
// again, except the ones that use has removed from the batch by returning them. The end of ctx does not break off a request,
// because SQS would hide the letters of its answer.
func (c *client) scan(ctx context.Context, use func(letters []*received) (gone []*received, more bool, err error)) (err error) {
	requests := context.WithoutCancel(ctx)
	seen := map[string]struct{}{}
	var kept []*received
	var failed, lost error // of the first request that failed; and if its answer may have held letters
	defer func() {
		shown := c.show(requests, kept)
		if shown == nil && lost != nil {
			shown = c.hidden(requests, lost)
		}
		err = errors.Join(err, shown)
	}()
	for len(seen) < listMost {
		if err := ctx.Err(); err != nil {
			return err
		}
		letters, err := c.receive(requests, c.dead, batch, listWait, listHide, once)
		if missing(err) && c.create { // nothing was ever sent
			return nil
		}
		if err != nil && failed == nil {
			if failed = err; answerLost(err) {
				lost = err
			}
			continue
		}
		if err != nil {
			return err
		}
		kept = append(kept, letters...)
		fresh := slices.DeleteFunc(slices.Clone(letters), func(m *received) bool { _, again := seen[m.id]; return again })
		if len(fresh) == 0 {
			return nil
		}
		for _, m := range fresh {
			seen[m.id] = struct{}{}
		}
		gone, more, err := use(fresh)
		kept = slices.DeleteFunc(kept, func(m *received) bool { return slices.Contains(gone, m) })
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// answerLost reports whether SQS may have executed a request that failed with err.
func answerLost(err error) bool {
	if _, answered := errors.AsType[smithy.APIError](err); answered || errors.Is(err, ErrNoCredentials) {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

// once switches off the SDK's own repetition of a request, which would conceal that an answer was lost.
func once(o *awssqs.Options) { o.Retryer = aws.NopRetryer{} }

// show makes received dead letters visible again. It repeats what fails until showLimit is over.
func (c *client) show(ctx context.Context, letters []*received) error {
	ctx, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	var hidden error
	_, _ = backoff.Retry(ctx, func() (none struct{}, _ error) { // it returns hidden, or the end of ctx
		var mu sync.Mutex
		var failed []*received
		var cause error
		each(letters, func(part []*received) {
			var entries []entry
			for _, m := range part {
				entries = append(entries, entry{handle: m.handle})
			}
			for i, e := range c.hide(ctx, c.dead, entries) {
				if refused, ok := errors.AsType[*partialError](e); e == nil || ok && refused.ours {
					continue // it is visible, or deleted
				}
				mu.Lock()
				failed, cause = append(failed, part[i]), e
				mu.Unlock()
			}
		})
		hidden = nil
		if letters = failed; len(letters) > 0 {
			hidden = &hiddenError{len(letters), reason(cause)}
		}
		return none, hidden
	}, backoff.WithMaxElapsedTime(showLimit))
	return hidden
}

// hidden returns an error if dead letters are hidden after one of the answers was lost.
func (c *client) hidden(ctx context.Context, lost error) error {
	_, n, _, err := c.depth(ctx, c.dead)
	if err == nil && n == 0 {
		return nil
	}
	return &hiddenError{n, "an answer was lost (" + reason(lost) + ")"}
}

// List implements [queue.DeadLetters].
func (q *Queue) List(ctx context.Context, limit int) ([]queue.DeadLetter, error) {
	var list []queue.DeadLetter
	if limit <= 0 {
		return nil, nil
	}
	err := q.client.scan(ctx, func(letters []*received) ([]*received, bool, error) {
		for _, m := range letters {
			list = append(list, m.deadLetter())
		}
		return nil, len(list) < limit, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	slices.SortFunc(list, func(a, b queue.DeadLetter) int { return a.DeadAt.Compare(b.DeadAt) })
	return list[:min(limit, len(list))], nil
}

func (r *received) deadLetter() queue.DeadLetter {
	reason := r.reason
	if reason == "" {
		reason = "moved by the queue's redrive policy, or by another program"
	}
	return queue.DeadLetter{ID: r.ID, Attempts: r.earlier, Reason: reason, EnqueuedAt: r.EnqueuedAt, DeadAt: r.deadAt}
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

func (q *Queue) replay(ctx context.Context, chosen func(*received) bool) (int, error) {
	n, err := q.take(ctx, func(m *received) bool { return m.valid && chosen(m) }, true)
	if err != nil {
		return n, fmt.Errorf("replay dead letters: %w", err)
	}
	return n, nil
}

// Drop implements [queue.DeadLetters].
func (q *Queue) Drop(ctx context.Context, ids ...uuid.UUID) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	n, err := q.take(ctx, func(m *received) bool { return slices.Contains(ids, m.ID) }, false)
	if err != nil {
		return n, fmt.Errorf("drop dead letters: %w", err)
	}
	return n, nil
}

// take deletes the chosen dead letters, after it sent them to the queue if they are replayed, and returns their number.
func (q *Queue) take(ctx context.Context, chosen func(*received) bool, replayed bool) (n int, err error) {
	return n, q.client.scan(ctx, func(letters []*received) (gone []*received, more bool, err error) {
		letters = slices.DeleteFunc(letters, func(m *received) bool { return !chosen(m) })
		if replayed && len(letters) > 0 {
			var out []outgoing
			for _, m := range letters {
				out = append(out, outgoing{body: m.body, enqueuedAt: m.EnqueuedAt})
			}
			var sent []*received
			for i, e := range q.client.send(ctx, q.client.queue, out) {
				if e == nil {
					sent = append(sent, letters[i])
				} else if err == nil {
					err = e
				}
			}
			letters = sent
		}
		if len(letters) > 0 {
			var entries []entry
			for _, m := range letters {
				entries = append(entries, entry{handle: m.handle})
			}
			for i, e := range q.client.remove(ctx, q.client.dead, entries) {
				if e == nil {
					gone = append(gone, letters[i])
				} else if err == nil {
					err = e
				}
			}
		}
		n += len(gone)
		return gone, true, err
	})
}
