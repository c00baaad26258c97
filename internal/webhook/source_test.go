package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

func TestClients_Body_IsTheChangeOfTheTransaction(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	id := newTx(t)
	change(t, db, id, 7, "here")
	write(t, db, `UPDATE deliveries SET transaction_id = 'order-1', status = 'mined', status_reason = $1, tx_hash = decode(repeat('ab', 32), 'hex'),
		accepted_at = '2026-11-12 13:14:15.678901Z', changed_at = '2026-11-12 13:14:16Z'`, "Łódź 東京 \"é\" </script> & 🦊")
	webhook := only(t, db, id, 7).ID
	begin := time.Now().Truncate(time.Microsecond)
	run(t, db, settings(r.target("here")))
	got := r.waitTaken(1)[0]

	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"rollcall"}, "Accept-Encoding": nil,
		"Content-Length": {fmt.Sprint(len(got.body))}, "Webhook-Id": {webhook},
		"Webhook-Timestamp": got.header["Webhook-Timestamp"], "Webhook-Signature": got.header["Webhook-Signature"],
		"X-Signature": got.header["X-Signature"],
	}, withNil(got.header, "Accept-Encoding"))
	at := got.Timestamp
	require.WithinRange(t, at, begin, time.Now())
	require.Equal(t, fmt.Sprint(at.Unix()), got.header.Get(signature.HeaderTimestamp))
	require.Equal(t, `{"id":"`+webhook+`","event":"transaction_update","payload":{"transactionId":"order-1","hash":"0x`+strings.Repeat("ab", 32)+`","status":"mined",`+
		`"createdAt":"2026-11-12T13:14:15.678Z","reason":"Łódź 東京 \"é\" </script> & 🦊","revision":7,"updatedAt":"2026-11-12T13:14:16.000Z"},`+
		`"timestamp":"`+at.Format("2006-01-02T15:04:05.000000Z")+`"}`, string(got.body))

	for _, dialect := range []signature.Dialect{signature.StandardWebhooks, signature.OpenZeppelin} {
		key, err := signature.NewKey(secret)
		require.NoError(t, err)
		v, err := signature.Verify([]signature.Key{key}, got.header, got.body, time.Now(), 0)
		require.NoError(t, err)
		require.Equal(t, dialect, v.Dialect)
		got.header.Del(signature.HeaderSignature)
	}
	list, err := db.letters(t).List(t.Context(), deadletter.Filter{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "transaction_update", list[0].Event)
	require.Equal(t, id.String(), list[0].Transaction)
}

// An error of a payload is not the target's fault, and delays no other delivery.
func TestPayload_Error_DeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	owner := *db.owner
	owner.Source.Read = func(w outbox.Work) (string, any, error) {
		if strings.Contains(string(w.Payload), `"bad"`) {
			return "", nil, errors.New("it is unreadable")
		}
		return db.owner.Source.Read(w)
	}
	r := newReceiver(t, nil)
	write(t, db, `INSERT INTO deliveries (lane, subject, payload) SELECT 'here', n || '/here', '{"bad": 1}' FROM generate_series(1, 5) n`)
	id := newTx(t)
	change(t, db, id, 1, "here")
	run(t, &testDB{db.Pool, &owner}, settings(r.target("here")))
	require.Equal(t, id.String(), r.waitTaken(1)[0].Payload.ID)
	eventually(t, "the others become dead letters", func() bool {
		list, err := db.letters(t).List(t.Context(), deadletter.Filter{State: outbox.Dead})
		return err == nil && len(list) == 5 && list[0].Reason == "it is unreadable" && list[0].Attempts == 1
	})
}

// The relayer's table holds deliveries of several pools.
func TestPrefix_DeliveriesOfAnother_AreLeftAlone(t *testing.T) {
	t.Parallel()
	db := ownerNamed("relayer").database(t)
	var foreign []uuid.UUID
	for i, state := range []string{"'waiting'", "'waiting', due_at = now() + interval '1 h'", "'done'", "'dead'"} {
		for _, target := range []string{"here", "former"} {
			id := newTx(t)
			change(t, db, id, 1, target)
			write(t, db, "UPDATE deliveries SET lane = $2, created_at = now() - interval '4 days', settled_at = now() - interval '4 days', state = "+state+
				" WHERE about = $1", id, []string{"1337/pool-2/", "1337/pool-11/", "133/pool-1/", "1337/pool-0/"}[i]+target)
			foreign = append(foreign, id)
		}
	}
	own := newTx(t)
	change(t, db, own, 1, "here")
	state := func() (rows string) {
		require.NoError(t, db.QueryRow(t.Context(), "SELECT array_agg(d ORDER BY id)::text FROM deliveries d WHERE about = ANY($1)", foreign).Scan(&rows))
		return rows
	}
	before := state()
	r := newReceiver(t, nil)
	d, stop := run(t, db, settings(r.target("here")))
	require.Equal(t, own.String(), r.waitTaken(1)[0].Payload.ID)
	eventually(t, "it is noted", func() bool { return only(t, db, own, 1).State == outbox.Done })
	d.back(t.Context(), d.targets[db.lane("here")], db.lane("here"))
	stop() // it has purged and abandoned

	list, err := db.letters(t).List(t.Context(), deadletter.Filter{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	n, err := db.letters(t).Replay(t.Context(), deadletter.Filter{})
	require.NoError(t, err)
	require.Zero(t, n)
	var ids []string
	require.NoError(t, db.QueryRow(t.Context(), "SELECT array_agg(id) FROM deliveries WHERE about = ANY($1)", foreign).Scan(&ids))
	for _, f := range []deadletter.Filter{{IDs: ids}, {Transaction: foreign[6]}} {
		n, err = db.letters(t).Replay(t.Context(), f)
		require.NoError(t, err)
		require.Zero(t, n)
	}
	require.Equal(t, before, state())
}

func withNil(h http.Header, name string) http.Header {
	h = h.Clone()
	h[name] = nil
	return h
}
