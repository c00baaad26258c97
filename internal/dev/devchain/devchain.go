package devchain

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/txpool/legacypool"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
)

// ChainID is the same for every dev chain.
const ChainID = 1337

// Errors for callers to compare with.
var (
	// ErrClosed means that the chain was closed.
	ErrClosed = errors.New("dev chain is closed")
	// ErrNotSealed means that no block was sealed; go-ethereum reports no reason.
	ErrNotSealed = errors.New("no block was sealed")
)

// Config configures a chain. The zero value is useful: in-process only, one block a second, no funded accounts.
type Config struct {
	// Listen is host:port of the JSON-RPC endpoint, HTTP and websocket alike; port 0 lets the system pick one. Empty:
	// no endpoint. If not on loopback, any Host header is accepted, because containers use their own names for the
	// chain.
	Listen string
	// Modules are the JSON-RPC namespaces at the endpoint. Default: eth, net, web3 and txpool. debug, admin and miner
	// let callers rewind the chain and worse.
	Modules []string
	// Fund are the accounts that start with Balance.
	Fund []common.Address
	// Balance is in wei. Default: a million ether.
	Balance *big.Int
	// Alloc is added to the genesis block, and overrides the funded accounts.
	Alloc types.GenesisAlloc
	// BlockTime is how often Run seals a block. Default 1 s. Below 1 s the chain's clock runs ahead of real time,
	// because it counts whole seconds and each block needs a later one.
	BlockTime time.Duration
	// GasLimit of each block. Default: go-ethereum's own (60 million).
	GasLimit uint64
	// BaseFee of the genesis block, in wei. Default: 1 gwei. Demand changes it from there: each empty block, such as
	// block 1, reduces it by an eighth.
	BaseFee *big.Int
	// Pool sets the limits of the transaction pool. Default: go-ethereum's own, with which the pool drops accepted
	// transactions.
	Pool *legacypool.Config
	// Log receives a line for each block that Run could not seal. Default: discard.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.BlockTime = cmp.Or(c.BlockTime, time.Second)
	c.GasLimit = cmp.Or(c.GasLimit, ethconfig.Defaults.Miner.GasCeil)
	if len(c.Modules) == 0 {
		c.Modules = []string{"eth", "net", "web3", "txpool"}
	}
	if c.Balance == nil {
		c.Balance = new(big.Int).Mul(big.NewInt(1_000_000), big.NewInt(params.Ether))
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Chain is a running chain. Its methods are safe for concurrent use.
type Chain struct {
	blockTime time.Duration
	log       *slog.Logger
	node      *node.Node
	eth       *eth.Ethereum
	client    *ethclient.Client
	addr      string

	mu     sync.Mutex // held during each change of the chain
	beacon *catalyst.SimulatedBeacon
	closed bool
	// unpayable is a transaction that every pool rejects, because its sender cannot pay. Adding it waits until the pool has
	// processed all earlier ones.
	unpayable *types.Transaction
}

// Open starts a chain at a new genesis block, and seals an empty block 1: without one, go-ethereum answers requests for
// unknown transactions with an error. In about one of a hundred chains it still does, and Open seals block 2.
// [Chain.Commit] or [Chain.Run] seal further blocks.
func Open(config Config) (*Chain, error) {
	config = config.withDefaults()
	nodeConfig, err := config.node()
	if err != nil {
		return nil, fmt.Errorf("dev chain: %w", err)
	}
	if err := free(nodeConfig); err != nil {
		return nil, fmt.Errorf("dev chain: %w", err)
	}
	stack, err := node.New(nodeConfig)
	if err != nil {
		return nil, fmt.Errorf("dev chain: make a node: %w", err)
	}
	c := &Chain{blockTime: config.BlockTime, log: config.Log, node: stack}
	if err := c.start(config.eth()); err != nil {
		return nil, fmt.Errorf("dev chain: %w", errors.Join(err, closeNode(stack)))
	}
	c.client = ethclient.NewClient(stack.Attach())
	if config.Listen != "" {
		c.addr = stack.HTTPEndpoint()[len("http://"):]
	}
	return c, nil
}

// free returns an error if the endpoint's address is taken. In that case Open makes no chain, because a node that could
// not start leaves goroutines that never end.
func free(c *node.Config) error {
	if c.HTTPHost == "" {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.HTTPHost, strconv.Itoa(c.HTTPPort)))
	if err != nil {
		return err
	}
	return l.Close()
}

func (c *Chain) start(config *ethconfig.Config) (err error) {
	if c.eth, err = eth.New(c.node, config); err != nil {
		return fmt.Errorf("make a chain: %w", err)
	}
	c.node.RegisterAPIs([]rpc.API{{
		Namespace: "eth",
		Service:   filters.NewFilterAPI(filters.NewFilterSystem(c.eth.APIBackend, filters.Config{})),
	}})
	if err := c.node.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	// Period 0: the beacon seals on demand, and starts no goroutine.
	if c.beacon, err = catalyst.NewSimulatedBeacon(0, common.Address{}, c.eth); err != nil {
		return fmt.Errorf("make a beacon: %w", err)
	}
	if c.unpayable, err = unpayable(c.eth.BlockChain().Config()); err != nil {
		return err
	}
	if _, err := c.Commit(); err != nil {
		return err
	}
	return c.indexed()
}

func unpayable(config *params.ChainConfig) (*types.Transaction, error) {
	key, err := crypto.GenerateKey()
	if err != nil {
		return nil, err
	}
	return types.SignNewTx(key, types.LatestSigner(config), &types.DynamicFeeTx{
		ChainID: config.ChainID, To: &common.Address{}, Gas: params.TxGas, GasFeeCap: big.NewInt(params.Ether), GasTipCap: big.NewInt(params.GWei),
	})
}

// indexed waits until the index of transactions is complete. go-ethereum builds it in the background, which takes a
// millisecond and offers no signal. It starts at a new head. If that head arrives while it still reads the genesis
// block, it starts only at the next one.
func (c *Chain) indexed() error {
	const patience, another = 30 * time.Second, time.Second
	sealed := time.Now()
	for deadline := sealed.Add(patience); !c.eth.BlockChain().TxIndexDone(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("transactions were not indexed in %v", patience)
		}
		if time.Since(sealed) < another {
			continue
		}
		if _, err := c.Commit(); err != nil {
			return err
		}
		sealed = time.Now()
	}
	return nil
}

