package admin

import (
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// With a chain the set has the pool's webhooks, by any name of a transaction; without one those of all pools, by ids. An id finds them
// also if its row is gone: a delivered webhook that was replayed while its transaction was purged becomes a dead letter.
func TestDeadLetters_PoolOrAll_AreFound(t *testing.T) {
	p := openPool(t)
	tx, quiet, gone := p.accept(), p.accept(), uuid.New()
	hash := p.sign(tx, 1, relayer.PurposeSend).Hash.Hex()
	for _, w := range []struct {
		pool  string
		about uuid.UUID
	}{{fmt.Sprint(testchain.ChainID, "/pool"), tx.ID}, {fmt.Sprint(testchain.ChainID, "/pool"), gone}, {"1/other", uuid.New()}} {
		_, err := p.db.Exec(t.Context(), `INSERT INTO relayer_webhooks (id, lane, about, revision, state, settled_at) VALUES ($1, $2, $3, 2, 'dead', now())`,
			"of "+w.about.String(), w.pool+"/shop", w.about)
		require.NoError(t, err)
	}
	of := func(chainID uint64) *deadletter.Set {
		set, err := deadletter.Open(t.Context(), deadletter.Any, DeadLetters(p.db, chainID, "pool"))
		require.NoError(t, err)
		return set
	}
	list := func(set *deadletter.Set, sel deadletter.Selection) ([]deadletter.Letter, error) {
		list, _, err := set.List(t.Context(), sel, outbox.Dead, 100)
		return list, err
	}
	for chainID, want := range map[uint64]int{0: 3, testchain.ChainID: 2} {
		all, err := list(of(chainID), deadletter.Selection{To: "shop"})
		require.NoError(t, err)
		require.Len(t, all, want)
		for id, want := range map[uuid.UUID]int{tx.ID: 1, gone: 1, quiet.ID: 0} {
			all, err := list(of(chainID), deadletter.Selection{Transactions: []string{id.String()}})
			require.NoError(t, err)
			require.Len(t, all, want)
		}
		_, err = list(of(chainID), deadletter.Selection{Transactions: []string{uuid.NewString()}})
		require.ErrorIs(t, err, deadletter.ErrNoTransaction)
	}
	for _, name := range []string{hash, p.key.Hex() + ":0"} {
		all, err := list(of(testchain.ChainID), deadletter.Selection{Transactions: []string{name}})
		require.NoError(t, err)
		require.Equal(t, "of "+tx.ID.String(), all[0].ID)
		require.Equal(t, "shop", all[0].To)
		_, err = list(of(0), deadletter.Selection{Transactions: []string{name}})
		require.ErrorIs(t, err, ErrNeedsPool)
	}
	_, err := list(of(testchain.ChainID), deadletter.Selection{Transactions: []string{common.Hash{9}.Hex()}})
	require.ErrorIs(t, err, deadletter.ErrNoTransaction)
	changes, err := of(testchain.ChainID).Drop(t.Context(), deadletter.Selection{IDs: []string{"unknown"}})
	require.NoError(t, err)
	require.Equal(t, NotDone, OutcomeOf(changes[0].Err))
}

func TestDeadLetters_NoRelayers_AreAbsent(t *testing.T) {
	t.Parallel()
	empty := testpostgres.New(t).Pool(t)
	unused := testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
	for _, d := range []deadletter.Domain{DeadLetters(empty, 0, ""), DeadLetters(empty, 1, "pool"), DeadLetters(unused, 1, "pool")} {
		_, err := d.Open(t.Context())
		require.ErrorAs(t, err, new(*deadletter.AbsentError))
	}
	used := testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
	openIn(t, used, common.Hash{1}, common.HexToAddress("0x1"))
	_, err := DeadLetters(used, 1, "pool").Open(t.Context())
	require.ErrorAs(t, err, new(*store.UnknownPoolError), "the chain is wrong")
	require.NotErrorAs(t, err, new(*deadletter.AbsentError))
	_, err = used.Exec(t.Context(), `INSERT INTO relayer_migrations (version_id, is_applied) VALUES (1000, true)`)
	require.NoError(t, err)
	_, err = DeadLetters(used, 0, "").Open(t.Context())
	require.ErrorAs(t, err, new(*postgres.NewerError))
}
