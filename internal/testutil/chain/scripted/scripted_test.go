package scripted_test

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const chainID = 7

var topic = common.Hash{0xa}

func tx(id byte, indexes ...uint) scripted.Tx {
	one := scripted.Tx{Hash: common.Hash{id}}
	for _, i := range indexes {
		one.Logs = append(one.Logs, types.Log{Address: common.Address{id}, Topics: []common.Hash{topic, {byte(i)}}, Data: []byte{id}, Index: i})
	}
	return one
}

// A client of the product reads both branches of a fork, each proven, and receives heads.
func TestNode_Fork_BlocksAreProven(t *testing.T) {
	t.Parallel()
	c := scripted.New(chainID)
	n := scripted.Serve(t, c)
	left := c.Mine(c.Mine(c.Genesis()), tx(1, 0, 0xfffffffc), tx(2))
	right := c.Mine(c.Mine(left.Parent, tx(3, 1)), tx(1, 0))
	client, err := evm.Open(evm.Config{ChainID: chainID, Endpoints: []string{n.URL()}, Subscribe: n.WSURL(), Timeout: 20 * time.Second})
	require.NoError(t, err)
	defer client.Close()
	ep := client.Endpoints()[0]

	n.SetHead(left)
	_, err = client.SealedHeader(t.Context(), ep, right.Hash)
	require.ErrorIs(t, err, evm.ErrMissing)
	_, err = client.Logs(t.Context(), ep, evm.LogQuery{Block: right.Hash, Topics: []common.Hash{topic}})
	require.ErrorIs(t, err, evm.ErrMissing)
	n.SetHead(right)
	for _, b := range []*scripted.Block{left, right} {
		logs, err := client.Logs(t.Context(), ep, evm.LogQuery{Block: b.Hash, Topics: []common.Hash{topic}})
		require.NoError(t, err)
		read, err := client.BlockLogs(t.Context(), ep, b.Hash, []common.Hash{topic})
		require.NoError(t, err)
		require.Equal(t, evm.Proven, read.Proof)
		require.Equal(t, logs, read.Logs)
		require.Len(t, logs, len(b.Logs()))
	}
	_, err = client.Logs(t.Context(), ep, evm.LogQuery{From: 1, To: 9, Topics: []common.Hash{topic}})
	require.ErrorIs(t, err, evm.ErrMissing)
	logs, err := client.Logs(t.Context(), ep, evm.LogQuery{From: 1, To: 3, Topics: []common.Hash{topic}})
	require.NoError(t, err)
	require.Len(t, logs, 2)

	_, found, err := client.FinalOf(t.Context(), ep, evm.Finality{Tag: "finalized"})
	require.NoError(t, err)
	require.False(t, found)
	n.SetFinal(right.Parent)
	final, found, err := client.FinalOf(t.Context(), ep, evm.Finality{Tag: "finalized"})
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, right.Parent.Hash, final.Hash)
}
