package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

func backlog(e *env) {
	list := append(entries("a", 500), entries("b", 200)...)
	list[3].Payload, list[3].Partition = []byte("content\x00"), 7
	list[4].Subject = "s"
	e.insert(list[:600]...)
	r := newRecord()
	e.work(outbox.Config{Concurrency: 16, Handle: r.finish})
	n := e.box.NewNotifier(nil, nil)
	e.background(n.Run)
	for _, entry := range list[600:] {
		e.insert(entry)
		n.Notify()
	}
	r.await(e.t, 1, ids(list)...)
	e.settled(0)
	for _, entry := range list {
		works := r.of(entry.ID)
		require.Len(e.t, works, 1)
		require.Equal(e.t, entry, works[0].Entry)
		require.Equal(e.t, 1, works[0].Attempts)
		require.Equal(e.t, 1, works[0].Failures)
	}
	done := 0
	if e.Table.KeepDone {
		done = len(list)
	}
	require.Equal(e.t, done, e.number(`SELECT count(*) FROM $name`))
	require.NoError(e.t, n.Health())
}

// notified inserts entries one after the other. The poll alone would take a second for each.
func notified(e *env) {
	const all = 10
	r := newRecord()
	if e.transport == nil {
		e.work(outbox.Config{Handle: r.finish})
	} else { // a faulty broker would hide the delay
		cfg := e.config(outbox.Config{Handle: r.finish})
		cfg.Transport = NewBroker(time.Minute)
		w, err := e.box.NewWorker(cfg)
		require.NoError(e.t, err)
		e.background(w.Run)
		e.background(e.box.NewDispatcher(outbox.DispatcherConfig{Transport: cfg.Transport}).Run)
	}
	n := e.box.NewNotifier(nil, nil)
	e.background(n.Run)
	e.insert(outbox.Entry{ID: "first"})
	r.await(e.t, 1, "first")
	begin := time.Now()
	for _, entry := range entries("a", all) {
		e.settled(0) // the turn that stores a result claims, too
		e.insert(entry)
		n.Notify()
		r.await(e.t, 1, entry.ID)
	}
	require.Less(e.t, time.Since(begin), all*time.Second/2)
}

func rolledBack(e *env) {
	r := newRecord()
	e.work(outbox.Config{Handle: r.finish})
	mine := errors.New("mine")
	require.ErrorIs(e.t, postgres.InTx(e.t.Context(), e.db, func(tx pgx.Tx) error {
		require.NoError(e.t, e.box.Insert(e.t.Context(), tx, outbox.Entry{ID: "undone"}))
		return mine
	}), mine)
	// In one statement with the domain's rows, twice.
	for range 2 {
		e.exec(`WITH stored AS (SELECT 'done' AS id), queued AS (INSERT INTO $name (id) SELECT id FROM stored ` + e.Table.AgainSQL() + `) SELECT id FROM stored`)
	}
	r.await(e.t, 1, "done")
	require.Empty(e.t, r.of("undone"))
	require.NoError(e.t, e.box.Insert(e.t.Context(), e.db))
}

func insertedDelayed(e *env) {
	r := newRecord()
	e.work(outbox.Config{Concurrency: 4, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if w.ID == "late" && e.number(`SELECT count(*) FROM $name WHERE id = 'late' AND created_at + interval '2 s' > clock_timestamp()`) > 0 {
			return outbox.GiveUp("too early")
		}
		return r.finish(ctx, w)
	}})
	e.insert(outbox.Entry{ID: "late", Delay: 2 * time.Second}, outbox.Entry{ID: "now"})
	r.await(e.t, 1, "now", "late")
}

func insertedTwice(e *env) {
	e.insert(outbox.Entry{ID: "one"})
	require.ErrorContains(e.t, e.box.Insert(e.t.Context(), e.db, outbox.Entry{ID: "one"}), "duplicate key")
	e.insert(outbox.Entry{}, outbox.Entry{})
	require.Equal(e.t, 3, e.number(`SELECT count(DISTINCT id) FROM $name WHERE id <> ''`))
}

