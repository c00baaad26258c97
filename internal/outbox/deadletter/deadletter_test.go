package deadletter_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// A source shows and changes the entries of its own prefix only, and names the reason why it changes none.
func TestLetters_OneOfSeveralPrefixes_ChangesItsOwnAlone(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t).Pool(t)
	table := outbox.Table{Name: "works", KeepDone: true}
	_, err := db.Exec(t.Context(), table.Schema())
	require.NoError(t, err)
	tx := uuid.New()
	_, err = db.Exec(t.Context(), `INSERT INTO works (id, lane, subject, payload, state, settled_at, reason) VALUES
		('dead', 'a/shop', $1, '{"n": 1}', 'dead', now(), 'answered 500'), ('done', 'a/shop', $1, NULL, 'done', now(), ''),
		('waiting', 'a/bank', NULL, NULL, 'waiting', NULL, ''), ('other', 'b/shop', $1, NULL, 'dead', now(), 'answered 404')`, tx.String())
	require.NoError(t, err)
	source := deadletter.Source{Of: "works", Table: table, Prefix: "a/", Transaction: `e.subject`, OfTransaction: `e.subject = $1::uuid::text`}
	letters, err := deadletter.New(db, source)
	require.NoError(t, err)
	ids := func(f deadletter.Filter) (ids []string) {
		list, err := letters.List(t.Context(), f)
		require.NoError(t, err)
		for _, l := range list {
			ids = append(ids, l.ID)
		}
		return ids
	}
	require.ElementsMatch(t, []string{"dead", "done", "waiting"}, ids(deadletter.Filter{}))
	require.ElementsMatch(t, []string{"dead", "done"}, ids(deadletter.Filter{Transaction: tx}))
	require.Empty(t, ids(deadletter.Filter{Transaction: uuid.New()}))
	require.Equal(t, []string{"waiting"}, ids(deadletter.Filter{To: "bank"}))

	shown, err := letters.Show(t.Context(), "dead")
	require.NoError(t, err)
	require.False(t, shown.CreatedAt.IsZero())
	require.False(t, shown.SettledAt.IsZero())
	require.Equal(t, deadletter.Letter{
		Of: "works", ID: "dead", Transaction: tx.String(), To: "shop", State: outbox.Dead, Progress: "dead", Reason: "answered 500",
		CreatedAt: shown.CreatedAt, SettledAt: shown.SettledAt, Payload: `{"n": 1}`,
	}, strip(shown))
	for _, change := range []func(id string) error{
		func(id string) error { _, err := letters.Show(t.Context(), id); return err },
		func(id string) error { return letters.ReplayOne(t.Context(), id) },
		func(id string) error { return letters.DropOne(t.Context(), id) },
	} {
		require.ErrorIs(t, change("other"), deadletter.ErrNotFound)
		require.ErrorIs(t, change("unknown"), deadletter.ErrNotFound)
	}
	require.ErrorIs(t, letters.ReplayOne(t.Context(), "waiting"), deadletter.ErrWaiting)
	require.ErrorIs(t, letters.DropOne(t.Context(), "waiting"), deadletter.ErrWaiting)

	n, err := letters.Replay(t.Context(), deadletter.Filter{Transaction: tx})
	require.NoError(t, err)
	require.Equal(t, 1, n, "the dead one")
	require.NoError(t, letters.ReplayOne(t.Context(), "done"))
	require.ElementsMatch(t, []string{"dead", "done", "waiting"}, ids(deadletter.Filter{State: outbox.Waiting}))
	_, err = db.Exec(t.Context(), `UPDATE works SET state = 'dead', settled_at = now()`)
	require.NoError(t, err)
	require.NoError(t, letters.DropOne(t.Context(), "waiting"))
	n, err = letters.Drop(t.Context(), deadletter.Filter{})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	var left string
	require.NoError(t, db.QueryRow(t.Context(), `SELECT string_agg(id, ' ') FROM works`).Scan(&left))
	require.Equal(t, "other", left)
}

