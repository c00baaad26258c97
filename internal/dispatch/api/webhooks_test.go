package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

const webhookPath = "/api/v1/webhooks/oz-relayer"

// sign returns the header of OpenZeppelin Relayer for a body.
func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

var testHash = "0x" + strings.Repeat("ab", 32)

// nested returns a body of OpenZeppelin Relayer, with this project's revision unless it is 0.
func nested(relayerTx, status string, revision int, at time.Time) string {
	return fmt.Sprintf(`{"id": "w1", "event": "transaction_update", "payload": {"payload_type": "transaction", "id": %q, "hash": %q,
		"status": %q, "status_reason": null, "revision": %d, "value": "0x1"}, "timestamp": %q}`, relayerTx, testHash, status, revision, at.UTC().Format(time.RFC3339Nano))
}

// report posts a body with the header of a dialect, and returns the answer.
func (s *server) report(body, header, sig string) (int, received) {
	s.t.Helper()
	status, answer, _ := s.do(http.MethodPost, webhookPath, "", body, header, sig)
	var r received
	require.NoError(s.t, json.Unmarshal(answer, &r))
	return status, r
}

// Reports in both dialects, signed with either secret, move a transaction to its end.
func TestWebhook_BothDialects_AreApplied(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	body := nested("r1", "mined", 4, time.Now())
	status, r := s.report(body, signature.HeaderOpenZeppelin, sign(oldSecret, body))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, received{Known: true, Changed: true}, r)
	flat := `{"event": "transaction_confirmed", "ozRelayerTxId": "r1", "transactionHash": "` + testHash + `", "timestamp": "` + time.Now().UTC().Format(time.RFC3339Nano) + `"}`
	status, r = s.report(flat, signature.HeaderOpenZeppelinOld, sign(newSecret, flat))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, received{Known: true, Changed: true}, r)
	tx, err := s.store.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, tx.Status)
	require.Equal(t, testHash, tx.Hash.Hex())
	for range 2 { // repeated and late
		status, r = s.report(body, signature.HeaderOpenZeppelin, sign(oldSecret, body))
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, received{Known: true}, r)
	}
}

