package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

func TestSource_Incomplete_AllProblemsAreReported(t *testing.T) {
	t.Parallel()
	for _, o := range owners {
		require.NoError(t, o.Source.validate(), o.Name)
	}
	err := Source{Scope: []ScopeColumn{{Name: "chain_id", Value: int64(0)}, {Name: "pool_id", Value: ""}, {Name: "realm"}, {"era", 1}}}.validate()
	require.EqualError(t, err, `the source of webhooks has no table
the source of webhooks has no event
the source of webhooks has no transaction
the source of webhooks has no columns
the source of webhooks has no value of chain_id
the source of webhooks has no value of pool_id
the source of webhooks has no value of realm
the source of webhooks has no function to scan a row`)
}

func TestPlainSource_Event_IsALiteral(t *testing.T) {
	t.Parallel()
	require.Equal(t, `'it''s'`, PlainSource("t", "it's").Event)
}

func TestPlainSource_Body_IsTheStoredPayload(t *testing.T) {
	t.Parallel()
	db := plain.database(t)
	r := newReceiver(t, nil)
	id := newTx(t)
	webhook := uuid.Must(uuid.NewV7()) // an older one would be purged once it is delivered
	write(t, db, `INSERT INTO deliveries (id, target, subject, revision, payload) VALUES ($1, 'here', $2, 7, $3)`,
		webhook, id, `{"value": "115792089237316195423570985008687907853269984665640564039457584007913129639935", "n": 9007199254740993,
			"reason": "Łódź 東京 \"é\" </script> & 🦊", "none": null}`)
	begin := time.Now().Truncate(time.Microsecond)
	run(t, db, settings(r.target("here")))
	got := r.waitTaken(1)[0]

	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"rollcall"}, "Accept-Encoding": nil,
		"Content-Length": {fmt.Sprint(len(got.body))}, "Webhook-Id": {webhook.String()},
		"Webhook-Timestamp": got.header["Webhook-Timestamp"], "Webhook-Signature": got.header["Webhook-Signature"],
		"X-Signature": got.header["X-Signature"],
	}, withNil(got.header, "Accept-Encoding"))
	at := got.Timestamp
	require.WithinRange(t, at, begin, time.Now())
	require.Equal(t, fmt.Sprint(at.Unix()), got.header.Get(signature.HeaderTimestamp))
	require.Equal(t, `{"id":"`+webhook.String()+`","event":"transaction_update","payload":{"n":9007199254740993,"none":null,`+
		`"value":"115792089237316195423570985008687907853269984665640564039457584007913129639935",`+
		`"reason":"Łódź 東京 \"é\" </script> & 🦊"},"timestamp":"`+at.Format("2006-01-02T15:04:05.000000Z")+`"}`, string(got.body))

	for _, dialect := range []signature.Dialect{signature.StandardWebhooks, signature.OpenZeppelin} {
		key, err := signature.NewKey(secret)
		require.NoError(t, err)
		v, err := signature.Verify([]signature.Key{key}, got.header, got.body, time.Now(), 0)
		require.NoError(t, err)
		require.Equal(t, dialect, v.Dialect)
		got.header.Del(signature.HeaderSignature)
	}
	list, err := db.outbox().List(t.Context(), Filter{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "transaction_update", list[0].Event)
	require.Equal(t, &id, list[0].Transaction)
	require.Equal(t, id, list[0].Subject)
}

func withNil(h http.Header, name string) http.Header {
	h = h.Clone()
	h[name] = nil
	return h
}

// An error of a payload is not the target's fault, and delays no other delivery.
func TestPayload_Error_DeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	owner := *db.owner
	owner.Source.Scan = func(row pgx.CollectableRow) (Payload, error) {
		payload, err := db.owner.Source.Scan(row)
		return func() (any, error) {
			text, err := payload()
			if strings.Contains(fmt.Sprintf("%s", text), `"bad": 1`) {
				return nil, errors.New("it is unreadable")
			}
			return text, err
		}, err
	}
	r := newReceiver(t, nil)
	db.insert(t, "target, subject, revision, payload", `'here', md5(n::text)::uuid, 1, '{"bad": 1}' FROM generate_series(1, 5) n`)
	id := newTx(t)
	change(t, db, id, 1, "here")
	d, _ := run(t, &testDB{db.Pool, &owner}, settings(r.target("here")))
	require.Equal(t, id.String(), r.waitTaken(1)[0].Payload.ID)
	eventually(t, "the others become dead letters", func() bool {
		list, err := d.List(t.Context(), Filter{State: DeadLetter})
		return err == nil && len(list) == 5 && list[0].LastError == "it is unreadable" && list[0].Attempts == 1
	})
}

// scoped is a database that also holds a delivery of another scope, in each state.
func scoped(t *testing.T) (db *testDB, foreign []uuid.UUID) {
	t.Helper()
	o := owners[len(owners)-1]
	require.Len(t, o.Source.Scope, 2)
	db = o.database(t)
	for _, state := range []string{"'due'", "'due', next_at = now() + interval '1 h'", "'delivered'", "'dead_letter'"} {
		id := newTx(t)
		change(t, db, id, 1, "here")
		write(t, db, "UPDATE deliveries SET pool_id = 'pool-2', id = "+idOfAge("interval '4 days'")+", state = "+state+" WHERE subject = $1", id)
		foreign = append(foreign, id)
	}
	return db, foreign
}

func TestScope_DeliveriesOfAnother_AreLeftAlone(t *testing.T) {
	t.Parallel()
	db, foreign := scoped(t)
	own := newTx(t)
	change(t, db, own, 1, "here")
	state := func() (rows string) {
		require.NoError(t, db.QueryRow(t.Context(), "SELECT array_agg(d ORDER BY id)::text FROM deliveries d WHERE subject = ANY($1)", foreign).Scan(&rows))
		return rows
	}
	before := state()
	r := newReceiver(t, nil)
	d, stop := run(t, db, settings(r.target("here")))
	require.Equal(t, own.String(), r.waitTaken(1)[0].Payload.ID)
	eventually(t, "it is noted", func() bool { return only(t, db, own, 1).State == Delivered })
	stop()

	list, err := d.List(t.Context(), Filter{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	counts, err := d.Counts(t.Context())
	require.NoError(t, err)
	require.Empty(t, counts)
	n, err := d.Replay(t.Context(), Filter{})
	require.NoError(t, err)
	require.Zero(t, n)
	var ids []uuid.UUID
	require.NoError(t, db.QueryRow(t.Context(), "SELECT array_agg(id) FROM deliveries WHERE subject = ANY($1)", foreign).Scan(&ids))
	n, err = d.Replay(t.Context(), Filter{IDs: ids})
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = d.Purge(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = d.deadLetterOrphans(t.Context(), []string{}, -2*time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	_, _, _, err = d.syncBatch(t.Context(), nil, []demand{{target: "here", n: 10, retryNow: true}})
	require.NoError(t, err)
	require.Equal(t, before, state())
}
