package crashtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// E2, E15: the nodes of the instance that reads the chain are away, or fail one method. Another one, whose nodes are well, stores the next
// block.
func TestInstance_ItsNodesFail_LeaseMoves(t *testing.T) {
	w := setup(t)
	w.failNodes("all", "eth_getLogs")
}

// failNodes makes the nodes of the instance that reads the chain fail one method after the other; "all" for all.
func (w *world) failNodes(methods ...string) {
	w.t.Helper()
	w.three()
	l := w.load()
	var took []time.Duration
	for _, method := range methods {
		leader := w.leader()
		one := w.takeover(leader, func() {
			for _, p := range leader.nodes {
				p.SetDown(method == "all")
				p.SetRules(proxy.Rule{Name: method, Methods: []string{method}, Fault: proxy.Fault{Kind: proxy.Refuse}})
			}
		})
		w.t.Logf("%s: %v", method, one.Round(time.Millisecond))
		took = append(took, one)
		leader.runs()
		for _, p := range leader.nodes {
			p.SetDown(false)
			p.SetRules()
		}
	}
	l.stop()
	w.check()
	_, worst := w.report("takeover from an instance without nodes", took)
	require.LessOrEqual(w.t, worst, w.limits.worst)
}

// E2, E15: the topic is away for the instance that reads the chain, and then its database. Others publish and, without the database, read.
// It does both alone when everything is back.
func TestInstance_ItsTopicOrDatabaseIsAway_OthersGoOn(t *testing.T) {
	w := setup(t)
	w.three()
	l := w.load()
	leader := w.leader()
	leader.topic.close()
	w.others(l, leader)
	require.Equal(t, leader, w.leader())
	leader.topic.open()

	took := w.takeover(leader, func() { leader.database.SetDown(true) })
	w.others(l, leader)
	leader.runs()
	leader.database.SetDown(false)
	for _, m := range w.members {
		if m != leader {
			m.stop()
		}
	}
	require.Equal(t, leader, w.leader())
	l.stop()
	w.check()
	_, worst := w.report("takeover from an instance without a database", []time.Duration{took})
	require.LessOrEqual(t, worst, w.limits.worst)
}

// others returns when others than one instance have published the events of further escrows.
func (w *world) others(l *load, but *member) {
	w.t.Helper()
	l.further(payers)
	seen := len(w.topic.all())
	w.await(func() bool {
		n := 0
		for _, a := range w.topic.all()[seen:] {
			if a.by != but.name {
				n++
			}
		}
		return n >= 2*payers
	}, "without %s nothing is published", but.name)
}
