package queuetest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	for name, test := range map[string]func(*testing.T, Suite){
		"Receive_Backlog_HandlesEveryMessage":                  backlog,
		"Receive_Later_RedeliversWithoutFailure":               later,
		"Receive_FailedTooOften_DeadLetterWithReason":          poison,
		"Receive_Dead_DeadLetterAtOnce":                        dead,
		"Receive_NoVerdict_CountsAsFailure":                    noVerdict,
		"Receive_HandlerPanics_CountsAsFailure":                panics,
		"Receive_LongHandler_KeepsItsMessage":                  longHandler,
		"Receive_ProcessKilled_DeliversAgain":                  killed,
		"Receive_ProcessKilledEachTime_DeadLetter":             crashLoop,
		"Receive_ManyMessages_LimitsConcurrency":               concurrency,
		"Receive_SlowHandlers_HoldsFewMessages":                backpressure,
		"Receive_Stopped_DrainsAndGivesBack":                   drain,
		"Receive_DrainTimeout_EndsHandlers":                    drainTimeout,
		"Receive_TwoReceivers_ShareMessages":                   sharing,
		"Receive_ServerRestarted_GoesOn":                       restart,
		"Enqueue_RolledBack_DeliversNothing":                   rolledBack,
		"Enqueue_ProcessKilledAfterCommit_Delivers":            killedProducer,
		"Enqueue_WhileHandled_DeliversAgain":                   enqueuedAgain,
		"Enqueue_Repeated_DeliversAfterDone":                   enqueuedAfterDone,
		"DeadLetters_ReplayAndDrop_ChangeOnlyNamedOnes":        replayAndDrop,
		"DeadLetters_ReplayAll_DeliversWithAFullSetOfAttempts": replayAll,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

func backlog(t *testing.T, s Suite) {
	e := s.env(t, false)
	before := time.Now().Add(-time.Minute) // the clocks are of one machine, but the database rounds
	ids := newIDs(700)
	e.enqueue(ids[:500]...)
	l := newLog()
	q := e.start(queue.Config{}, 16, l.done)
	for _, id := range ids[500:] {
		e.enqueue(id)
		q.Notify()
	}
	l.await(t, 1, ids...)
	first := l.of(ids[0])[0]
	require.Equal(t, 1, first.Attempts)
	require.WithinRange(t, first.EnqueuedAt, before, time.Now().Add(time.Minute))
	require.NoError(t, q.Health())
}

func later(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	const wait = 3 * time.Second
	q := e.start(queue.Config{MaxAttempts: 2}, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		switch l.add(m) {
		case 1:
			return queue.Later(wait)
		case 2, 3, 4:
			return queue.Later(0)
		}
		return queue.Done()
	})
	ids := newIDs(3)
	e.enqueue(ids...)
	l.await(t, 5, ids...)
	for _, id := range ids {
		got := l.of(id)
		require.GreaterOrEqual(t, got[1].at.Sub(got[0].at), wait-100*time.Millisecond)
		require.Equal(t, 5, got[4].Attempts)
		require.WithinDuration(t, got[0].EnqueuedAt, got[4].EnqueuedAt, time.Millisecond)
	}
	letters, err := q.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, letters)
}

func poison(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	const control = "\x00\x07 and a line\nbreak"
	q := e.start(queue.Config{MaxAttempts: 3}, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		n := l.add(m)
		if n == 2 {
			return queue.Later(0) // does not count
		}
		return queue.Failed(fmt.Sprintf("failure %d%s", n, control), 0)
	})
	id := uuid.New()
	e.enqueue(id)
	letter := e.letters(q, 1)[0]
	require.Len(t, l.of(id), 4)
	require.Equal(t, id, letter.ID)
	require.Equal(t, 4, letter.Attempts)
	require.Equal(t, "failure 4   and a line break", letter.Reason)
	require.WithinDuration(t, l.of(id)[0].EnqueuedAt, letter.EnqueuedAt, time.Millisecond)
	require.WithinRange(t, letter.DeadAt, letter.EnqueuedAt.Add(-time.Second), time.Now().Add(time.Minute))
}

