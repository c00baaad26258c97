// Package chain starts real EVM chains for tests: [Simulated] ones in this process, which seal blocks on demand and
// fork, and [Geth], a process of its own, which can be killed, frozen and rewound. Both fund keys, hold a contract that
// counts its calls, and end with the test.
//
// What fails fails the test; nothing is skipped.
package chain

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/txpool/legacypool"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/params"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/devchain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

// patience bounds everything that takes a healthy chain less than a second.
const patience = 30 * time.Second

// ChainID is that of both kinds of chain.
const ChainID = devchain.ChainID

// Leftovers are the goroutines that go-ethereum leaves behind in a process that closed a simulated chain: goleak is to
// ignore them.
func Leftovers() []goleak.Option {
	return []goleak.Option{
		// As many as there are cores, started once, by the package itself.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		// One a chain: nothing ends it.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/eth/filters.(*FilterAPI).timeoutLoop"),
		// One a chain, of the empty database of peers: it notices its end within 30 s.
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
	}
}

// Account is a key, and its address.
type Account struct {
	Key     *ecdsa.PrivateKey
	Address common.Address
}

// NewAccount makes one.
func NewAccount(t testing.TB) Account {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatalf("generate a key: %v", err)
	}
	return Account{Key: key, Address: crypto.PubkeyToAddress(key.PublicKey)}
}

// NewAccounts makes n of them.
func NewAccounts(t testing.TB, n int) []Account {
	t.Helper()
	accounts := make([]Account, n)
	for i := range accounts {
		accounts[i] = NewAccount(t)
	}
	return accounts
}

// Ether is n ether in wei.
func Ether(n int64) *big.Int { return new(big.Int).Mul(big.NewInt(n), big.NewInt(params.Ether)) }

// SimulatedOptions say what a simulated chain is like. The zero value is useful.
type SimulatedOptions struct {
	// Accounts is how many funded accounts are made; 3 by default.
	Accounts int
	// Balance of each in wei; a million ether by default.
	Balance *big.Int
	// BlockTime seals a block so often; 0: only Commit does.
	BlockTime time.Duration
	// GasLimit, BaseFee, Pool, Modules and Alloc as in devchain.Config. The modules are eth, net, web3, txpool and debug
	// by default.
	GasLimit uint64
	BaseFee  *big.Int
	Pool     *legacypool.Config
	Modules  []string
	Alloc    types.GenesisAlloc
}

// Chain is a simulated chain with funded accounts and a JSON-RPC endpoint, HTTP and websocket, on a loopback port of its
// own. Its methods fail the test instead of returning errors.
type Chain struct {
	// Accounts have a balance, and are the test's own.
	Accounts []Account

	t      testing.TB
	chain  *devchain.Chain
	faucet Account

	mu sync.Mutex // one transfer of the faucet at a time
}

// Simulated starts a simulated chain, which ends with the test. A package that uses it gives [Leftovers] to goleak.
func Simulated(t testing.TB, o SimulatedOptions) *Chain {
	t.Helper()
	if o.Accounts == 0 {
		o.Accounts = 3
	}
	if len(o.Modules) == 0 {
		o.Modules = []string{"eth", "net", "web3", "txpool", "debug"}
	}
	c := &Chain{t: t, Accounts: NewAccounts(t, o.Accounts), faucet: NewAccount(t)}
	config := devchain.Config{
		Listen: "127.0.0.1:0", Modules: o.Modules, BlockTime: o.BlockTime, Balance: o.Balance,
		GasLimit: o.GasLimit, BaseFee: o.BaseFee, Pool: o.Pool,
		Alloc: types.GenesisAlloc{c.faucet.Address: {Balance: new(big.Int).Lsh(common.Big1, 200)}},
	}
	for _, a := range c.Accounts {
		config.Fund = append(config.Fund, a.Address)
	}
	maps.Copy(config.Alloc, o.Alloc)
	var err error
	c.chain, err = devchain.Open(config)
	c.must(err, "open")
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	if o.BlockTime > 0 {
		wg.Go(func() { _ = c.chain.Run(ctx) }) // it ends with ctx
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		c.must(c.chain.Close(), "close")
	})
	return c
}

