package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

func TestParseRef(t *testing.T) {
	t.Parallel()
	id, address, hash := uuid.Must(uuid.NewV7()), "0x"+strings.Repeat("aB", 20), "0x"+strings.Repeat("1f", 32)
	for text, want := range map[string]Ref{
		id.String():         {id: id},
		hash:                {hash: common.HexToHash(hash)},
		address + ":0":      {key: common.HexToAddress(address)},
		address[2:] + ":12": {key: common.HexToAddress(address), nonce: 12},
	} {
		want.text = text
		got, err := ParseRef(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, text := range []string{"", "x", address, hash + "0", hash[:20], address + ":", address + ":-1", address + ":1:2", address + ":9223372036854775808", "0x12:3"} {
		_, err := ParseRef(text)
		require.ErrorContains(t, err, "is no transaction's id, nor a hash, nor KEY:NONCE", text)
	}
}

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]Outcome{
		nil:                                      Done,
		fmt.Errorf("x: %w", relayer.ErrNotFound): NotDone,
		&relayer.StateError{Status: relayer.Mined}:                            NotDone,
		store.ErrUnsigned:                                                     NotDone,
		ErrResumed:                                                            NotDone,
		asRefused(io.ErrUnexpectedEOF):                                        NotDone, // only a read failed
		&pgconn.PgError{Severity: "ERROR", Code: "23505"}:                     NotDone,
		&pgconn.PgError{Severity: "FATAL", Code: "57P01"}:                     Unknown,
		fmt.Errorf("commit: %w", io.ErrUnexpectedEOF):                         Unknown,
		fmt.Errorf("x: %w", &postgres.UnknownError{Err: io.ErrUnexpectedEOF}): Unknown,
		fmt.Errorf("x: %w", relayer.ErrUnknown):                               Unknown,
		fmt.Errorf("x: %w", context.DeadlineExceeded):                         Unknown,
	} {
		require.Equal(t, want, OutcomeOf(err), "%v", err)
	}
	require.ErrorIs(t, asRefused(io.EOF), io.EOF)
	require.EqualError(t, asRefused(io.EOF), "EOF")
	require.NoError(t, asRefused(nil))
}

// open returns a pool with one key and the given recorded genesis block.
func open(t *testing.T, genesis common.Hash, key common.Address) *Admin {
	t.Helper()
	return openIn(t, testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), genesis, key)
}

func openIn(t *testing.T, db *pgxpool.Pool, genesis common.Hash, key common.Address) *Admin {
	t.Helper()
	s := store.New(db, store.Config{ChainID: testchain.ChainID, Pool: "pool"})
	require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: key}}))
	_, err := s.InitChain(t.Context(), genesis)
	require.NoError(t, err)
	a, err := Open(t.Context(), db, testchain.ChainID, "pool")
	require.NoError(t, err)
	return a
}

func nodes(t *testing.T, chains ...*testchain.Chain) *evm.Client {
	t.Helper()
	cfg := evm.Config{ChainID: testchain.ChainID}
	for _, c := range chains {
		cfg.Endpoints = append(cfg.Endpoints, c.URL())
	}
	client, err := evm.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func genesisOf(t *testing.T, c *testchain.Chain) common.Hash {
	t.Helper()
	header, err := c.Client().HeaderByNumber(t.Context(), common.Big0)
	require.NoError(t, err)
	return header.Hash()
}

// NewChain reports another chain only if all nodes respond and agree.
func TestNewChain_NodesDisagree_Fails(t *testing.T) {
	t.Parallel()
	one, other := testchain.Simulated(t, testchain.SimulatedOptions{}), testchain.Simulated(t, testchain.SimulatedOptions{})
	a := open(t, genesisOf(t, one), one.Accounts[0].Address)
	_, err := a.NewChain(t.Context(), nodes(t, one))
	require.ErrorIs(t, err, ErrSameChain)
	require.Equal(t, NotDone, OutcomeOf(err))
	_, err = a.NewChain(t.Context(), nodes(t, other, one))
	require.Error(t, err)
	plan, err := a.NewChain(t.Context(), nodes(t, other))
	require.NoError(t, err)
	require.Equal(t, &NewChain{
		Genesis: genesisOf(t, other), Known: store.Chain{Genesis: genesisOf(t, one), Anchor: store.Block{Hash: genesisOf(t, one)}}, Doomed: plan.Doomed,
	}, plan)
	require.Empty(t, plan.Doomed)

	third := testchain.Simulated(t, testchain.SimulatedOptions{})
	_, err = a.NewChain(t.Context(), nodes(t, third, other))
	require.ErrorContains(t, err, "the nodes disagree about the genesis block")

	// The genesis block is the recorded one, and the anchor's block is missing.
	require.NoError(t, a.Store.MoveAnchor(t.Context(), 0, store.Block{Number: 1000, Hash: common.Hash{1}}))
	_, err = a.NewChain(t.Context(), nodes(t, one))
	require.ErrorIs(t, err, ErrSameGenesis)
	require.Equal(t, NotDone, OutcomeOf(err))
	reorganized, err := a.Reorganized(t.Context(), nodes(t, one))
	require.NoError(t, err)
	require.True(t, reorganized.Behind)
	keys, err := a.Keys(t.Context())
	require.NoError(t, err)
	_, err = a.Count(t.Context(), nodes(t, one), keys)
	require.ErrorContains(t, err, "no node has block 1000")
	require.Equal(t, NotDone, OutcomeOf(err))

	// A node that does not respond may have the recorded history.
	client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{other.URL(), "http://127.0.0.1:1/secret"}})
	require.NoError(t, err)
	defer client.Close()
	_, err = a.NewChain(t.Context(), client)
	require.ErrorContains(t, err, "127.0.0.1:1 does not tell its history, and may have the known one: ")
	require.NotContains(t, err.Error(), "secret")
}

