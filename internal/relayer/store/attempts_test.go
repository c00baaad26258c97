package store

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// A process may die between storing the second bytes of a transaction and sending them. They count as unsent, although
// nodes have the first.
func TestUnsent_LaterAttemptStored_ListsItUntilReported(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T, *Store, *relayer.Attempt){
		"outbid": func(t *testing.T, l *Store, a *relayer.Attempt) {
			stored, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{a})
			require.NoError(t, err)
			require.Equal(t, []bool{true}, stored)
		},
		"replaced": func(t *testing.T, l *Store, a *relayer.Attempt) {
			require.NoError(t, l.Replace(t.Context(), &Replacement{ID: a.TxID, Request: draft(l).Request, Attempt: a}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, terms := setup(t, 1, "target")
			unsent := func() (hashes []string) {
				attempts, err := l.Unsent(t.Context(), all(terms), -time.Minute, Resends{}, 10)
				require.NoError(t, err)
				for _, a := range attempts {
					hashes = append(hashes, a.Hash.Hex())
				}
				return hashes
			}
			for _, first := range []relayer.Status{relayer.Broadcasted, relayer.Unknown, relayer.Allocated} {
				tx := accept(t, l, terms, draft(l))[0]
				said := func(number int, status relayer.Status) {
					a := attempt(tx, number, relayer.PurposeSend)
					require.NoError(t, l.RecordBroadcasts(t.Context(), []Broadcast{{TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Hash: a.Hash, Status: status}}))
				}
				one := attempt(tx, 1, relayer.PurposeSend)
				_, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{one})
				require.NoError(t, err)
				if first != relayer.Allocated {
					said(1, first)
				}
				two := attempt(tx, 2, relayer.PurposeSend)
				before := read(t, l, tx)
				store(t, l, two)
				require.Equal(t, []string{two.Hash.Hex()}, unsent())
				said(1, relayer.Broadcasted) // a late report of the process that sent them
				require.Equal(t, []string{two.Hash.Hex()}, unsent(), "a late report about the first attempt was recorded for the second")

				stored := read(t, l, tx)
				require.Equal(t, before.Status.API(true), stored.Status.API(true))
				said(2, relayer.Broadcasted)
				require.Empty(t, unsent())
				now := read(t, l, tx)
				require.Equal(t, relayer.Broadcasted, now.Status)
				require.Equal(t, two.Hash, *now.Hash)
				require.Equal(t, stored.Revision+1, now.Revision)
				if name == "outbid" {
					require.Equal(t, before.Revision, stored.Revision, "storing an attempt is not delivered")
				}
				var told int
				require.NoError(t, l.db.QueryRow(t.Context(), `SELECT count(*) FROM relayer_deliveries WHERE subject = $1`, tx.ID).Scan(&told))
				require.Equal(t, now.Revision-1, told)
			}
		})
	}
}

// Attempts of mined or final transactions are stored without changing the row: a chain that drops a block needs the bytes
// again.
func TestStoreAttempts_TransactionIsMined_RowIsUnchanged(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	tx := accept(t, l, terms, draft(l))[0]
	broadcast(t, l, tx)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 3)}))
	before := read(t, l, tx)
	stored, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(tx, 2, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	require.Equal(t, before, read(t, l, tx))
}

// A shown transaction has the fees of the attempt that its hash names.
func TestTransactions_ShowOfferedFees(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	other := accept(t, l, terms, draft(l))[0]
	tx := accept(t, l, terms, draft(l))[0]
	shown := func(fee, tip *big.Int) {
		t.Helper()
		listed, _, err := l.Transactions(t.Context(), Filter{}, 0, 10)
		require.NoError(t, err)
		require.Equal(t, []*relayer.Transaction{read(t, l, tx), read(t, l, other)}, listed)
		require.Equal(t, []*big.Int{fee, tip}, []*big.Int{listed[0].OfferedFee, listed[0].OfferedTip})
		require.Nil(t, listed[1].OfferedFee)
	}
	shown(nil, nil)
	broadcast(t, l, tx)
	shown(big.NewInt(2), big.NewInt(1))
	legacy := attempt(tx, 2, relayer.PurposeNoop)
	legacy.MaxFee, legacy.MaxPriorityFee = big.NewInt(7), nil
	_, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{legacy})
	require.NoError(t, err)
	shown(big.NewInt(2), big.NewInt(1)) // no node has accepted the second attempt
	require.NoError(t, l.RecordBroadcasts(t.Context(), []Broadcast{{TxID: tx.ID, Number: 2, From: tx.From, Nonce: *tx.Nonce, Hash: legacy.Hash, Status: relayer.Broadcasted}}))
	shown(big.NewInt(7), nil)
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, common.Hash{0xee}, Block{Number: 7, Hash: blockHash(7)})))
	shown(nil, nil)
}
