package evm

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

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
	c.heads.offer("test", Header{Number: 1, Hash: common.Hash{1}, GasLimit: 200_000_000}, time.Now(), c.gone)
	require.EqualValues(t, 200_000_000, c.TransferGas(ctx, key, other, true), "the block's limit")
	answer(`"0x5f5e100"`, "")
	require.EqualValues(t, 125_000_000, c.TransferGas(ctx, key, other, true), "as much as the chain needs")
	c.cfg.MaxTransferGas = 90_000_000
	require.EqualValues(t, 90_000_000, c.TransferGas(ctx, key, other, true), "the operator's limit")
}
