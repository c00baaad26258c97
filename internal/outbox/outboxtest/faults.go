package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// steps is how many requests of a worker the tests of faults strike at most. The entries of scenario need about as many.
const steps = 8

// scenario is a set of entries with each kind of result. Their ids begin with a number.
func scenario(n int) []outbox.Entry {
	id := func(name string) string { return fmt.Sprintf("%d/%s", n, name) }
	subject := fmt.Sprint(n)
	return []outbox.Entry{
		{ID: id("plain")}, {ID: id("retry")}, {ID: id("later")}, {ID: id("returned")}, {ID: id("dead")},
		{ID: id("first"), Subject: subject}, {ID: id("second"), Subject: subject}, {ID: id("third"), Subject: subject},
	}
}

// plays returns a handler of scenarios, which checks that entries of a subject run in order.
func (e *env) plays(r *record, running *sync.Map) outbox.Handler {
	return func(_ context.Context, w outbox.Work) outbox.Result {
		key := w.ID
		if w.Subject != "" {
			key = w.Subject
		}
		if _, twice := running.LoadOrStore(key, w.ID); twice {
			e.t.Errorf("two handlers of %s", key)
		}
		defer running.Delete(key)
		n := r.add(w)
		_, name, _ := strings.Cut(w.ID, "/")
		switch {
		case name == "dead":
			return outbox.GiveUp("no")
		case name == "retry" && n == 1:
			return outbox.Retry("once", 0)
		case name == "later" && n == 1:
			return outbox.Later(0)
		case name == "returned" && n == 1:
			return outbox.Returned()
		}
		return outbox.Finished()
	}
}

// check requires that every entry of a scenario has ended as it should.
func (e *env) check(r *record, n int) {
	e.t.Helper()
	e.settled(0)
	for _, entry := range scenario(n) {
		require.NotEmpty(e.t, r.of(entry.ID))
	}
	require.Equal(e.t, 1, e.number(`SELECT count(*) FROM $name WHERE state = 'dead'`))
	var order []string
	for _, id := range only(r.all(), fmt.Sprint(n, "/")) {
		if _, name, _ := strings.Cut(id, "/"); strings.Contains("first second third", name) {
			if len(order) == 0 || order[len(order)-1] != name {
				order = append(order, name)
			}
		}
	}
	require.Equal(e.t, []string{"first", "second", "third"}, order)
	e.exec(`DELETE FROM $name`)
}

// through returns a pool whose connections pass a proxy.
func (e *env) through(p *proxy) *pgxpool.Pool {
	e.t.Helper()
	db, err := postgres.Open(e.t.Context(), postgres.Config{URL: p.url, MaxConns: 6, ApplicationName: "outboxtest proxy"})
	require.NoError(e.t, err)
	e.t.Cleanup(db.Close)
	return db
}

// isTurn reports whether a request is a turn of a worker or dispatcher, and no LISTEN, count or ping.
func isTurn(request string) bool {
	return strings.Contains(request, "\x00") && !strings.Contains(request, "LISTEN")
}

// dies ends a worker at each of its requests, before or after it. Another worker ends all entries.
func dies(e *env) {
	r := newRecord()
	for n := range steps {
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
			var running sync.Map
			round := 100*n + int(f)
			e.insert(scenario(round)...)
			_, stop := e.workOn(e.open(db), outbox.Config{Lease: time.Second, Concurrency: 3, Handle: e.plays(r, &running)})
			if e.transport != nil {
				defer e.dispatch(e.box)()
			}
			e.eventually(func() bool {
				select {
				case <-died:
					return true
				default:
					return e.number(`SELECT count(*) FROM $name WHERE state = 'waiting'`) == 0
				}
			}, "the worker dies or ends everything")
			p.setDown(true)
			var others sync.Map // handlers of the dead process have no effect
			_, end := e.workOn(e.box, outbox.Config{Lease: time.Second, Concurrency: 3, Handle: e.plays(r, &others)})
			e.check(r, round)
			p.onRequest(nil)
			p.setDown(false) // otherwise it would wait for the database
			stop()
			end()
		}
	}
}