// An alert has the name of a target and no prefix. A name that ends like another one is not that one.
func TestLetters_AnyPrefix_SelectsByNameOrLane(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t).Pool(t)
	table := outbox.Table{Name: "works"}
	_, err := db.Exec(t.Context(), table.Schema())
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `INSERT INTO works (id, lane, state, settled_at) SELECT lane, lane, 'dead', now()
		FROM unnest(ARRAY['1/a/shop', '2/b/shop', '1/a/bank', '1/a/workshop']) AS lane`)
	require.NoError(t, err)
	letters, err := deadletter.New(db, deadletter.Source{Of: "works", Table: table, AnyPrefix: true, Transaction: `e.subject`, OfTransaction: `false`})
	require.NoError(t, err)
	for to, want := range map[string][]string{
		"": {"1/a/shop", "2/b/shop", "1/a/bank", "1/a/workshop"}, "shop": {"1/a/shop", "2/b/shop"}, "1/a/shop": {"1/a/shop"}, "a/shop": nil, "hop": nil,
	} {
		list, err := letters.List(t.Context(), deadletter.Filter{To: to})
		require.NoError(t, err)
		var got []string
		for _, l := range list {
			require.Equal(t, l.ID, l.To)
			got = append(got, l.ID)
		}
		require.ElementsMatch(t, want, got, to)
	}
	for _, change := range []func(context.Context, deadletter.Filter) (int, error){letters.Replay, letters.Drop} {
		n, err := change(t.Context(), deadletter.Filter{To: "hop"})
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = change(t.Context(), deadletter.Filter{To: "shop"})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = db.Exec(t.Context(), `UPDATE works SET state = 'dead'`)
		require.NoError(t, err)
	}
}

// A list longer than a page of the engine has each entry once, in the order of insertion. Times and pages limit it.
func TestLetters_ListOfSeveralPages_HasEachEntryOnce(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t).Pool(t)
	table := outbox.Table{Name: "works"}
	_, err := db.Exec(t.Context(), table.Schema())
	require.NoError(t, err)
	const n = 2*outbox.MaxPage + 500
	first := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	// Ten entries have each time, as those of one statement do.
	_, err = db.Exec(t.Context(), `INSERT INTO works (id, lane, created_at, state, settled_at, subject)
		SELECT n, 'a', $1::timestamptz + n / 10 * interval '1 s', 'dead', now(), n FROM generate_series(0, $2::int - 1) n`, first, n)
	require.NoError(t, err)
	letters, err := deadletter.New(db, deadletter.Source{
		Of: "works", Table: table, Transaction: `e.subject`, OfTransaction: `false`, Event: `'event of ' || e.id`, Revision: `e.id::int + 1`,
	})
	require.NoError(t, err)
	list := func(f deadletter.Filter) []deadletter.Letter {
		list, err := letters.List(t.Context(), f)
		require.NoError(t, err)
		return list
	}
	// is requires the entries from one number up to another.
	is := func(list []deadletter.Letter, from, to int) {
		t.Helper()
		require.Len(t, list, to-from)
		for i, l := range list {
			require.Equal(t, strconv.Itoa(from+i), l.ID)
		}
	}
	all := list(deadletter.Filter{Limit: deadletter.MaxList})
	is(all, 0, n)
	require.Equal(t, "event of 7", all[7].Event)
	require.Equal(t, 8, all[7].Revision)
	is(list(deadletter.Filter{}), 0, 100)
	is(list(deadletter.Filter{Limit: 2 * outbox.MaxPage}), 0, 2*outbox.MaxPage)
	is(list(deadletter.Filter{Limit: outbox.MaxPage + 1, After: &all[4]}), 5, outbox.MaxPage+6)
	is(list(deadletter.Filter{Limit: n, After: &all[n-1]}), 0, 0)
	is(list(deadletter.Filter{Since: first.Add(2 * time.Second), Until: first.Add(4 * time.Second)}), 20, 40)
	changed, err := letters.Replay(t.Context(), deadletter.Filter{Since: first.Add(2 * time.Second), Until: first.Add(4 * time.Second)})
	require.NoError(t, err)
	require.Equal(t, 20, changed)
	is(list(deadletter.Filter{State: outbox.Waiting}), 20, 40)
}

// strip returns a letter as a caller can build it.
func strip(l deadletter.Letter) deadletter.Letter {
	return deadletter.Letter{
		Of: l.Of, ID: l.ID, Transaction: l.Transaction, To: l.To, Event: l.Event, Revision: l.Revision, State: l.State, Progress: l.Progress,
		Attempts: l.Attempts, Reason: l.Reason, CreatedAt: l.CreatedAt, DueAt: l.DueAt, SettledAt: l.SettledAt, Payload: l.Payload,
	}
}
