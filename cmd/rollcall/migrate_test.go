package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/keyring/keyringtest"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	url := []string{"--database-url", db.URL()}
	res := rollcall(t, append([]string{"migrate", "--dry-run"}, url...)...)
	require.Equal(t, exitNotDone, res.code)
	require.Regexp(t, `the database's schema \(relayer_migrations\) is at version 0 and this program needs \d+\nBring it up to date with "rollcall migrate".\n`, res.stderr)
	res = rollcall(t, append([]string{"tx", "list", "--chain-id", "1337"}, url...)...)
	require.Equal(t, exitNotDone, res.code)
	require.Contains(t, res.stderr, `Bring it up to date with "rollcall migrate".`)

	require.Regexp(t, `^relayer_migrations was at version 0 and is at \d+, the newest\n$`, succeed(t, append([]string{"migrate"}, url...)...))
	require.Regexp(t, `^relayer_migrations is up to date, at version \d+\n$`, succeed(t, append([]string{"migrate"}, url...)...))
	s := read[[]schema](t, append([]string{"migrate", "--dry-run"}, url...)...)[0]
	require.Equal(t, s.Newest, s.Was)
	require.Equal(t, s.Newest, s.Is)
	res = rollcall(t, append([]string{"tx", "list", "--chain-id", "1337"}, url...)...)
	require.Contains(t, res.stderr, `for pool "pool" on chain 1337: the database has none`)

	_, err := db.Pool(t).Exec(t.Context(), `INSERT INTO relayer_migrations (version_id, is_applied) VALUES (1000, true)`)
	require.NoError(t, err)
	for _, args := range [][]string{{"migrate"}, {"migrate", "--dry-run"}, {"keys", "list", "--chain-id", "1337"}} {
		res = rollcall(t, append(args, url...)...)
		require.Equal(t, exitNotDone, res.code)
		require.Contains(t, res.stderr, "run a newer program")
	}
	res = rollcall(t, "migrate", "--database-url", "postgres://u:hidden@"+freeAddress(t)+"/x")
	require.Equal(t, exitNotDone, res.code)
	require.Contains(t, res.stderr, "connection refused")
	require.NotContains(t, res.stderr, "hidden")
	res = rollcall(t, "migrate")
	require.Equal(t, exitUsage, res.code)
	require.Contains(t, res.stderr, "--database-url: is missing")
}

// A relayer that may not change the schema says what it lacks.
func TestRelayerDoesNotMigrateWhereItMustNot(t *testing.T) {
	t.Setenv("RELAYER_PRIVATE_KEY_0", keyringtest.Keys(t, t.Name(), 1)[0].Hex())
	db := testpostgres.New(t)
	b := start(t, "relayer", "--no-migrate", "--database-url", db.URL(), "--chain-id", "1337", "--rpc-urls", "http://"+freeAddress(t),
		"--listen", "127.0.0.1:0", "--api-keys", "me:0123456789abcdef0123456789abcdef")
	<-b.done
	require.Equal(t, exitNotDone, b.code)
	require.Regexp(t, `relayer failed.*is at version 0 and this program needs \d+`, b.log.String())
	var tables int
	require.NoError(t, db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE tablename LIKE 'relayer_%'`).Scan(&tables))
	require.Zero(t, tables)
}
