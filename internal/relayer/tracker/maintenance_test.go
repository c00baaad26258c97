package tracker_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMaintenance_SignerHangs_MinedAreRecorded(t *testing.T) {
	var remote *signertest.Fake
	f := setup(t, 1, func(o *relayertest.Options) {
		remote, o.Ring = signertest.Faked(t, o.Ring)
	})
	tx, canceled := f.send(), f.send()
	arrived, release := remote.Block()
	defer release()
	_, err := f.Store.SetIntent(t.Context(), canceled.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	<-arrived
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	release()
	f.chain.Commit()
	f.Reaches(t, canceled, relayer.Confirmed) // its own bytes were mined first
	f.settled()
}

// A node that returns no receipts, so that nothing can be recorded as mined, still receives transactions that its pool
// lacks.
func TestMaintenance_HeadsCannotBeFollowed_GoesOn(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	first := f.send()
	node.SetRules(proxy.Rule{
		Name: "no receipts", Methods: []string{"eth_getTransactionReceipt", "eth_getBlockReceipts"}, Fault: proxy.Fault{Kind: proxy.Refuse},
	})
	f.chain.Commit()
	require.Eventually(t, func() bool { return node.Injected()["no receipts"] > 0 }, 2*time.Minute, 10*time.Millisecond)
	second := f.send()
	f.chain.Rollback()
	f.oneIsPending()
	now, err := f.Transaction(t.Context(), relayertest.PoolID, first.ID)
	require.NoError(t, err)
	require.Equal(t, relayer.Broadcasted, now.Status, "its outcome is not recorded yet")
	node.SetRules()
	f.chain.Commit()
	f.Reaches(t, second, relayer.Mined)
	f.Reaches(t, first, relayer.Confirmed)
}

// A queue's counter that is too high would reject callers permanently. The tracker corrects it.
func TestTend_WrongQueueCounter_Corrected(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := setup(t, 1, func(o *relayertest.Options) {
		server := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
		o.DatabaseURL, o.Registry = server.URL(), reg
		_, err := server.Pool(t).Exec(t.Context(), `INSERT INTO relayer_queues (chain_id, pool_id, target, waiting) VALUES (1337, $1, $1, 1000000)`, relayertest.PoolID)
		require.NoError(t, err)
	})
	require.Eventually(t, func() bool {
		n, err := f.Store.Queued(t.Context())
		return err == nil && n == 0
	}, 2*time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return sum(t, reg, "rollcall_relayer_queue_corrections_total") == 1 }, 2*time.Minute, 10*time.Millisecond)
}

// sum returns the sum of a family's counters.
func sum(t *testing.T, reg *prometheus.Registry, name string) (total float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			total += m.Counter.GetValue()
		}
	}
	return total
}

// failedRounds returns the number of failed rounds, including failed maintenance.
func failedRounds(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "rollcall_relayer_tracker_rounds_total" {
			continue
		}
		for _, m := range family.Metric {
			if m.Label[0].GetValue() == "failed" {
				return m.Counter.GetValue()
			}
		}
	}
	return 0
}

// A database that does not respond blocks neither rounds nor the sender indefinitely, and all continue when it is back.
func TestDatabase_DoesNotRespond_RoundsAndSenderTimeOut(t *testing.T) {
	server := testpostgres.Own(t)
	reg := prometheus.NewRegistry()
	f := setup(t, 1, func(o *relayertest.Options) {
		o.DatabaseURL, o.Registry = server.URL()+"&statement_timeout=5000&connect_timeout=5", reg
	})
	tx := f.send()
	before := failedRounds(t, reg)
	server.Pause()
	require.Eventually(t, func() bool { return failedRounds(t, reg) > before+1 }, 2*time.Minute, 20*time.Millisecond, "it hangs")
	server.Resume()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.chain.Commit()
	f.Reaches(t, f.send(), relayer.Broadcasted)
}
