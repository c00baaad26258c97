package webhook

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkDeliver measures how fast one process delivers to one target, four changes of each transaction. Postgres and
// the target are on the same machine.
func BenchmarkDeliver(b *testing.B) {
	db := database(b)
	r := newReceiver(b, nil)
	_, err := db.Exec(b.Context(), `
		INSERT INTO relayer_deliveries (chain_id, pool_id, target, subject, revision, payload)
		SELECT $1, $2, 'here', md5(n::text)::uuid, revision, '{"payload_type":"relayer_enabled"}'
		FROM generate_series(1, 1 + $3 / 4) n, generate_series(1, 4) revision`, testChain, testPool, b.N)
	require.NoError(b, err)
	cfg := settings(r.target("here"))
	cfg.tuning = tuning{}
	b.ResetTimer()
	begin := time.Now()
	_, stop := run(b, db, cfg)
	r.waitTaken(b.N)
	b.ReportMetric(float64(b.N)/time.Since(begin).Seconds(), "webhooks/s")
	b.StopTimer()
	stop()
}
