package store

import (
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// costly returns a new transaction of a caller and a trader with this reserve.
func costly(s *Store, wei int64, caller, trader string) *NewTransaction {
	d := newTx(s)
	d.Reserve, d.Caller, d.Metadata.Trader = big.NewInt(wei), caller, trader
	return d
}

func spent(t testing.TB, s *Store, of scope, subject string) int64 {
	t.Helper()
	var wei int64
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT coalesce(sum(spent_wei), 0)::bigint FROM relayer_budgets WHERE scope = $1 AND subject = $2`,
		string(of), subject).Scan(&wei))
	return wei
}

// result returns the result of accepting one new transaction.
func result(t testing.TB, s *Store, limits AllocationLimits, d *NewTransaction) AcceptResult {
	t.Helper()
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{d})
	require.NoError(t, err)
	return results[0]
}

func requireLimit(t testing.TB, err error, text string) {
	t.Helper()
	var limit *relayer.LimitError
	require.ErrorAs(t, err, &limit)
	require.Contains(t, limit.Limit, text)
	now := time.Now().UTC()
	midnight := now.Truncate(24*time.Hour).AddDate(0, 0, 1)
	require.InDelta(t, midnight.Sub(now).Seconds(), limit.After.Seconds(), 5)
}

func TestBudgets_CallerOrTraderSpent_OthersGoOn(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	s.Budgets = Budgets{Caller: big.NewInt(100), Trader: big.NewInt(60)}
	accept(t, s, limits, costly(s, 60, "a", "x"))
	requireLimit(t, result(t, s, limits, costly(s, 41, "a", "y")).Err, "API key")
	requireLimit(t, result(t, s, limits, costly(s, 1, "b", "x")).Err, "trader")
	accept(t, s, limits, costly(s, 40, "a", "y"), costly(s, 60, "b", "z"), costly(s, 40, "b", ""))
	require.EqualValues(t, 100, spent(t, s, scopeCaller, "a"), "a rejected one reserves nothing")
	require.EqualValues(t, 100, spent(t, s, scopeCaller, "b"))
	require.EqualValues(t, 60, spent(t, s, scopeTrader, "x"))
	require.EqualValues(t, 40, spent(t, s, scopeTrader, "y"))
	require.EqualValues(t, 0, spent(t, s, scopeTrader, ""), "an empty name is no trader")

	// Within one group the first new transactions get the budget.
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{costly(s, 70, "c", ""), costly(s, 70, "c", ""), costly(s, 30, "c", "")})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	requireLimit(t, results[1].Err, "API key")
	require.NoError(t, results[2].Err)
	require.EqualValues(t, 100, spent(t, s, scopeCaller, "c"))
}

func TestBudgets_RepeatedRequest_CostsNothing(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Caller: big.NewInt(100)}
	first, refused := costly(s, 80, "a", ""), costly(s, 80, "a", "")
	first.IdempotencyKey, refused.IdempotencyKey = "1", "2"
	tx := accept(t, s, limits, first)[0]
	for range 3 {
		again := costly(s, 80, "a", "")
		again.IdempotencyKey = "1"
		v := result(t, s, limits, again)
		require.NoError(t, v.Err)
		require.True(t, v.Replayed)
		require.Equal(t, tx.ID, v.Tx.ID)
	}
	require.EqualValues(t, 80, spent(t, s, scopeCaller, "a"))
	// A rejected new transaction does not use up its idempotency key either.
	requireLimit(t, result(t, s, limits, refused).Err, "API key")
	s.Budgets.Caller = big.NewInt(160)
	require.False(t, result(t, s, limits, refused).Replayed)
	require.EqualValues(t, 160, spent(t, s, scopeCaller, "a"))
}

// The reserved sum never exceeds the budget under concurrency, and uses all of it that fits.
func TestBudgets_Concurrent_AreExact(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 4)
	limits.Cap = 1000
	s.Budgets = Budgets{Caller: big.NewInt(1000), Trader: big.NewInt(400), Key: big.NewInt(300)}
	var accepted, limited atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		// Each is a process with its own keys, so that the keys' locks do not serialize them.
		process := New(s.db, s.Config)
		own := limits
		own.Held = limits.Held[i%2*2 : i%2*2+2]
		all.Go(func() {
			for range 20 {
				results, err := process.Accept(t.Context(), own, []*NewTransaction{costly(process, 7, "a", "x"), costly(process, 7, "a", "y"), costly(process, 7, "a", "z")})
				if err != nil {
					t.Error(err)
					return
				}
				for _, v := range results {
					if v.Err == nil {
						accepted.Add(1)
					} else {
						limited.Add(1)
					}
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 480, accepted.Load()+limited.Load())
	require.EqualValues(t, 1000/7, accepted.Load())
	require.EqualValues(t, 1000/7*7, spent(t, s, scopeCaller, "a"))
	for _, trader := range []string{"x", "y", "z"} {
		require.LessOrEqual(t, spent(t, s, scopeTrader, trader), int64(400))
	}
	var keys int64
	for _, key := range limits.Held {
		keys += spent(t, s, scopeKey, hexAddress(key))
		require.LessOrEqual(t, spent(t, s, scopeKey, hexAddress(key)), int64(300))
	}
	require.EqualValues(t, 1000/7*7, keys)
}

func TestBudgets_KeySpent_OtherKeysGetTransactions(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	s.Budgets = Budgets{Key: big.NewInt(100)}
	only := costly(s, 90, "a", "")
	only.Target, only.Key = hexAddress(limits.Held[0]), limits.Held[0]
	accept(t, s, limits, only)
	for range 4 {
		require.Equal(t, limits.Held[1], accept(t, s, limits, costly(s, 20, "a", ""))[0].From)
	}
	requireLimit(t, result(t, s, limits, costly(s, 21, "a", "")).Err, "every key")
	require.Equal(t, limits.Held[0], accept(t, s, limits, costly(s, 10, "a", ""))[0].From, "one that fits is accepted")
}

func TestBudgets_Queued_IsChargedToKeyAtDispatch(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Key: big.NewInt(100), Caller: big.NewInt(1000)}
	limits.Cap = 1
	key := hexAddress(limits.Held[0])
	txs := accept(t, s, limits, costly(s, 60, "a", ""), costly(s, 30, "a", ""), costly(s, 35, "a", ""))
	require.EqualValues(t, 60, spent(t, s, scopeKey, key))
	require.EqualValues(t, 125, spent(t, s, scopeCaller, "a"))
	limits.Cap = 10
	dispatched, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, dispatched, 1)
	require.Equal(t, txs[1].ID, dispatched[0].ID, "60, 30 and 35 are more than 100")
	require.EqualValues(t, 90, spent(t, s, scopeKey, key))
	// If another sender's transaction takes the nonce, the key's budget is refunded, and the caller's is not.
	broadcast(t, s, dispatched[0])
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), dispatched[0].ID, limits.Held[0], 0, *dispatched[0].Nonce, common.HexToHash("0xf0"), Block{Number: 1})))
	require.EqualValues(t, 60, spent(t, s, scopeKey, key))
	require.EqualValues(t, 125, spent(t, s, scopeCaller, "a"))
}

func TestBudgets_FinalTransaction_CountsItsCost(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Caller: big.NewInt(1_000_000), Trader: big.NewInt(1_000_000), Key: big.NewInt(1_000_000)}
	limits.Cap = 1
	key := hexAddress(limits.Held[0])
	txs := accept(t, s, limits, costly(s, 500_000, "a", "x"), costly(s, 300_000, "a", "y"))
	broadcast(t, s, txs[0])
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 5)}))
	require.EqualValues(t, 800_000, spent(t, s, scopeCaller, "a"), "a mined transaction may be reorganized away")
	for range 2 { // repeating it changes nothing
		_, err := s.Confirm(t.Context(), []Block{{Number: 5, Hash: blockHash(5)}})
		require.NoError(t, err)
	}
	require.EqualValues(t, 300_000+21_000*7, spent(t, s, scopeCaller, "a"))
	require.EqualValues(t, 21_000*7, spent(t, s, scopeTrader, "x"))
	require.EqualValues(t, 21_000*7, spent(t, s, scopeKey, key))
	// A transaction that never had a nonce costs nothing.
	_, err := s.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "canceled")
	require.NoError(t, err)
	require.EqualValues(t, 21_000*7, spent(t, s, scopeCaller, "a"))
	require.EqualValues(t, 0, spent(t, s, scopeTrader, "y"))
}

func TestBudgets_NextDay_StartAtZero(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Caller: big.NewInt(100)}
	tx := accept(t, s, limits, costly(s, 100, "a", ""))[0]
	requireLimit(t, result(t, s, limits, costly(s, 1, "a", "")).Err, "API key")
	// Yesterday's accounts do not change.
	for _, change := range []string{`UPDATE relayer_budgets SET day = day - 1`, `UPDATE relayer_txs SET budget_day = budget_day - 1`} {
		_, err := s.db.Exec(t.Context(), change)
		require.NoError(t, err)
	}
	accept(t, s, limits, costly(s, 30, "a", ""))
	broadcast(t, s, tx)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 5)}))
	_, err := s.Confirm(t.Context(), []Block{{Number: 5, Hash: blockHash(5)}})
	require.NoError(t, err)
	spending, err := s.BudgetUsage(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Usage{{Scope: "caller", Subject: "a", Wei: big.NewInt(30)}}, spending, "a final transaction is settled on the day of its acceptance")
}

func TestBudgets_None_StoresNoAccounts(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	accept(t, s, limits, costly(s, 100, "a", "x"))
	var rows int
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM relayer_budgets)
		+ (SELECT count(*) FROM relayer_txs WHERE budget_day IS NOT NULL OR key_budget_day IS NOT NULL)`).Scan(&rows))
	require.Zero(t, rows)
}

