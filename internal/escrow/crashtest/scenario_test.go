package crashtest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// E2, E4, E8, E12, E13: each of three instances is killed while it reads the chain. The answers of the topic do not arrive at that moment.
func TestScenarioA_LeaderDies(t *testing.T) {
	w := setup(t)
	w.inTurn(1, "a kill", w.kill)
}

// E2, E13: an instance that only publishes dies, and another one is paused, each without an answer of the topic for messages that it has sent.
// The instance that reads the chain stays, and repeats them once. The paused one wakes, and does not repeat them a second time.
func TestScenarioB_FollowerDies(t *testing.T) {
	w := setup(t)
	w.three()
	l := w.load()
	before, followers := w.chain(), w.followers()
	dies, pauses := followers[0], followers[1]
	for _, m := range followers {
		m.topic.withhold()
		w.await(func() bool { return m.topic.unanswered() > 0 }, "%s publishes nothing", m.name)
		if m == dies {
			m.process.Kill()
		} else {
			require.NoError(t, m.process.Freeze())
		}
		w.struck(m)
	}
	dies.topic.answer()
	w.await(func() bool {
		_, repeated := w.received()
		return repeated >= dies.topic.unanswered()+pauses.topic.unanswered()
	}, "what was in flight is not repeated")
	require.NoError(t, pauses.process.Signal(syscall.SIGCONT))
	pauses.topic.answer()
	l.further(payers)
	l.stop()
	w.check()
	after := w.chain()
	require.Equal(t, before.Epoch, after.Epoch)
	require.Equal(t, before.Holder, after.Holder)
}

// E4, E13, E15: the database dies under load, and comes back. No process ends.
func TestScenarioC_DatabaseLost(t *testing.T) {
	w := prepare(t)
	server := testpostgres.Own(t)
	w.use(server)
	w.three()
	l := w.load()
	l.further(payers)
	// Messages that the topic has accepted since may be repeated: Postgres does not wait for the disk with results.
	since := time.Now().Add(-5 * time.Second)
	server.Kill()
	l.further(payers)
	server.Restart()
	w.db.Reset()
	w.strikes = append(w.strikes, strike{inFlight: w.topic.since(since)})
	stored := w.chain().Cursor
	w.await(func() bool { return w.chain().Cursor > stored }, "no block is stored")
	for _, m := range w.members {
		m.runs()
	}
	l.stop()
	w.check()
}

// E4, E8, E12: the number of static partitions changes by a rolling restart, under load. Old and new instances run together, and an escrow
// has a publisher in each total. Nothing is repeated, because all of them are stopped like by a supervisor.
func TestScenarioD_Rebalancing(t *testing.T) {
	w := setup(t)
	share := func(number, total int) *member {
		return w.start(fmt.Sprintf("%d-of-%d", number, total), fmt.Sprint("PARTITION_NUMBER=", number), fmt.Sprint("TOTAL_PARTITIONS=", total))
	}
	var old []*member
	for i := range 3 {
		old = append(old, share(i, 3))
	}
	w.leader()
	w.watchCursor()
	l := w.load()
	l.further(payers)
	for i := range 4 {
		share(i, 4)
		l.further(2)
		if i < len(old) {
			old[i].stop()
		}
	}
	l.stop()
	w.check()
	// Each has published its partitions alone.
	for _, a := range w.topic.all() {
		var number, total int
		_, err := fmt.Sscanf(a.by, "%d-of-%d", &number, &total)
		require.NoError(t, err)
		require.Equal(t, number, events.Partition(common.HexToAddress(a.OrderingKey))%total)
	}
}
