package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// bury makes entries dead. No worker runs afterwards.
func (e *env) bury(list ...outbox.Entry) {
	e.t.Helper()
	_, stop := e.work(outbox.Config{Concurrency: 4, Handle: func(context.Context, outbox.Work) outbox.Result { return outbox.GiveUp("no") }})
	e.insert(list...)
	e.dead(len(list))
	stop()
}

// changed requires the number that an operation returned.
func (e *env) changed(want int) func(int, error) {
	return func(got int, err error) {
		e.t.Helper()
		require.NoError(e.t, err)
		require.Equal(e.t, want, got)
	}
}

func replayAndDrop(e *env) {
	ctx, list := e.t.Context(), entries("a", 25)
	list[2].Payload = []byte("content")
	e.bury(list...)
	e.insert(outbox.Entry{ID: "waiting", Delay: time.Hour})
	e.changed(2)(e.box.Drop(ctx, outbox.Filter{IDs: []string{"a-0", "a-1", "waiting", "unknown"}}))
	item, err := e.box.Show(ctx, "a-2")
	require.NoError(e.t, err)
	require.Equal(e.t, []byte("content"), item.Payload)
	require.Equal(e.t, outbox.Dead, item.State)
	require.Equal(e.t, "dead", item.Progress)
	require.Equal(e.t, "no", item.Reason)
	require.True(e.t, item.DueAt.IsZero())
	require.False(e.t, item.SettledAt.Before(item.CreatedAt.Time))
	_, err = e.box.Show(ctx, "a-0")
	require.ErrorIs(e.t, err, pgx.ErrNoRows)
	e.changed(2)(e.box.Replay(ctx, outbox.Filter{IDs: []string{"a-2", "a-20", "waiting", "unknown", "a-0"}}))
	var left []string
	for _, item := range e.dead(21) {
		left = append(left, item.ID)
	}
	require.ElementsMatch(e.t, append(ids(list[3:20]), ids(list[21:])...), left)
	r := newRecord()
	e.work(outbox.Config{Concurrency: 4, Handle: r.finish})
	r.await(e.t, 1, "a-2", "a-20")
	e.settled(1)
	require.Len(e.t, r.all(), 2)
	require.Equal(e.t, 2, r.of("a-2")[0].Attempts)
	if !e.Table.KeepDone {
		return
	}
	e.changed(0)(e.box.Replay(ctx, outbox.Filter{Lane: "nowhere"}))
	e.changed(1)(e.box.Replay(ctx, outbox.Filter{IDs: []string{"a-2"}})) // a finished one
	r.await(e.t, 2, "a-2")
}

// replayDuringAgain replays dead entries while a change of the domain enqueues them again, in another order than that of their insertion.
func replayDuringAgain(e *env) {
	ctx, list := e.t.Context(), entries("a", 600)
	slices.Reverse(list)
	e.insert(list...)
	for round := range 10 {
		e.exec(`UPDATE $name SET state = 'dead', settled_at = now()`)
		again := make(chan error, 1)
		go func() {
			again <- postgres.InTx(ctx, e.db, func(tx pgx.Tx) error { return e.box.Again(ctx, tx, list...) })
		}()
		var f outbox.Filter
		if round%2 > 0 {
			f.IDs = ids(list)
		}
		e.changed(len(list))(e.box.Replay(ctx, f))
		require.NoError(e.t, <-again)
	}
	e.exec(`UPDATE $name SET state = 'dead', settled_at = now()`)
	e.changed(len(list))(e.box.Drop(ctx, outbox.Filter{IDs: ids(list)}))
}

