package events_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
)

func TestAnnounce_RelayerEvents_AreDeliveredInOrder(t *testing.T) {
	t.Parallel()
	db := database(t)
	key := openzeppelin.Relayer{ID: "0xaa", Name: "東京", Network: "dev", NetworkType: "evm", SystemDisabled: new(true)}
	for n := range uint32(3) {
		require.NoError(t, postgres.InTx(t.Context(), db, func(tx pgx.Tx) error {
			if err := pool.Announce(t.Context(), tx, []string{"here"}, "0xaa", events.RelayerDisabled{Relayer: key, DisableReason: "low balance"}); err != nil {
				return err
			}
			return pool.Announce(t.Context(), tx, []string{"here"}, "0xaa", events.RelayerEnabled{Relayer: key, RetryCount: n})
		}))
	}
	// A rolled back event is not delivered.
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, pool.Announce(t.Context(), tx, []string{"here"}, "0xaa", events.RelayerEnabled{}))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Error(t, pool.Announce(t.Context(), tx, []string{"here"}, "0xaa", "anything"))

	shown, err := json.Marshal(key)
	require.NoError(t, err)
	for i, sent := range deliver(t, db, 6) {
		var body struct{ Payload, Event json.RawMessage }
		require.NoError(t, json.Unmarshal(sent, &body))
		require.JSONEq(t, `"relayer_state_update"`, string(body.Event))
		if i%2 == 0 {
			require.JSONEq(t, `{"payload_type":"relayer_disabled","relayer":`+string(shown)+`,"disable_reason":"low balance"}`, string(body.Payload))
		} else {
			require.JSONEq(t, `{"payload_type":"relayer_enabled","relayer":`+string(shown)+`,"retry_count":`+string(rune('0'+i/2))+`}`, string(body.Payload))
		}
	}
}