func againWhileClaimed(e *env) {
	r, release := newRecord(), make(chan struct{})
	e.work(outbox.Config{Concurrency: 4, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		switch r.add(w) {
		case 1:
			<-release
			return outbox.Finished()
		case 2:
			<-release
			return outbox.GiveUp("it was enqueued again, so it is not dead")
		}
		return outbox.Finished()
	}})
	e.insert(outbox.Entry{ID: "one"})
	for n := range 2 {
		r.await(e.t, n+1, "one")
		require.NoError(e.t, e.box.Again(e.t.Context(), e.db, outbox.Entry{ID: "one"}))
		release <- struct{}{}
	}
	r.await(e.t, 3, "one")
	e.settled(0)
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE state = 'dead'`))
	require.Len(e.t, r.of("one"), 3)
	require.Equal(e.t, 1, r.of("one")[2].Failures)
}

// againAfterTheLease enqueues an entry again whose claim has expired, while its worker is cut off with the result.
func againAfterTheLease(e *env) {
	r, release := newRecord(), make(chan struct{})
	e.work(outbox.Config{Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		if r.add(w) == 1 {
			<-release
		}
		return outbox.Finished()
	}})
	e.insert(outbox.Entry{ID: "one"})
	r.await(e.t, 1, "one")
	e.exec(`UPDATE $name SET claimed_until = now() - interval '1 s', due_at = now() + interval '1 h'`) // no worker claims it meanwhile
	_, err := e.db.Exec(e.t.Context(), e.named(`INSERT INTO $name (id) VALUES ('one') `+e.Table.AgainSQL()))
	require.NoError(e.t, err)
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE again`))
	release <- struct{}{}
	r.await(e.t, 2, "one")
	e.settled(0)
}

func againConcurrently(e *env) {
	var mu sync.Mutex
	running, worked := map[string]bool{}, 0
	var overlap error
	handle := func(_ context.Context, w outbox.Work) outbox.Result {
		mu.Lock()
		if running[w.ID] {
			overlap = fmt.Errorf("two handlers of %s", w.ID)
		}
		running[w.ID] = true
		worked++
		mu.Unlock()
		<-time.After(time.Millisecond)
		mu.Lock()
		running[w.ID] = false
		mu.Unlock()
		return outbox.Finished()
	}
	e.work(outbox.Config{Concurrency: 8, Handle: handle})
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Concurrency: 8, Handle: handle})
	var last []outbox.Entry
	for range 100 {
		last = entries("a", 5)
		require.NoError(e.t, e.box.Again(e.t.Context(), e.db, last...))
	}
	e.settled(0)
	mu.Lock()
	defer mu.Unlock()
	require.NoError(e.t, overlap)
	require.GreaterOrEqual(e.t, worked, len(last))
}