func filters(e *env) {
	ctx := e.t.Context()
	list := append(chain("x/1", 3), chain("y/1", 2)...)
	e.bury(list[:1]...)
	e.insert(list[1:]...)
	select_ := func(f outbox.Filter) (ids []string) {
		items, err := e.box.List(ctx, f)
		require.NoError(e.t, err)
		for _, item := range items {
			ids = append(ids, item.ID)
		}
		return ids
	}
	require.Equal(e.t, ids(list), select_(outbox.Filter{}))
	require.Equal(e.t, []string{"x/1-0"}, select_(outbox.Filter{State: outbox.Dead}))
	require.Equal(e.t, ids(list[3:]), select_(outbox.Filter{Lane: "y/1"}))
	require.Equal(e.t, ids(list[:3]), select_(outbox.Filter{Prefix: "x/"}))
	require.Equal(e.t, ids(list[3:]), select_(outbox.Filter{Suffix: "y/1"}))
	require.Equal(e.t, ids(list), select_(outbox.Filter{Suffix: "/1"}))
	require.Equal(e.t, ids(list[1:3]), select_(outbox.Filter{Subject: "x/1", State: outbox.Waiting}))
	require.Equal(e.t, ids(list[:2]), select_(outbox.Filter{Limit: 2}))
	require.Equal(e.t, []string{"y/1-1"}, select_(outbox.Filter{IDs: []string{"y/1-1"}}))
	items, err := e.box.List(ctx, outbox.Filter{Limit: 2})
	require.NoError(e.t, err)
	require.Equal(e.t, ids(list[2:]), select_(outbox.Filter{After: &items[1]}))
	require.Equal(e.t, ids(list[1:]), select_(outbox.Filter{Since: items[1].CreatedAt.Time}))
	require.Equal(e.t, ids(list[:1]), select_(outbox.Filter{Until: items[1].CreatedAt.Time}))
}

// replayAll replays more entries than one statement changes.
func replayAll(e *env) {
	list := entries("a", 300)
	e.bury(list...)
	e.changed(0)(e.box.Replay(e.t.Context(), outbox.Filter{Prefix: "b"}))
	e.changed(300)(e.box.Replay(e.t.Context(), outbox.Filter{Prefix: "a"}))
	r := newRecord()
	e.work(outbox.Config{Concurrency: 8, MaxFailures: 2, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if r.add(w) == 1 {
			return outbox.Retry("once", 0)
		}
		return outbox.Finished()
	}})
	r.await(e.t, 2, ids(list)...)
	e.settled(0)
	require.Empty(e.t, e.dead(0))
	require.Empty(e.t, r.of("a-7")[0].Reason)
}

