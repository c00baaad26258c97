package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// BenchmarkAccept measures accepting and storing one transaction in groups, everything durable, without signing.
func BenchmarkAccept(b *testing.B) {
	for _, group := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			server := testpostgres.Own(b)
			migrate(b, server.URL())
			s, limits := open(b, server.Pool(b), 16)
			limits.Cap = 1 << 30
			for b.Loop() {
				txs := accept(b, s, limits, newTxs(s, group)...)
				broadcast(b, s, txs...)
			}
			require.NoError(b, b.Context().Err())
			b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}

// BenchmarkAcceptQueued measures accepting into a non-empty queue, in groups.
func BenchmarkAcceptQueued(b *testing.B) {
	for _, waiting := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			server := testpostgres.Own(b)
			migrate(b, server.URL())
			s, limits := open(b, server.Pool(b), 16)
			limits.Cap, limits.Queue = 1, 1<<30
			accept(b, s, limits, newTxs(s, 16)...)
			for left := waiting; left > 0; left -= 1000 {
				accept(b, s, limits, newTxs(s, 1000)...)
			}
			_, err := s.db.Exec(b.Context(), `VACUUM ANALYZE relayer_txs`)
			require.NoError(b, err)
			const group = 64
			for b.Loop() {
				accept(b, s, limits, newTxs(s, group)...)
			}
			b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}

// BenchmarkLifecycle measures a group from acceptance to confirmation. It reports how often Postgres waited for the disk.
func BenchmarkLifecycle(b *testing.B) {
	server := testpostgres.Own(b)
	migrate(b, server.URL())
	s, limits := open(b, server.Pool(b), 16)
	limits.Cap = 1 << 30
	syncs := func() (n int) {
		s.db.Reset() // a session reports its counts when it ends
		for {
			var others int
			require.NoError(b, s.db.QueryRow(b.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&others))
			if others == 0 {
				break
			}
		}
		require.NoError(b, s.db.QueryRow(b.Context(), `SELECT wal_sync FROM pg_stat_wal`).Scan(&n))
		return n
	}
	const group = 50
	before, block := syncs(), uint64(0)
	for b.Loop() {
		txs := accept(b, s, limits, newTxs(s, group)...)
		broadcast(b, s, txs...)
		var found []Mined
		for _, tx := range txs {
			found = append(found, mined(tx, 1, relayer.PurposeSend, block))
		}
		require.NoError(b, s.RecordMined(b.Context(), found))
		n, err := s.Confirm(b.Context(), []Block{{block, blockHash(block)}})
		require.NoError(b, err)
		require.Equal(b, group, n)
		block++
	}
	b.ReportMetric(float64(syncs()-before)/float64(b.N), "fsyncs/group")
	b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "tx/s")
}
