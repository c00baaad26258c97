package publish_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

const signingKey = "a-signing-key-of-32-characters-or-more"

// hook is a receiver of webhooks.
type hook struct {
	server *httptest.Server

	mu      sync.Mutex
	got     []json.RawMessage // payloads
	changed chan struct{}     // closed and replaced with each one
}

func newHook(t *testing.T) *hook {
	t.Helper()
	key, err := signature.NewKey(signingKey)
	require.NoError(t, err)
	h := &hook{changed: make(chan struct{})}
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = signature.Verify([]signature.Key{key}, r.Header, text, time.Now(), time.Hour)
		}
		var body webhook.Body[json.RawMessage]
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil || body.Event != publish.EventMessage {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, body.Payload)
		close(h.changed)
		h.changed = make(chan struct{})
	}))
	t.Cleanup(h.server.Close)
	return h
}

// await returns the payloads once there are n.
func (h *hook) await(t *testing.T, n int) []json.RawMessage {
	t.Helper()
	limit := time.After(patience)
	for {
		h.mu.Lock()
		all, changed := h.got, h.changed
		h.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%d of %d webhooks within %v", len(all), n, patience)
		}
	}
}

// deliver runs a deliverer of a source to the receiver until the test ends.
func (h *hook) deliver(t *testing.T, db *pgxpool.Pool, source webhook.Source) {
	t.Helper()
	d, err := webhook.New(db, source, webhook.Config{
		AllowPrivate: true, Targets: []webhook.Target{{Name: "here", URL: h.server.URL, SigningKeys: []string{signingKey}}},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// insertHooks adds messages of escrows for the receiver, as the store does.
func insertHooks(t *testing.T, db *pgxpool.Pool, last int) (want int) {
	t.Helper()
	box, err := outbox.New(db, store.Outbox)
	require.NoError(t, err)
	var entries []outbox.Entry
	to := store.Lane(1337, publish.WebhookTarget("here"))
	for _, escrow := range escrows(20) {
		for n := 1; n <= last; n++ {
			m := events.Message{Envelope: events.Envelope{EventID: "e", Revision: n, Status: events.Final, Sequence: int64(n), Type: "Approved", ChainID: 1337, Escrow: escrow}}
			text, err := m.Encode()
			require.NoError(t, err)
			entries = append(entries, outbox.Entry{Lane: to, Subject: to + "/" + m.OrderingKey(), Partition: events.Partition(escrow), Payload: text})
		}
	}
	require.NoError(t, postgres.InTx(t.Context(), db, func(tx pgx.Tx) error { return box.Insert(t.Context(), tx, entries...) }))
	return len(entries)
}

// Two processes, each with its partitions, deliver the messages of each escrow in order.
func TestWebhooks_StaticPartitions_EachEscrowInOrder(t *testing.T) {
	t.Parallel()
	db, all, reg := database(t), 0, prometheus.NewRegistry()
	metrics := publish.NewMetrics(reg)
	want := insertHooks(t, db, 5)
	for number := range 2 {
		h := newHook(t)
		h.deliver(t, db, publish.Webhooks(1337, 2, number, metrics))
		mine := 0
		for _, escrow := range escrows(20) {
			if events.Partition(escrow)%2 == number {
				mine += 5
			}
		}
		last := map[string]int64{}
		for _, text := range h.await(t, mine) {
			var m events.Message
			require.NoError(t, json.Unmarshal(text, &m))
			require.Equal(t, number, events.Partition(m.Escrow)%2)
			last[m.OrderingKey()]++
			require.Equal(t, last[m.OrderingKey()], m.Sequence)
		}
		all += mine
	}
	require.Equal(t, want, all)
	require.Eventually(t, func() bool { return count(t, reg, "relayer_events_published") == float64(want) }, patience, time.Millisecond)
}

// No webhook leaves while the chain is halted, and all do when an operator resumes it.
func TestWebhooks_Halted_DeliverNothing(t *testing.T) {
	t.Parallel()
	db, h := database(t), newHook(t)
	want := insertHooks(t, db, 2)
	halted, claimed := make(chan struct{}), make(chan struct{}, 1)
	source := publish.Webhooks(1337, 0, 0, publish.NewMetrics(nil))
	source.Held = func(outbox.Work) bool {
		select {
		case <-halted:
			return false
		default:
		}
		select {
		case claimed <- struct{}{}:
		default:
		}
		return true
	}
	h.deliver(t, db, source)
	<-claimed
	require.Empty(t, h.await(t, 0))
	close(halted)
	require.Len(t, h.await(t, want), want)
}