// letters waits until the queue has n dead letters.
func (e *env) letters(q queue.Queue, n int) (letters []queue.DeadLetter) {
	e.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var err error
		letters, err = q.List(e.t.Context(), n+10)
		require.NoError(e.t, err)
		if len(letters) == n {
			return letters
		}
		require.Less(e.t, len(letters), n)
		require.True(e.t, time.Now().Before(deadline), "%d of %d dead letters", len(letters), n)
		<-time.After(20 * time.Millisecond)
	}
}

func dead(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	q := e.start(queue.Config{}, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		l.add(m)
		return queue.Dead("cannot be sent")
	})
	ids := newIDs(12)
	e.enqueue(ids...)
	for _, letter := range e.letters(q, len(ids)) {
		require.Contains(t, ids, letter.ID)
		require.Equal(t, "cannot be sent", letter.Reason)
		require.Len(t, l.of(letter.ID), 1)
	}
	letters, err := q.List(t.Context(), 5)
	require.NoError(t, err)
	require.Len(t, letters, 5)
	e.letters(q, len(ids)) // listing hides nothing
}

func noVerdict(t *testing.T, s Suite) {
	e := s.env(t, false)
	q := e.start(queue.Config{MaxAttempts: 1}, 1, func(context.Context, queue.Message) (v queue.Verdict) { return v })
	e.enqueue(uuid.New())
	require.Equal(t, "the handler returned no verdict", e.letters(q, 1)[0].Reason)
}

// A message whose handler panics becomes a dead letter after the usual attempts. The receiver handles the others.
func panics(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	poisoned, other := uuid.New(), uuid.New()
	q := e.start(queue.Config{MaxAttempts: 2}, 1, func(ctx context.Context, m queue.Message) queue.Verdict {
		if m.ID == poisoned {
			l.add(m)
			panic("no such case\x00")
		}
		return l.done(ctx, m)
	})
	e.enqueue(poisoned)
	l.await(t, 1, poisoned)
	e.enqueue(other)
	letter := e.letters(q, 1)[0]
	require.Equal(t, poisoned, letter.ID)
	require.Equal(t, "the handler panicked: no such case", letter.Reason)
	require.Len(t, l.of(poisoned), 2)
	l.await(t, 1, other)
}

func longHandler(t *testing.T, s Suite) {
	e := s.env(t, false)
	started, ended := newLog(), newLog()
	const visibility = 7 * time.Second
	handle := func(_ context.Context, m queue.Message) queue.Verdict {
		started.add(m)
		time.Sleep(visibility*2 + visibility/2) //nolint:forbidigo // the time that passes is the test
		return ended.done(context.Background(), m)
	}
	e.start(queue.Config{Visibility: visibility}, 1, handle)
	e.start(queue.Config{Visibility: visibility}, 1, handle) // idle, so it would get the message
	id := uuid.New()
	e.enqueue(id)
	ended.await(t, 1, id)
	require.Len(t, started.of(id), 1)
}

func killed(t *testing.T, s Suite) {
	e := s.env(t, false)
	e.produce(e.open(queue.Config{}))
	ids := newIDs(8)
	e.enqueue(ids...)
	e.receivingChild()()
	l := newLog()
	e.start(queue.Config{Visibility: shortVisibility}, 4, l.done)
	l.await(t, 1, ids...)
}

func crashLoop(t *testing.T, s Suite) {
	e := s.env(t, false)
	e.produce(e.open(queue.Config{}))
	id := uuid.New()
	e.enqueue(id)
	for range 2 {
		e.receivingChild()()
	}
	l := newLog()
	q := e.start(queue.Config{MaxAttempts: 2}, 1, l.done)
	letter := e.letters(q, 1)[0]
	require.Equal(t, id, letter.ID)
	// A server may still answer the last request of a dead process, which counts.
	require.Regexp(t, `^failed or was delivered without a result \d+ times$`, letter.Reason)
	require.Empty(t, l.of(id))
}

func concurrency(t *testing.T, s Suite) {
	e := s.env(t, false)
	const n = 3
	slots := make(chan struct{}, n)
	l, full, exceeded := newLog(), make(chan struct{}, 1), make(chan struct{}, 1)
	e.start(queue.Config{}, n, func(ctx context.Context, m queue.Message) queue.Verdict {
		select {
		case slots <- struct{}{}:
		default:
			exceeded <- struct{}{}
			return l.done(ctx, m)
		}
		if len(slots) == n {
			select {
			case full <- struct{}{}:
			default:
			}
		}
		<-time.After(2 * time.Millisecond)
		<-slots
		return l.done(ctx, m)
	})
	ids := newIDs(150)
	e.enqueue(ids...)
	l.await(t, 1, ids...)
	require.Empty(t, exceeded)
	require.Len(t, full, 1, "never were %d messages handled concurrently", n)
}

