package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
)

// chainID is the chain id of geth's development mode.
const chainID = 1337

// geth is a node with its own chain on disk, that seals a block each second, and whose pool accepts everything.
type geth struct {
	*process
	dir    string
	addr   string
	client *rpc.Client
}

func (s *suite) startGeth(ctx context.Context, fund []common.Address) (g *geth, err error) {
	dir, err := s.freshDir("geth")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	g = &geth{dir: dir, addr: addrs[0]}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	_, port, _ := net.SplitHostPort(g.addr)
	const modules = "eth,net,web3,txpool"
	g.process, err = start("geth", dir, nil, s.geth,
		"--dev", "--dev.period", "1", "--dev.gaslimit", "1000000000",
		"--txpool.accountslots", "100000", "--txpool.globalslots", "200000",
		"--txpool.accountqueue", "100000", "--txpool.globalqueue", "200000",
		"--datadir", "data", "--ipcdisable", "--http", "--http.port", port, "--http.api", modules,
		"--ws", "--ws.port", port, "--ws.api", modules)
	if err != nil {
		return nil, err
	}
	if g.client, err = rpc.Dial("http://" + g.addr); err != nil {
		return nil, err
	}
	err = until(ctx, time.Minute, func(ctx context.Context) error {
		if err := g.running(); err != nil {
			return err
		}
		var head hexutil.Uint64
		return g.client.CallContext(ctx, &head, "eth_blockNumber")
	})
	if err != nil {
		return nil, err
	}
	return g, g.fund(ctx, fund)
}

// fund transfers a million ether of geth's own account to each address, and waits until it is mined.
func (g *geth) fund(ctx context.Context, to []common.Address) error {
	var faucets []common.Address
	if err := g.client.CallContext(ctx, &faucets, "eth_accounts"); err != nil {
		return err
	}
	if len(faucets) == 0 {
		return errors.New("geth has no account of its own")
	}
	amount := (*hexutil.Big)(new(big.Int).Mul(big.NewInt(1_000_000), big.NewInt(params.Ether)))
	for i, address := range to {
		var hash common.Hash
		err := g.client.CallContext(ctx, &hash, "eth_sendTransaction", map[string]any{
			"from": faucets[0], "to": address, "value": amount, "gas": hexutil.Uint64(params.TxGas),
			"nonce": hexutil.Uint64(i), // the chain is new; the pool's own count drops for a moment with each block
		})
		if err != nil {
			return fmt.Errorf("fund %s: %w", address, err)
		}
	}
	return until(ctx, 30*time.Second, func(ctx context.Context) error {
		var balance hexutil.Big
		if err := g.client.CallContext(ctx, &balance, "eth_getBalance", to[len(to)-1], "latest"); err != nil {
			return err
		}
		if balance.ToInt().Sign() == 0 {
			return errors.New("the keys are not funded")
		}
		return nil
	})
}

func (g *geth) close() {
	if g.client != nil {
		g.client.Close()
	}
	if g.process != nil {
		g.kill()
	}
	os.RemoveAll(g.dir)
}

// count returns how many transactions of the addresses are mined.
func (g *geth) count(ctx context.Context, addresses []common.Address) (total uint64, err error) {
	counts := make([]hexutil.Uint64, len(addresses))
	calls := make([]rpc.BatchElem, len(addresses))
	for i, a := range addresses {
		calls[i] = rpc.BatchElem{Method: "eth_getTransactionCount", Args: []any{a, "latest"}, Result: &counts[i]}
	}
	if err := g.client.BatchCallContext(ctx, calls); err != nil {
		return 0, err
	}
	for i, call := range calls {
		if call.Error != nil {
			return 0, call.Error
		}
		total += uint64(counts[i])
	}
	return total, nil
}

const (
	// minedPoll is how often the node is asked for its head: its cost should not affect the measurement.
	minedPoll = 20 * time.Millisecond
	// minedLimit is how long no transaction may be mined.
	minedLimit = 30 * time.Second
)

// mined returns when exactly this many transactions of the addresses are mined.
func (g *geth) mined(ctx context.Context, addresses []common.Address, want uint64) (time.Time, error) {
	var last hexutil.Uint64
	var before uint64
	for moved := time.Now(); time.Since(moved) < minedLimit; pause(ctx, minedPoll) {
		var head hexutil.Uint64
		if err := g.client.CallContext(ctx, &head, "eth_blockNumber"); err != nil {
			return time.Time{}, err
		}
		if head == last {
			continue
		}
		at := time.Now()
		n, err := g.count(ctx, addresses)
		switch {
		case err != nil:
			return at, err
		case n == want:
			return at, nil
		case n > want:
			return at, fmt.Errorf("%d transactions are mined where %d were sent", n, want)
		case n > before:
			moved = at
		}
		last, before = head, n
	}
	return time.Time{}, fmt.Errorf("%d of %d transactions are mined, and no more came for %s", before, want, minedLimit)
}

// offer returns the node's suggested tip, and a fee of that plus twice the current base fee.
func (g *geth) offer(ctx context.Context) (tip, fee *big.Int, err error) {
	var suggested hexutil.Big
	var block struct {
		BaseFee *hexutil.Big `json:"baseFeePerGas"`
	}
	calls := []rpc.BatchElem{
		{Method: "eth_maxPriorityFeePerGas", Result: &suggested},
		{Method: "eth_getBlockByNumber", Args: []any{"latest", false}, Result: &block},
	}
	err = g.client.BatchCallContext(ctx, calls)
	for _, call := range slices.Backward(calls) {
		err = errors.Join(err, call.Error)
	}
	if err != nil {
		return nil, nil, err
	}
	fee = new(big.Int).Lsh(block.BaseFee.ToInt(), 1)
	return suggested.ToInt(), fee.Add(fee, suggested.ToInt()), nil
}
