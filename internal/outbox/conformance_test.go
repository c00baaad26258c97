package outbox_test

import (
	"testing"
	"time"

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
		"Broker":       {Table: outbox.Table{Name: "sent_work", KeepDone: true}, Transport: broker},
		"FaultyBroker": {Table: outbox.Table{Name: "lost_work", DeadBlocks: true}, Transport: faulty},
	} {
		if testing.Short() && (name == "Plain" || name == "Broker") {
			continue // the others have their parts; make soak runs all
		}
		t.Run(name, func(t *testing.T) { outboxtest.Run(t, s) })
	}
}
