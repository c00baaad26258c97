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
			write(b, db, `INSERT INTO deliveries (lane, subject, payload) SELECT $1, n || '/here', '{"payload_type":"relayer_enabled"}'
				FROM generate_series(1, 1 + $2 / 4) n, generate_series(1, 4) revision`, db.lane("here"), b.N)
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
