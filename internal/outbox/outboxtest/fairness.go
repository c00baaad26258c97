package outboxtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// slowly returns a handler that takes a millisecond.
func slowly(r *record) outbox.Handler {
	return func(ctx context.Context, w outbox.Work) outbox.Result {
		<-time.After(time.Millisecond)
		return r.finish(ctx, w)
	}
}

// laneBacklog inserts entries of a lane after the backlog of another one. They do not wait for its end. A broker has a window of 1,000
// entries, which come first, and a message that it loses waits to be sent again.
func laneBacklog(e *env) {
	const all = 8000
	e.insert(entries("big", all)...)
	r := newRecord()
	e.work(outbox.Config{Concurrency: 2, Handle: slowly(r)})
	r.await(e.t, 1, "big-0")
	small := entries("small", 3)
	e.insert(small...)
	before := len(r.all())
	r.await(e.t, 1, ids(small)...)
	behind := len(r.all()) - before
	require.Less(e.t, behind, all-before, "the backlog ended first")
}

func laneShares(e *env) {
	const each, first = 1500, 900
	for _, lane := range []string{"a", "b", "c"} {
		e.insert(entries(lane, each)...)
	}
	r := newRecord()
	e.work(outbox.Config{Concurrency: 4, Handle: slowly(r)})
	e.eventually(func() bool { return len(r.all()) >= first }, "some works")
	shares := map[string]int{}
	for _, id := range r.all()[:first] {
		shares[id[:1]]++
	}
	for _, lane := range []string{"a", "b", "c"} {
		require.Greater(e.t, shares[lane], first/6, "shares %v", shares)
	}
}

func laneLimits(e *env) {
	var mu sync.Mutex
	running, most := map[string]int{}, map[string]int{}
	closed := true
	r := newRecord()
	w, _ := e.work(outbox.Config{Concurrency: 12, Limits: func(lane string) int {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case lane == "closed" && closed:
			return 0
		case lane == "narrow":
			return 2
		}
		return 100
	}, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		mu.Lock()
		running[w.Lane]++
		most[w.Lane] = max(most[w.Lane], running[w.Lane])
		mu.Unlock()
		<-time.After(2 * time.Millisecond)
		mu.Lock()
		running[w.Lane]--
		mu.Unlock()
		return r.finish(ctx, w)
	}})
	narrow, wide, shut := entries("narrow", 20), entries("wide", 200), entries("closed", 5)
	for i := range narrow {
		narrow[i].Partition = i % 3 // the limit is that of the lane
	}
	e.insert(append(append(narrow, shut...), wide...)...)
	r.await(e.t, 1, append(ids(narrow), ids(wide)...)...)
	mu.Lock()
	require.Equal(e.t, 2, most["narrow"])
	require.Greater(e.t, most["wide"], 2)
	require.Zero(e.t, most["closed"])
	closed = false
	mu.Unlock()
	w.Wake()
	r.await(e.t, 1, ids(shut)...)
	require.Equal(e.t, 1, r.of(shut[0].ID)[0].Failures, "an entry above the limit has not failed")
}

func laneMany(e *env) {
	const lanes = 400
	var list []outbox.Entry
	for n := range lanes {
		list = append(list, outbox.Entry{ID: fmt.Sprint(n), Lane: fmt.Sprint("client/", n), Partition: n % 7})
	}
	e.insert(list...)
	r := newRecord()
	e.work(outbox.Config{Concurrency: 8, Handle: r.finish})
	r.await(e.t, 1, ids(list)...)
	e.settled(0)
}

func partitions(e *env) {
	if e.transport != nil {
		e.t.Skip("a broker delivers to any worker")
	}
	list := entries("a", 300)
	for i := range list {
		list[i].Partition = i % 30
	}
	e.insert(list...)
	var records []*record
	for number := range 2 {
		r := newRecord()
		records = append(records, r)
		e.workOn(e.open(e.pool(e.url)), outbox.Config{Concurrency: 4, Partitions: 2, Partition: number, Handle: r.finish})
	}
	for i, entry := range list {
		records[i%2].await(e.t, 1, entry.ID)
		require.Empty(e.t, records[1-i%2].of(entry.ID))
	}
}

func prefixes(e *env) {
	if e.transport != nil {
		e.t.Skip("a broker delivers to any worker")
	}
	e.insert(append(entries("1/pool/x", 20), entries("2/pool/x", 20)...)...)
	one, two := newRecord(), newRecord()
	e.work(outbox.Config{Concurrency: 4, Prefix: "1/pool/", Handle: one.finish})
	e.workOn(e.open(e.pool(e.url)), outbox.Config{Concurrency: 4, Prefix: "2/pool/", Handle: two.finish})
	one.await(e.t, 1, ids(entries("1/pool/x", 20))...)
	two.await(e.t, 1, ids(entries("2/pool/x", 20))...)
	require.Len(e.t, one.all(), 20)
	require.Len(e.t, two.all(), 20)
}