// OpenZeppelin's relayer reports a no-op, to its own address, under the id of the transaction that it replaced.
func TestWebhook_NoOp_IsUnknown(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "value": "7", "data": "0xAb", "transactionId": "own"}`), "r1")
	s.atRelayer(s.post(`{"to": `+to+`, "value": "7", "data": "0xAb", "transactionId": "no-op"}`), "r2")
	call := func(body, fields string) string { return strings.Replace(body, `"value": "0x1"`, fields, 1) }
	for id, c := range map[string]struct {
		body string
		want dispatch.Status
	}{
		"own":   {call(nested("r1", "confirmed", 0, time.Now()), `"to": `+to+`, "value": "0x7", "data": "0xab"`), dispatch.Confirmed},
		"no-op": {call(nested("r2", "confirmed", 0, time.Now()), `"to": "0x00000000000000000000000000000000000000ee", "value": "0x0", "data": null`), dispatch.Unknown},
	} {
		status, r := s.report(c.body, signature.HeaderOpenZeppelin, sign(newSecret, c.body))
		require.Equal(t, http.StatusOK, status)
		require.True(t, r.Changed)
		tx, err := s.store.Get(t.Context(), "shop", id)
		require.NoError(t, err)
		require.Equal(t, c.want, tx.Status, "%s: %s", id, tx.Reason)
	}
}

// A report of an unknown transaction is applied when its id arrives.
func TestWebhook_UnknownTransaction_IsKept(t *testing.T) {
	s := start(t, nil, nil)
	body := nested("r1", "confirmed", 5, time.Now())
	status, r := s.report(body, signature.HeaderOpenZeppelin, sign(newSecret, body))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, received{}, r)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	tx, err := s.store.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, tx.Status)
}

// A webhook without a valid signature is a 401 and changes nothing: altered, signed with another secret, unsigned, too old.
func TestWebhook_BadSignature_IsRefused(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	good, old := nested("r1", "confirmed", 5, time.Now()), nested("r1", "confirmed", 5, time.Now().Add(-6*time.Minute))
	standard := http.Header{}
	signature.Sign(standard, []signature.Key{secret(t, newSecret)}, "w1", time.Now().Add(-6*time.Minute), []byte(good))
	for name, c := range map[string]struct {
		body    string
		headers []string
	}{
		"altered":       {strings.Replace(good, "confirmed", "failed", 1), []string{signature.HeaderOpenZeppelin, sign(newSecret, good)}},
		"other secret":  {good, []string{signature.HeaderOpenZeppelin, sign(strings.Repeat("x", 32), good)}},
		"no header":     {good, nil},
		"empty header":  {good, []string{signature.HeaderOpenZeppelin, ""}},
		"too old":       {old, []string{signature.HeaderOpenZeppelin, sign(newSecret, old)}},
		"standard, old": {good, []string{signature.HeaderID, "w1", signature.HeaderTimestamp, standard.Get(signature.HeaderTimestamp), signature.HeaderSignature, standard.Get(signature.HeaderSignature)}},
		"an API key":    {good, []string{"X-Api-Key", shopKey}},
	} {
		status, answer, _ := s.do(http.MethodPost, webhookPath, "", c.body, c.headers...)
		require.Equal(t, http.StatusUnauthorized, status, name)
		require.NotContains(t, string(answer), "old", name)
	}
	tx, err := s.store.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	require.Equal(t, dispatch.Submitted, tx.Status)
	require.Zero(t, s.count(`SELECT count(*) FROM relay_reports`))
}

// A signed body that is no report of a transaction is refused, or ignored if it reports a relayer.
func TestWebhook_OtherBodies(t *testing.T) {
	s := start(t, nil, nil)
	for body, want := range map[string]int{
		`{"event": "relayer_state_update", "payload": {"payload_type": "relayer_disabled"}}`: http.StatusOK,
		`{}`: http.StatusOK, `[]`: http.StatusBadRequest, `x`: http.StatusBadRequest,
		`{"payload": {"id": "r1", "status": "lost"}}`:                                               http.StatusBadRequest,
		`{"payload": {"id": "", "status": "mined"}}`:                                                http.StatusBadRequest,
		`{"payload": {"id": "r1", "status": "mined", "hash": "0x1"}}`:                               http.StatusBadRequest,
		`{"payload": {"id": "r1", "status": "mined", "revision": -1}}`:                              http.StatusBadRequest,
		`{"payload": {"id": "a\u0000b", "status": "mined"}}`:                                        http.StatusBadRequest, // no text of Postgres
		`{"payload": {"id": "` + strings.Repeat("x", 1000) + `", "status": "mined"}}`:               http.StatusBadRequest,
		`{"payload": {"payload_type": "transaction", "id": "r9", "status": "mined", "hash": null}}`: http.StatusOK,
	} {
		status, answer, _ := s.do(http.MethodPost, webhookPath, "", body, signature.HeaderOpenZeppelin, sign(newSecret, body))
		require.Equal(t, want, status, "%s: %s", body, answer)
	}
}

// FuzzParseReport checks that no body makes parseReport panic, and that a report is within the store's bounds.
func FuzzParseReport(f *testing.F) {
	f.Add([]byte(nested("r1", "mined", 4, time.Unix(0, 0))))
	f.Add([]byte(`{"ozRelayerTxId": "r1", "event": "transaction_failed", "error": "x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		u, ok, err := parseReport(body)
		if err != nil || !ok {
			return
		}
		if !upstream.ValidID(u.RelayerTx) || !u.Status.Valid() || u.Revision < 0 || int64(u.Revision) > 1<<31-1 {
			t.Errorf("%+v of %q", u, body)
		}
	})
}

// The answer to a request for the status has the members and values of the client's webhook.
func TestStatus_HasWhatTheWebhookHas(t *testing.T) {
	s := start(t, nil, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	body := nested("r1", "mined", 4, time.Now())
	_, r := s.report(body, signature.HeaderOpenZeppelin, sign(oldSecret, body))
	require.True(t, r.Changed)
	_, answer, _ := s.do(http.MethodGet, "/relay/status/order-1", shopKey, "")
	tx, err := s.store.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	payload, err := json.Marshal(tx.View())
	require.NoError(t, err)
	var status, sent map[string]any
	require.NoError(t, json.Unmarshal(answer, &status))
	require.NoError(t, json.Unmarshal(payload, &sent))
	require.Len(t, sent, 7)
	for name, value := range sent {
		require.Equal(t, value, status[name], name)
	}
}
