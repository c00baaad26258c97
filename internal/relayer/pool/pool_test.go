package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/keyring/keyringtest"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
	"github.com/rollcall-dev/rollcall/internal/relayer/relaytest"
	"github.com/rollcall-dev/rollcall/internal/testchain"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

func TestSubmittedIsMinedAndConfirmed(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	ring := keyringtest.Ring(t, t.Name(), 2)
	chain.Fund(testchain.Ether(10), ring.Addresses()...)
	db := testpostgres.New(t, testpostgres.Migrated(ledger.Migrations()))
	r := relaytest.Start(t, relaytest.Options{DatabaseURL: db.URL(), RPC: []string{chain.URL()}, Ring: ring})

	tx := r.Send(t, chain.Accounts[0].Address, 5, nil)
	require.NotNil(t, tx.Nonce)
	r.Reaches(t, tx, relayer.Broadcasted)
	chain.Commit()
	mined := r.Reaches(t, tx, relayer.Mined)
	require.NotNil(t, mined.Hash)
	chain.Commit()
	r.Reaches(t, tx, relayer.Confirmed)
}
