package ledger

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

// BenchmarkAccept is what accepting and storing one transaction costs in groups, everything durable, without signing.
func BenchmarkAccept(b *testing.B) {
	for _, group := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			server := testpostgres.Own(b)
			migrate(b, server.URL())
			l, terms := open(b, server.Pool(b), 16)
			terms.Cap = 1 << 30
			for b.Loop() {
				txs := accept(b, l, terms, drafts(l, group)...)
				broadcast(b, l, txs...)
			}
			require.NoError(b, b.Context().Err())
			b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}

// BenchmarkAcceptQueued is what it costs to accept into a queue that others wait in already, in groups.
func BenchmarkAcceptQueued(b *testing.B) {
	for _, waiting := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			server := testpostgres.Own(b)
			migrate(b, server.URL())
			l, terms := open(b, server.Pool(b), 16)
			terms.Cap, terms.Queue = 1, 1<<30
			accept(b, l, terms, drafts(l, 16)...)
			for left := waiting; left > 0; left -= 1000 {
				accept(b, l, terms, drafts(l, 1000)...)
			}
			_, err := l.db.Exec(b.Context(), `VACUUM ANALYZE relayer_txs`)
			require.NoError(b, err)
			const group = 64
			for b.Loop() {
				accept(b, l, terms, drafts(l, group)...)
			}
			b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}