// node returns the configuration of the node: no peers, no disk, an endpoint if configured.
func (c Config) node() (*node.Config, error) {
	n := node.DefaultConfig
	n.DataDir, n.IPCPath = "", ""
	n.P2P = p2p.Config{NoDiscovery: true, NoDial: true}
	if c.Listen == "" {
		return &n, nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("listen: %q is not a port", port)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		n.HTTPVirtualHosts = []string{"*"}
	}
	// A node with an empty host has no endpoint at all.
	n.HTTPHost, n.HTTPPort = cmp.Or(host, "0.0.0.0"), int(number)
	n.WSHost, n.WSPort = n.HTTPHost, n.HTTPPort
	n.HTTPModules, n.WSModules = c.Modules, c.Modules
	return &n, nil
}

func (c Config) eth() *ethconfig.Config {
	alloc := core.SystemContractAllocs()
	for _, a := range c.Fund {
		alloc[a] = types.Account{Balance: c.Balance}
	}
	maps.Copy(alloc, c.Alloc)
	extra := make([]byte, 32) // makes each genesis block unique
	_, _ = rand.Read(extra)   // never fails
	// go-ethereum's own dev chain has rules newer than every network's, with gas prices of no real network.
	rules := *params.AllDevChainProtocolChanges
	rules.AmsterdamTime, rules.BogotaTime = nil, nil
	e := ethconfig.Defaults
	e.Genesis = &core.Genesis{
		Config: &rules, Alloc: alloc, GasLimit: c.GasLimit, BaseFee: c.BaseFee,
		Timestamp: uint64(time.Now().Unix()), ExtraData: extra,
	}
	e.Miner.GasCeil = c.GasLimit
	e.SyncMode = ethconfig.FullSync
	e.LogNoHistory = true // logs are searched in the few existing blocks, without an index
	if c.Pool != nil {
		e.TxPool = *c.Pool
	}
	e.TxPool.NoLocals = true // no journal of transactions, because the chain is in memory
	return &e
}

