package crashtest

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// limits are those of a takeover, from the fault to the next stored block, and of a hand-over, from the signal to the free lease.
type limits struct{ median, worst, handOver time.Duration }

// patient is for machines that are busy with other tests. A lease that is not handed over expires after more than four seconds.
var patient = limits{50 * time.Second, 75 * time.Second, 3 * time.Second}

// report logs measured times, and returns the median and the worst.
func (w *world) report(kind string, all []time.Duration) (median, worst time.Duration) {
	w.t.Helper()
	require.NotEmpty(w.t, all)
	slices.Sort(all)
	median, worst = all[len(all)/2], all[len(all)-1]
	w.t.Logf("%s: %d times, median %v, worst %v", kind, len(all), median.Round(time.Millisecond), worst.Round(time.Millisecond))
	return median, worst
}

// handed checks the times of hand-overs.
func (w *world) handed(all []time.Duration) {
	w.t.Helper()
	_, worst := w.report("hand-over", all)
	require.LessOrEqual(w.t, worst, w.limits.handOver)
}

// strike is a fault that has struck an instance. Each message that the instance had in flight may be repeated once because of it.
type strike struct {
	name     string          // of the instance; "" for all
	inFlight map[string]bool // payloads; of other instances, too
}

// struck records that a fault has just struck an instance: what is claimed now was in flight.
func (w *world) struck(m *member) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT payload FROM escrow_outbox WHERE state = 'waiting' AND claim IS NOT NULL`)
	require.NoError(w.t, err)
	s := strike{name: m.name, inFlight: map[string]bool{}}
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&payload}, func() error {
		s.inFlight[string(payload)] = true
		return nil
	})
	require.NoError(w.t, err)
	w.strikes = append(w.strikes, s)
}

// takeover makes a fault strike an instance that reads the chain, and returns the time until another one has stored the next block.
func (w *world) takeover(m *member, fault func()) time.Duration {
	w.t.Helper()
	began := time.Now()
	fault()
	w.struck(m)
	at := w.chain() // it may have stored a block until the fault
	w.await(func() bool {
		c := w.chain()
		return c.Holder != "" && c.Holder != m.name && c.Cursor > at.Cursor
	}, "no other instance stores the next block")
	return time.Since(began)
}

// handOver stops an instance that reads the chain like a supervisor, and returns the time from the signal until its lease is free.
func (w *world) handOver(m *member) time.Duration {
	w.t.Helper()
	began := time.Now()
	require.NoError(w.t, m.process.Signal(syscall.SIGTERM))
	w.await(func() bool { return w.chain().Holder != m.name }, "the lease is not free")
	took := time.Since(began)
	w.await(func() bool { return m.process.Running() != nil }, "it does not end")
	require.ErrorContains(w.t, m.process.Running(), "exit status 0")
	return took
}

// inTurn makes a fault strike each instance while it reads the chain. Those that it has struck hand over to one that it has not, and
// the last one hands over at the end.
func (w *world) inTurn(rounds int, kind string, strike func(*member) time.Duration) {
	w.t.Helper()
	w.three()
	l := w.load()
	var took, handed []time.Duration
	for range rounds {
		for struck := map[*member]bool{}; len(struck) < len(w.members); {
			leader := w.leader()
			if struck[leader] {
				for m := range struck {
					if m != leader {
						m.stop()
					}
				}
				handed = append(handed, w.handOver(leader))
				w.leader()
				for m := range struck {
					m.restart()
				}
				continue
			}
			took, struck[leader] = append(took, strike(leader)), true
		}
	}
	handed = append(handed, w.handOver(w.leader()))
	l.stop()
	w.check()
	median, worst := w.report("takeover after "+kind, took)
	require.LessOrEqual(w.t, median, w.limits.median)
	require.LessOrEqual(w.t, worst, w.limits.worst)
	w.handed(handed)
}

// kill kills an instance at a moment when it has no answer of the topic, and starts another process when another instance has taken over.
func (w *world) kill(m *member) time.Duration {
	w.t.Helper()
	m.topic.withhold()
	w.await(func() bool { return m.topic.unanswered() > 0 }, "%s publishes nothing", m.name)
	took := w.takeover(m, m.process.Kill)
	m.topic.answer()
	m.restart()
	return took
}

// E1, E2, E4, E8, E12, E13: each of three instances is paused while it reads the chain, and wakes when another one has taken over.
func TestInstances_PausedInTurn_NothingIsMissed(t *testing.T) {
	w := setup(t)
	w.inTurn(1, "a pause", w.pause)
}

// pause pauses an instance until another one has taken over.
func (w *world) pause(m *member) time.Duration {
	w.t.Helper()
	took := w.takeover(m, func() { require.NoError(w.t, m.process.Freeze()) })
	require.NoError(w.t, m.process.Signal(syscall.SIGCONT))
	m.runs()
	return took
}

// E1: an instance is paused with a step that it has begun to store, and wakes when another one has the lease and has not stored a block yet.
// So the epoch alone refuses its step. It is paused again, and wakes after the other one has stored blocks.
func TestInstance_PausedInACommit_StoresNothing(t *testing.T) {
	w := setup(t)
	w.three()
	l := w.load()
	for _, hang := range []bool{true, false} {
		l.further(2)
		leader := w.leader()
		before := w.chain()
		reached := leader.database.HoldAt("begin\x00")
		select {
		case <-reached:
		case <-time.After(patience):
			t.Fatal("it stores no step")
		}
		require.NoError(t, leader.process.Freeze())
		w.struck(leader)
		at := w.chain()
		w.reading(leader, hang)
		w.await(func() bool { c := w.chain(); return c.Epoch > before.Epoch && (hang || c.Cursor > at.Cursor) }, "no other instance is elected")
		require.NoError(t, leader.process.Signal(syscall.SIGCONT))
		leader.database.Release()
		w.await(func() bool { return strings.Contains(leader.process.Tail(), store.ErrFenced.Error()) }, "%s was not fenced", leader.name)
		if hang {
			require.Equal(t, at.Cursor, w.chain().Cursor, "no other instance can store a block")
		}
		w.reading(leader, false)
		w.await(func() bool { return w.chain().Cursor > at.Cursor }, "no other instance stores a block")
		leader.stop()
		leader.restart()
	}
	l.stop()
	w.check()
}

// reading makes the nodes of all instances but one answer nothing about blocks, or everything again.
func (w *world) reading(but *member, hang bool) {
	for _, m := range w.members {
		for _, n := range m.nodes {
			n.SetRules()
			if hang && m != but {
				n.SetRules(proxy.Rule{Name: "hang", Methods: []string{"eth_getBlockByNumber", "eth_blockNumber"}, Fault: proxy.Fault{Kind: proxy.Hang}})
			}
		}
	}
}
