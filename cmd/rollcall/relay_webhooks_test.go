package main

import (
	"bytes"
	"context"
	"fmt"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// A client's webhook does not wait for the poll of a deliverer, whichever process stores the change: it wakes those of all APIs.
func TestRelayRoles_WebhookStored_WakesTheDeliverers(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations()))
	s := store.New(db.Pool(t), store.Config{Enqueue: queue.EnqueueSQL, Targets: []string{"shop"}})
	deliverer, err := pgx.Connect(t.Context(), db.URL()) // it only listens, and sends nothing
	require.NoError(t, err)
	defer func() { require.NoError(t, deliverer.Close(context.WithoutCancel(t.Context()))) }()
	_, err = deliverer.Exec(t.Context(), `LISTEN relay_webhooks`)
	require.NoError(t, err)
	wakes := func(by *background) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err := deliverer.WaitForNotification(ctx)
		require.NoError(t, err, "%s", &by.log)
		require.Zero(t, by.stop())
	}

	tx := &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct,
		Call: dispatch.Call{To: common.Address{1}, Value: new(big.Int), GasLimit: 100_000, Speed: dispatch.Average},
	}
	accepted, err := s.Accept(t.Context(), []*dispatch.Transaction{tx})
	require.NoError(t, err)
	require.NoError(t, accepted[0].Err)
	redisURL, _ := relayers(t, upstreamtest.Options{Scope: "0123456789abcdef"})
	wakes(start(t, "consumer", "--listen", "127.0.0.1:0", "--database-url", db.URL(), "--relayer-key", relayerKey, "--redis-url", redisURL))
	tx, err = s.ByID(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Equal(t, dispatch.Submitted, tx.Status)

	listen := freeAddress(t)
	api := start(t, "api", "--listen", listen, "--database-url", db.URL(), "--api-keys", "shop:"+clientKey, "--webhook-secret", inboundSecret)
	require.Eventually(t, func() bool {
		code, _ := fetch(t, "http://"+listen+"/ready")
		return code == http.StatusOK
	}, 2*time.Minute, 10*time.Millisecond, "%s", &api.log)
	body := fmt.Appendf(nil, `{"id": "w1", "event": "transaction_update", "payload": {"payload_type": "transaction", "id": %q, "status": "mined",
		"hash": "%#x"}, "timestamp": %q}`, tx.RelayerTx, common.Hash{9}, time.Now().UTC().Format(time.RFC3339Nano))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/api/v1/webhooks/oz-relayer", bytes.NewReader(body))
	require.NoError(t, err)
	key, err := signature.NewKey(inboundSecret)
	require.NoError(t, err)
	signature.Sign(r.Header, []signature.Key{key}, "w1", time.Now(), body)
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	wakes(api)
}
