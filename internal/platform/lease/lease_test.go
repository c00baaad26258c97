package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/lease"
	"github.com/rollcall-dev/rollcall/internal/platform/lease/leasetest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

func open(t *testing.T, create string, table lease.Table) leasetest.Subject {
	t.Helper()
	db := testpostgres.New(t).Pool(t)
	_, err := db.Exec(t.Context(), create)
	require.NoError(t, err)
	return leasetest.Subject{DB: db, Table: table}
}

func TestConformance_OneKey(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Subject {
		s := open(t, `
			CREATE TABLE chains (id bigint PRIMARY KEY, watcher text NOT NULL DEFAULT '', watched_until timestamptz NOT NULL DEFAULT '-infinity',
				epoch bigint NOT NULL DEFAULT 0, height bigint NOT NULL DEFAULT 7);
			INSERT INTO chains (id) VALUES (1), (2)`,
			lease.Table{Name: "chains", Key: []string{"id"}, Holder: "watcher", Until: "watched_until", Epoch: "epoch"})
		s.Row, s.Other, s.Missing = []any{1}, []any{2}, []any{3}
		return s
	})
}

func TestConformance_KeyOfThree(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Subject {
		s := open(t, `
			CREATE TABLE jobs (region text, kind text, shard integer, holder text NOT NULL DEFAULT '',
				until timestamptz NOT NULL DEFAULT '-infinity', term bigint NOT NULL DEFAULT 0, PRIMARY KEY (region, kind, shard));
			INSERT INTO jobs (region, kind, shard) VALUES ('eu', 'sweep', 0), ('eu', 'sweep', 1)`,
			lease.Table{Name: "jobs", Key: []string{"region", "kind", "shard"}, Holder: "holder", Until: "until", Epoch: "term"})
		s.Row, s.Other, s.Missing = []any{"eu", "sweep", 0}, []any{"eu", "sweep", 1}, []any{"us", "sweep", 0}
		return s
	})
}

// A stopped process waits for a claim that the server does not execute for a second, and no longer.
func TestClaim_StoppedAndServerHangs_EndsInTime(t *testing.T) {
	t.Parallel()
	s := open(t, `
		CREATE TABLE chains (id bigint PRIMARY KEY, watcher text NOT NULL DEFAULT '', watched_until timestamptz NOT NULL DEFAULT '-infinity',
			epoch bigint NOT NULL DEFAULT 0);
		INSERT INTO chains (id) VALUES (1)`,
		lease.Table{Name: "chains", Key: []string{"id"}, Holder: "watcher", Until: "watched_until", Epoch: "epoch"})
	tx, err := s.DB.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE chains IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	l := lease.New(lease.Config{Row: s.Table.Row(s.DB, 1), Holder: "a"})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	began := time.Now()
	_, err = l.Claim(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, l.Release(ctx), context.DeadlineExceeded)
	require.Less(t, time.Since(began), time.Minute)
}
