package admin

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// reorg is a relayer on a chain that forks below the blocks of final transactions.
type reorg struct {
	t       *testing.T
	node    *testchain.Chain
	counter common.Address
	db      *testpostgres.DB
	*relayertest.Relayer
	registry *prometheus.Registry
	admin    *Admin
	hits     []common.Hash          // each is called by one of txs
	txs      []*relayer.Transaction // the last one was canceled
	fork     common.Hash
}

func (r *reorg) head() uint64 {
	r.t.Helper()
	n, err := r.node.Client().BlockNumber(r.t.Context())
	require.NoError(r.t, err)
	return n
}

// until commits blocks until a condition holds.
func (r *reorg) until(condition func() bool, what string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		if condition() {
			return true
		}
		r.node.Commit()
		return false
	}, 2*time.Minute, 20*time.Millisecond, what)
}

func (r *reorg) read(tx *relayer.Transaction) *relayer.Transaction {
	r.t.Helper()
	now, err := r.Transaction(r.t.Context(), relayertest.PoolID, tx.ID)
	require.NoError(r.t, err)
	return now
}

// final reports whether all transactions have their final status: the last one canceled, the others confirmed.
func (r *reorg) final() bool {
	for i, tx := range r.txs {
		want := relayer.Confirmed
		if i == len(r.txs)-1 {
			want = relayer.Canceled
		}
		if r.read(tx).Status != want {
			return false
		}
	}
	return true
}

// counts returns how often the chain has executed each call.
func (r *reorg) counts() []uint64 {
	r.t.Helper()
	n, err := contracts.Counts(r.t.Context(), r.node.Client(), r.counter, nil, r.hits...)
	require.NoError(r.t, err)
	return n
}

// startReorg has transactions final in blocks above the fork, and the anchor at least depth blocks above it.
func startReorg(t *testing.T, depth uint64) *reorg {
	t.Helper()
	r := &reorg{t: t, registry: prometheus.NewRegistry(), node: testchain.Simulated(t, testchain.SimulatedOptions{}), db: testpostgres.New(t, testpostgres.Migrated(store.Migrations()))}
	r.counter = r.node.Counter()
	ring := signertest.Ring(t, t.Name(), 2)
	r.node.Fund(testchain.Ether(10), ring.Addresses()...)
	r.Relayer = relayertest.Start(t, relayertest.Options{DatabaseURL: r.db.URL(), RPC: []string{r.node.URL()}, Ring: ring, Targets: []string{"api"},
		Registry: r.registry, Budgets: store.Budgets{Caller: testchain.Ether(1), Key: testchain.Ether(1)}})
	var err error
	r.admin, err = Open(t.Context(), r.db.Pool(t), testchain.ChainID, relayertest.PoolID)
	require.NoError(t, err)
	for r.head() < 150 { // so that the anchor is at its full depth
		r.node.Commit()
	}
	r.fork = r.node.Commit()
	forked := r.head()
	for i := range 6 {
		r.hits = append(r.hits, common.Hash{byte(i + 1)})
		r.txs = append(r.txs, r.Send(t, r.counter, 0, contracts.Hit(r.hits[i])))
	}
	for _, tx := range r.txs {
		r.Reaches(t, tx, relayer.Broadcasted)
	}
	_, err = r.Cancel(t.Context(), relayertest.PoolID, r.txs[5].ID, "test")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		attempts, err := r.Store.Attempts(t.Context(), r.txs[5].ID)
		return err == nil && len(attempts) == 2 && r.read(r.txs[5]).Status == relayer.Broadcasted
	}, 2*time.Minute, 20*time.Millisecond)
	r.until(func() bool { return r.head() > forked+depth }, "depth")
	r.until(r.final, "transactions did not become final")
	r.until(func() bool {
		if depth < 64 {
			return true
		}
		known, err := r.Store.Chain(t.Context())
		return err == nil && known.Anchor.Number > forked
	}, "the anchor did not move above the fork")
	require.Equal(t, []uint64{1, 1, 1, 1, 1, 0}, r.counts())
	return r
}

