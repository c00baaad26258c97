package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// Without flags the operator's commands work on the cluster that rollcall-dev runs below the current folder.
func TestOperatorCommands_DevClusterBelow_IsFound(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	chain := testchain.Simulated(t, testchain.SimulatedOptions{Accounts: 1})
	s := store.New(db.Pool(t), store.Config{ChainID: testchain.ChainID, Pool: "pond"})
	require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: chain.Accounts[0].Address}}))
	require.NoError(t, os.MkdirAll(devinfo.DefaultData, 0o700))
	content, err := json.Marshal(devinfo.Info{
		DatabaseURL: db.URL(), PoolID: "pond", Chain: devinfo.Chain{ChainID: testchain.ChainID, RPCURL: chain.URL()},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(devinfo.DefaultData, "dev.json"), content, 0o600))
	res := rollcall(t, "keys", "list")
	require.Equal(t, cli.ExitUsage, res.code, "a file that a crash left behind does not count")
	require.Contains(t, res.stderr, `--database-url: is missing; give postgres://user:password@host:port/database, or start "rollcall-dev"`)

	lock, err := os.Create(filepath.Join(devinfo.DefaultData, "lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	require.Regexp(t, lower(chain.Accounts[0].Address)+` +ok +0 +0 +0 (.*\n)+1 key of pool pond on chain 1337`, succeed(t, "keys", "list"))
	require.Contains(t, succeed(t, "keys", "resync", "--all"), "nothing to repair")
	require.Contains(t, succeed(t, "tx", "list"), "0 transactions")
	require.Contains(t, succeed(t, "migrate"), "is up to date")

	// A database of one's own has nothing to do with that chain.
	res = rollcall(t, "keys", "list", "--database-url", db.URL())
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "--chain-id: is missing")
}
