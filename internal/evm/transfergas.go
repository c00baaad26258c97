package evm

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/params"
)

// MaxTransferGas returns the highest gas limit of a transfer without data, regardless of the nodes' estimate: the newest block's
// gas limit, because a transaction with more can never be mined, or Config.MaxTransferGas if that is less. Rollups that charge
// for the data of their base chain, or that count gas in small units, estimate up to hundreds of millions.
func (c *Client) MaxTransferGas() uint64 {
	most := uint64(math.MaxInt64)
	if limit := c.Head().GasLimit; limit != 0 { // some nodes omit it
		most = min(most, limit)
	}
	if c.cfg.MaxTransferGas != 0 {
		most = min(most, c.cfg.MaxTransferGas)
	}
	return most
}

const (
	// transferGasAge is how long an estimate is used. A rollup's charge follows its base chain's fees.
	transferGasAge = 10 * time.Minute
	// transferGasRetry is how long the fallback is used after an estimate failed.
	transferGasRetry = 10 * time.Second
)

// transferGasCache holds the gas limits of transfers by receiver. Receivers are the relayer's own keys.
type transferGasCache struct {
	mu    sync.Mutex
	known map[common.Address]transferGas
}

type transferGas struct {
	gas     uint64
	expires time.Time
}

func (tc *transferGasCache) get(to common.Address) (t transferGas, known bool) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	t, known = tc.known[to]
	return t, known
}

func (tc *transferGasCache) put(to common.Address, gas uint64, age time.Duration) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if tc.known == nil {
		tc.known = map[common.Address]transferGas{}
	}
	tc.known[to] = transferGas{gas: gas, expires: time.Now().Add(age)}
}

// TransferGas returns the gas limit for a transfer without data, from the nodes' estimate. An estimate is kept for ten
// minutes; fresh requests a new one. Without an estimate TransferGas returns the last one, or else Ethereum's 21,000. A
// transaction that nodes refuse can be replaced; one that is not sent blocks its key.
func (c *Client) TransferGas(ctx context.Context, from, to common.Address, fresh bool) uint64 {
	last, known := c.transfers.get(to)
	if known && !fresh && time.Now().Before(last.expires) {
		return last.gas
	}
	gas, err := c.EstimateGas(ctx, Message{From: from, To: &to})
	if err != nil {
		gas, age := params.TxGas, transferGasRetry
		if known {
			gas = last.gas
		}
		if ctx.Err() == nil {
			c.log.Warn("transfer gas estimate failed", "key", to, "gas", gas, "err", err)
			c.transfers.put(to, gas, age)
		}
		return gas
	}
	if gas > params.TxGas {
		gas = min(gas, math.MaxInt64/2)
		gas += gas / 4 // margin for changes until the transfer is mined; unused gas is not paid for
	}
	gas = min(max(gas, params.TxGas), c.MaxTransferGas())
	c.transfers.put(to, gas, transferGasAge)
	return gas
}
