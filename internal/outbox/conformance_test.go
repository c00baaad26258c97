package outbox_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]outboxtest.Setup{
		"Plain":  {Table: outbox.Table{Name: "plain_work"}},
		"Blocks": {Table: outbox.Table{Name: "blocking_work", DeadBlocks: true, KeepDone: true, ClaimsWaitForDisk: true}},
	} {
		t.Run(name, func(t *testing.T) { outboxtest.Run(t, s) })
	}
}
