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

// patience limits operations that a healthy chain completes in less than a second.
const patience = 2 * time.Minute

// ChainID is the chain id of both kinds of chain.
const ChainID = devchain.ChainID

// Leftovers are the goroutines that go-ethereum leaves behind in a process that closed a simulated chain, for goleak to
// ignore.
func Leftovers() []goleak.Option {
	return []goleak.Option{
		// One for each core, started once, by the package itself.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		// One for each chain: nothing ends it.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/eth/filters.(*FilterAPI).timeoutLoop"),
		// One for each subscription to heads that ends at the same time as its node: it waits for a loop that has ended.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/eth/filters.(*FilterAPI).NewHeads.func1"),
		// One for each chain, of the empty database of peers: it ends within 30 s.
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		// The miner's, and those that it starts for a block. On a busy machine it finishes the block after its node has closed.
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/miner.(*Miner).buildPayload.func1"),
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core/state.(*subfetcher).loop"),
	}
}

// Account is a key and its address.
type Account struct {
	Key     *ecdsa.PrivateKey
	Address common.Address
}

// NewAccount makes a new account.
func NewAccount(t testing.TB) Account {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatalf("generate a key: %v", err)
	}
	return Account{Key: key, Address: crypto.PubkeyToAddress(key.PublicKey)}
}

// NewAccounts makes n new accounts.
func NewAccounts(t testing.TB, n int) []Account {
	t.Helper()
	accounts := make([]Account, n)
	for i := range accounts {
		accounts[i] = NewAccount(t)
	}
	return accounts
}

// Ether returns n ether in wei.
func Ether(n int64) *big.Int { return new(big.Int).Mul(big.NewInt(n), big.NewInt(params.Ether)) }

// SimulatedOptions configure a simulated chain. The zero value is useful.
type SimulatedOptions struct {
	// Accounts is the number of funded accounts. Default 3.
	Accounts int
	// Balance of each in wei. Default: a million ether.
	Balance *big.Int
	// BlockTime is how often a block is sealed; 0: only by Commit.
	BlockTime time.Duration
	// GasLimit, BaseFee, Pool, Modules and Alloc are those of devchain.Config. Default modules: eth, net, web3, txpool
	// and debug.
	GasLimit uint64
	BaseFee  *big.Int
	Pool     *legacypool.Config
	Modules  []string
	Alloc    types.GenesisAlloc
}

// Chain is a simulated chain with funded accounts and a JSON-RPC endpoint, HTTP and websocket, on its own loopback
// port. Its methods fail the test instead of returning errors.
type Chain struct {
	// Accounts have a balance, and only the test uses them.
	Accounts []Account

	t      testing.TB
	chain  *devchain.Chain
	faucet Account

	mu sync.Mutex // held during each transfer of the faucet
}

// Simulated starts a simulated chain, which ends with the test. A package that uses it passes [Leftovers] to goleak.
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

// URL returns http://host:port.
func (c *Chain) URL() string { return c.chain.URL() }

// WSURL returns ws://host:port.
func (c *Chain) WSURL() string { return c.chain.WSURL() }

// Client returns an in-process client, which does not use the endpoint. It is closed with the test.
func (c *Chain) Client() *ethclient.Client { return c.chain.Client() }

// Commit seals a block with the pool's transactions and returns its hash.
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

// AdjustTime seals an empty block that is by later than its parent.
func (c *Chain) AdjustTime(by time.Duration) {
	c.t.Helper()
	c.must(c.chain.AdjustTime(by), "adjust time")
}

// Fund transfers an amount in wei to each address, and seals blocks for that.
func (c *Chain) Fund(wei *big.Int, to ...common.Address) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The pool accepts at least this many at once.
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

// pay signs a transaction with a fee that the next few blocks accept.
func pay(ctx context.Context, client *ethclient.Client, from Account, data *types.DynamicFeeTx) (*types.Transaction, error) {
	head, err := client.HeaderByNumber(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the base fee: %w", err)
	}
	data.ChainID, data.GasTipCap = big.NewInt(ChainID), big.NewInt(params.GWei)
	data.GasFeeCap = new(big.Int).Add(data.GasTipCap, new(big.Int).Lsh(head.BaseFee, 1))
	return types.SignNewTx(from.Key, types.LatestSignerForChainID(data.ChainID), data)
}
