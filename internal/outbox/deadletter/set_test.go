package deadletter_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

var (
	errAbsent = &deadletter.AbsentError{Err: errors.New("not migrated")}
	errBroken = errors.New("broken")
)

// sets is a database with the kinds "mail" and "post" of one domain, and "calls" of another. The first domain has the row of known.
type sets struct {
	t       *testing.T
	db      *pgxpool.Pool
	known   uuid.UUID
	domains []deadletter.Domain
}

func newSets(t *testing.T) *sets {
	t.Helper()
	t.Parallel()
	s := &sets{t: t, db: testpostgres.New(t).Pool(t), known: uuid.New()}
	for _, names := range [][]string{{"mail", "post"}, {"calls"}} {
		var kinds []deadletter.Kind
		for _, name := range names {
			table := outbox.Table{Name: name, KeepDone: true}
			s.exec(table.Schema())
			letters, err := deadletter.New(s.db, deadletter.Source{Of: name, Table: table, Transaction: `e.subject`, OfTransaction: `e.subject = $1::uuid::text`})
			require.NoError(t, err)
			kinds = append(kinds, deadletter.Kind{Letters: letters, Find: func(_ context.Context, tx string) (uuid.UUID, bool, error) {
				if tx == "broken" {
					return uuid.Nil, false, errBroken
				}
				id, _ := uuid.Parse(tx)
				return id, name != "calls" && id == s.known, nil
			}})
		}
		s.domains = append(s.domains, deadletter.Domain{Kinds: names, Open: func(context.Context) ([]deadletter.Kind, error) { return kinds, nil }})
	}
	return s
}

func (s *sets) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.db.Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

// put inserts a dead entry.
func (s *sets) put(kind, id, to string, tx uuid.UUID) {
	s.t.Helper()
	s.exec(`INSERT INTO `+kind+` (id, lane, subject, state, settled_at) VALUES ($1, $2, $3, 'dead', now())`, id, to, tx.String())
}

func (s *sets) open(of string) *deadletter.Set {
	s.t.Helper()
	set, err := deadletter.Open(s.t.Context(), of, s.domains...)
	require.NoError(s.t, err)
	return set
}

// list returns the ids of a selection's entries, sorted.
func (s *sets) list(of string, sel deadletter.Selection) (ids []string) {
	s.t.Helper()
	list, _, err := s.open(of).List(s.t.Context(), sel, outbox.Dead, 100)
	require.NoError(s.t, err)
	for _, l := range list {
		ids = append(ids, l.Of+" "+l.ID)
	}
	slices.Sort(ids)
	return ids
}

func failing(err error, kinds ...string) deadletter.Domain {
	return deadletter.Domain{Kinds: kinds, Open: func(context.Context) ([]deadletter.Kind, error) { return nil, err }}
}

func TestOpen_EachKind_HasThoseOfTheDatabase(t *testing.T) {
	s := newSets(t)
	for _, kind := range []string{"mail", "post", "calls"} {
		s.put(kind, kind, "a", uuid.New())
	}
	require.Equal(t, []string{"calls calls", "mail mail", "post post"}, s.list(deadletter.Any, deadletter.Selection{}))
	require.Equal(t, []string{"post post"}, s.list("post", deadletter.Selection{}))
	s.domains[0] = failing(errAbsent, "mail", "post")
	require.Equal(t, []string{"calls calls"}, s.list(deadletter.Any, deadletter.Selection{}))
	for _, test := range []struct {
		of      string
		domains []deadletter.Domain
		want    error
	}{
		{"post", s.domains, errAbsent},
		{deadletter.Any, s.domains[:1], deadletter.ErrNone},
		{"other", s.domains, deadletter.ErrNone},
		{deadletter.Any, []deadletter.Domain{s.domains[1], failing(errBroken, "post")}, errBroken},
	} {
		_, err := deadletter.Open(t.Context(), test.of, test.domains...)
		require.ErrorIs(t, err, test.want, test.of)
	}
	_, err := deadletter.Open(t.Context(), "calls", failing(errBroken, "post"), s.domains[1])
	require.NoError(t, err, "another domain's fault is no fault of this kind")
}

func TestSelection_Check_AllowsOneWay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, sel := range []deadletter.Selection{{All: true}, {Transactions: []string{"x"}}, {To: "a"}, {Since: now}, {Until: now}, {To: "a", Since: now}} {
		require.NoError(t, sel.Check("mail"), sel)
		require.ErrorIs(t, sel.Check(deadletter.Any), deadletter.ErrSeveral, sel)
		sel.IDs = []string{"1"}
		require.ErrorIs(t, sel.Check("mail"), deadletter.ErrSelection, sel)
	}
	require.NoError(t, deadletter.Selection{IDs: []string{"1"}}.Check(deadletter.Any))
	require.ErrorIs(t, deadletter.Selection{All: true, To: "a"}.Check("mail"), deadletter.ErrSelection)
	none := deadletter.Selection{}.Check(deadletter.Any)
	require.ErrorIs(t, none, deadletter.ErrSelection)
	require.ErrorIs(t, none, deadletter.ErrSeveral)
}

