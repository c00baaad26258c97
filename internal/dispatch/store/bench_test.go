package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// BenchmarkBatch measures the steps of batches of transactions: an iteration takes one batch from its acceptance by the API to its end, and
// the metrics are the microseconds of each step. A repeated report changes nothing.
func BenchmarkBatch(b *testing.B) {
	for _, size := range []int{1, 32, 256, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			db := testpostgres.New(b, testpostgres.Migrated(Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(b)
			s := New(db, Config{Enqueue: queue.EnqueueSQL, Targets: []string{"shop"}})
			used := map[string]time.Duration{}
			for b.Loop() {
				txs, starts := make([]*dispatch.Transaction, size), make([]Start, size)
				acceptances, mined, confirmed := make([]Acceptance, size), make([]dispatch.Update, size), make([]dispatch.Update, size)
				for i := range size {
					txs[i] = transaction("shop")
					by := route
					by.RelayerTx = uuid.NewString()
					starts[i] = Start{ID: txs[i].ID, Holder: uuid.New(), Route: route, Lease: time.Minute}
					acceptances[i] = Acceptance{ID: txs[i].ID, Attempt: 1, Route: by}
					mined[i] = dispatch.Update{RelayerTx: by.RelayerTx, Status: dispatch.Mined, Revision: 4, At: time.Now(), Call: &txs[i].Call}
					confirmed[i] = mined[i]
					confirmed[i].Status, confirmed[i].Revision = dispatch.Confirmed, 5
				}
				step := func(name string, do func() error) {
					from := time.Now()
					if err := do(); err != nil {
						b.Fatal(err)
					}
					used[name] += time.Since(from)
				}
				step("accept", func() error { _, err := s.Accept(b.Context(), txs); return err })
				step("begin", func() error { _, err := s.Begin(b.Context(), starts); return err })
				step("accepted", func() error { return s.Accepted(b.Context(), acceptances) })
				step("apply", func() error { _, err := s.Apply(b.Context(), mined); return err })
				step("repeated", func() error { _, err := s.Apply(b.Context(), mined); return err })
				step("confirm", func() error { _, err := s.Apply(b.Context(), confirmed); return err })
			}
			for name, d := range used {
				b.ReportMetric(float64(d.Microseconds())/float64(b.N), "µs-"+name)
			}
		})
	}
}
