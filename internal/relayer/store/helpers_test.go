package store

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

var genesis = common.HexToHash("0x01")

// setup opens a store with keys, which begin at nonce 0.
func setup(t testing.TB, keys int, targets ...string) (*Store, AllocationLimits) {
	t.Helper()
	return open(t, testpostgres.New(t, testpostgres.Migrated(Migrations())).Pool(t), keys, targets...)
}

func open(t testing.TB, db *pgxpool.Pool, keys int, targets ...string) (*Store, AllocationLimits) {
	t.Helper()
	s := New(db, Config{ChainID: 1337, Pool: "pool", Targets: targets})
	_, err := s.InitChain(context.Background(), genesis)
	require.NoError(t, err)
	limits := AllocationLimits{Cap: 16, Queue: 100}
	var registrations []Registration
	for i := range keys {
		limits.Held = append(limits.Held, common.BigToAddress(big.NewInt(int64(i+1))))
		registrations = append(registrations, Registration{Address: limits.Held[i]})
	}
	require.NoError(t, s.Register(context.Background(), registrations))
	return s, limits
}

// pond opens another pool of the same chain, with its own key.
func pond(t testing.TB, db *pgxpool.Pool, targets ...string) (*Store, AllocationLimits) {
	t.Helper()
	s := New(db, Config{ChainID: 1337, Pool: "pond", Targets: targets})
	key := common.HexToAddress("0x99")
	require.NoError(t, s.Register(context.Background(), []Registration{{Address: key}}))
	return s, AllocationLimits{Held: []common.Address{key}, Cap: 16, Queue: 100}
}

func migrate(t testing.TB, url string) {
	t.Helper()
	require.NoError(t, postgres.Migrate(context.Background(), url, Migrations()))
}

func known(t testing.TB, s *Store) Chain {
	t.Helper()
	c, err := s.Chain(t.Context())
	require.NoError(t, err)
	return c
}

// onlyErr drops the result that reports a change.
func onlyErr(_ bool, err error) error { return err }

// all returns nonce 0 of each key, as the start of a range.
func all(limits AllocationLimits) (froms []KeyNonce) {
	for _, key := range limits.Held {
		froms = append(froms, KeyNonce{Key: key})
	}
	return froms
}

func newTx(s *Store) *NewTransaction {
	return &NewTransaction{
		ID: uuid.Must(uuid.NewV7()), Target: s.Pool, Caller: "caller", Kind: relayer.KindTransaction,
		Request: relayer.Request{
			To: new(common.HexToAddress("0xff")), Value: big.NewInt(1), Data: []byte{1, 2, 3}, GasLimit: 21_000, Speed: relayer.Fast,
			Metadata: relayer.Metadata{Method: "fill", Orderbook: "book", Trader: "trader", RequestID: "r-1", TraceID: "t-1"}, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
	}
}

func newTxs(s *Store, n int) []*NewTransaction {
	var all []*NewTransaction
	for range n {
		all = append(all, newTx(s))
	}
	return all
}

// accept requires all new transactions to be accepted.
func accept(t testing.TB, s *Store, limits AllocationLimits, newTxs ...*NewTransaction) []*relayer.Transaction {
	t.Helper()
	results, err := s.Accept(t.Context(), limits, newTxs)
	require.NoError(t, err)
	var txs []*relayer.Transaction
	for _, v := range results {
		require.NoError(t, v.Err)
		txs = append(txs, v.Tx)
	}
	return txs
}

// broadcast stores a first attempt for each, with made-up bytes, and records that nodes accepted them.
func broadcast(t testing.TB, s *Store, txs ...*relayer.Transaction) {
	t.Helper()
	var attempts []*relayer.Attempt
	for _, tx := range txs {
		attempts = append(attempts, attempt(tx, 1, relayer.PurposeSend))
	}
	stored, err := s.StoreAttempts(t.Context(), attempts)
	require.NoError(t, err)
	for _, s := range stored {
		require.True(t, s)
	}
	accepted(t, s, attempts...)
}

// accepted records that nodes accepted attempts.
func accepted(t testing.TB, s *Store, attempts ...*relayer.Attempt) {
	t.Helper()
	var broadcasts []Broadcast
	for _, a := range attempts {
		broadcasts = append(broadcasts, Broadcast{TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted})
	}
	require.NoError(t, s.RecordBroadcasts(t.Context(), broadcasts))
}

func attempt(tx *relayer.Transaction, number int, purpose relayer.Purpose) *relayer.Attempt {
	hash := common.BytesToHash(append(tx.ID[:], byte(number), byte(len(purpose))))
	return &relayer.Attempt{
		TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Purpose: purpose, Hash: hash, Raw: []byte("raw"),
		MaxFee: big.NewInt(2), MaxPriorityFee: big.NewInt(1),
	}
}

func mined(tx *relayer.Transaction, number int, purpose relayer.Purpose, block uint64) Mined {
	return Mined{
		TxID: tx.ID, Hash: attempt(tx, number, purpose).Hash, BlockNumber: block, BlockHash: blockHash(block), BlockTime: time.Unix(1, 0),
		Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}
}

func blockHash(n uint64) common.Hash { return common.BigToHash(new(big.Int).SetUint64(1000 + n)) }

func read(t testing.TB, s *Store, tx *relayer.Transaction) *relayer.Transaction {
	t.Helper()
	now, err := s.Transaction(t.Context(), tx.ID)
	require.NoError(t, err)
	return now
}

// pending returns each key's stored pending count.
func pending(t testing.TB, s *Store) []int {
	t.Helper()
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	var counts []int
	for _, k := range keys {
		counts = append(counts, k.PendingCount)
	}
	return counts
}