// Addr returns host:port of the endpoint, with the actual port; empty without an endpoint.
func (c *Chain) Addr() string { return c.addr }

// URL returns http://host:port of the endpoint for this machine; empty without an endpoint.
func (c *Chain) URL() string { return c.url("http") }

// WSURL returns ws://host:port of the endpoint for this machine; empty without an endpoint.
func (c *Chain) WSURL() string { return c.url("ws") }

func (c *Chain) url(scheme string) string {
	host, port, err := net.SplitHostPort(c.addr)
	if err != nil {
		return ""
	}
	if net.ParseIP(host).IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// Genesis returns the hash of block 0.
func (c *Chain) Genesis() common.Hash { return c.eth.BlockChain().Genesis().Hash() }

// Client returns an in-process client with every JSON-RPC namespace. It is closed with the chain.
func (c *Chain) Client() *ethclient.Client { return c.client }

// Run seals a block each BlockTime until ctx ends, and then returns nil. It fails only if the chain is closed.
func (c *Chain) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.blockTime)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			switch _, err := c.Commit(); {
			case errors.Is(err, ErrClosed):
				return fmt.Errorf("run: %w", err)
			case err != nil:
				c.log.Warn("no block was sealed", "err", err)
			}
		}
	}
}

// Commit seals a block with the pool's transactions that fit, and returns its hash.
func (c *Chain) Commit() (common.Hash, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return common.Hash{}, fmt.Errorf("commit: %w", ErrClosed)
	}
	// Transactions that were sent before must be in the block. go-ethereum processes them in the background. Those that
	// it has not processed when it resets its pool, which is the first step here, would miss the block.
	c.eth.TxPool().Add([]*types.Transaction{c.unpayable}, true)
	before := c.eth.BlockChain().CurrentBlock()
	after := c.beacon.Commit()
	if after == before.Hash() {
		return common.Hash{}, fmt.Errorf("commit on block %v: %w", before.Number, ErrNotSealed)
	}
	return after, nil
}

// Fork makes an earlier block the head again. The transactions of the later blocks return to the pool (up to 64 blocks
// back; those of older forks are lost), and the next commits build another history. [Chain.Rollback] in between removes
// them.
func (c *Chain) Fork(parent common.Hash) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("fork: %w", ErrClosed)
	}
	block := c.eth.BlockChain().GetBlockByHash(parent)
	if block == nil {
		return fmt.Errorf("fork: no block %v", parent)
	}
	if _, err := c.eth.BlockChain().SetCanonical(block); err != nil {
		return fmt.Errorf("fork at %v: %w", block.Number(), err)
	}
	return c.syncPool("fork")
}

// Rollback empties the pool, without any notification.
func (c *Chain) Rollback() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("roll back: %w", ErrClosed)
	}
	c.eth.TxPool().Clear()
	return c.syncPool("roll back")
}

// AdjustTime seals an empty block that is by later than its parent, in whole seconds, at least one. It fails while the
// pool has transactions.
func (c *Chain) AdjustTime(by time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("adjust time: %w", ErrClosed)
	}
	if err := c.syncPool("adjust time"); err != nil {
		return err
	}
	if err := c.beacon.AdjustTime(by); err != nil {
		return fmt.Errorf("adjust time: %w", err)
	}
	return nil
}

// syncPool waits until the pool has followed the chain, which it does in the background.
func (c *Chain) syncPool(doing string) error {
	if err := c.eth.TxPool().Sync(); err != nil {
		return fmt.Errorf("%s: wait for the pool: %w", doing, err)
	}
	return nil
}

// Close stops the chain and its endpoint. It may be called again.
func (c *Chain) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.client.Close()
	if err := errors.Join(c.beacon.Stop(), closeNode(c.node)); err != nil {
		return fmt.Errorf("close dev chain: %w", err)
	}
	return nil
}

// closeNode closes a node that may not have started, or may have stopped already.
func closeNode(n *node.Node) error {
	if err := n.Close(); !errors.Is(err, node.ErrNodeStopped) {
		return err
	}
	return nil
}
