package outboxtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// subjectOrder works on entries of few subjects with random results. Of each subject one entry at a time is worked on, in order: an
// entry is begun after all lower ones have ended.
func subjectOrder(e *env) {
	const subjects, each = 6, 30
	seed := rand.Uint64()
	e.t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	running, next := map[string]string{}, map[string]int{}
	var wrong []string
	handle := func(_ context.Context, w outbox.Work) outbox.Result {
		mu.Lock()
		if other := running[w.Subject]; other != "" {
			wrong = append(wrong, fmt.Sprintf("%s and %s run concurrently", w.ID, other))
		}
		if want := fmt.Sprintf("%s/%d", w.Subject, next[w.Subject]); want != w.ID {
			wrong = append(wrong, fmt.Sprintf("%s runs instead of %s", w.ID, want))
		}
		running[w.Subject] = w.ID
		kind, pause := random.IntN(8), time.Duration(random.IntN(3))*time.Millisecond
		mu.Unlock()
		<-time.After(pause)
		mu.Lock()
		defer mu.Unlock()
		running[w.Subject] = ""
		switch {
		case kind == 0:
			return outbox.Retry("random", time.Duration(random.IntN(30))*time.Millisecond)
		case kind == 1:
			return outbox.Later(0)
		case kind == 2:
			return outbox.Returned()
		case kind == 3 && !e.Table.DeadBlocks:
			next[w.Subject]++
			return outbox.GiveUp("random")
		}
		next[w.Subject]++
		return outbox.Finished()
	}
	e.work(outbox.Config{Concurrency: 4, Handle: handle})
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Concurrency: 4, Handle: handle})
	for n := range each {
		var list []outbox.Entry
		for s := range subjects {
			subject := fmt.Sprint("s", s)
			list = append(list, outbox.Entry{ID: fmt.Sprintf("%s/%d", subject, n), Subject: subject, Lane: fmt.Sprint(s % 2), Partition: s % 3})
		}
		e.insert(list...)
	}
	e.settled(0)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(e.t, wrong)
	for s := range subjects {
		require.Equal(e.t, each, next[fmt.Sprint("s", s)])
	}
}

// chain returns entries of one subject.
func chain(subject string, n int) []outbox.Entry {
	list := entries(subject, n)
	for i := range list {
		list[i].Subject = subject
	}
	return list
}

func subjectFails(e *env) {
	r, release := newRecord(), make(chan struct{})
	e.work(outbox.Config{Concurrency: 8, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		select {
		case <-release:
			return r.finish(ctx, w)
		default:
		}
		if r.add(w); w.ID == "s-0" {
			return outbox.Retry("not yet", 50*time.Millisecond)
		}
		return outbox.Finished()
	}})
	e.insert(chain("s", 4)...)
	r.await(e.t, 3, "s-0")
	for n := 1; n < 4; n++ {
		require.Empty(e.t, r.of(fmt.Sprint("s-", n)))
	}
	other := entries("other", 3)
	e.insert(other...)
	r.await(e.t, 1, ids(other)...)
	close(release)
	r.await(e.t, 1, ids(chain("s", 4))...)
	e.settled(0)
}