// A node reports a far too high pending count once. It must not raise the next nonce if the node does not respond again, and
// must not let an operator set it that high.
func TestCount_OneReportTooHigh_RaisesNothing(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	a := open(t, genesisOf(t, chain), chain.Accounts[0].Address)
	for name, silent := range map[string]bool{"responds again": false, "is silent then": true} {
		t.Run(name, func(t *testing.T) {
			node, err := proxy.Open(proxy.Config{HTTP: chain.URL(), WS: chain.WSURL()})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			pending := func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") }
			rules := []proxy.Rule{{
				Name: "once", Methods: []string{"eth_getTransactionCount"}, Limit: 1, When: pending,
				Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0xf4240"`},
			}}
			if silent {
				rules = append(rules, proxy.Rule{
					Name: "then", Methods: []string{"eth_getTransactionCount"}, When: pending, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
				})
			}
			client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{chain.URL(), node.URL()}})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			keys, err := a.Keys(t.Context())
			require.NoError(t, err)
			node.SetRules(rules...)
			counts, err := a.Count(t.Context(), client, keys)
			require.NoError(t, err)
			require.EqualValues(t, 1, node.Injected()["once"])
			require.Zero(t, counts[0].next())
			require.EqualValues(t, 1_000_000, counts[0].Highest)

			node.SetRules(rules...)
			_, _, err = a.SetNonce(t.Context(), client, keys[0], 1_000_000)
			require.ErrorContains(t, err, "it leaves 1000000 nonces without a transaction")
			require.Equal(t, NotDone, OutcomeOf(err))
		})
	}
}

// Transactions that a lost database had sent are still arriving at the node. A next nonce among them would be taken.
func TestCount_StillRising_IsReadAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rounds        []uint64 // the node's count in each round of readings, the last one from then on
		want, highest uint64
	}{
		"until it stays":          {rounds: []uint64{10, 20, 30}, want: 30, highest: 30},
		"highest count is kept":   {rounds: []uint64{30, 20}, want: 20, highest: 30},
		"not for ever":            {rounds: []uint64{10, 20, 30, 40, 50, 60}},
		"the last two are enough": {rounds: []uint64{10, 20, 30, 40, 40}, want: 40, highest: 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := testchain.Simulated(t, testchain.SimulatedOptions{})
			a := open(t, genesisOf(t, chain), chain.Accounts[0].Address)
			node, err := proxy.Open(proxy.Config{HTTP: chain.URL(), WS: chain.WSURL()})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			var rules []proxy.Rule
			for round, count := range test.rounds {
				limit := uint64(readings)
				if round == len(test.rounds)-1 {
					limit = 0
				}
				rules = append(rules, proxy.Rule{
					Name: fmt.Sprint(round), Methods: []string{"eth_getTransactionCount"}, Limit: limit,
					When:  func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") },
					Fault: proxy.Fault{Kind: proxy.Answer, Result: fmt.Sprintf("%q", hexutil.Uint64(count))},
				})
			}
			node.SetRules(rules...)
			client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{node.URL()}})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			keys, err := a.Keys(t.Context())
			require.NoError(t, err)
			counts, err := a.Count(t.Context(), client, keys)
			if test.want > 0 {
				require.NoError(t, err)
				require.Equal(t, test.want, counts[0].next())
				require.Equal(t, test.highest, counts[0].Highest)
				return
			}
			require.ErrorContains(t, err, "still changes, and is 50 now: stop all else that sends with the key")
			require.Equal(t, NotDone, OutcomeOf(err))
		})
	}
}

