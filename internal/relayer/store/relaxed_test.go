package store

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Only commits of changes that the chain or the nodes can report again return before they are on disk.
func TestCommits_WaitForTheDisk_UnlessRepeatable(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "target")
	// Deferred triggers run at the commit, and record its synchronous_commit setting.
	_, err := s.db.Exec(t.Context(), `CREATE TABLE commits (setting text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO commits VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON relayer_txs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
		CREATE CONSTRAINT TRIGGER note AFTER INSERT ON relayer_attempts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
		CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON relayer_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
	require.NoError(t, err)
	commits := func(want, doing string) {
		t.Helper()
		rows, err := s.db.Query(t.Context(), `DELETE FROM commits RETURNING setting`)
		require.NoError(t, err)
		settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotEmpty(t, settings, doing)
		for _, setting := range settings {
			require.Equal(t, want, setting, doing)
		}
	}
	full := limits
	full.Cap = 3
	txs := accept(t, s, full, newTxs(s, 5)...)
	commits("off", "accept") // a second commit waits for the disk
	_, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{
		attempt(txs[0], 1, relayer.PurposeSend), attempt(txs[1], 1, relayer.PurposeSend), attempt(txs[2], 1, relayer.PurposeSend),
	})
	require.NoError(t, err)
	commits("on", "store attempts")
	var broadcasts []Broadcast
	for _, tx := range txs[:3] {
		a := attempt(tx, 1, relayer.PurposeSend)
		broadcasts = append(broadcasts, Broadcast{TxID: a.TxID, Number: 1, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted})
	}
	require.NoError(t, s.RecordBroadcasts(t.Context(), broadcasts))
	commits("off", "record broadcasts")
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 7)}))
	commits("off", "record what was mined")
	_, err = s.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	commits("off", "confirm")
	_, err = s.Dispatch(t.Context(), full, 10)
	require.NoError(t, err)
	commits("off", "dispatch") // likewise
	_, err = s.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	commits("on", "cancel")
	_, err = s.RequestBump(t.Context(), txs[2].ID)
	require.NoError(t, err)
	commits("on", "ask for a higher fee")
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), txs[2].ID, txs[2].From, 0, *txs[2].Nonce, common.Hash{0xee}, Block{8, blockHash(8)})))
	commits("on", "displace")
	_, err = s.CancelPending(t.Context(), common.Address{}, time.Now().Add(time.Hour), "by a test", 10)
	require.NoError(t, err)
	commits("on", "cancel what is pending")
	_, err = s.AdvanceNonce(t.Context(), limits.Held[0], 0, 9)
	require.NoError(t, err)
	commits("on", "raise")
	_, err = s.FillNonceGaps(t.Context(), limits.Held[0], 0, 0, 0)
	require.NoError(t, err)
	commits("off", "fill") // likewise
}

// While mined transactions and their webhooks are stored, the keys are not locked, because callers that post wait for them.
func TestRecordMined_StoringWebhooks_LocksNoKey(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "target")
	txs := accept(t, s, limits, newTxs(s, 3)...)
	broadcast(t, s, txs...)
	_, err := s.db.Exec(t.Context(), `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
		CREATE TRIGGER hold BEFORE INSERT ON relayer_webhooks FOR EACH ROW EXECUTE FUNCTION hold()`)
	require.NoError(t, err)
	var free int
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
		require.NoError(t, err)
	}, func() error {
		return s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 7), mined(txs[1], 1, relayer.PurposeSend, 7)})
	}, func() {
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT FROM relayer_keys FOR UPDATE SKIP LOCKED) AS free`).Scan(&free))
	})
	require.Equal(t, 1, free)
	require.Equal(t, []int{1}, pending(t, s))
}
