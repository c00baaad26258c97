package admin

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// pool is a pool whose one key signs by made-up bytes.
type pool struct {
	*Admin
	t   *testing.T
	db  *pgxpool.Pool
	key common.Address
}

func openPool(t *testing.T) *pool {
	t.Helper()
	t.Parallel()
	p := &pool{t: t, db: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), key: common.HexToAddress("0x1")}
	p.Admin = openIn(t, p.db, common.Hash{1}, p.key)
	return p
}

// accept stores a transaction with a nonce.
func (p *pool) accept() *relayer.Transaction {
	p.t.Helper()
	results, err := p.Store.Accept(p.t.Context(), store.AllocationLimits{Held: []common.Address{p.key}, Cap: 10}, []*store.NewTransaction{{
		ID: uuid.Must(uuid.NewV7()), Target: "pool", Caller: "me", Kind: relayer.KindTransaction, Request: relayer.Request{To: &p.key},
	}})
	require.NoError(p.t, err)
	require.NoError(p.t, results[0].Err)
	require.NotNil(p.t, results[0].Tx.Nonce)
	return results[0].Tx
}

// sign stores an attempt.
func (p *pool) sign(tx *relayer.Transaction, number int, purpose relayer.Purpose) *relayer.Attempt {
	p.t.Helper()
	a := &relayer.Attempt{
		TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Purpose: purpose, Hash: common.BytesToHash(append(tx.ID[:], byte(number))),
		Raw: []byte("raw"), MaxFee: big.NewInt(int64(number)), MaxPriorityFee: big.NewInt(1),
	}
	stored, err := p.Store.StoreAttempts(p.t.Context(), []*relayer.Attempt{a})
	require.NoError(p.t, err)
	require.Equal(p.t, []bool{true}, stored)
	return a
}

func ref(t *testing.T, text string) Ref {
	t.Helper()
	r, err := ParseRef(text)
	require.NoError(t, err)
	return r
}

func TestFind_EachName_IsTheTransaction(t *testing.T) {
	p := openPool(t)
	tx := p.accept()
	attempt := p.sign(tx, 1, relayer.PurposeSend)
	other := p.accept()
	for name, want := range map[string]*relayer.Transaction{
		tx.ID.String(): tx, attempt.Hash.Hex(): tx, p.key.Hex() + ":0": tx, p.key.Hex() + ":1": other,
	} {
		found, err := p.Find(t.Context(), ref(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want.ID, found.ID, name)
	}
	for _, name := range []string{uuid.NewString(), common.Hash{1}.Hex(), p.key.Hex() + ":2"} {
		_, err := p.Find(t.Context(), ref(t, name))
		require.ErrorIs(t, err, relayer.ErrNotFound, name)
	}
}

func TestBump_Signed_ReturnsTheAttemptBefore(t *testing.T) {
	p := openPool(t)
	tx := p.accept()
	id := ref(t, tx.ID.String())
	_, _, err := p.Bump(t.Context(), id)
	require.ErrorIs(t, err, store.ErrUnsigned)
	require.Equal(t, NotDone, OutcomeOf(err))
	_, _, err = p.Bump(t.Context(), ref(t, uuid.NewString()))
	require.ErrorIs(t, err, relayer.ErrNotFound)
	p.sign(tx, 1, relayer.PurposeSend)
	second := p.sign(tx, 2, relayer.PurposeSend)
	now, was, err := p.Bump(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, tx.ID, now.ID)
	require.Equal(t, []any{2, second.Hash}, []any{was.Number, was.Hash})
	asked, err := p.Store.ListBumpRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, asked, 1)

	p.sign(tx, 3, relayer.PurposeSend)
	now, last := p.AwaitAttempt(t.Context(), tx.ID, was.Number)
	require.Equal(t, tx.ID, now.ID)
	require.Equal(t, 3, last.Number)
}

