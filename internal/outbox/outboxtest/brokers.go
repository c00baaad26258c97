package outboxtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// flaky is a transport that can be made to fail, and counts.
type flaky struct {
	outbox.Transport
	sent, acknowledged atomic.Int32
	lose               atomic.Bool

	mu  sync.Mutex
	err error
}

func (f *flaky) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *flaky) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Send implements [outbox.Transport].
func (f *flaky) Send(ctx context.Context, ids []string) error {
	if err := f.failure(); err != nil {
		return err
	}
	f.sent.Add(int32(len(ids)))
	if f.lose.Load() {
		return nil
	}
	return f.Transport.Send(ctx, ids)
}

// Receive implements [outbox.Transport].
func (f *flaky) Receive(ctx context.Context, n int) ([]outbox.Message, error) {
	if err := f.failure(); err != nil {
		return nil, err
	}
	return f.Transport.Receive(ctx, n)
}

// Acknowledge implements [outbox.Transport].
func (f *flaky) Acknowledge(ctx context.Context, messages []outbox.Message) error {
	if err := f.failure(); err != nil {
		return err
	}
	f.acknowledged.Add(int32(len(messages)))
	return f.Transport.Acknowledge(ctx, messages)
}

// flaky makes the env's transport flaky.
func (e *env) flaky() *flaky {
	f := &flaky{Transport: e.transport}
	e.transport = f
	return f
}

func brokerUnavailable(e *env) {
	f, r := e.flaky(), newRecord()
	d := e.box.NewDispatcher(outbox.DispatcherConfig{Transport: f, ResendAfter: time.Hour, Logger: e.config(outbox.Config{}).Logger})
	e.background(d.Run)
	before := entries("before", 20)
	f.fail(errBroker)
	e.insert(before...)
	e.eventually(func() bool { return d.Health() != nil }, "an outage that Health reports")
	w, _ := e.workOn(e.box, outbox.Config{Concurrency: 4, Handle: r.finish})
	e.eventually(func() bool { return w.Health() != nil }, "an outage that Health reports")
	require.ErrorContains(e.t, w.Health(), errBroker.Error())
	f.fail(nil)
	e.eventually(func() bool { return d.Health() == nil && w.Health() == nil }, "the end of the outage")
	// The marks of the failed sending were taken back, so all is sent long before ResendAfter.
	e.eventually(func() bool { return int(f.sent.Load()) >= len(before) }, "all ids are sent")
}

func strayMessages(e *env) {
	f, r := e.flaky(), newRecord()
	release := make(chan struct{})
	e.insert(outbox.Entry{ID: "delayed", Delay: time.Hour}, outbox.Entry{ID: "claimed"})
	e.work(outbox.Config{Concurrency: 2, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		<-release
		return outbox.Finished()
	}})
	r.await(e.t, 1, "claimed")
	e.eventually(func() bool { return f.acknowledged.Load() > 0 }, "the message of the claimed entry is acknowledged")
	// The broker may lose some.
	acknowledges := func(ids ...string) {
		before := int(f.acknowledged.Load())
		e.eventually(func() bool {
			require.NoError(e.t, f.Transport.Send(e.t.Context(), ids))
			return int(f.acknowledged.Load()) >= before+3*len(ids)
		}, "messages of "+fmt.Sprint(ids)+" are acknowledged")
	}
	acknowledges("unknown")
	acknowledges("delayed")
	acknowledges("claimed")
	close(release)
	e.settled(1)
	acknowledges("claimed") // it is finished
	require.Equal(e.t, []string{"claimed"}, r.all())
}

func brokerLoses(e *env) {
	f, r := e.flaky(), newRecord()
	f.lose.Store(true)
	e.work(outbox.Config{Concurrency: 4, Handle: r.finish})
	list := entries("a", 5)
	e.insert(list...)
	e.eventually(func() bool { return int(f.sent.Load()) >= 2*len(list) }, "the ids are sent again")
	require.Empty(e.t, r.all())
	f.lose.Store(false)
	r.await(e.t, 1, ids(list)...)
	e.settled(0)
}

// RunDeliveryLimit runs the test of a broker that removes a message by its own limit, after deliveries that were not acknowledged. All
// transports of the Setup have one queue with such a limit. exceed receives from it, and returns when the broker has removed n messages.
// The dispatcher sends the ids again, so the limit changes nothing but time.
func RunDeliveryLimit(t *testing.T, s Setup, exceed func(n int)) {
	e, r := s.env(t), newRecord()
	list := entries("a", 20)
	e.insert(list...)
	f := e.flaky()
	stop := e.dispatch(e.box)
	e.eventually(func() bool { return int(f.sent.Load()) >= len(list) }, "all ids are sent")
	stop()
	exceed(int(f.sent.Load()))
	e.work(outbox.Config{Concurrency: 4, Handle: r.finish})
	r.await(t, 1, ids(list)...)
	e.settled(0)
	for _, entry := range list {
		works := r.of(entry.ID)
		require.Len(t, works, 1)
		require.Equal(t, 1, works[0].Attempts, "a delivery is no attempt")
	}
}