func purge(e *env) {
	r := newRecord()
	_, stop := e.work(outbox.Config{Concurrency: 8, Handle: r.finish})
	list := append(entries("x/a", 600), entries("y/b", 20)...)
	e.insert(list...)
	e.settled(0)
	stop()
	e.bury(outbox.Entry{ID: "dead", Lane: "x/a"})
	e.insert(outbox.Entry{ID: "waiting", Lane: "x/a"})
	kept := e.number(`SELECT count(*) FROM $name`)
	if !e.Table.KeepDone {
		require.Equal(e.t, 2, kept)
		e.changed(0)(e.box.Purge(e.t.Context(), "", 0))
		return
	}
	require.Equal(e.t, len(list)+2, kept)
	e.changed(0)(e.box.Purge(e.t.Context(), "", time.Hour))
	e.exec(`UPDATE $name SET created_at = created_at - interval '3 h', settled_at = settled_at - interval '2 h' WHERE id <> 'x/a-7'`)
	e.exec(`UPDATE $name SET created_at = created_at - interval '3 h' WHERE id = 'x/a-7'`)
	e.changed(599)(e.box.Purge(e.t.Context(), "x/", time.Hour))
	require.Equal(e.t, 20+3, e.number(`SELECT count(*) FROM $name`))
	e.workOn(e.box, outbox.Config{Retention: time.Hour, Handle: r.finish})
	e.eventually(func() bool { return e.number(`SELECT count(*) FROM $name WHERE lane = 'y/b'`) == 0 }, "the worker purges")
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE id = 'x/a-7'`))
}

func abandon(e *env) {
	ctx := e.t.Context()
	gone := func(lane string) bool { return lane == "gone" }
	list := append(append(chain("gone", 300), entries("here", 3)...), outbox.Entry{ID: "young", Lane: "gone", Subject: "gone"})
	e.insert(append(list, outbox.Entry{Lane: "before"})...)
	e.exec(`UPDATE $name SET created_at = now() - interval '2 h', due_at = CASE id WHEN 'gone-0' THEN now() - interval '1 h' ELSE 'infinity' END
		WHERE lane = 'gone' AND id <> 'young'`)
	e.exec(`UPDATE $name SET due_at = 'infinity' WHERE id = 'young'`)
	e.changed(0)(e.box.Abandon(ctx, gone, 3*time.Hour, "no target has this name"))
	e.changed(300)(e.box.Abandon(ctx, gone, time.Hour, "no target has this name"))
	require.Equal(e.t, "no target has this name", e.dead(300)[0].Reason)
	due := 1 // the young one
	if e.Table.DeadBlocks {
		due = 0
	}
	require.Equal(e.t, due, e.number(`SELECT count(*) FROM $name WHERE lane = 'gone' AND state = 'waiting' AND due_at <= now()`))
	require.Equal(e.t, 3, e.number(`SELECT count(*) FROM $name WHERE lane = 'here' AND state = 'waiting'`))
	// A replayed entry has the full time: another process may know its lane.
	e.changed(1)(e.box.Replay(ctx, outbox.Filter{IDs: []string{"gone-7"}}))
	e.changed(0)(e.box.Abandon(ctx, gone, time.Hour, "no target has this name"))
}

func hasten(e *env) {
	for _, lane := range []string{"a", "b"} {
		list := entries(lane, 2)
		list[0].Delay, list[1].Partition, list[1].Delay = time.Hour, 5, time.Hour
		e.insert(list...)
	}
	e.changed(2)(e.box.Hasten(e.t.Context(), "b"))
	r := newRecord()
	e.work(outbox.Config{Handle: r.finish})
	r.await(e.t, 1, "b-0", "b-1")
	e.settled(2)
}

func counts(e *env) {
	release := make(chan struct{})
	r := newRecord()
	defer close(release)
	e.work(outbox.Config{Concurrency: 5, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		switch r.add(w); w.ID {
		case "a-0":
			return outbox.GiveUp("no")
		case "a-1":
			return outbox.Retry("busy", time.Hour)
		}
		<-release
		return outbox.Finished()
	}})
	e.insert(append(entries("a", 2), chain("b", 3)...)...)
	e.insert(outbox.Entry{ID: "b-other", Lane: "b", Partition: 3}, outbox.Entry{ID: "c", Lane: "c"})
	r.await(e.t, 1, "a-0", "a-1", "b-0", "b-other", "c")
	e.exec(`UPDATE $name SET created_at = now() - interval '1 h' WHERE id = 'b-2'`)
	want := []outbox.Count{{Lane: "a", Delayed: 1, Dead: 1}, {Lane: "b", Blocked: 2, Working: 2}, {Lane: "c", Working: 1}}
	var got []outbox.Count
	e.eventually(func() bool {
		var err error
		got, err = e.box.Counts(e.t.Context(), "")
		require.NoError(e.t, err)
		require.Len(e.t, got, 3)
		for i := range got {
			if i == 1 {
				require.InDelta(e.t, time.Hour, got[i].Oldest, float64(10*time.Minute))
			} else {
				require.Less(e.t, got[i].Oldest, 10*time.Minute)
			}
			got[i].Oldest = 0
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, "the counts")
	// The dead entries of one lane hide those of no other.
	e.exec(`INSERT INTO $name (lane, state, settled_at, created_at) SELECT 'old', 'dead', now(), now() - interval '1 h' FROM generate_series(1, 12000)`)
	all, err := e.box.Counts(e.t.Context(), "")
	require.NoError(e.t, err)
	require.Equal(e.t, []int{1, 0, 0, outbox.CountLimit}, []int{all[0].Dead, all[1].Dead, all[2].Dead, all[3].Dead})
	some, err := e.box.Counts(e.t.Context(), "b")
	require.NoError(e.t, err)
	require.Len(e.t, some, 1)
	if e.transport == nil { // a dispatcher would send them
		list := entries("d", 1500)
		e.insert(list...)
		all, err := e.box.Counts(e.t.Context(), "d")
		require.NoError(e.t, err)
		require.Equal(e.t, outbox.CountLimit, all[0].Waiting)
	}
}
