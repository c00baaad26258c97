package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	broker := func(testing.TB) outbox.Transport { return outboxtest.NewBroker(time.Second) }
	faulty := func(testing.TB) outbox.Transport {
		b := outboxtest.NewBroker(time.Second)
		b.Lose, b.Repeat, b.Shuffle = 0.2, 0.3, true
		return b
	}
	for name, s := range map[string]outboxtest.Setup{
		"Plain":        {Table: outbox.Table{Name: "plain_work"}},
		"Blocks":       {Table: outbox.Table{Name: "blocking_work", DeadBlocks: true, KeepDone: true, ClaimsWaitForDisk: true}},
		"Broker":       {Table: outbox.Table{Name: "sent_work", KeepDone: true, DeadBlocks: true}, Transport: broker},
		"FaultyBroker": {Table: outbox.Table{Name: "lost_work"}, Transport: faulty},
	} {
		if testing.Short() && (name == "Plain" || name == "Broker") {
			continue // the others have their parts; make soak runs all
		}
		t.Run(name, func(t *testing.T) { outboxtest.Run(t, s) })
	}
}

// Another program may send anything to the queue. Postgres refuses some of it as text.
func TestWorker_MessagesThatPostgresRefuses_Acknowledged(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t).Pool(t)
	table := outbox.Table{Name: "works"}
	_, err := db.Exec(t.Context(), table.Schema())
	require.NoError(t, err)
	box, err := outbox.New(db, table)
	require.NoError(t, err)
	require.NoError(t, box.Insert(t.Context(), db, outbox.Entry{ID: "known"}))
	broker := outboxtest.NewBroker(time.Hour)
	require.NoError(t, broker.Send(t.Context(), []string{"\x00", "\xff", "known"}))
	handled := make(chan string, 1)
	w, err := box.NewWorker(outbox.Config{Concurrency: 4, Transport: broker, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		handled <- w.ID
		return outbox.Finished()
	}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	select {
	case id := <-handled:
		require.Equal(t, "known", id)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the entry is not worked on")
	}
	require.Eventually(t, func() bool { return broker.Len() == 0 }, 2*time.Minute, 10*time.Millisecond)
}
