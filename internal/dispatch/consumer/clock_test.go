package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

// A relayer without idempotency keys whose clock is off has a transaction of which its answer was lost. It is found.
func TestConsumer_RelayersClockIsOff_FindsTheTransaction(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind": -10 * time.Minute, "ahead": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, upstreamtest.Options{Key: key, Now: func() time.Time { return time.Now().Add(off) }})
			w := setup(t, r)
			r.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
				r.Fail(upstreamtest.Submit, nil)
				upstreamtest.AcceptAndDrop(c)
			})
			id := w.post(1)
			w.consume()
			tx := w.reaches(id, dispatch.Submitted)
			require.Equal(t, r.Transactions()[0].ID, tx.RelayerTx)
			require.Len(t, r.Transactions(), 1)
			w.drained()
		})
	}
}

// putDatabaseAhead puts the database's clock ahead of this process's, for all statements but the defaults of columns.
func (w *world) putDatabaseAhead(ahead time.Duration) {
	w.t.Helper()
	for _, statement := range []string{
		fmt.Sprintf(`CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT pg_catalog.now() + interval '%d seconds'$$`,
			int(ahead.Seconds())),
		`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END$$`,
	} {
		_, err := w.db.Exec(w.t.Context(), statement)
		require.NoError(w.t, err)
	}
	w.db.Reset() // new connections have the setting
	var off time.Duration
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT now() - pg_catalog.now()`).Scan(&off))
	require.Equal(w.t, ahead, off)
}

// The database's clock is ahead of this process's. A transaction that a relayer without idempotency keys has is found nevertheless, whether
// its answer was lost or was a 500, and is not sent again.
func TestConsumer_DatabasesClockIsAhead_FindsTheTransaction(t *testing.T) {
	for name, fault := range map[string]upstreamtest.Fault{"no answer": upstreamtest.AcceptAndDrop, "a 500": upstreamtest.AcceptAndFail(500)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := foreign(t)
			w := setup(t, r)
			w.putDatabaseAhead(30 * time.Minute)
			r.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
				r.Fail(upstreamtest.Submit, nil)
				fault(c)
			})
			id := w.post(1)
			w.consume()
			require.Eventually(t, func() bool {
				tx, err := w.ByID(t.Context(), id)
				return err == nil && (tx.Status == dispatch.Submitted || tx.Status == dispatch.Unknown)
			}, 2*time.Minute, 10*time.Millisecond)
			require.Len(t, r.Transactions(), 1)
			tx, err := w.ByID(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, r.Transactions()[0].ID, tx.RelayerTx, tx.Reason)
			w.drained()
		})
	}
}