func backpressure(t *testing.T, s Suite) {
	e := s.env(t, false)
	const n, all = 2, 60
	release := make(chan struct{})
	defer close(release)
	blocked, l := newLog(), newLog()
	e.start(queue.Config{}, n, func(ctx context.Context, m queue.Message) queue.Verdict {
		blocked.add(m)
		<-release
		return queue.Done()
	})
	first := newIDs(n)
	e.enqueue(first...)
	blocked.await(t, 1, first...)
	e.enqueue(newIDs(all)...)
	e.start(queue.Config{}, n, l.done)
	eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.deliveries) >= all-n
	}, "a blocked receiver holds messages")
}

func drain(t *testing.T, s Suite) {
	e := s.env(t, false)
	release := make(chan struct{})
	l := newLog()
	q := e.open(queue.Config{})
	e.produce(q)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- q.Receive(ctx, 2, func(ctx context.Context, m queue.Message) queue.Verdict {
			l.add(m)
			<-release
			if ctx.Err() != nil {
				return queue.Failed("the context ended", 0)
			}
			return queue.Done()
		})
	}()
	held := newIDs(2)
	e.enqueue(held...)
	l.await(t, 1, held...)
	ids := newIDs(10)
	e.enqueue(ids...)
	stop()
	// Another receiver gets the messages that this one has not started, long before the visibility timeout.
	other := newLog()
	e.start(queue.Config{}, 2, other.done)
	other.await(t, 1, ids...)
	select {
	case err := <-stopped:
		require.FailNow(t, "Receive returned before its handlers", "%v", err)
	default:
	}
	close(release)
	select {
	case err := <-stopped:
		require.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "Receive did not return")
	}
	// Their results were stored, so a short visibility would not bring them back. A dead letter would show a failure.
	for _, id := range held {
		require.Empty(t, other.of(id))
	}
	letters, err := q.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, letters)
}

func drainTimeout(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	q := e.open(queue.Config{DrainTimeout: time.Millisecond, MaxAttempts: 1})
	e.produce(q)
	stop := e.receive(q, 1, func(ctx context.Context, m queue.Message) queue.Verdict {
		l.add(m)
		<-ctx.Done()
		return queue.Failed(context.Cause(ctx).Error(), 0)
	})
	id := uuid.New()
	e.enqueue(id)
	l.await(t, 1, id)
	stop()
	require.Equal(t, queue.ErrStopped.Error(), e.letters(q, 1)[0].Reason)
}

func sharing(t *testing.T, s Suite) {
	e := s.env(t, false)
	both := make(chan struct{})
	ids := newIDs(2)
	l := newLog()
	handle := func(_ context.Context, m queue.Message) queue.Verdict {
		l.add(m)
		<-both
		return queue.Done()
	}
	e.start(queue.Config{}, 1, handle)
	e.start(queue.Config{}, 1, handle)
	e.enqueue(ids...)
	l.await(t, 1, ids...) // while neither handler returns
	close(both)
}

func restart(t *testing.T, s Suite) {
	e := s.env(t, true)
	if e.Stop == nil {
		t.Skip("the backend offers no server of its own")
	}
	l, held, release := newLog(), newLog(), make(chan struct{})
	slow := newIDs(2)
	q := e.start(queue.Config{Visibility: shortVisibility}, 8, func(ctx context.Context, m queue.Message) queue.Verdict {
		if m.ID == slow[0] || m.ID == slow[1] {
			if held.add(m); len(held.of(m.ID)) == 1 {
				<-release
			}
		}
		return l.done(ctx, m)
	})
	before := newIDs(50)
	e.enqueue(append(before, slow...)...)
	q.Notify()
	l.await(t, 1, before...)
	held.await(t, 1, slow...)
	e.Stop()
	eventually(t, func() bool { return q.Health() != nil }, "an outage that Health reports")
	during := newIDs(50)
	if err := Enqueue(t.Context(), e.db, during...); err != nil { // the database is the backend
		during = nil
	}
	q.Notify()
	close(release)
	l.await(t, 1, slow...)
	e.Start()
	after := newIDs(50)
	require.NoError(t, postgres.Retry(t.Context(), func(ctx context.Context) error { return Enqueue(ctx, e.db, after...) }))
	q.Notify()
	l.await(t, 1, append(during, after...)...)
	eventually(t, func() bool { return q.Health() == nil }, "the end of the outage")
}

