package service_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// While no nonces are allocated after a database failover, the relayer reports unhealthy, so that callers use another one.
func TestHealth_DatabaseFailedOver_NotReadyWhileNothingIsAllocated(t *testing.T) {
	f := setup(t, 1)
	var down atomic.Bool
	f.options.Tracker = func(c *tracker.Config) {
		c.Everywhere = func(_ context.Context, keys []common.Address) ([]uint64, error) {
			if down.Load() {
				return nil, errors.New("a node is down")
			}
			return make([]uint64, len(keys)), nil
		}
	}
	down.Store(true)
	r := f.start(t)
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `UPDATE relayer_pools SET timeline = '00000000'`)
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	require.Eventually(t, func() bool {
		h := r.Health()
		return !h.Ready && strings.Contains(h.Reason, "nonces: the database failed over or was restored")
	}, 2*time.Minute, 10*time.Millisecond)
	down.Store(false)
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
	r.Send(t, f.chain.Accounts[0].Address, 1, nil)
}
