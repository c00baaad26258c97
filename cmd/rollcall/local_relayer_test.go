package main

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// localRelayer is a relayer that runs in this process, on a chain and a database of its own.
type localRelayer struct {
	*relayertest.Relayer
	chain *testchain.Chain
	url   string
	db    *pgxpool.Pool
	keys  []common.Address
}

// startRelay starts one with as many keys, on a chain that makes blocks when it is told to.
func startRelay(t *testing.T, keys int, edit func(*relayertest.Options)) *localRelayer {
	t.Helper()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	r := &localRelayer{chain: testchain.Simulated(t, testchain.SimulatedOptions{}), url: db.URL(), db: db.Pool(t)}
	ring := signertest.Ring(t, t.Name(), keys)
	r.keys = ring.Addresses()
	r.chain.Fund(testchain.Ether(10), r.keys...)
	o := relayertest.Options{DatabaseURL: r.url, RPC: []string{r.chain.URL()}, Ring: ring}
	if edit != nil {
		edit(&o)
	}
	r.Relayer = relayertest.Start(t, o)
	return r
}

// operator are the flags by which a command reaches the pool.
func (r *localRelayer) operator(args ...string) []string {
	return append(args, "--database-url", r.url, "--chain-id", strconv.Itoa(testchain.ChainID))
}

// send submits a transaction with this method to one key, and waits until a node has it.
func (r *localRelayer) send(t *testing.T, key int, method string) *relayer.Transaction {
	t.Helper()
	tx := r.submit(t, lower(r.keys[key]), method)
	return r.Reaches(t, tx, relayer.Broadcasted)
}

func (r *localRelayer) submit(t *testing.T, target, method string) *relayer.Transaction {
	t.Helper()
	tx, err := r.Submit(t.Context(), relayer.Submission{RelayerID: target, Caller: "me", Request: relayer.Request{
		To: &r.chain.Accounts[0].Address, Value: big.NewInt(5), Speed: relayer.Fast,
		Metadata: relayer.Metadata{Method: method, Orderbook: "book", Trader: "0xtrader", RequestID: "req-" + method, TraceID: "trace"},
	}})
	require.NoError(t, err)
	return tx
}

// confirm makes blocks until a transaction has a status.
func (r *localRelayer) confirm(t *testing.T, tx *relayer.Transaction, status relayer.Status) {
	t.Helper()
	var last relayer.Status
	require.Eventually(t, func() bool {
		r.chain.Commit()
		now, err := r.Store.Transaction(t.Context(), tx.ID)
		if err == nil {
			last = now.Status
		}
		return last == status
	}, 2*time.Minute, 50*time.Millisecond, "it is %s", &last)
}

// read is what a command prints as JSON.
func read[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(succeed(t, append(args, "-o", "json")...)), &v))
	return v
}

func lower(a common.Address) string { return strings.ToLower(a.Hex()) }