func rolledBack(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	e.start(queue.Config{}, 4, l.done)
	undone, id := uuid.New(), uuid.New()
	mine := errors.New("mine")
	require.ErrorIs(t, postgres.InTx(t.Context(), e.db, func(tx pgx.Tx) error {
		require.NoError(t, Enqueue(t.Context(), tx, undone))
		return mine
	}), mine)
	// In one statement with the caller's own rows.
	var stored uuid.UUID
	require.NoError(t, e.db.QueryRow(t.Context(), `WITH stored AS (SELECT $1::uuid AS id), queued AS (`+queue.EnqueueSQL("stored")+`)
		SELECT id FROM stored`, id).Scan(&stored))
	l.await(t, 1, id)
	require.Empty(t, l.of(undone))
}

func killedProducer(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	e.start(queue.Config{}, 4, l.done)
	id := uuid.New()
	cmd := e.child("enqueue", id)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "%s", out)
	l.await(t, 1, id)
}

func enqueuedAgain(t *testing.T, s Suite) {
	e := s.env(t, false)
	l, release := newLog(), make(chan struct{})
	e.start(queue.Config{}, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		if l.add(m) == 1 {
			<-release
		}
		return queue.Done()
	})
	id := uuid.New()
	e.enqueue(id)
	l.await(t, 1, id)
	e.enqueue(id)
	close(release)
	l.await(t, 2, id)
}

func enqueuedAfterDone(t *testing.T, s Suite) {
	e := s.env(t, false)
	l := newLog()
	e.start(queue.Config{}, 4, l.done)
	id := uuid.New()
	for n := range 3 {
		e.enqueue(id)
		l.await(t, n+1, id)
	}
}

// bury returns a queue with dead letters of these transactions, which no receiver uses any more.
func (e *env) bury(ids ...uuid.UUID) queue.Queue {
	e.t.Helper()
	q := e.open(queue.Config{})
	e.produce(q)
	stop := e.receive(q, 4, func(context.Context, queue.Message) queue.Verdict { return queue.Dead("no") })
	e.enqueue(ids...)
	e.letters(q, len(ids))
	stop()
	return q
}

func replayAndDrop(t *testing.T, s Suite) {
	e := s.env(t, false)
	ids := newIDs(25)
	q := e.bury(ids...)
	n, err := q.Drop(t.Context(), ids[0], ids[1], uuid.New())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = q.Replay(t.Context(), ids[2], ids[20], uuid.New(), ids[0])
	require.NoError(t, err)
	require.Equal(t, 2, n)
	var left []uuid.UUID
	for _, letter := range e.letters(q, 21) {
		left = append(left, letter.ID)
	}
	require.ElementsMatch(t, append(append([]uuid.UUID(nil), ids[3:20]...), ids[21:]...), left)
	l := newLog()
	e.receive(q, 4, l.done)
	l.await(t, 1, ids[2], ids[20])
	for _, none := range []func(context.Context, ...uuid.UUID) (int, error){q.Drop, q.Replay} {
		n, err = none(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	}
	require.Len(t, l.deliveries, 2)
}

func replayAll(t *testing.T, s Suite) {
	e := s.env(t, false)
	ids := newIDs(25)
	q := e.bury(ids...)
	l := newLog()
	again := e.open(queue.Config{MaxAttempts: 2})
	e.receive(again, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		if l.add(m) == 1 {
			return queue.Failed("once", 0)
		}
		return queue.Done()
	})
	n, err := q.ReplayAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, len(ids), n)
	l.await(t, 2, ids...)
	for _, id := range ids {
		require.Equal(t, 1, l.of(id)[0].Attempts)
	}
	letters, err := q.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, letters)
}