func TestAwaitNoop_SignedOrFinal_Returns(t *testing.T) {
	p := openPool(t)
	tx := p.accept()
	p.sign(tx, 1, relayer.PurposeSend)
	canceled, err := p.Cancel(t.Context(), ref(t, tx.ID.String()), "ann")
	require.NoError(t, err)
	require.Equal(t, relayer.IntentCancel, canceled.Intent)
	require.Equal(t, "canceled by ann", canceled.IntentReason)
	short, end := context.WithTimeout(t.Context(), 3*poll)
	defer end()
	now, last := p.AwaitNoop(short, tx.ID)
	require.Nil(t, now, "no relayer signs it")
	require.Nil(t, last)
	p.sign(tx, 2, relayer.PurposeNoop)
	now, last = p.AwaitNoop(t.Context(), tx.ID)
	require.NotNil(t, now)
	require.Equal(t, []any{2, relayer.PurposeNoop}, []any{last.Number, last.Purpose})

	mined := p.accept()
	attempt := p.sign(mined, 1, relayer.PurposeSend)
	err = p.Store.RecordMined(t.Context(), []store.Mined{{
		TxID: mined.ID, Hash: attempt.Hash, BlockNumber: 5, BlockHash: common.Hash{5}, BlockTime: time.Unix(1, 0), Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}})
	require.NoError(t, err)
	now, _ = p.AwaitNoop(t.Context(), mined.ID)
	require.Equal(t, relayer.Mined, now.Status, "a no-op is not needed any more")
}

func TestCountMined_Keys_AreCountedByTheChain(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	unused := common.HexToAddress("0x77")
	chain.Fund(common.Big1, unused)
	chain.Fund(common.Big1, unused)
	block, err := chain.Client().BlockByNumber(t.Context(), nil)
	require.NoError(t, err)
	used, err := types.Sender(types.LatestSignerForChainID(new(big.Int).SetUint64(testchain.ChainID)), block.Transactions()[0])
	require.NoError(t, err)
	counts, err := CountMined(t.Context(), nodes(t, chain), []*relayer.Key{{Address: unused}, {Address: used}})
	require.NoError(t, err)
	require.Equal(t, []uint64{0, 2}, counts)
}

func TestRecord_Transaction_HasAttemptsAndWebhooks(t *testing.T) {
	p := openPool(t)
	tx, other := p.accept(), p.accept()
	p.sign(tx, 1, relayer.PurposeSend)
	p.sign(tx, 2, relayer.PurposeSend)
	_, err := p.db.Exec(t.Context(), `INSERT INTO relayer_webhooks (lane, about, revision) SELECT $1, about, n FROM unnest($2::uuid[]) about, generate_series(100, 101) n`,
		fmt.Sprint(testchain.ChainID, "/pool/shop"), []uuid.UUID{tx.ID, other.ID})
	require.NoError(t, err)
	r, err := p.Record(t.Context(), ref(t, p.key.Hex()+":0"))
	require.NoError(t, err)
	require.Equal(t, tx.ID, r.ID)
	require.Len(t, r.Attempts, 2)
	require.Len(t, r.Webhooks, 2)
	require.Equal(t, []any{tx.ID.String(), "shop", 101}, []any{r.Webhooks[1].Transaction, r.Webhooks[1].To, r.Webhooks[1].Revision})
	_, err = p.Record(t.Context(), ref(t, uuid.NewString()))
	require.ErrorIs(t, err, relayer.ErrNotFound)
}

func TestParseStatuses_Open_IsAllThatCanChange(t *testing.T) {
	t.Parallel()
	open := []relayer.Status{relayer.Allocated, relayer.Broadcasted, relayer.Unknown, relayer.Mined}
	for _, test := range []struct {
		names []string
		want  []relayer.Status
	}{{nil, nil}, {[]string{"open"}, open}, {[]string{"failed", "open", "mined"}, append(open[:4:4], relayer.Failed)}, {[]string{"mined"}, open[3:]}} {
		got, err := ParseStatuses(test.names)
		require.NoError(t, err)
		require.Equal(t, test.want, got, test.names)
	}
	_, err := ParseStatuses([]string{"open", "pending"})
	require.EqualError(t, err, `"pending" is not a status`)
}
