package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A caller that has read a mined or final status never reads an earlier one, even if Postgres crashes. Its background
// writer of the log is too slow to help here.
func TestTransaction_ReadAsSettled_SurvivesACrash(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t, map[string]string{"wal_writer_delay": "10s"})
	migrate(t, server.URL())
	s, limits := open(t, server.Pool(t), 1)
	txs := accept(t, s, limits, newTxs(s, 2)...)
	broadcast(t, s, txs...)
	status := func(tx *relayer.Transaction) (status relayer.Status) {
		t.Helper()
		require.Eventually(t, func() bool { // connections from before a crash are broken
			now, err := s.Transaction(t.Context(), tx.ID)
			if err == nil {
				status = now.Status
			}
			return err == nil
		}, 2*time.Minute, 10*time.Millisecond)
		return status
	}
	listed := func(tx *relayer.Transaction) relayer.Status {
		t.Helper()
		var found []*relayer.Transaction
		require.Eventually(t, func() (ok bool) {
			var err error
			found, _, err = s.Transactions(t.Context(), Filter{}, 0, 10)
			return err == nil
		}, 2*time.Minute, 10*time.Millisecond)
		for _, f := range found {
			if f.ID == tx.ID {
				return f.Status
			}
		}
		return ""
	}
	for i, read := range []func(*relayer.Transaction) relayer.Status{status, listed} {
		tx := txs[i]
		block := uint64(7 + i)
		require.Equal(t, relayer.Broadcasted, read(tx))
		require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, block)}))
		require.Equal(t, relayer.Mined, read(tx))
		server.Kill()
		server.Restart()
		require.Equal(t, relayer.Mined, read(tx))
		_, err := s.Confirm(t.Context(), []Block{{block, blockHash(block)}})
		require.NoError(t, err)
		require.Equal(t, relayer.Confirmed, read(tx))
		server.Kill()
		server.Restart()
		require.Equal(t, relayer.Confirmed, read(tx))
	}
}
