package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/webhook"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// escrowHook is a receiver of the monitor's webhooks.
type escrowHook struct {
	t   *testing.T
	url string

	mu  sync.Mutex
	raw []json.RawMessage // payloads, in the order of their arrival
}

func newEscrowHook(t *testing.T) *escrowHook {
	t.Helper()
	key, err := signature.NewKey(outboundSecret)
	require.NoError(t, err)
	h := &escrowHook{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		h.raw = append(h.raw, body.Payload)
	}))
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

// flags returns the settings of an instance that sends to the receiver.
func (h *escrowHook) flags() []string {
	return []string{"--webhook-allow-private", "--webhooks", fmt.Sprintf(`[{"name": "shop", "url": %q, "signingKeys": [%q]}]`, h.url, outboundSecret)}
}

// messages returns the messages by escrow, in the order of their sequences, without repetitions.
func (h *escrowHook) messages() map[common.Address][]events.Message {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[common.Address][]events.Message{}
	for _, raw := range h.raw {
		receive(h.t, all, raw)
	}
	return all
}

// targets returns the targets that the newest start has stored.
func (n *escrowNet) targets() (names []string) {
	n.t.Helper()
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), `SELECT targets FROM escrow_chains`).Scan(&names))
	return names
}

// E12: a webhook gets the messages of each escrow in order, without a topic and beside one. Each start stores its targets.
func TestEscrow_Webhook_GetsMessagesInOrder(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	hook := newEscrowHook(t)
	n.settle(2)
	alone := n.start("one", append(hook.flags(), "--pubsub-project-id=", "--pubsub-emulator-host=")...).await(t)
	n.awaitMessages(hook.messages, events.Final)
	require.Equal(t, []string{"webhook/shop"}, n.targets())
	before := slices.Collect(maps.Keys(n.escrows))
	_, metrics := fetch(t, "http://"+alone.http+"/metrics")
	require.Contains(t, metrics, `rollcall_webhook_attempts_total{outcome="delivered",target="shop"} 8`)
	require.Contains(t, metrics, "\nrelayer_events_published 8\n")
	require.NotContains(t, escrowStatus(alone.http).Health.Components, "publisher")
	require.Zero(t, alone.stop(), "%s", &alone.log)
	require.Empty(t, n.topic.Messages())

	both := n.start("one", hook.flags()...).await(t)
	require.Equal(t, []string{"topic", "webhook/shop"}, n.targets())
	n.settle(1)
	n.awaitMessages(hook.messages, events.Final)
	for _, escrow := range before {
		delete(n.escrows, escrow) // their messages were stored without the topic
	}
	n.awaitSettled()
	require.Zero(t, both.stop(), "%s", &both.log)
}

// Messages that a target has accepted are deleted after the retention, also if it is not configured any more.
func TestEscrow_TargetRemoved_ItsAcceptedMessagesAreDeleted(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	hook := newEscrowHook(t)
	require.Zero(t, n.start("one", hook.flags()...).await(t).stop())
	for lane, flags := range map[string][]string{
		"1337/topic": append(hook.flags(), "--pubsub-project-id=", "--pubsub-emulator-host="), "1337/webhook/shop": {"--pubsub-project-id=rollcall"},
	} {
		_, err := n.db.Exec(t.Context(), `INSERT INTO escrow_outbox (lane, state, created_at, settled_at) VALUES
			($1, 'done', now() - interval '73 hours', now() - interval '73 hours'), ($1, 'done', now(), now())`, lane)
		require.NoError(t, err)
		i := n.start("one", flags...).await(t)
		require.Eventually(t, func() bool {
			var left int
			require.NoError(t, n.db.QueryRow(t.Context(), `SELECT count(*) FROM escrow_outbox WHERE lane = $1`, lane).Scan(&left))
			return left == 1
		}, patience, 5*time.Millisecond, lane)
		require.Zero(t, i.stop(), "%s", &i.log)
	}
}

// With instant delivery the events of a block that is not final are pending, and final once it is.
func TestEscrow_Instant_PendingAtOnceAndFinalLater(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(1)
	i := n.start("one", "--delivery", "instant", "--finality", "1000000").await(t) // no block becomes final
	n.settle(1)
	n.awaitMessages(n.messages, events.Pending)
	require.Equal(t, "instant", escrowStatus(i.http).Delivery)
	require.Zero(t, i.stop(), "%s", &i.log)

	i = n.start("one", "--delivery", "instant").await(t)
	n.awaitMessages(n.messages, events.Pending, events.Final)
	for _, messages := range n.messages() {
		half := len(messages) / 2
		for k, pending := range messages[:half] {
			final := messages[half+k]
			require.Equal(t, []int{1, 2}, []int{pending.Revision, final.Revision})
			require.Equal(t, []any{pending.EventID, pending.BlockHash}, []any{final.EventID, final.BlockHash})
		}
	}
	require.Zero(t, i.stop(), "%s", &i.log)
}

// E5: an operator adds a factory by a backfill: an instance with the former settings ends, and names both values.
func TestEscrow_SettingsChangedMeanwhile_EndsWithBothValues(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	i := n.start("one").await(t)
	n.settle(1)
	n.awaitSettled()
	added := common.Address{1}
	_, err := n.db.Exec(t.Context(), `UPDATE escrow_chains SET factories = ARRAY[$1::bytea] || factories`, added[:])
	require.NoError(t, err)
	select {
	case <-i.done:
	case <-time.After(patience):
		t.Fatal("it has not ended")
	}
	require.Equal(t, cli.ExitNotDone, i.code)
	require.Contains(t, i.log.String(), "an operator has added to the chain's settings since this process has started: FACTORY_ADDRESS is "+lower(n.factory)+
		", and the database has "+lower(added)+","+lower(n.factory))
	require.Contains(t, n.fails(), "FACTORY_ADDRESS is")
}