func subjectDies(e *env) {
	r := newRecord()
	e.work(outbox.Config{Concurrency: 8, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if n := r.add(w); w.ID == "s-0" && n == 1 || w.ID == "t-0" {
			return outbox.GiveUp("no")
		}
		return outbox.Finished()
	}})
	list := chain("s", 3)
	e.insert(list...)
	e.dead(1)
	if !e.Table.DeadBlocks {
		r.await(e.t, 1, "s-1", "s-2")
		return
	}
	other := chain("other", 3)
	e.insert(other...)
	r.await(e.t, 1, ids(other)...)
	require.Empty(e.t, r.of("s-1"))
	n, err := e.box.Replay(e.t.Context(), outbox.Filter{IDs: []string{"s-0"}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
	r.await(e.t, 1, ids(list)...)
	require.Equal(e.t, []string{"s-0", "s-1", "s-2"}, only(r.all()[1:], "s-"))

	list = chain("t", 3)
	e.insert(list...)
	e.dead(1)
	require.Empty(e.t, r.of("t-1"))
	n, err = e.box.Drop(e.t.Context(), outbox.Filter{Subject: "t"})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
	r.await(e.t, 1, "t-1", "t-2")
}

// only returns the ids with a prefix.
func only(ids []string, prefix string) (with []string) {
	for _, id := range ids {
		if len(id) > len(prefix) && id[:len(prefix)] == prefix {
			with = append(with, id)
		}
	}
	return with
}

// A replayed entry does not run concurrently with a later one of its subject that is being worked on.
func subjectReplayed(e *env) {
	if e.Table.DeadBlocks {
		e.t.Skip("no later entry of the subject is worked on while one is dead")
	}
	r, release := newRecord(), make(chan struct{})
	e.work(outbox.Config{Concurrency: 8, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		n := r.add(w)
		switch w.ID {
		case "s-0":
			if n == 1 {
				return outbox.GiveUp("no")
			}
		case "s-1":
			<-release
		}
		return outbox.Finished()
	}})
	e.insert(chain("s", 3)...)
	r.await(e.t, 1, "s-1")
	n, err := e.box.Replay(e.t.Context(), outbox.Filter{})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
	other := entries("other", 3)
	e.insert(other...)
	r.await(e.t, 1, ids(other)...)
	require.Len(e.t, r.of("s-0"), 1)
	close(release)
	r.await(e.t, 2, "s-0")
	e.settled(0)
	require.Equal(e.t, []string{"s-0", "s-1", "s-2", "s-0"}, only(r.all(), "s-"))
}

// Entries of one subject that are replayed together are worked on in their order.
func subjectReplayedInOrder(e *env) {
	if e.Table.DeadBlocks {
		e.t.Skip("at most one entry of a subject is dead")
	}
	list := chain("s", 12) // the order of the ids is another one
	e.bury(list...)
	e.changed(12)(e.box.Replay(e.t.Context(), outbox.Filter{Subject: "s"}))
	r := newRecord()
	e.work(outbox.Config{Concurrency: 8, Handle: r.finish})
	r.await(e.t, 1, ids(list)...)
	require.Equal(e.t, ids(list), r.all())
}

// subjectBacklog inserts entries of a lane behind the backlog of one subject. With one handler each claim has room for one or two
// entries, and the backlog does not take all of them: it is set aside, at least 256 entries by each claim.
func subjectBacklog(e *env) {
	const all, most = 3000, 100
	e.insert(chain("s", all)...)
	others := entries("s", 3)
	for i := range others {
		others[i].ID = fmt.Sprint("other-", i)
	}
	e.insert(others...)
	p := e.proxy()
	var turns atomic.Int32
	p.onRequest(func(request string) fault {
		if isTurn(request) {
			turns.Add(1)
		}
		return pass
	})
	r := newRecord()
	box := e.open(e.through(p))
	if e.transport != nil { // its dispatcher claims, and a broker that loses messages would need more turns
		e.transport = NewBroker(time.Minute)
		e.dispatch(box)
	}
	e.workOn(box, outbox.Config{Handle: slowly(r)})
	r.await(e.t, 1, ids(others)...)
	require.LessOrEqual(e.t, turns.Load(), int32(most))
	r.await(e.t, 1, "s-20")
	require.Equal(e.t, ids(chain("s", 21)), only(r.all(), "s-")[:21])
}

// subjectsAlternate works on the backlogs of several subjects with one handler. An entry that was behind another one comes after the entries
// that were due before.
func subjectsAlternate(e *env) {
	if e.transport != nil {
		e.t.Skip("a broker delivers in its own order")
	}
	const each = 40
	var list []outbox.Entry
	for _, subject := range []string{"a", "b", "c"} {
		for _, entry := range chain(subject, each) {
			entry.Lane = ""
			list = append(list, entry)
		}
	}
	e.insert(list...)
	r := newRecord()
	e.work(outbox.Config{Handle: slowly(r)})
	r.await(e.t, 1, ids(list)...)
	shares := map[string]int{}
	for n, id := range r.all() {
		shares[id[:1]]++
		for _, subject := range []string{"a", "b", "c"} {
			require.InDelta(e.t, (n+1)/3, shares[subject], 2, "shares after %d works: %v", n+1, shares)
		}
	}
}