func TestSet_IDs_ChangeTheKindThatHasThem(t *testing.T) {
	s := newSets(t)
	s.put("mail", "1", "a", uuid.New())
	s.put("calls", "2", "a", uuid.New())
	s.put("calls", "3", "a", uuid.New())
	set := s.open(deadletter.Any)
	changes, err := set.Replay(t.Context(), deadletter.Selection{IDs: []string{"2", "4", "1", "2"}})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{"1", 1, nil}, {"2", 1, nil}, {"4", 0, deadletter.ErrNotFound}}, changes)
	changes, err = set.Drop(t.Context(), deadletter.Selection{IDs: []string{"1", "3"}})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{"1", 0, deadletter.ErrWaiting}, {"3", 1, nil}}, changes)
	letter, err := set.Show(t.Context(), "2")
	require.NoError(t, err)
	require.Equal(t, []any{"calls", outbox.Waiting}, []any{letter.Of, letter.State})
	for _, gone := range []string{"3", "4"} {
		_, err = set.Show(t.Context(), gone)
		require.ErrorIs(t, err, deadletter.ErrNotFound)
	}
	_, err = set.Replay(t.Context(), deadletter.Selection{All: true})
	require.ErrorIs(t, err, deadletter.ErrSeveral)
}

// A transaction's entries are found without its row, and its row without entries. Without both there is no such transaction.
func TestSet_Transactions_AreFoundByRowOrEntries(t *testing.T) {
	s := newSets(t)
	rowless := uuid.New()
	s.put("mail", "1", "a", rowless)
	s.put("mail", "2", "a", s.known)
	s.put("calls", "3", "b", rowless)
	s.put("mail", "4", "b", uuid.New())
	both := deadletter.Selection{Transactions: []string{rowless.String(), s.known.String()}}
	require.Equal(t, []string{"calls 3", "mail 1", "mail 2"}, s.list(deadletter.Any, both))
	require.Equal(t, []string{"calls 3"}, s.list(deadletter.Any, deadletter.Selection{Transactions: both.Transactions, To: "b"}))
	set := s.open("mail")
	changes, err := set.Replay(t.Context(), both)
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{"mail of " + rowless.String(), 1, nil}, {"mail of " + s.known.String(), 1, nil}}, changes)
	_, err = set.Drop(t.Context(), both)
	require.ErrorIs(t, err, deadletter.ErrNothing, "they wait")
	require.Empty(t, s.list("post", deadletter.Selection{Transactions: []string{s.known.String()}}))

	for _, tx := range []string{uuid.NewString(), "order-1"} {
		_, _, err := set.List(t.Context(), deadletter.Selection{Transactions: []string{s.known.String(), tx}}, "", 100)
		require.ErrorIs(t, err, deadletter.ErrNoTransaction)
		require.EqualError(t, err, tx+": transaction not found")
		_, err = set.Replay(t.Context(), deadletter.Selection{Transactions: []string{tx}})
		require.ErrorIs(t, err, deadletter.ErrNoTransaction)
	}
	_, _, err = set.List(t.Context(), deadletter.Selection{Transactions: []string{"broken"}}, "", 100)
	require.ErrorIs(t, err, errBroken)
}

func TestSet_Filters_ChangeAllThatMatches(t *testing.T) {
	s := newSets(t)
	for i, to := range []string{"a", "a", "b"} {
		s.put("mail", string(rune('1'+i)), to, uuid.New())
	}
	set := s.open("mail")
	list, more, err := set.List(t.Context(), deadletter.Selection{}, "", 2)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.True(t, more)
	_, more, err = set.List(t.Context(), deadletter.Selection{}, "", 4)
	require.NoError(t, err)
	require.False(t, more)
	hour := time.Now().Add(time.Hour)
	for _, test := range []struct {
		sel  deadletter.Selection
		want int
	}{{deadletter.Selection{To: "a"}, 2}, {deadletter.Selection{Until: hour}, 3}, {deadletter.Selection{Since: hour.Add(-2 * time.Hour), To: "b"}, 1}} {
		changes, err := set.Replay(t.Context(), test.sel)
		require.NoError(t, err)
		require.Equal(t, []deadletter.Change{{"mail", test.want, nil}}, changes)
		s.exec(`UPDATE mail SET state = 'dead', settled_at = now()`)
	}
	for _, sel := range []deadletter.Selection{{To: "c"}, {Since: hour}} {
		_, err := set.Replay(t.Context(), sel)
		require.ErrorIs(t, err, deadletter.ErrNothing)
	}
	changes, err := set.Drop(t.Context(), deadletter.Selection{All: true})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{"mail", 3, nil}}, changes)
	changes, err = set.Replay(t.Context(), deadletter.Selection{All: true})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{"mail", 0, nil}}, changes)
}

// An error after the first chunk leaves a part changed, so the outcome of the whole is unknown.
func TestSet_ErrorAfterAPart_IsUnknown(t *testing.T) {
	s := newSets(t)
	s.exec(`INSERT INTO mail (id, state, settled_at, created_at)
		SELECT lpad(n::text, 4, '0'), 'dead', now(), '2026-01-01'::timestamptz + n * interval '1 s' FROM generate_series(0, 2999) n`)
	s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON mail FOR EACH ROW WHEN (OLD.id = '2999') EXECUTE FUNCTION refuse()`)
	changes, err := s.open("mail").Drop(t.Context(), deadletter.Selection{All: true})
	require.NoError(t, err)
	require.Len(t, changes, 1)
	require.Positive(t, changes[0].Count)
	require.ErrorIs(t, changes[0].Err, postgres.ErrUnknown)
	require.ErrorContains(t, changes[0].Err, "no more")
	s.exec(`DELETE FROM mail WHERE id < '2999'`)
	changes, err = s.open("mail").Drop(t.Context(), deadletter.Selection{All: true})
	require.NoError(t, err)
	require.Zero(t, changes[0].Count)
	require.NotErrorIs(t, changes[0].Err, postgres.ErrUnknown, "nothing was changed")
	require.ErrorContains(t, changes[0].Err, "no more")
}