// The node that is asked first is syncing. Another one has the recorded block, so nothing was reorganized.
func TestReorganized_FirstNodeIsSyncing_IsRefused(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	for range 9 {
		chain.Commit()
	}
	header, err := chain.Client().HeaderByNumber(t.Context(), big.NewInt(8))
	require.NoError(t, err)
	a := open(t, genesisOf(t, chain), chain.Accounts[0].Address)
	require.NoError(t, a.Store.MoveAnchor(t.Context(), 0, store.Block{Number: 8, Hash: header.Hash()}))
	syncing, err := proxy.Open(proxy.Config{HTTP: chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syncing.Close()) })
	syncing.SetLag(5)
	client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{syncing.URL(), chain.URL()}})
	require.NoError(t, err)
	defer client.Close()
	_, err = a.Reorganized(t.Context(), client)
	require.ErrorContains(t, err, "nothing was reorganized")
	require.Equal(t, NotDone, OutcomeOf(err))
}

// StartOver checks the nodes again: between the plan and the operator's decision they may have changed.
func TestStartOver_ChainChangedSincePlan_ChecksNodesAgain(t *testing.T) {
	t.Parallel()
	one, other := testchain.Simulated(t, testchain.SimulatedOptions{}), testchain.Simulated(t, testchain.SimulatedOptions{})
	third := testchain.Simulated(t, testchain.SimulatedOptions{})
	key := one.Accounts[0].Address
	a := open(t, genesisOf(t, one), key)
	results, err := a.Store.Accept(t.Context(), store.AllocationLimits{Held: []common.Address{key}, Cap: 1}, []*store.NewTransaction{{
		ID: uuid.Must(uuid.NewV7()), Target: "pool", Caller: "me", Kind: relayer.KindTransaction, Request: relayer.Request{To: &key},
	}})
	require.NoError(t, err)
	client := nodes(t, other)
	plan, err := a.NewChain(t.Context(), client)
	require.NoError(t, err)

	stale := *plan
	stale.Known.Generation++
	_, err = a.StartOver(t.Context(), client, &stale)
	require.ErrorIs(t, err, store.ErrChainChanged)
	require.Equal(t, NotDone, OutcomeOf(err))
	_, err = a.StartOver(t.Context(), nodes(t, third), plan)
	require.ErrorContains(t, err, "the nodes have genesis block")
	_, err = a.StartOver(t.Context(), nodes(t, one), plan)
	require.ErrorIs(t, err, ErrSameChain)
	require.Equal(t, NotDone, OutcomeOf(err))
	now, err := a.Store.Transaction(t.Context(), results[0].Tx.ID)
	require.NoError(t, err)
	require.False(t, now.Status.Final())
}

func TestAwaitDrained_ContextCanceled_Returns(t *testing.T) {
	t.Parallel()
	key := common.HexToAddress("0x1")
	a := open(t, common.Hash{1}, key)
	results, err := a.Store.Accept(t.Context(), store.AllocationLimits{Held: []common.Address{key}, Cap: 1}, []*store.NewTransaction{{
		ID: uuid.Must(uuid.NewV7()), Target: "pool", Caller: "me", Kind: relayer.KindTransaction, Request: relayer.Request{To: &key},
	}})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stopped := errors.New("stopped")
	var seen []store.Load
	left, over, err := a.Drain(ctx, key)
	require.NoError(t, err)
	require.False(t, over)
	require.Equal(t, store.Load{Pending: 1}, left)
	err = a.AwaitDrained(ctx, key, store.Load{}, func(n store.Load) { seen = append(seen, n); cancel(stopped) })
	require.ErrorIs(t, err, stopped)
	require.EqualError(t, err, "0x0000000000000000000000000000000000000001 is paused, with 1 transaction not final yet")
	require.Equal(t, NotDone, OutcomeOf(err))
	require.Equal(t, []store.Load{{Pending: 1}}, seen)
	keys, err := a.Keys(t.Context(), key)
	require.NoError(t, err)
	require.True(t, keys[0].Paused)
	require.True(t, keys[0].Draining)
	var unknown *UnknownKeyError
	_, err = a.Keys(t.Context(), common.HexToAddress("0x2"))
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, relayer.ErrNotFound)

	// This attempt never comes.
	short, end := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer end()
	tx, last := a.AwaitAttempt(short, results[0].Tx.ID, 0)
	require.Nil(t, tx)
	require.Nil(t, last)
}