func againStates(e *env) {
	r := newRecord()
	_, stop := e.work(outbox.Config{Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		switch w.ID {
		case "dead":
			return outbox.GiveUp("no")
		case "delayed":
			return outbox.Retry("busy", time.Hour)
		}
		return outbox.Finished()
	}})
	list := []outbox.Entry{{ID: "dead"}, {ID: "delayed"}, {ID: "done"}}
	e.insert(list...)
	r.await(e.t, 1, ids(list)...)
	e.settled(1)
	e.eventually(func() bool { return e.number(`SELECT count(*) FROM $name WHERE claim IS NOT NULL`) == 0 }, "all results stored")
	stop()
	require.NoError(e.t, e.box.Again(e.t.Context(), e.db, list...))
	require.Equal(e.t, 2, e.number(`SELECT count(*) FROM $name WHERE state = 'waiting' AND due_at <= now()`))
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE state = 'dead'`))
	require.Equal(e.t, 1, e.number(`SELECT failures FROM $name WHERE id = 'delayed'`))
	require.Zero(e.t, e.number(`SELECT attempts FROM $name WHERE id = 'done'`))
}

func results(e *env) {
	r := newRecord()
	_, stop := e.work(outbox.Config{Concurrency: 5, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		if r.add(w) > 1 {
			return outbox.Later(time.Hour)
		}
		return map[string]outbox.Result{
			"finished": outbox.Finished(), "retry": outbox.Retry("why\x00", time.Hour), "later": outbox.Later(time.Hour),
			"dead": outbox.GiveUp("never\nagain"), "returned": outbox.Returned(), "none": {},
		}[w.ID]
	}})
	list := []outbox.Entry{{ID: "finished"}, {ID: "retry"}, {ID: "later"}, {ID: "dead"}, {ID: "returned"}, {ID: "none"}}
	e.insert(list...)
	r.await(e.t, 1, ids(list)...)
	r.await(e.t, 2, "returned", "none")
	stop()
	rows, err := e.db.Query(e.t.Context(), e.named(`SELECT id, format('%s: %s attempts, %s failures, %s, %s', state, attempts, failures, reason,
		CASE WHEN due_at > now() + interval '50 min' THEN 'in an hour' ELSE 'now' END) FROM $name WHERE state <> 'done'`))
	require.NoError(e.t, err)
	states := map[string]string{}
	var id, state string
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error { states[id] = state; return nil })
	require.NoError(e.t, err)
	require.Equal(e.t, map[string]string{
		"retry":    "waiting: 1 attempts, 1 failures, why, in an hour",
		"later":    "waiting: 1 attempts, 0 failures, , in an hour",
		"dead":     "dead: 1 attempts, 1 failures, never again, now",
		"returned": "waiting: 1 attempts, 0 failures, , in an hour",
		"none":     "waiting: 2 attempts, 1 failures, the handler returned no result, in an hour",
	}, states)
	require.Equal(e.t, 1, r.of("returned")[1].Attempts)
}

func maxFailures(e *env) {
	r := newRecord()
	e.work(outbox.Config{MaxFailures: 3, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		n := r.add(w)
		if n == 2 {
			return outbox.Later(0) // does not count
		}
		return outbox.Retry(fmt.Sprintf("failure %d", n), 0)
	}})
	e.insert(outbox.Entry{ID: "one"})
	item := e.dead(1)[0]
	require.Len(e.t, r.of("one"), 4)
	require.Equal(e.t, 4, item.Attempts)
	require.Equal(e.t, "failure 4", item.Reason)
	require.Equal(e.t, "failure 3", r.of("one")[3].Reason)
}

// dead waits until n entries are dead.
func (e *env) dead(n int) (items []outbox.Item) {
	e.t.Helper()
	e.eventually(func() bool {
		var err error
		items, err = e.box.List(e.t.Context(), outbox.Filter{State: outbox.Dead, Limit: 1000})
		require.NoError(e.t, err)
		return len(items) == n
	}, fmt.Sprintf("%d dead entries", n))
	return items
}

func retryFor(e *env) {
	const window = 3 * time.Second
	r := newRecord()
	e.work(outbox.Config{RetryFor: window, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		n := r.add(w)
		if n == 1 {
			return outbox.Retry("first", 0)
		}
		return outbox.Retry("not yet", time.Hour) // shortened to the end of the window
	}})
	e.insert(outbox.Entry{ID: "one"})
	item := e.dead(1)[0]
	require.Equal(e.t, 3, item.Attempts, "the last attempt is made at the end of the window")
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE settled_at >= failing_since + interval '3 s'`))
}

func panics(e *env) {
	r := newRecord()
	e.work(outbox.Config{MaxFailures: 2, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if w.ID == "poison" {
			r.add(w)
			panic("no such case\x00")
		}
		return r.finish(ctx, w)
	}})
	e.insert(outbox.Entry{ID: "poison"}, outbox.Entry{ID: "other"})
	r.await(e.t, 1, "other")
	item := e.dead(1)[0]
	require.Equal(e.t, "poison", item.ID)
	require.Equal(e.t, "the handler panicked: no such case", item.Reason)
	require.Len(e.t, r.of("poison"), 2)
}

// An entry that kills its process each time dies without a third handler.
func lostClaims(e *env) {
	e.insert(outbox.Entry{ID: "one"})
	e.exec(`UPDATE $name SET attempts = 2, failures = 2, reason = 'out of memory'`)
	r := newRecord()
	e.work(outbox.Config{MaxFailures: 2, Handle: r.finish})
	item := e.dead(1)[0]
	require.Equal(e.t, "failed or was claimed without a result 2 times, the latest failure: out of memory", item.Reason)
	require.Empty(e.t, r.all())
}