// reorganize makes another branch from the fork the chain, without our transactions.
func (r *reorg) reorganize() {
	r.t.Helper()
	was := r.head()
	r.node.Fork(r.fork)
	r.node.Rollback()
	r.node.AdjustTime(time.Hour) // otherwise the blocks would be the same
	for r.head() < was+2 {
		r.node.Commit()
	}
	require.Equal(r.t, make([]uint64, len(r.hits)), r.counts())
}

// rebroadcast gives the node the first bytes of a transaction, as another node's pool that still has them would.
func (r *reorg) rebroadcast(tx *relayer.Transaction) {
	r.t.Helper()
	attempts, err := r.Store.Attempts(r.t.Context(), tx.ID)
	require.NoError(r.t, err)
	raw := new(types.Transaction)
	require.NoError(r.t, raw.UnmarshalBinary(attempts[0].Raw))
	require.NoError(r.t, r.node.Client().SendTransaction(r.t.Context(), raw))
	r.node.Commit()
}

// stopped waits until the relayer rejects the chain, with an error that names the command.
func (r *reorg) stopped() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		h := r.Health()
		return !h.Ready && strings.Contains(h.Reason, "`rollcall keys resync --reorganized`")
	}, 2*time.Minute, 10*time.Millisecond)
}

// delivered returns the statuses of a transaction that the webhook target received, in their order.
func (r *reorg) delivered(tx *relayer.Transaction) (statuses []string) {
	r.t.Helper()
	rows, err := r.db.Pool(r.t).Query(r.t.Context(), `SELECT status FROM relayer_webhooks WHERE about = $1 ORDER BY revision`, tx.ID)
	require.NoError(r.t, err)
	statuses, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(r.t, err)
	return statuses
}

