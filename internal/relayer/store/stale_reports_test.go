package store

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// A process may freeze between a broadcast and its record, until the transaction has another nonce. Its late report changes
// nothing.
func TestRecordBroadcasts_ReportOfEarlierNonce_ChangesNothing(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, common.Hash{0xee}, Block{Number: 7, Hash: blockHash(7)})))
	late := []Broadcast{{
		TxID: tx.ID, Number: 1, From: tx.From, Nonce: *tx.Nonce, Hash: attempt(tx, 1, relayer.PurposeSend).Hash, Status: relayer.Broadcasted,
	}}
	waiting := read(t, s, tx)
	require.NoError(t, s.RecordBroadcasts(t.Context(), late))
	require.Equal(t, waiting, read(t, s, tx))

	// The process that assigned the other nonce dies before it signs.
	again, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.NoError(t, s.RecordBroadcasts(t.Context(), late))
	unsigned, err := s.Unsigned(t.Context(), all(limits), -time.Minute, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 1, "no process would sign for it")
	require.Equal(t, again[0].Nonce, unsigned[0].Nonce)
}

// A transaction that is queued while the chain is reset has no attempts any more. A report about its first attempt on the
// new chain counts.
func TestRecordBroadcasts_FirstAttemptAfterReset_IsRecorded(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, common.Hash{0xee}, Block{Number: 7, Hash: blockHash(7)})))
	_, err := s.ResetChain(t.Context(), known(t, s), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	again, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, again, 1)
	unsigned, err := s.Unsigned(t.Context(), all(limits), -time.Minute, 10) // for a process that finds it without an attempt
	require.NoError(t, err)
	require.Len(t, unsigned, 1)
	require.Equal(t, again[0].Attempts, unsigned[0].Attempts)
	broadcast(t, s, unsigned[0])
	require.Equal(t, relayer.Broadcasted, read(t, s, tx).Status)
}
