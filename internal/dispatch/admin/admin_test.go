package admin_test

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
)

func TestFits_EachStatus_AllowsTheDecisionsThatCanBeTrue(t *testing.T) {
	t.Parallel()
	decisions := map[string]dispatch.Resolution{
		"retry": {Retry: true}, "failed": {Failed: true}, "executed": {Executed: new(common.Hash{1})}, "relayer-tx": {RelayerTx: "r-2"},
	}
	for _, test := range []struct {
		tx      dispatch.Transaction
		refused map[string]string
	}{
		{dispatch.Transaction{Status: dispatch.Queued}, map[string]string{"retry": "is queued already", "relayer-tx": "no relayer of its row can have it"}},
		{dispatch.Transaction{Status: dispatch.Submitting}, nil},
		{dispatch.Transaction{Status: dispatch.Unknown}, nil},
		{dispatch.Transaction{Status: dispatch.Submitted, Route: dispatch.Route{RelayerTx: "r-1"}}, map[string]string{"relayer-tx": "its relayer had it as r-1"}},
		{dispatch.Transaction{Status: dispatch.Confirmed}, map[string]string{
			"retry": "is final", "failed": "is final", "executed": "is final", "relayer-tx": "is final",
		}},
	} {
		for name, d := range decisions {
			err := admin.Fits(&test.tx, d)
			if reason := test.refused[name]; reason != "" {
				require.ErrorContains(t, err, reason, "%s, %s", test.tx.Status, name)
			} else {
				require.NoError(t, err, "%s, %s", test.tx.Status, name)
			}
		}
	}
}

func TestWaits_NothingElseEndsIt_IsTrue(t *testing.T) {
	t.Parallel()
	long, short := time.Now().Add(-store.ResolvableAfter-time.Minute), time.Now()
	for _, test := range []struct {
		tx    dispatch.Transaction
		waits bool
	}{
		{dispatch.Transaction{Status: dispatch.Queued, QuietSince: long}, false},
		{dispatch.Transaction{Status: dispatch.Submitting, QuietSince: short}, false},
		{dispatch.Transaction{Status: dispatch.Submitting, QuietSince: long}, true},
		{dispatch.Transaction{Status: dispatch.Unknown}, true},
		{dispatch.Transaction{Status: dispatch.Mined}, true},
		{dispatch.Transaction{Status: dispatch.Failed}, false},
	} {
		require.Equal(t, test.waits, admin.Waits(&test.tx), test.tx.Status)
	}
}

func TestRisk_RelayerMayHaveIt_IsNamed(t *testing.T) {
	t.Parallel()
	at := &dispatch.Transaction{Status: dispatch.Submitted, Route: dispatch.Route{Relayer: "oz-relayer-0", RelayerTx: "r-1"}}
	queued := &dispatch.Transaction{Status: dispatch.Queued}
	for _, test := range []struct {
		tx   *dispatch.Transaction
		d    dispatch.Resolution
		want string
	}{
		{at, dispatch.Resolution{Retry: true}, "If a relayer has it, it is executed twice."},
		{at, dispatch.Resolution{Failed: true}, "oz-relayer-0 has accepted it as r-1, and may execute it."},
		{queued, dispatch.Resolution{Failed: true}, ""},
		{at, dispatch.Resolution{Executed: new(common.Hash{1})}, ""},
		{at, dispatch.Resolution{RelayerTx: "r-2"}, ""},
	} {
		require.Equal(t, test.want, admin.Risk(test.tx, test.d))
	}
}
