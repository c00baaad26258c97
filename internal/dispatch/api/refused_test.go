package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// A webhook is new or old by the clock of its relayer. A recorded one is refused all the same.
func TestWebhook_RelayersClockIsOff_IsComparedByIts(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	report := func(status string, revision int, off time.Duration) int {
		body := nested("r1", status, revision, time.Now().Add(off))
		code, _ := s.report(body, signature.HeaderOpenZeppelin, sign(newSecret, body))
		return code
	}
	require.Equal(t, http.StatusUnauthorized, report("mined", 2, -6*time.Minute), "its clock is not measured")
	record := func(ahead time.Duration) {
		require.NoError(t, s.store.RecordClocks(t.Context(), map[string]time.Duration{"oz-relayer-0": ahead, "oz-relayer-1": time.Hour}))
	}
	record(-6 * time.Minute)
	require.Equal(t, http.StatusOK, report("mined", 2, -6*time.Minute))
	require.Equal(t, http.StatusUnauthorized, report("mined", 3, -12*time.Minute), "old by each clock")
	require.Equal(t, http.StatusUnauthorized, report("mined", 3, time.Hour), "new by another relayer's clock")
	record(20 * time.Minute)
	require.Equal(t, http.StatusOK, report("confirmed", 4, 20*time.Minute))
	tx, err := s.store.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, tx.Status)
	require.Zero(t, s.count(`SELECT count(*) FROM relay_transactions WHERE reported_at > now() OR reported_at < now() - interval '1 minute'`), "times are by the own clock")
	record(48 * time.Hour)
	require.Equal(t, http.StatusUnauthorized, report("confirmed", 5, 48*time.Hour), "no clock is as wrong as that")
	_, err = s.db.Exec(t.Context(), `UPDATE relay_relayer_clocks SET ahead = '20 minutes', measured_at = now() - interval '2 hours'`)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, report("confirmed", 5, 20*time.Minute), "measured too long ago")
}

// A relayer without revisions, whose clock is off by less than a webhook may be old, is compared with the answers that a consumer got.
func TestWebhook_RelayersClockIsSlightlyOff_IsNewerThanACheck(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"behind": -3 * time.Minute, "ahead": 3 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := start(t, nil, nil)
			require.NoError(t, s.store.RecordClocks(t.Context(), map[string]time.Duration{"oz-relayer-0": ahead}))
			report := func(status string, ago time.Duration) {
				body := nested("r1", status, 0, time.Now().Add(ahead-ago))
				code, _ := s.report(body, signature.HeaderOpenZeppelin, sign(newSecret, body))
				require.Equal(t, http.StatusOK, code)
			}
			report("pending", 10*time.Second) // it is kept
			s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
			read := func() *dispatch.Transaction {
				tx, err := s.store.Get(t.Context(), "shop", "order-1")
				require.NoError(t, err)
				return tx
			}
			tx := read()
			_, err := s.store.Apply(t.Context(), []dispatch.Update{{
				ID: tx.ID, Attempt: tx.Attempt, RelayerTx: "r1", Status: dispatch.Mined, Hash: &common.Hash{1}, At: time.Now().Add(-5 * time.Second),
			}})
			require.NoError(t, err)
			require.Equal(t, dispatch.Mined, read().Status, "it is newer than what was kept")
			report("submitted", 7*time.Second)
			require.Equal(t, dispatch.Mined, read().Status, "it is older than the check")
			report("confirmed", 0)
			require.Equal(t, dispatch.Confirmed, read().Status)
		})
	}
}

// An operator must see whose webhooks are refused, and why, without a line for each of them.
func TestWebhook_Refused_NamesTheRelayer(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`}`), "r1")
	old, forged, unknown := nested("r1", "mined", 2, time.Now().Add(-time.Hour)), nested("r1", "mined", 2, time.Now()), nested("r9", "mined", 2, time.Now())
	for body, sig := range map[string]string{old: sign(newSecret, old), forged: "Zm9v", unknown: "Zm9v"} {
		code, _ := s.report(body, signature.HeaderOpenZeppelin, sig)
		require.Equal(t, http.StatusUnauthorized, code)
	}
	for range 50 {
		code, _ := s.report(forged, signature.HeaderOpenZeppelin, "Zm9v")
		require.Equal(t, http.StatusUnauthorized, code)
	}
	s.http.Close()
	lines := s.log.String()
	for _, want := range []string{
		`msg="webhooks about transactions of a relayer are refused" component=api service=oz-relayer-0 clock_ahead=0s err="webhook is too old, or from the future"`,
		`msg="webhooks about transactions of a relayer are refused" component=api service=oz-relayer-0 clock_ahead=0s err="webhook signature does not match"`,
		`msg="webhooks are refused that name no known transaction" component=api err="webhook signature does not match"`,
	} {
		require.Contains(t, lines, want)
	}
	require.Less(t, strings.Count(lines, "are refused"), 40)
}

// Log lines of a request carry the ids of its trace, so that they are found from the trace.
func TestLog_RequestHasATrace_CarriesItsIDs(t *testing.T) {
	s := start(t, nil, nil)
	s.do(http.MethodPost, "/api/v1/webhooks/oz-relayer", "", "{}", signature.HeaderOpenZeppelin, "forged", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	require.Regexp(t, `msg="webhooks are refused .* trace_id=0af7651916cd43dd8448eb211c80319c span_id=[0-9a-f]{16}\n`, s.log.String())
}