// brokerWithoutWorker has ids sent again that no worker begins. The pauses double up to ten times the first one. After a worker
// has begun the entry, the first pause is the next one.
func brokerWithoutWorker(e *env) {
	e.transport = NewBroker(time.Minute) // one that loses ids would make the test wait for an hour
	const pause, times = 100 * time.Millisecond, 7
	f, r := e.flaky(), newRecord()
	f.lose.Store(true)
	dispatch := func(pause time.Duration) (awaken, stop func()) {
		d := e.box.NewDispatcher(outbox.DispatcherConfig{Transport: f, ResendAfter: pause})
		return d.Notify, e.background(d.Run)
	}
	begin := time.Now()
	awaken, stop := dispatch(pause)
	e.insert(outbox.Entry{ID: "one"})
	sent := func(times int) {
		e.t.Helper()
		e.eventually(func() bool {
			awaken() // its poll is longer than the pauses
			return int(f.sent.Load()) >= times
		}, "the id is sent again")
	}
	sent(times)
	require.GreaterOrEqual(e.t, time.Since(begin), (1+2+4+8+10+10)*pause)
	stop()
	due := func(most time.Duration) {
		e.t.Helper()
		require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE sent AND due_at <= now() + $1::interval`, most))
	}
	due(10 * pause)

	before := int(f.sent.Load())
	f.lose.Store(false)
	e.exec(`UPDATE $name SET due_at = now(), created_at = now() - interval '5 h'`)
	awaken, _ = dispatch(time.Hour)
	_, stop = e.workOn(e.box, outbox.Config{Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		f.lose.Store(true)
		return outbox.Later(0)
	}})
	r.await(e.t, 1, "one")
	stop()
	sent(before + 2)
	due(time.Hour)
	e.exec(`UPDATE $name SET due_at = now()`)
	sent(before + 3)
	due(2 * time.Hour)
}

func brokerWindow(e *env) {
	f := e.flaky()
	f.lose.Store(true)
	const window = 1000
	list := entries("a", window+500)
	e.insert(list...)
	d := e.box.NewDispatcher(outbox.DispatcherConfig{Transport: f, ResendAfter: time.Hour})
	e.background(d.Run)
	e.eventually(func() bool { return int(f.sent.Load()) >= window }, "the window is full")
	e.exec(`DELETE FROM $name WHERE id IN (SELECT id FROM $name WHERE sent ORDER BY seq LIMIT 100)`) // begun
	e.eventually(func() bool { return int(f.sent.Load()) == window+100 }, "others are sent")
	require.Equal(e.t, window, e.number(`SELECT count(*) FROM $name WHERE sent`))
}

func brokerLimit(e *env) {
	var running, most atomic.Int32
	r := newRecord()
	e.work(outbox.Config{Concurrency: 10, Limits: func(string) int { return 1 }, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		most.Store(max(most.Load(), running.Add(1)))
		<-time.After(time.Millisecond)
		running.Add(-1)
		return r.finish(ctx, w)
	}})
	list := entries("a", 8)
	e.insert(list...)
	r.await(e.t, 1, ids(list)...)
	require.EqualValues(e.t, 1, most.Load())
}

// resultAfterTheLease cuts a worker off until the leases of its claims have ended, and their entries were sent again. The broker loses
// these ids, so the late results are those of the latest claims. They are stored, and no entry stays marked as sent.
func resultAfterTheLease(e *env) {
	e.transport = NewBroker(time.Minute) // one that repeats an id would have the entry claimed again
	f, p, r, release := e.flaky(), e.proxy(), newRecord(), make(chan struct{})
	d := e.box.NewDispatcher(outbox.DispatcherConfig{Transport: f, ResendAfter: resendAfter})
	stopDispatcher := e.background(d.Run)
	late := map[string]outbox.Result{
		"finished": outbox.Finished(), "dead": outbox.GiveUp("late"), "later": outbox.Later(time.Hour), "retry": outbox.Retry("late", time.Hour),
		"again": outbox.Finished(),
	}
	var list []outbox.Entry
	for id := range late {
		list = append(list, outbox.Entry{ID: id})
	}
	_, stop := e.workOn(e.open(e.through(p)), outbox.Config{Lease: time.Second, Concurrency: len(list), Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		<-release
		return late[w.ID]
	}})
	e.insert(list...)
	r.await(e.t, 1, ids(list)...)
	f.lose.Store(true)
	p.setDown(true)
	e.eventually(func() bool {
		return e.number(`SELECT count(*) FROM $name WHERE sent AND claim IS NOT NULL`) == len(list)
	}, "all ids are sent again")
	stopDispatcher()
	require.NoError(e.t, e.box.Again(e.t.Context(), e.db, outbox.Entry{ID: "again"}))
	p.setDown(false)
	close(release)
	stop() // stores the results
	for _, id := range ids(list) {
		require.Len(e.t, r.of(id), 1)
	}
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE claim IS NOT NULL`))
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE sent`))
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE state = 'waiting' AND due_at <= now()`), "the one that was enqueued again")
	require.Equal(e.t, 2, e.number(`SELECT count(*) FROM $name WHERE state = 'waiting' AND due_at > now()`))
	e.changed(1)(e.box.Replay(e.t.Context(), outbox.Filter{}))
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE sent`))
}

// dispatcherDies ends a dispatcher at each of its requests, before or after it. Another one sends everything.
func dispatcherDies(e *env) {
	r := newRecord()
	e.workOn(e.box, outbox.Config{Concurrency: 4, Handle: r.finish})
	for n := range 6 {
		for _, f := range []fault{cutBefore, cutAfter} {
			p := e.proxy()
			db := e.through(p)
			var requests atomic.Int32
			died := make(chan struct{})
			die := sync.OnceFunc(func() { close(died) })
			p.onRequest(func(request string) fault {
				if !isTurn(request) || int(requests.Add(1)) <= n {
					return pass
				}
				die()
				return f
			})
			list := scenario(100*n + int(f))
			e.insert(list...)
			stop := e.dispatch(e.open(db))
			<-died
			p.setDown(true)
			end := e.dispatch(e.box)
			r.await(e.t, 1, ids(list)...)
			e.settled(0)
			stop()
			end()
		}
	}
}
