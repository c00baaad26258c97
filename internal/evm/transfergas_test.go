package evm

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestTransferGas(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var asked atomic.Int32
	answer := func(result, fault string) {
		f.on("eth_estimateGas", func([]json.RawMessage) (string, string) { asked.Add(1); return result, fault })
	}
	c, err := Open(Config{ChainID: simulatedID, Endpoints: []string{f.url()}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	key, other := common.Address{1}, common.Address{2}
	ctx := context.Background()

	answer("", `{"code": -32000, "message": "no estimates here"}`)
	require.EqualValues(t, 21_000, c.TransferGas(ctx, key, key, false), "the last resort")
	answer(`"0xea60"`, "")
	require.EqualValues(t, 75_000, c.TransferGas(ctx, key, key, true), "with a quarter of room")
	n := asked.Load()
	require.EqualValues(t, 75_000, c.TransferGas(ctx, key, key, false))
	require.Equal(t, n, asked.Load(), "it is kept")
	answer("", `{"code": -32000, "message": "no estimates here"}`)
	require.EqualValues(t, 75_000, c.TransferGas(ctx, key, key, true), "the last one is better than none")
	answer(`"0x5208"`, "")
	require.EqualValues(t, 21_000, c.TransferGas(ctx, key, other, false), "exactly what Ethereum charges")
	answer(`"0x0"`, "")
	require.EqualValues(t, 21_000, c.TransferGas(ctx, key, other, true))
	answer(`"0xffffffffffff"`, "")
	require.EqualValues(t, MaxTransferGas, c.TransferGas(ctx, key, other, true))
}
