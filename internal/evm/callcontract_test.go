package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"
)

// counter is a contract that returns storage slot 0 as 32 bytes, and adds one to it if it is called with data.
var counter = common.HexToAddress("0x5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e60")

// CALLDATASIZE PUSH1 0x0c JUMPI; PUSH0 SLOAD PUSH0 MSTORE PUSH1 0x20 PUSH0 RETURN; at 0x0c: JUMPDEST PUSH0 SLOAD PUSH1 1 ADD PUSH0
// SSTORE STOP
const counterCode = "36600c57" + "5f545f5260205ff3" + "5b5f546001015f5500"

func (s *sim) countingTx(nonce uint64) Raw {
	return s.tx(0, nonce, func(tx *types.DynamicFeeTx) { tx.To, tx.Data, tx.Value, tx.Gas = &counter, []byte{1}, nil, 100_000 })
}

func TestCallContract_AllEndpoints_AnswerAlone(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	false1, malformed, null := newFake(t), newFake(t), newFake(t)
	false1.always("eth_call", `"0x07"`, "")
	malformed.always("eth_call", `"7"`, "")
	null.always("eth_call", `null`, "")
	other := newFake(t)
	other.chainID = 5
	c := open(t, Config{Endpoints: []string{
		s.URL(), s.WSURL(), false1.url(), malformed.url(), null.url(), other.url(), "http://127.0.0.1:1",
	}})
	word := func(n byte) []byte { return common.Hash{31: n}.Bytes() }

	all := c.CallContract(t.Context(), Message{To: &counter}, LatestState)
	require.Len(t, all, 7)
	for i, want := range [][]byte{word(0), word(0), {7}} {
		require.NoError(t, all[i].Err)
		require.Equal(t, want, all[i].Data)
	}
	for i, a := range all {
		require.Equal(t, c.endpoints[i].name, a.Endpoint)
	}
	for _, a := range all[3:] {
		require.Error(t, a.Err)
		require.True(t, IsNoAnswer(a.Err), "%v", a.Err)
		require.Nil(t, a.Data)
	}

	requireOutcomes(t, c.Send(t.Context(), []Raw{s.countingTx(0)})[:1], Accepted)
	require.Eventually(t, func() bool { // the pending block follows the pool later
		return bytes.Equal(word(1), c.CallContract(t.Context(), Message{To: &counter}, PendingState)[0].Data)
	}, patient, 50*time.Millisecond)
	require.Equal(t, word(0), c.CallContract(t.Context(), Message{To: &counter}, LatestState)[0].Data)
	s.Commit()
	require.Equal(t, word(1), c.CallContract(t.Context(), Message{To: &counter}, LatestState)[0].Data)

	reverted := c.CallContract(t.Context(), Message{To: &reverter, Data: common.FromHex("deadbeef")}, LatestState)[0]
	var revert *RevertError
	require.ErrorAs(t, reverted.Err, &revert)
	require.Equal(t, common.FromHex("deadbeef"), revert.Data)
	require.False(t, IsNoAnswer(reverted.Err))

	nothing := c.CallContract(t.Context(), Message{To: &common.Address{9}}, LatestState)[0]
	require.NoError(t, nothing.Err)
	require.Empty(t, nothing.Data)
}

func TestCallContract_NoPendingState_ReadsLatest(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_call", func(params []json.RawMessage) (string, string) {
		if string(params[1]) == `"pending"` {
			return "", `{"code":-32000,"message":"pending state is not available"}`
		}
		return `"0x05"`, ""
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	for range 2 {
		all := c.CallContract(t.Context(), Message{To: &counter}, PendingState)
		require.NoError(t, all[0].Err)
		require.Equal(t, []byte{5}, all[0].Data)
	}
	require.Equal(t, 3, f.count("eth_call"), "the second call does not ask for the pending state again")
}

// A hanging endpoint delays callers once, and is not asked again while another one answers.
func TestCallContract_EndpointHangs_AskedOnlyIfThereIsNoOther(t *testing.T) {
	t.Parallel()
	good, hangs := newFake(t), newFake(t)
	good.always("eth_call", `"0x05"`, "")
	asked := make(chan struct{}, 2)
	hangs.onRequest(func(_ http.ResponseWriter, calls []fakeCall, _ bool) bool {
		if calls[0].Method == "eth_call" {
			asked <- struct{}{}
			<-hangs.release
		}
		return false
	})
	c := open(t, Config{Endpoints: []string{hangs.url(), good.url()}})
	c.shorten(t, 0)
	all := c.CallContract(t.Context(), Message{To: &counter}, LatestState)
	require.True(t, IsNoAnswer(all[0].Err), "%v", all[0].Err)
	require.Equal(t, []byte{5}, all[1].Data)
	<-asked
	c.endpoints[0].prolong()
	all = c.CallContract(t.Context(), Message{To: &counter}, LatestState)
	require.ErrorIs(t, all[0].Err, ErrNoEndpoint)
	require.Equal(t, []byte{5}, all[1].Data)
	require.Equal(t, 1, hangs.count("eth_call"))

	c.Exclude(all[1].Endpoint, Exclusion{Reason: "test"})
	c.endpoints[0].cfg = &c.cfg
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	all = c.CallContract(ctx, Message{To: &counter}, LatestState)
	require.ErrorIs(t, all[0].Err, context.Canceled)
	require.ErrorIs(t, all[1].Err, ErrNoEndpoint)
	require.Equal(t, 2, hangs.count("eth_call"))
}

func TestCallContract_Parameters(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_call", func(params []json.RawMessage) (string, string) {
		var m struct{ From, To, Data hexutil.Bytes }
		if json.Unmarshal(params[0], &m) != nil || string(params[1]) != `"latest"` {
			return "", `{"code":-32602,"message":"invalid params"}`
		}
		return `"` + m.Data.String() + `"`, ""
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	all := c.CallContract(t.Context(), Message{From: common.Address{1}, To: &counter, Data: []byte{3}}, LatestState)
	require.NoError(t, all[0].Err)
	require.Equal(t, []byte{3}, all[0].Data)
}