// URL is http://host:port.
func (c *Chain) URL() string { return c.chain.URL() }

// WSURL is ws://host:port.
func (c *Chain) WSURL() string { return c.chain.WSURL() }

// Client reaches the chain in this process, past its endpoint. It is closed with the test.
func (c *Chain) Client() *ethclient.Client { return c.chain.Client() }

// Commit seals a block with what waits in the pool and returns its hash.
func (c *Chain) Commit() common.Hash {
	c.t.Helper()
	hash, err := c.chain.Commit()
	c.must(err, "commit")
	return hash
}

// Fork makes an earlier block the head again; see [devchain.Chain.Fork].
func (c *Chain) Fork(parent common.Hash) {
	c.t.Helper()
	c.must(c.chain.Fork(parent), "fork")
}

// Rollback empties the pool.
func (c *Chain) Rollback() {
	c.t.Helper()
	c.must(c.chain.Rollback(), "roll back")
}

// AdjustTime seals an empty block that is so much later than its parent.
func (c *Chain) AdjustTime(by time.Duration) {
	c.t.Helper()
	c.must(c.chain.AdjustTime(by), "adjust time")
}

// Fund gives each address so much, in wei, and seals blocks for that.
func (c *Chain) Fund(wei *big.Int, to ...common.Address) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// No more at once than the pool surely keeps.
	for chunk := range slices.Chunk(to, 16) {
		nonce, err := c.Client().PendingNonceAt(ctx, c.faucet.Address)
		c.must(err, "fund")
		for i, a := range chunk {
			tx, err := pay(ctx, c.Client(), c.faucet, &types.DynamicFeeTx{
				Nonce: nonce + uint64(i), To: &a, Value: wei, Gas: 21_000,
			})
			c.must(err, "fund")
			c.must(c.Client().SendTransaction(ctx, tx), "fund")
		}
		c.Commit()
	}
	for _, a := range to {
		balance, err := c.Client().BalanceAt(ctx, a, nil)
		c.must(err, "fund")
		if balance.Cmp(wei) < 0 {
			c.t.Fatalf("fund %v on the simulated chain: it has %v", a, balance)
		}
	}
}

// Counter creates a contract that counts its calls (see package contracts), and returns its address.
func (c *Chain) Counter() common.Address {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	nonce, err := c.Client().PendingNonceAt(ctx, c.faucet.Address)
	c.must(err, "create the counter")
	tx, err := pay(ctx, c.Client(), c.faucet, &types.DynamicFeeTx{
		Nonce: nonce, Data: contracts.CounterCode(), Gas: contracts.DeployGas,
	})
	c.must(err, "create the counter")
	c.must(c.Client().SendTransaction(ctx, tx), "create the counter")
	c.Commit()
	receipt, err := c.Client().TransactionReceipt(ctx, tx.Hash())
	c.must(err, "create the counter")
	if receipt.Status != types.ReceiptStatusSuccessful {
		c.t.Fatalf("create the counter on the simulated chain: it failed with %d gas used", receipt.GasUsed)
	}
	return receipt.ContractAddress
}

func (c *Chain) must(err error, doing string) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%s on the simulated chain: %v", doing, err)
	}
}

// pay signs a transaction at a price that the next few blocks accept.
func pay(ctx context.Context, client *ethclient.Client, from Account, data *types.DynamicFeeTx) (*types.Transaction, error) {
	head, err := client.HeaderByNumber(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the base fee: %w", err)
	}
	data.ChainID, data.GasTipCap = big.NewInt(ChainID), big.NewInt(params.GWei)
	data.GasFeeCap = new(big.Int).Add(data.GasTipCap, new(big.Int).Lsh(head.BaseFee, 1))
	return types.SignNewTx(from.Key, types.LatestSignerForChainID(data.ChainID), data)
}
