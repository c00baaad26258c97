package crashtest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A block with the relayers' transactions and the pool are lost: only the store has them. They are mined again.
func TestReorganization_VanishedTransactionsAreMinedAgain(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	counter := chain.Counter()
	ring := signertest.Ring(t, t.Name(), 2)
	chain.Fund(testchain.Ether(10), ring.Addresses()...)
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	r := relayertest.Start(t, relayertest.Options{
		DatabaseURL: db.URL(), RPC: []string{chain.URL()}, Ring: ring,
		Tracker: func(c *tracker.Config) { c.Confirmations = 4 },
	})
	v := &truth{t: t, db: db.Pool(t), chain: chain.Client(), counter: counter}
	parent := chain.Commit()
	var ids []common.Hash
	var txs []*relayer.Transaction
	for i := range 6 {
		ids = append(ids, common.Hash{byte(i + 1)})
		txs = append(txs, r.Send(t, counter, 0, contracts.Hit(ids[i])))
	}
	for _, tx := range txs {
		r.Reaches(t, tx, relayer.Broadcasted)
	}
	pending := func() (n int) {
		require.NoError(t, v.db.QueryRow(t.Context(), `SELECT sum(pending_count) FROM relayer_keys`).Scan(&n))
		return n
	}
	require.Equal(t, 6, pending())
	for range 3 { // each time it must be mined again
		chain.Commit()
		for _, tx := range txs {
			r.Reaches(t, tx, relayer.Mined)
		}
		require.Equal(t, []uint64{1, 1, 1, 1, 1, 1}, v.counts(ids))
		require.Zero(t, pending())

		chain.Fork(parent)
		chain.Rollback()
		parent = chain.Commit() // another block in its place: without it there is no reorganization yet
		chain.Rollback()
		chain.Commit() // longer than the removed branch
		for _, tx := range txs {
			r.Reaches(t, tx, relayer.Broadcasted)
		}
		require.Equal(t, 6, pending())
		eventually(t, patience, func() bool {
			waiting, err := v.chain.PendingTransactionCount(t.Context())
			return err == nil && waiting == 6
		}, "what vanished was not sent again")
	}
	for range 5 {
		chain.Commit()
	}
	for _, tx := range txs {
		r.Reaches(t, tx, relayer.Confirmed)
	}
	require.Equal(t, []uint64{1, 1, 1, 1, 1, 1}, v.counts(ids))
	v.keys(false)
	v.records()
}

// underWay broadcasts transactions that would be sent again if they were lost, and freezes the relayers before all are final. goOn
// ends that.
func (sc *scene) underWay() (goOn func()) {
	sc.t.Helper()
	v := sc.truth()
	goOn = func() {
		for _, m := range sc.fleet {
			m.thaw()
		}
	}
	for range 10 { // on a busy machine the blocks may be faster
		l := sc.load(10)
		l.clients, l.pace = 8, time.Millisecond
		l.run(sc.t.Context(), sc.random)
		eventually(sc.t, patience, func() bool {
			var unsent int
			err := v.db.QueryRow(sc.t.Context(), `SELECT count(*) FROM relayer_txs WHERE status = 'allocated'`).Scan(&unsent)
			return err == nil && unsent == 0
		}, "not broadcasted")
		for _, m := range sc.fleet {
			m.freeze()
		}
		if v.underWay() > 0 {
			return goOn
		}
		goOn()
	}
	require.FailNow(sc.t, "all are final already")
	return nil
}

