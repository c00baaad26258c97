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
		"outbid": func(t *testing.T, s *Store, a *relayer.Attempt) {
			stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{a})
			require.NoError(t, err)
			require.Equal(t, []bool{true}, stored)
		},
		"replaced": func(t *testing.T, s *Store, a *relayer.Attempt) {
			require.NoError(t, s.Replace(t.Context(), &Replacement{ID: a.TxID, Request: newTx(s).Request, Attempt: a}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, limits := setup(t, 1, "target")
			unsent := func() (hashes []string) {
				attempts, err := s.Unsent(t.Context(), all(limits), -time.Minute, Resends{}, 10)
				require.NoError(t, err)
				for _, a := range attempts {
					hashes = append(hashes, a.Hash.Hex())
				}
				return hashes
			}
			for _, first := range []relayer.Status{relayer.Broadcasted, relayer.Unknown, relayer.Allocated} {
				tx := accept(t, s, limits, newTx(s))[0]
				record := func(number int, status relayer.Status) {
					a := attempt(tx, number, relayer.PurposeSend)
					require.NoError(t, s.RecordBroadcasts(t.Context(), []Broadcast{{TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Hash: a.Hash, Status: status}}))
				}
				one := attempt(tx, 1, relayer.PurposeSend)
				_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{one})
				require.NoError(t, err)
				if first != relayer.Allocated {
					record(1, first)
				}
				two := attempt(tx, 2, relayer.PurposeSend)
				before := read(t, s, tx)
				store(t, s, two)
				require.Equal(t, []string{two.Hash.Hex()}, unsent())
				record(1, relayer.Broadcasted) // a late report of the process that sent them
				require.Equal(t, []string{two.Hash.Hex()}, unsent(), "a late report about the first attempt was recorded for the second")

				stored := read(t, s, tx)
				require.Equal(t, before.Status.API(true), stored.Status.API(true))
				record(2, relayer.Broadcasted)
				require.Empty(t, unsent())
				now := read(t, s, tx)
				require.Equal(t, relayer.Broadcasted, now.Status)
				require.Equal(t, two.Hash, *now.Hash)
				require.Equal(t, stored.Revision+1, now.Revision)
				if name == "outbid" {
					require.Equal(t, before.Revision, stored.Revision, "storing an attempt is not delivered")
				}
				var delivered int
				require.NoError(t, s.db.QueryRow(t.Context(), `SELECT count(*) FROM relayer_webhooks WHERE about = $1`, tx.ID).Scan(&delivered))
				require.Equal(t, now.Revision-1, delivered)
			}
		})
	}
}

// Attempts of mined or final transactions are stored without changing the row: a chain that drops a block needs the bytes
// again.
func TestStoreAttempts_TransactionIsMined_RowIsUnchanged(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 3)}))
	before := read(t, s, tx)
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(tx, 2, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	require.Equal(t, before, read(t, s, tx))
}

// A shown transaction has the fees of the attempt that its hash names.
func TestTransactions_ShowOfferedFees(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	other := accept(t, s, limits, newTx(s))[0]
	tx := accept(t, s, limits, newTx(s))[0]
	shown := func(fee, tip *big.Int) {
		t.Helper()
		listed, _, err := s.Transactions(t.Context(), Filter{}, 0, 10)
		require.NoError(t, err)
		require.Equal(t, []*relayer.Transaction{read(t, s, tx), read(t, s, other)}, listed)
		require.Equal(t, []*big.Int{fee, tip}, []*big.Int{listed[0].OfferedFee, listed[0].OfferedTip})
		require.Nil(t, listed[1].OfferedFee)
	}
	shown(nil, nil)
	broadcast(t, s, tx)
	shown(big.NewInt(2), big.NewInt(1))
	legacy := attempt(tx, 2, relayer.PurposeNoop)
	legacy.MaxFee, legacy.MaxPriorityFee = big.NewInt(7), nil
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{legacy})
	require.NoError(t, err)
	shown(big.NewInt(2), big.NewInt(1)) // no node has accepted the second attempt
	require.NoError(t, s.RecordBroadcasts(t.Context(), []Broadcast{{TxID: tx.ID, Number: 2, From: tx.From, Nonce: *tx.Nonce, Hash: legacy.Hash, Status: relayer.Broadcasted}}))
	shown(big.NewInt(7), nil)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, common.Hash{0xee}, Block{Number: 7, Hash: blockHash(7)})))
	shown(nil, nil)
}
