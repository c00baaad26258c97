package admin_test

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// The two kinds are in one set. A queue entry whose transaction is gone, which a consumer gives up, is found by the transaction.
func TestDeadLetters_BothKinds_AreFoundByTransaction(t *testing.T) {
	f := setup(t)
	id, gone := f.accept(), uuid.New()
	f.giveUp(id)
	f.exec(`INSERT INTO relay_queue (id, lane, state, settled_at) VALUES ($1, 'shop', 'dead', now())`, gone.String())
	f.exec(`INSERT INTO relay_webhooks (about, lane, subject, revision, state, settled_at) VALUES ($1::uuid, 'shop', $1, 2, 'dead', now())`, id.String())
	list := func(of string, sel deadletter.Selection) (all []string) {
		set, err := deadletter.Open(t.Context(), of, admin.DeadLetters(f.db))
		require.NoError(t, err)
		letters, _, err := set.List(t.Context(), sel, outbox.Dead, 100)
		require.NoError(t, err)
		for _, l := range letters {
			require.Equal(t, "shop", l.To)
			all = append(all, l.Of+" "+l.Transaction)
		}
		return all
	}
	require.Equal(t, []string{"queue " + id.String(), "client-webhooks " + id.String()}, list(deadletter.Any, deadletter.Selection{Transactions: []string{id.String()}}))
	require.Equal(t, []string{"client-webhooks " + id.String()}, list("client-webhooks", deadletter.Selection{}))
	require.Equal(t, []string{"queue " + gone.String()}, list("queue", deadletter.Selection{Transactions: []string{gone.String()}}))
	set, err := deadletter.Open(t.Context(), "queue", admin.DeadLetters(f.db))
	require.NoError(t, err)
	for _, name := range []string{uuid.NewString(), common.Hash{1}.Hex()} {
		_, _, err = set.List(t.Context(), deadletter.Selection{Transactions: []string{name}}, "", 1)
		require.ErrorIs(t, err, deadletter.ErrNoTransaction)
	}
}

// A database without a relay path is no error among all kinds. One of a newer program is.
func TestDeadLetters_OtherSchema_IsAbsentOrFails(t *testing.T) {
	t.Parallel()
	empty := testpostgres.New(t).Pool(t)
	_, err := deadletter.Open(t.Context(), "queue", admin.DeadLetters(empty))
	require.ErrorAs(t, err, new(*deadletter.AbsentError))
	require.ErrorAs(t, err, new(*postgres.OlderError))
	_, err = deadletter.Open(t.Context(), deadletter.Any, admin.DeadLetters(empty))
	require.ErrorIs(t, err, deadletter.ErrNone)
	_, err = empty.Exec(t.Context(), `CREATE TABLE relay_migrations (id int GENERATED ALWAYS AS IDENTITY, version_id bigint, is_applied boolean, tstamp timestamp);
		INSERT INTO relay_migrations (version_id, is_applied) VALUES (1000, true)`)
	require.NoError(t, err)
	_, err = deadletter.Open(t.Context(), deadletter.Any, admin.DeadLetters(empty))
	require.ErrorAs(t, err, new(*postgres.NewerError))
}