// lostAnswers cuts a worker's connections at each of its requests once. The worker goes on.
func lostAnswers(e *env) {
	r := newRecord()
	p := e.proxy()
	db := e.through(p)
	var running sync.Map
	for n := range steps {
		for _, f := range []fault{cutBefore, cutAfter} {
			var requests atomic.Int32
			p.onRequest(func(request string) fault {
				if isTurn(request) && int(requests.Add(1)) == n+1 {
					return f
				}
				return pass
			})
			round := 100*n + int(f)
			e.insert(scenario(round)...)
			_, stop := e.workOn(e.open(db), outbox.Config{Lease: time.Second, Concurrency: 3, Handle: e.plays(r, &running)})
			var end func()
			if e.transport != nil {
				end = e.dispatch(e.box)
			}
			e.check(r, round)
			stop()
			if end != nil {
				end()
			}
		}
	}
}

func unavailable(e *env) {
	p := e.proxy()
	r, held, release := newRecord(), newRecord(), make(chan struct{})
	if e.transport != nil {
		e.dispatch(e.box)
	}
	w, _ := e.workOn(e.open(e.through(p)), outbox.Config{Concurrency: 8, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		if w.Lane == "slow" && held.add(w) == 1 {
			<-release
		}
		return r.finish(ctx, w)
	}})
	slow, before, after := entries("slow", 2), entries("before", 50), entries("after", 50)
	e.insert(append(slow, before...)...)
	r.await(e.t, 1, ids(before)...)
	held.await(e.t, 1, ids(slow)...)
	require.NoError(e.t, w.Health())
	p.setDown(true)
	close(release)
	r.await(e.t, 1, ids(slow)...)
	e.eventually(func() bool { return w.Health() != nil }, "an outage that Health reports")
	require.NotContains(e.t, w.Health().Error(), e.db.Config().ConnConfig.Password)
	e.insert(after...)
	p.setDown(false)
	r.await(e.t, 1, ids(after)...)
	e.settled(0)
	require.NoError(e.t, w.Health())
	require.Len(e.t, r.of(slow[0].ID), 1, "the result was stored after the outage")
}

// cutListener makes the listening connection silent. The poll finds entries, and the worker opens the connection again.
func cutListener(e *env) {
	if e.transport != nil {
		e.t.Skip("workers of a broker do not listen")
	}
	p := e.proxy()
	var listens atomic.Int32
	p.onRequest(func(request string) fault {
		if strings.Contains(request, "LISTEN") && listens.Add(1) == 1 {
			return deafen
		}
		return pass
	})
	db, err := postgres.Open(e.t.Context(), postgres.Config{URL: p.url, MaxConns: 6, StatementTimeout: 2 * time.Second})
	require.NoError(e.t, err)
	e.t.Cleanup(db.Close)
	r := newRecord()
	e.workOn(e.open(db), outbox.Config{Handle: r.finish})
	e.eventually(func() bool { return listens.Load() == 1 }, "a listening connection")
	n := e.box.NewNotifier(nil, nil)
	e.background(n.Run)
	e.insert(outbox.Entry{ID: "one"})
	n.Notify()
	r.await(e.t, 1, "one")
	require.EqualValues(e.t, 1, listens.Load())
	e.eventually(func() bool { return listens.Load() > 1 }, "another listening connection")
}

// pausedHolder stops a worker's traffic until its lease has ended and another worker has the entries. Then its results change
// nothing.
func pausedHolder(e *env) {
	p := e.proxy()
	first, second, wake, release := newRecord(), newRecord(), make(chan struct{}), make(chan struct{})
	if e.transport != nil {
		e.dispatch(e.box)
	}
	late := map[string]outbox.Result{
		"finished": outbox.Finished(), "dead": outbox.GiveUp("late"), "later": outbox.Later(0), "retry": outbox.Retry("late", 0), "returned": outbox.Returned(),
	}
	var list []outbox.Entry
	for id := range late {
		list = append(list, outbox.Entry{ID: id})
	}
	var returned sync.WaitGroup
	returned.Add(len(list))
	_, stop := e.workOn(e.open(e.through(p)), outbox.Config{Lease: time.Second, Concurrency: len(list), Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		first.add(w)
		<-wake
		defer returned.Done()
		return late[w.ID]
	}})
	e.insert(list...)
	first.await(e.t, 1, ids(list)...)
	p.setDown(true)
	e.workOn(e.box, outbox.Config{Concurrency: len(list), Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		second.add(w)
		<-release
		return outbox.Finished()
	}})
	second.await(e.t, 1, ids(list)...)
	p.setDown(false)
	close(wake)
	returned.Wait()
	stop() // stores its results
	require.Equal(e.t, len(list), e.number(`SELECT count(*) FROM $name WHERE state = 'waiting' AND claimed_until > now() AND attempts = 2 AND failures = 2`))
	close(release)
	e.settled(0)
	require.Empty(e.t, e.dead(0))
	for id := range late {
		require.Len(e.t, first.of(id), 1)
		require.Len(e.t, second.of(id), 1)
	}
}