// Any process that ends a transaction refunds its reserve: also an operator's command, which has no budgets, and a process
// without budgets.
func TestBudgets_Reserve_IsReturnedByAnyProcess(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Caller: big.NewInt(100), Trader: big.NewInt(100), Key: big.NewInt(100)}
	limits.Cap = 2
	txs := accept(t, s, limits, costly(s, 10, "a", "x"), costly(s, 10, "a", "x"), costly(s, 10, "a", "x"))
	accounts := func() []int64 {
		return []int64{spent(t, s, scopeCaller, "a"), spent(t, s, scopeTrader, "x"), spent(t, s, scopeKey, hexAddress(limits.Held[0]))}
	}
	require.Equal(t, []int64{30, 30, 20}, accounts())
	operator, err := Attach(t.Context(), s.db, 1337, "pool")
	require.NoError(t, err)
	_, err = operator.SetIntent(t.Context(), txs[2].ID, relayer.IntentCancel, "an operator")
	require.NoError(t, err)
	require.Equal(t, []int64{20, 20, 20}, accounts())
	require.NoError(t, onlyErr(operator.RecordNonceConflicts(t.Context(), txs[1].ID, limits.Held[0], 0, 1, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	require.Equal(t, []int64{20, 20, 10}, accounts())
	_, err = operator.ResetChain(t.Context(), known(t, s), common.HexToHash("0x02"), Block{Hash: common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	require.Equal(t, []int64{10, 10, 0}, accounts())
	require.NoError(t, operator.Replace(t.Context(), &Replacement{ID: txs[1].ID, Request: txs[1].Request, Reserve: big.NewInt(4)}))
	require.Equal(t, []int64{4, 4, 0}, accounts())
}

// RecordNonceConflicts locks the caller's account before those of its key and trader, as all statements do.
func TestRecordNonceConflicts_LocksAccountsInOrder(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Caller: big.NewInt(100), Trader: big.NewInt(100), Key: big.NewInt(100)}
	tx := accept(t, s, limits, costly(s, 10, "a", "x"))[0]
	broadcast(t, s, tx)
	_, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	free := 0
	beside(t, s, func(holder pgx.Tx) {
		_, err := holder.Exec(t.Context(), `SELECT FROM relayer_budgets WHERE scope = 'caller' FOR UPDATE`)
		require.NoError(t, err)
	}, func() error {
		return onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, common.HexToHash("0xf0"), Block{3, blockHash(3)}))
	}, func() {
		require.NoError(t, s.db.QueryRow(t.Context(),
			`SELECT count(*) FROM (SELECT FROM relayer_budgets WHERE scope <> 'caller' FOR UPDATE SKIP LOCKED) AS free`).Scan(&free))
	})
	require.Equal(t, 2, free)
	require.Equal(t, relayer.Canceled, read(t, s, tx).Status)
	for scope, subject := range map[scope]string{scopeCaller: "a", scopeTrader: "x", scopeKey: hexAddress(tx.From)} {
		require.Zero(t, spent(t, s, scope, subject), scope)
	}
}