// A reorganization deeper than the anchor removes blocks of final transactions. An operator's command makes them pending
// again, with their nonces and bytes, and each is executed once. That includes one that another node sends again meanwhile,
// and one that was still pending.
func TestTakeBack_DeepReorganization_EachIsExecutedOnce(t *testing.T) {
	for _, depth := range []uint64{70, 200} {
		t.Run(strconv.FormatUint(depth, 10), func(t *testing.T) {
			t.Parallel()
			r := startReorg(t, depth)
			pending := r.Reaches(t, r.Send(t, r.counter, 0, contracts.Hit(common.Hash{9})), relayer.Broadcasted)
			r.hits, r.txs = append(r.hits, common.Hash{9}), slices.Insert(r.txs, 5, pending)
			var before []*relayer.Transaction
			for _, tx := range r.txs {
				before = append(before, r.read(tx))
			}
			keys, err := r.admin.Keys(t.Context())
			require.NoError(t, err)
			r.reorganize()
			r.stopped()
			r.rebroadcast(r.txs[0])

			client := nodes(t, r.node)
			_, err = r.admin.NewChain(t.Context(), client)
			require.ErrorIs(t, err, ErrSameGenesis)
			require.Equal(t, NotDone, OutcomeOf(err))
			plan, err := r.admin.Reorganized(t.Context(), client)
			require.NoError(t, err)
			require.False(t, plan.Behind)
			final := 0
			for _, v := range plan.Vanished {
				final += v.Final
			}
			require.Equal(t, 6, final)
			require.Equal(t, relayer.Confirmed, r.read(r.txs[0]).Status, "a plan changes nothing")

			taken, err := r.admin.TakeBack(t.Context(), client, plan)
			require.NoError(t, err)
			require.Equal(t, 6, taken)
			again, err := r.admin.TakeBack(t.Context(), client, plan)
			require.NoError(t, err)
			require.Zero(t, again)
			require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
			now, err := r.admin.Keys(t.Context())
			require.NoError(t, err)
			for i := range keys {
				require.Equal(t, keys[i].NextNonce, now[i].NextNonce)
			}
			r.until(r.final, "transactions did not become final again")
			require.Equal(t, []uint64{1, 1, 1, 1, 1, 0, 1}, r.counts())
			for i, tx := range r.txs {
				now := r.read(tx)
				require.Equal(t, before[i].Nonce, now.Nonce)
				require.Equal(t, before[i].From, now.From)
				if tx.ID != pending.ID {
					require.Equal(t, before[i].Hash, now.Hash, "the same bytes")
					require.Greater(t, now.Revision, before[i].Revision)
				}
			}
			// Budgets are charged once for each, with its actual cost.
			var wrong int
			require.NoError(t, r.db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM
				(SELECT scope, sum(spent_wei) AS spent FROM relayer_budgets GROUP BY scope) AS b,
				(SELECT sum(gas_used * gas_price_paid) AS cost FROM relayer_txs) AS t WHERE b.spent <> t.cost`).Scan(&wrong))
			require.Zero(t, wrong)
			// The first one is mined while it is taken back: that may be delivered at once.
			delivered := r.delivered(r.txs[1])
			at := slices.Index(delivered, "confirmed")
			require.Equal(t, []string{"broadcasted", "mined", "confirmed"}, slices.Compact(delivered[at+1:]))
		})
	}
}

// A command that is interrupted leaves the anchor, so that nothing is sent, and a repetition does the rest.
func TestTakeBack_Interrupted_RepetitionFinishes(t *testing.T) {
	t.Parallel()
	r := startReorg(t, 70)
	r.reorganize()
	r.stopped()
	client := nodes(t, r.node)
	plan, err := r.admin.Reorganized(t.Context(), client)
	require.NoError(t, err)
	// An interrupted command may get as far as one key, and one transaction of it.
	placed, err := r.Store.Placed(t.Context(), r.txs[0].From, *r.txs[0].Nonce+1, 1)
	require.NoError(t, err)
	taken, err := r.Store.TakeBack(t.Context(), plan.Known, r.txs[0].From, placed)
	require.NoError(t, err)
	require.Equal(t, 1, taken)
	require.Equal(t, relayer.Broadcasted, r.read(r.txs[0]).Status)
	r.stopped()
	require.Equal(t, make([]uint64, 6), r.counts())

	// The database refuses to move the anchor. The command has changed something, unless it only repeats that step.
	_, err = r.db.Pool(t).Exec(t.Context(), `ALTER TABLE relayer_chains ADD CONSTRAINT held CHECK (anchor_number = 0) NOT VALID`)
	require.NoError(t, err)
	taken, err = r.admin.TakeBack(t.Context(), client, plan)
	require.ErrorContains(t, err, "move the anchor: ")
	require.Equal(t, 5, taken)
	require.Equal(t, Unknown, OutcomeOf(err))
	taken, err = r.admin.TakeBack(t.Context(), client, plan)
	require.ErrorContains(t, err, "move the anchor: ")
	require.Zero(t, taken)
	require.Equal(t, NotDone, OutcomeOf(err))
	_, err = r.db.Pool(t).Exec(t.Context(), `ALTER TABLE relayer_chains DROP CONSTRAINT held`)
	require.NoError(t, err)

	taken, err = r.admin.TakeBack(t.Context(), client, plan)
	require.NoError(t, err)
	require.Zero(t, taken)
	r.until(r.final, "transactions did not become final again")
	require.Equal(t, []uint64{1, 1, 1, 1, 1, 0}, r.counts())
	var wrong int
	require.NoError(t, r.db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM relayer_keys WHERE pending_count <> 0`).Scan(&wrong))
	require.Zero(t, wrong)
}

// gathered returns a counter's value.
func gathered(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// A reorganization that removes final transactions and keeps the anchor does not stop relayers, and the command corrects
// the statuses.
func TestTakeBack_ShallowReorganization_MendsFinal(t *testing.T) {
	t.Parallel()
	r := startReorg(t, 3)
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
	r.reorganize()
	require.Eventually(t, func() bool { return gathered(t, r.registry, "rollcall_relayer_final_reorgs_total") == 1 }, 2*time.Minute, 10*time.Millisecond)
	client := nodes(t, r.node)
	plan, err := r.admin.Reorganized(t.Context(), client)
	require.NoError(t, err)
	require.Equal(t, plan.Known.Anchor, plan.Anchor)
	taken, err := r.admin.TakeBack(t.Context(), client, plan)
	require.NoError(t, err)
	require.Equal(t, 6, taken)
	r.until(r.final, "transactions did not become final again")
	require.Equal(t, []uint64{1, 1, 1, 1, 1, 0}, r.counts())
}

// Nodes with another genesis block are rejected. Nodes with the recorded history give an empty plan.
func TestReorganized_Refuses(t *testing.T) {
	t.Parallel()
	r := startReorg(t, 70)
	other := testchain.Simulated(t, testchain.SimulatedOptions{})
	_, err := r.admin.Reorganized(t.Context(), nodes(t, other))
	require.ErrorContains(t, err, "use `rollcall keys resync --new-chain`")
	require.Equal(t, NotDone, OutcomeOf(err))
	plan, err := r.admin.Reorganized(t.Context(), nodes(t, r.node))
	require.NoError(t, err)
	require.Empty(t, plan.Vanished)
	require.Equal(t, plan.Known.Anchor, plan.Anchor)
}

// On a real node, transactions removed by a short reorganization are sent again automatically, and after a deep one by an
// operator's command.
func TestReorganization_Geth_EachIsExecutedOnce(t *testing.T) {
	for _, depth := range []uint64{3, 70, 200} {
		t.Run(strconv.FormatUint(depth, 10), func(t *testing.T) {
			t.Parallel()
			deep := depth > 64
			node := testchain.Geth(t, testchain.GethOptions{Durable: true, Args: []string{"--dev.period", "0"}}) // a block per transaction
			counter, ring := node.Counter(), signertest.Ring(t, t.Name(), 2)
			node.Fund(testchain.Ether(10), ring.Addresses()...)
			head := func() uint64 {
				n, err := node.Client().BlockNumber(t.Context())
				require.NoError(t, err)
				return n
			}
			mine := func() { node.Fund(common.Big1, node.Accounts[0].Address) }
			mineTo := func(n uint64) {
				for head() < n {
					mine()
				}
			}
			db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
			r := relayertest.Start(t, relayertest.Options{DatabaseURL: db.URL(), RPC: []string{node.URL()}, Ring: ring, Tracker: func(c *tracker.Config) {
				if !deep {
					c.Confirmations = 30 // a busy node may seal several blocks for a transaction
				}
			}})
			if deep {
				mineTo(140 - min(depth, 130)) // the anchor reaches its full depth in the end
			}
			fork := head()
			var hits []common.Hash
			var txs []*relayer.Transaction
			for i := range 4 {
				hits = append(hits, common.Hash{byte(i + 1)})
				txs = append(txs, r.Send(t, counter, 0, contracts.Hit(hits[i])))
			}
			for _, tx := range txs {
				if deep {
					mineTo(fork + depth)
					r.Reaches(t, tx, relayer.Confirmed)
				} else {
					r.Reaches(t, tx, relayer.Mined)
				}
			}
			require.Eventually(t, func() bool {
				known, err := r.Store.Chain(t.Context())
				require.NoError(t, err)
				if !deep || known.Anchor.Number > fork {
					return true
				}
				mine()
				return false
			}, 2*time.Minute, 50*time.Millisecond)
			known, err := r.Store.Chain(t.Context())
			require.NoError(t, err)
			node.SetHead(fork)
			mineTo(max(known.Anchor.Number, fork+depth) + 2)
			if deep {
				require.Eventually(t, func() bool { return strings.Contains(r.Health().Reason, "--reorganized") }, 2*time.Minute, 10*time.Millisecond)
				a, err := Open(t.Context(), db.Pool(t), testchain.ChainID, relayertest.PoolID)
				require.NoError(t, err)
				client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{node.URL()}})
				require.NoError(t, err)
				defer client.Close()
				plan, err := a.Reorganized(t.Context(), client)
				require.NoError(t, err)
				taken, err := a.TakeBack(t.Context(), client, plan)
				require.NoError(t, err)
				require.Equal(t, 4, taken)
			}
			for _, tx := range txs {
				require.Eventually(t, func() bool {
					mine()
					now, err := r.Transaction(t.Context(), relayertest.PoolID, tx.ID)
					return err == nil && now.Status == relayer.Confirmed
				}, 2*time.Minute, 50*time.Millisecond)
			}
			counts, err := contracts.Counts(t.Context(), node.Client(), counter, nil, hits...)
			require.NoError(t, err)
			require.Equal(t, []uint64{1, 1, 1, 1}, counts)
		})
	}
}