// The wait may also end during the last write. A key that was resumed meanwhile is not paused.
func TestAwaitDrained_LastWriteIsLate_KeyIsPaused(t *testing.T) {
	t.Parallel()
	key := common.HexToAddress("0xAB")
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
	a := openIn(t, db, common.Hash{1}, key)
	left, over, err := a.Drain(t.Context(), key)
	require.NoError(t, err)
	require.True(t, over)
	none := func(store.Load) { t.Error("nothing is left") }
	require.NoError(t, a.AwaitDrained(t.Context(), key, left, none))

	held, err := db.Begin(t.Context())
	require.NoError(t, err)
	_, err = held.Exec(t.Context(), `SELECT FROM relayer_keys FOR UPDATE`)
	require.NoError(t, err)
	short, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	err = a.AwaitDrained(short, key, left, none)
	require.NoError(t, held.Rollback(t.Context()))
	require.EqualError(t, err, "0x00000000000000000000000000000000000000ab is paused, with 0 transactions not final yet")
	require.ErrorAs(t, err, new(*NotDrainedError))
	require.Equal(t, NotDone, OutcomeOf(err))

	was, is, err := a.Pause(t.Context(), key, false)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, []bool{was.Paused, is.Paused})
	require.ErrorIs(t, a.AwaitDrained(t.Context(), key, left, none), ErrResumed)
}

// A next nonce may be raised by as much as relayers raise it by themselves.
func TestJumps_MoreThanRelayersRaise_AreReturned(t *testing.T) {
	t.Parallel()
	key := &relayer.Key{NextNonce: 10}
	for next, want := range map[uint64]uint64{0: 0, 10: 0, 11: 0, 74: 0, 75: 65, math.MaxUint64: math.MaxUint64 - 10} {
		require.Equal(t, want, Jump(key, next, 64), next)
	}
	mined, pending := KeyCount{Key: key, Mined: 75, Pending: 2}, KeyCount{Key: key, Mined: 2, Pending: 75}
	require.Equal(t, []KeyCount{mined, pending}, Jumps([]KeyCount{{Key: key, Mined: 74, Pending: 74, Highest: 1000}, mined, pending}, 64))
	require.Empty(t, Jumps([]KeyCount{mined}, 65))
}

// The result is the stored key's, not that of a copy which a process read before it disabled the key.
func TestPause_Key_ReturnsItBeforeAndAfter(t *testing.T) {
	p := openPool(t)
	p.accept()
	_, _, err := p.Drain(t.Context(), p.key)
	require.NoError(t, err)
	_, err = p.Store.ChangeKey(t.Context(), p.key, store.KeyChange{Draining: new(true), Enabled: new(false), DisabledReason: new("low balance")})
	require.NoError(t, err)
	for _, paused := range []bool{true, true, false} {
		keys, err := p.Keys(t.Context())
		require.NoError(t, err)
		was, is, err := p.Pause(t.Context(), p.key, paused)
		require.NoError(t, err)
		stored, err := p.Keys(t.Context())
		require.NoError(t, err)
		keys[0].ReadAt, stored[0].ReadAt, was.ReadAt, is.ReadAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		require.Equal(t, keys[0], was)
		require.Equal(t, stored[0], is)
		require.Equal(t, []any{paused, false, false, "low balance"}, []any{is.Paused, is.Draining, is.Usable(), is.DisabledReason})
	}
	_, _, err = p.Pause(t.Context(), common.HexToAddress("0x2"), true)
	require.ErrorIs(t, err, relayer.ErrNotFound)
	require.Equal(t, NotDone, OutcomeOf(err))
}
