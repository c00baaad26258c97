package events_test

import (
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

const (
	loadRate  = 350 // transactions a second; each has three webhooks
	loadTicks = 10  // groups a second
	loadKeys  = 16
)

// BenchmarkSustained takes transactions through the store at a fixed rate, while a deliverer serves a fast target. They
// are accepted, signed, broadcast, mined a second later and confirmed two seconds after that. b.N is the number of
// seconds; -benchtime=60x runs for a minute. It reports the backlog of webhooks and the WAL of each transaction.
func BenchmarkSustained(b *testing.B) {
	for _, targets := range []int{0, 1} {
		b.Run(fmt.Sprintf("targets=%d", targets), func(b *testing.B) { sustain(b, targets) })
	}
}

func sustain(b *testing.B, targets int) {
	server := testpostgres.Own(b, map[string]string{"shared_buffers": "128MB"})
	require.NoError(b, postgres.Migrate(b.Context(), server.URL(), store.Migrations()))
	db := server.Pool(b)
	var received atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		received.Add(1)
	}))
	b.Cleanup(target.Close)
	cfg := webhook.Config{Targets: []webhook.Target{{Name: "here", URL: target.URL, SigningKeys: []string{secret}}}[:targets]}
	d, stop := start(b, db, cfg)
	s := store.New(db, store.Config{ChainID: pool.ChainID, Pool: pool.ID, Targets: cfg.Names(), OnDeliveryQueued: d.Notify})
	_, err := s.InitChain(b.Context(), common.HexToHash("0x01"))
	require.NoError(b, err)
	limits := store.AllocationLimits{Cap: 1 << 20}
	var registrations []store.Registration
	for i := range loadKeys {
		limits.Held = append(limits.Held, common.BigToAddress(big.NewInt(int64(i+1))))
		registrations = append(registrations, store.Registration{Address: limits.Held[i]})
	}
	require.NoError(b, s.Register(b.Context(), registrations))
	wal := func() (bytes int64) {
		require.NoError(b, db.QueryRow(b.Context(), `SELECT pg_current_wal_insert_lsn() - '0/0'`).Scan(&bytes))
		return bytes
	}
	backlog := func() (n int64) {
		require.NoError(b, db.QueryRow(b.Context(), `SELECT count(*) FROM relayer_webhooks WHERE state = 'waiting'`).Scan(&n))
		return n
	}

	ticker := time.NewTicker(time.Second / loadTicks)
	defer ticker.Stop()
	before, begin := wal(), time.Now()
	b.ResetTimer()
	var blocks [][]store.Mined // by second
	var most, written, accepted int64
	for second := range b.N {
		var block []store.Mined
		for range loadTicks {
			<-ticker.C
			block = append(block, acceptAndBroadcast(b, s, limits, loadRate/loadTicks)...)
		}
		accepted += int64(len(block))
		hash := common.BigToHash(big.NewInt(int64(second + 1)))
		for i := range block {
			block[i].BlockNumber, block[i].BlockHash = uint64(second), hash
		}
		blocks = append(blocks, block)
		written += int64(len(block))
		if second > 0 {
			require.NoError(b, s.RecordMined(b.Context(), blocks[second-1]))
			written += int64(len(block))
		}
		if second > 2 {
			m := blocks[second-3][0]
			n, err := s.Confirm(b.Context(), []store.Block{{Number: m.BlockNumber, Hash: m.BlockHash}})
			require.NoError(b, err)
			written += int64(n)
		}
		due := backlog()
		most = max(most, due)
		if second%15 == 14 {
			b.Logf("second %d: %d due, %d delivered", second+1, due, received.Load())
		}
	}
	b.StopTimer()
	took, delivered := time.Since(begin).Seconds(), received.Load()
	b.ReportMetric(float64(accepted)/took, "tx/s")
	b.ReportMetric(float64(delivered)/took, "webhooks/s")
	b.ReportMetric(float64(most), "most-due")
	b.ReportMetric(float64(backlog()), "due-at-end")
	b.ReportMetric(float64(wal()-before)/float64(accepted), "WAL-B/tx")
	if targets > 0 {
		var size int64
		require.NoError(b, db.QueryRow(b.Context(), `SELECT pg_total_relation_size('relayer_webhooks')`).Scan(&size))
		b.ReportMetric(float64(size)/float64(written), "stored-B/webhook")
		require.Eventually(b, func() bool { return received.Load() >= written }, patience, 5*time.Millisecond, "the backlog is delivered")
	}
	stop()
}

// acceptAndBroadcast returns the contents of a block with the new transactions.
func acceptAndBroadcast(b *testing.B, s *store.Store, limits store.AllocationLimits, n int) (mined []store.Mined) {
	newTxs := make([]*store.NewTransaction, n)
	for i := range newTxs {
		newTxs[i] = &store.NewTransaction{
			ID: uuid.Must(uuid.NewV7()), Target: pool.ID, Caller: "alice", Kind: relayer.KindTransaction, IdempotencyKey: uuid.NewString(),
			Request: relayer.Request{
				To: new(common.HexToAddress("0xff")), Value: big.NewInt(1), Data: make([]byte, 68), GasLimit: 60_000, Speed: relayer.Fast,
				Metadata: relayer.Metadata{Method: "a9059cbb", Trader: "trader"},
			},
		}
	}
	results, err := s.Accept(b.Context(), limits, newTxs)
	require.NoError(b, err)
	attempts, broadcasts := make([]*relayer.Attempt, n), make([]store.Broadcast, n)
	for i, v := range results {
		require.NoError(b, v.Err)
		attempts[i] = &relayer.Attempt{
			TxID: v.Tx.ID, Number: 1, From: v.Tx.From, Nonce: *v.Tx.Nonce, Purpose: relayer.PurposeSend, Hash: common.BytesToHash(append(v.Tx.ID[:], v.Tx.ID[:]...)),
			Raw: make([]byte, 190), MaxFee: big.NewInt(2_000_000_000), MaxPriorityFee: big.NewInt(1_000_000_000),
		}
		broadcasts[i] = store.Broadcast{
			TxID: v.Tx.ID, Number: 1, From: v.Tx.From, Nonce: *v.Tx.Nonce, Hash: attempts[i].Hash, Status: relayer.Broadcasted,
		}
		mined = append(mined, store.Mined{
			TxID: v.Tx.ID, Hash: attempts[i].Hash, BlockTime: time.Now(), Succeeded: true, GasUsed: 50_000, GasPrice: big.NewInt(1_500_000_000),
		})
	}
	_, err = s.StoreAttempts(b.Context(), attempts)
	require.NoError(b, err)
	require.NoError(b, s.RecordBroadcasts(b.Context(), broadcasts))
	return mined
}
