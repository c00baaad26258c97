package crashtest

import (
	"fmt"
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

// E2, E13: an instance that only publishes dies, with messages whose answers it does not have. The instance that reads the chain stays, and
// the others publish what the dead one had claimed.
func TestScenarioB_FollowerDies(t *testing.T) {
	w := setup(t)
	w.three()
	l := w.load()
	before := w.chain()
	follower := w.followers()[0]
	follower.topic.withhold()
	w.await(func() bool { return follower.topic.unanswered() > 0 }, "%s publishes nothing", follower.name)
	follower.process.Kill()
	unanswered := follower.topic.unanswered()
	w.inFlight = w.claimed()
	follower.topic.answer()
	l.further(payers)
	l.stop()
	w.check()
	_, repeated := w.received()
	require.GreaterOrEqual(t, repeated, unanswered, "what was in flight is sent again")
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
	// What the topic has accepted since may be sent again: Postgres does not wait for the disk with results.
	since := time.Now().Add(-5 * time.Second)
	before := len(w.topic.all())
	server.Kill()
	l.further(payers)
	server.Restart()
	w.db.Reset()
	w.inFlight = w.topic.since(since)
	stored := w.chain().Cursor
	w.await(func() bool { return w.chain().Cursor > stored }, "no block is stored")
	require.GreaterOrEqual(t, len(w.topic.all()), before)
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
		l.further(2)
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