func longHandler(e *env) {
	started, ended := newRecord(), newRecord()
	handle := func(ctx context.Context, w outbox.Work) outbox.Result {
		started.add(w)
		select {
		case <-ctx.Done():
			return outbox.GiveUp(context.Cause(ctx).Error())
		case <-time.After(5 * shortLease / 2):
		}
		return ended.finish(ctx, w)
	}
	e.work(outbox.Config{Lease: shortLease, Handle: handle})
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Lease: shortLease, Handle: handle}) // idle, so it would claim the entry
	e.insert(outbox.Entry{ID: "one"})
	ended.await(e.t, 1, "one")
	e.settled(0)
	require.Len(e.t, started.of("one"), 1)
}

func concurrency(e *env) {
	const n = 3
	slots := make(chan struct{}, n)
	r, full, exceeded := newRecord(), make(chan struct{}, 1), make(chan struct{}, 1)
	e.work(outbox.Config{Concurrency: n, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		select {
		case slots <- struct{}{}:
		default:
			exceeded <- struct{}{}
			return r.finish(ctx, w)
		}
		if len(slots) == n {
			select {
			case full <- struct{}{}:
			default:
			}
		}
		<-time.After(2 * time.Millisecond)
		<-slots
		return r.finish(ctx, w)
	}})
	list := entries("a", 150)
	e.insert(list...)
	r.await(e.t, 1, ids(list)...)
	require.Empty(e.t, exceeded)
	require.Len(e.t, full, 1, "never were %d handlers running concurrently", n)
}

func backpressure(e *env) {
	const n, all = 2, 60
	release := make(chan struct{})
	defer close(release)
	blocked, r := newRecord(), newRecord()
	e.work(outbox.Config{Concurrency: n, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		blocked.add(w)
		<-release
		return outbox.Finished()
	}})
	e.insert(entries("first", n)...)
	blocked.await(e.t, 1, ids(entries("first", n))...)
	list := entries("second", all)
	e.insert(list...)
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Concurrency: n, Handle: r.finish})
	r.await(e.t, 1, ids(list)...)
}

func sharing(e *env) {
	both, r := make(chan struct{}), newRecord()
	handle := func(_ context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		<-both
		return outbox.Finished()
	}
	e.work(outbox.Config{Handle: handle})
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Handle: handle})
	list := entries("a", 2)
	e.insert(list...)
	r.await(e.t, 1, ids(list)...) // while neither handler returns
	close(both)
}

func drain(e *env) {
	release, r, other := make(chan struct{}), newRecord(), newRecord()
	box := e.open(e.pool(e.url))
	w, err := box.NewWorker(e.config(outbox.Config{Concurrency: 2, Lease: time.Hour, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if r.add(w); w.Lane == "fast" {
			return outbox.Finished()
		}
		<-release
		if ctx.Err() != nil {
			return outbox.GiveUp("the context ended")
		}
		return outbox.Finished()
	}}))
	require.NoError(e.t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	if e.transport != nil {
		e.dispatch(e.box)
	}
	fast := entries("fast", 20) // the worker claims in advance after them
	e.insert(fast...)
	r.await(e.t, 1, ids(fast)...)
	held := entries("held", 2)
	e.insert(held...)
	r.await(e.t, 1, ids(held)...)
	list := entries("a", 10)
	e.insert(list...)
	stop()
	// Another worker gets the entries that this one has not started.
	e.workOn(e.box, outbox.Config{Concurrency: 2, Handle: other.finish})
	other.await(e.t, 1, ids(list)...)
	select {
	case err := <-stopped:
		require.FailNow(e.t, "Run returned before its handlers", "%v", err)
	default:
	}
	close(release)
	select {
	case err := <-stopped:
		require.NoError(e.t, err)
	case <-time.After(patience):
		require.FailNow(e.t, "Run did not return")
	}
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE lane = 'held' AND state <> 'done'`), "the results are stored when Run returns")
	for _, entry := range held {
		require.Empty(e.t, other.of(entry.ID))
	}
}

func drainTimeout(e *env) {
	r := newRecord()
	_, stop := e.work(outbox.Config{DrainTimeout: time.Millisecond, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		<-ctx.Done()
		return outbox.GiveUp(context.Cause(ctx).Error())
	}})
	e.insert(outbox.Entry{ID: "one"})
	r.await(e.t, 1, "one")
	stop()
	require.Equal(e.t, outbox.ErrStopped.Error(), e.dead(1)[0].Reason)
}
