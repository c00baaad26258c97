package webhook

import (
	"testing"
	"time"
)

// BenchmarkDeliver measures how fast one process delivers to one target, four changes of each transaction. Postgres and
// the target are on the same machine.
func BenchmarkDeliver(b *testing.B) {
	for _, o := range owners {
		b.Run(o.Name, func(b *testing.B) {
			db := o.database(b)
			r := newReceiver(b, nil)
			for range 1 + b.N/4 {
				id := newTx(b)
				for revision := range 4 {
					change(b, db, id, 1+revision, "here")
				}
			}
			cfg := settings(r.target("here"))
			cfg.tuning = tuning{}
			b.ResetTimer()
			begin := time.Now()
			_, stop := run(b, db, cfg)
			r.waitTaken(b.N)
			b.ReportMetric(float64(b.N)/time.Since(begin).Seconds(), "webhooks/s")
			b.StopTimer()
			stop()
		})
	}
}