// leaseLost ends a handler's context when its lease cannot be extended, and when another claim has the entry.
func leaseLost(e *env) {
	causes, r := make(chan error, 2), newRecord()
	handle := func(ctx context.Context, w outbox.Work) outbox.Result {
		if len(r.of(w.ID)) > 1 {
			return outbox.Finished()
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		if w.ID == "taken" {
			return outbox.GiveUp("ignored")
		}
		return outbox.Returned() // no other worker has claimed it
	}
	p := e.proxy()
	if e.transport != nil {
		e.dispatch(e.box)
	}
	e.workOn(e.open(e.through(p)), outbox.Config{Lease: shortLease, Concurrency: 2, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		r.add(w)
		return handle(ctx, w)
	}})
	e.insert(outbox.Entry{ID: "taken"})
	r.await(e.t, 1, "taken")
	e.exec(`UPDATE $name SET claim = nextval('$name_numbers'), claimed_until = now() + interval '1 s' WHERE id = 'taken'`)
	require.ErrorIs(e.t, <-causes, outbox.ErrLeaseLost)
	require.Zero(e.t, e.number(`SELECT count(*) FROM $name WHERE id = 'taken' AND attempts = 1 AND claimed_until > now() + interval '1 s'`), "the other claim was extended")
	r.await(e.t, 2, "taken")
	e.insert(outbox.Entry{ID: "cut"})
	r.await(e.t, 1, "cut")
	p.setDown(true)
	require.ErrorIs(e.t, <-causes, outbox.ErrLeaseLost)
	p.setDown(false)
	r.await(e.t, 2, "cut")
	e.settled(0)
	require.Empty(e.t, e.dead(0))
}

// clocks runs workers whose clocks differ from the database's by a day. The schema "shifted" replaces now().
func clocks(e *env) {
	name := e.db.Config().ConnConfig.Database
	for i, offset := range []string{"1 day", "-1 day"} {
		e.exec(`CREATE SCHEMA IF NOT EXISTS shifted`)
		e.exec(`CREATE OR REPLACE FUNCTION shifted.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT pg_catalog.now() + interval '` + offset + `' $$`)
		e.exec(`ALTER DATABASE ` + name + ` SET search_path = shifted, pg_catalog, public`)
		db := e.pool(e.url)
		box := e.open(db)
		var now time.Time
		require.NoError(e.t, db.QueryRow(e.t.Context(), `SELECT now()`).Scan(&now))
		require.Greater(e.t, time.Until(now).Abs(), 23*time.Hour)
		r := newRecord()
		began := map[string]time.Time{}
		var mu sync.Mutex
		handle := func(ctx context.Context, w outbox.Work) outbox.Result {
			mu.Lock()
			defer mu.Unlock()
			if w.Age() > time.Hour {
				e.t.Errorf("%s has the age %v", w.ID, w.Age())
			}
			if n := r.add(w); strings.HasPrefix(w.ID, "later") {
				if n == 1 {
					began[w.ID] = time.Now()
					return outbox.Later(2 * time.Second)
				}
				if time.Since(began[w.ID]) < 1900*time.Millisecond || w.Age() < 1900*time.Millisecond {
					e.t.Errorf("%s was repeated after %v, with the age %v", w.ID, time.Since(began[w.ID]), w.Age())
				}
			}
			return outbox.Finished()
		}
		_, stop := e.workOn(box, outbox.Config{Concurrency: 4, Lease: shortLease, Handle: handle})
		var end func()
		if e.transport != nil {
			end = e.dispatch(box)
		}
		list := append(entries(fmt.Sprint("plain", i), 20), entries(fmt.Sprint("later", i), 3)...)
		// The defaults of the columns use the function now() that the table was created with.
		e.exec(`INSERT INTO $name (id, lane, due_at, created_at) SELECT id, id, pg_catalog.now() + $2::interval, pg_catalog.now() + $2::interval FROM unnest($1::text[]) AS id`, ids(list), offset)
		r.await(e.t, 1, ids(list)...)
		r.await(e.t, 2, ids(list[20:])...)
		e.settled(0)
		for _, entry := range list[:20] {
			require.Len(e.t, r.of(entry.ID), 1)
		}
		stop()
		if end != nil {
			end()
		}
	}
}

var errBroker = errors.New("the broker is down")