// underWay counts the transactions that are not final.
func (v *truth) underWay() (open int) {
	v.t.Helper()
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT count(*) FROM relayer_txs WHERE open`).Scan(&open))
	return open
}

// A chain that started again has the same id, and perhaps the same genesis block. The relayers must send nothing on it.
func TestChainReset_Refuses(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{keys: 2, relayers: 2, inFlight: 64, confirmations: 3, geth: pool(1000)})
	l := sc.load(40)
	l.clients, l.pace = 8, 50*time.Millisecond
	l.run(t.Context(), sc.random)
	v := sc.truth()
	v.settled(patience)

	// It is made before the old one ends, and its keys are funded, so that only the relayers' own checks keep them from
	// sending.
	fresh := testchain.Geth(t, testchain.GethOptions{Accounts: 1})
	var addresses []common.Address
	for _, k := range sc.keys {
		addresses = append(addresses, k.Address)
	}
	fresh.Fund(testchain.Ether(1000), addresses...)
	goOn := sc.underWay()
	for _, p := range sc.proxies {
		p.SetNode(fresh.URL(), fresh.WSURL())
	}
	goOn()
	refuses := func() {
		t.Helper()
		for _, m := range sc.fleet {
			eventually(t, patience, func() bool {
				if m.url() == "" {
					return false
				}
				code, body := health(t, m.url())
				return code == http.StatusServiceUnavailable && strings.Contains(body, "another history")
			}, "%s does not see that the chain began again", m.name)
		}
	}
	post := func(url string) int {
		h := sc.load(1).hits[0]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		code, _, err := call(ctx, http.MethodPost, url+"/api/v1/relayers/"+poolID+"/transactions", h.key(), h.body)
		require.NoError(t, err)
		return code
	}
	refuses()
	require.Equal(t, http.StatusServiceUnavailable, post(sc.fleet[0].url()))
	sc.fleet[0].kill() // a new process decides alike
	sc.fleet[0].start()
	refuses()
	require.Equal(t, http.StatusServiceUnavailable, post(sc.fleet[0].url()))
	// Long enough for a relayer to miss the transactions on the node, and send them again.
	head, err := fresh.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	eventually(t, patience, func() bool {
		now, err := fresh.Client().BlockNumber(t.Context())
		return err == nil && now >= head+8
	}, "the new chain makes no blocks")
	for _, a := range addresses {
		count, err := fresh.Client().PendingNonceAt(t.Context(), a)
		require.NoError(t, err)
		require.Zero(t, count, "something was sent on the new chain")
	}
	var pool struct {
		Pending, Queued map[string]map[string]*types.Transaction
	}
	require.NoError(t, fresh.Client().Client().CallContext(t.Context(), &pool, "txpool_content"))
	require.Empty(t, pool.Pending)
	require.Empty(t, pool.Queued)
	sc.fleet.stop()
}

// A chain may start again with the same first block, if its genesis is configured, and while it is short.
func TestChainReset_ShortWithSameGenesis_Refuses(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{keys: 2, relayers: 2, inFlight: 64, confirmations: 2, geth: pool(1000)})
	v := sc.truth()
	l := sc.load(40)
	l.clients, l.pace = 8, 50*time.Millisecond
	l.run(t.Context(), sc.random)
	v.settled(patience)
	goOn := sc.underWay()
	// geth may return the transactions of removed blocks to its pool by itself. Only transactions that it is sent
	// count.
	for _, p := range sc.proxies {
		p.SetRules(proxy.Rule{Name: "sent", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse}})
		p.Switch(true)
	}
	sc.node.SetHead(0)
	goOn()
	var addresses []common.Address
	for _, k := range sc.keys {
		addresses = append(addresses, k.Address)
	}
	sc.node.Fund(testchain.Ether(1000), addresses...) // only the relayers' own checks keep them from sending
	for _, m := range sc.fleet {
		eventually(t, patience, func() bool {
			code, body := health(t, m.url())
			return code == http.StatusServiceUnavailable && strings.Contains(body, "history")
		}, "%s does not see that the chain began again", m.name)
	}
	// Long enough for a relayer to miss the transactions on the node, and send them again.
	again, err := v.chain.BlockNumber(t.Context())
	require.NoError(t, err)
	eventually(t, patience, func() bool {
		now, err := v.chain.BlockNumber(t.Context())
		return err == nil && now >= again+8
	}, "no blocks")
	for _, p := range sc.proxies {
		require.Zero(t, p.Injected()["sent"], "something was sent on the new chain")
	}
	sc.fleet.stop()
}
