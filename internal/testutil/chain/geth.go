package chain

import (
	"context"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/txpool"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// GethOptions configure a geth process. The zero value is useful.
type GethOptions struct {
	// Accounts is the number of funded accounts. Default 3.
	Accounts int
	// Balance of each in wei. Default: a million ether.
	Balance *big.Int
	// Durable makes geth keep each block's state, so that it continues after a Kill. Blocks that its database has not
	// written by then are still lost: the last ones, or all of a young chain. It costs some speed.
	Durable bool
	// Args are appended to the command line, and override what comes before: --dev --dev.period 1, a small cache, and
	// the namespaces eth, net, web3, txpool, debug and miner over HTTP and websocket.
	Args []string
}

// Node is a geth process with its own chain and funded accounts, which seals a block each second. Its methods fail the
// test instead of returning errors; they are for one goroutine, except URL, WSURL and Client.
//
// Its genesis block is always the same, that of geth's development mode.
type Node struct {
	// Accounts have a balance, and only the test uses them.
	Accounts []Account

	t       testing.TB
	binary  string
	dir     string
	port    int
	args    []string
	durable bool
	lost    bool // a Kill has lost its chain
	client  *ethclient.Client
	faucet  common.Address    // geth's own account, unlocked
	proc    *testproc.Process // nil while stopped
}

// Geth starts a geth process, which ends with the test, or with the test's process.
func Geth(t testing.TB, o GethOptions) *Node {
	t.Helper()
	binary, err := gethBinary()
	if err != nil {
		t.Fatalf("geth is needed for this test: run scripts/setup.sh test, which builds it: %v", err)
	}
	if o.Accounts == 0 {
		o.Accounts = 3
	}
	if o.Balance == nil {
		o.Balance = Ether(1_000_000)
	}
	n := &Node{t: t, Accounts: NewAccounts(t, o.Accounts), binary: binary, dir: t.TempDir(), args: o.Args, durable: o.Durable}
	if o.Durable {
		n.args = append([]string{"--state.scheme", "hash", "--gcmode", "archive"}, n.args...)
	}
	t.Cleanup(n.end)
	// Another process may take a port between its choice and geth's bind.
	for attempt := 1; ; attempt++ {
		if n.port, err = testproc.FreePort(); err != nil {
			t.Fatal(err)
		}
		err := n.launch()
		if err == nil {
			break
		}
		if attempt == 20 {
			t.Fatalf("start geth: %v", err)
		}
	}
	n.client, err = ethclient.Dial(n.URL())
	n.must(err, "dial")
	var accounts []common.Address
	n.must(n.client.Client().CallContext(n.context(), &accounts, "eth_accounts"), "eth_accounts")
	if len(accounts) != 1 {
		t.Fatalf("geth %s has %d accounts", n.URL(), len(accounts))
	}
	n.faucet = accounts[0]
	var to []common.Address
	for _, a := range n.Accounts {
		to = append(to, a.Address)
	}
	n.Fund(o.Balance, to...)
	n.awaitIndex()
	return n
}

// gethBinary returns the path of the binary that scripts/setup.sh built, in build/tools of this module.
func gethBinary() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return exec.LookPath(filepath.Join(dir, "build", "tools", "geth"))
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod at or above the working folder")
		}
		dir = parent
	}
}

// URL returns http://host:port. It stays the same for the life of the Node.
func (n *Node) URL() string { return "http://" + n.addr() }

// WSURL returns ws://host:port. It stays the same for the life of the Node.
func (n *Node) WSURL() string { return "ws://" + n.addr() }

func (n *Node) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// PID returns the id of geth's process.
func (n *Node) PID() int {
	n.t.Helper()
	return n.running().PID()
}

// Client returns a client over HTTP. It is closed with the test.
func (n *Node) Client() *ethclient.Client { return n.client }

// Stop ends geth like an operator would: its chain is kept, and its pool is lost.
func (n *Node) Stop() { n.stop(syscall.SIGTERM) }

// Kill ends geth at once. A durable one can be restarted with its chain, perhaps without the last block. Any other
// cannot be restarted, because geth would wait for peers to get its state.
func (n *Node) Kill() {
	n.t.Helper()
	n.stop(syscall.SIGKILL)
	n.lost = !n.durable
}

// Restart starts geth again after Stop or Kill, on its port and with the rest of its chain.
func (n *Node) Restart() {
	n.t.Helper()
	if n.lost {
		n.t.Fatalf("restart geth: it was killed, and is not Durable")
	}
	deadline := time.Now().Add(patience)
	for {
		// Another process may hold the port for a moment.
		err := n.launch()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("restart geth: %v", err)
		}
	}
}

// Pause freezes the process: its port accepts connections, and no request is answered.
func (n *Node) Pause() {
	n.t.Helper()
	n.must(n.running().Freeze(), "pause")
}

// Resume ends a Pause. The node executes the requests that arrived meanwhile.
func (n *Node) Resume() {
	n.t.Helper()
	n.must(n.running().Signal(syscall.SIGCONT), "resume")
}

// SetHead makes block number the head, like the first half of a reorganization: the transactions of the later blocks
// are neither mined nor in the pool.
func (n *Node) SetHead(number uint64) {
	n.t.Helper()
	ctx := n.context()
	n.must(n.client.Client().CallContext(ctx, nil, "debug_setHead", hexutil.Uint64(number)), "debug_setHead")
	// The pool follows later, and until then returns nonces after those of the removed blocks. The faucet has no other
	// pending transactions here.
	for {
		mined, err := n.client.NonceAt(ctx, n.faucet, nil)
		n.must(err, "await the pool")
		pending, err := n.client.PendingNonceAt(ctx, n.faucet)
		n.must(err, "await the pool")
		if pending == mined {
			return
		}
		testproc.Pause(ctx)
	}
}

// SetGasPrice makes blocks include only transactions with at least this tip for each unit of gas, in wei. The pool
// rejects others, and drops those that it has.
func (n *Node) SetGasPrice(wei *big.Int) {
	n.t.Helper()
	n.must(n.client.Client().CallContext(n.context(), nil, "miner_setGasPrice", (*hexutil.Big)(wei)), "miner_setGasPrice")
}

// Fund transfers an amount in wei to each address, and waits until it is mined.
func (n *Node) Fund(wei *big.Int, to ...common.Address) {
	n.t.Helper()
	for ctx := n.context(); len(to) > 0; {
		if to = n.fund(wei, to); len(to) > 0 {
			n.must(ctx.Err(), "fund")
			testproc.Pause(ctx)
		}
	}
}

// fund returns the addresses whose transaction has to be sent again under another nonce: after a rewind the node returns earlier
// transactions of the faucet to its pool, counts them a moment later, and may have them in a block by then.
func (n *Node) fund(wei *big.Int, to []common.Address) (again []common.Address) {
	n.t.Helper()
	// Nonces are set here, because the pool's own count drops for a moment with each block.
	nonce, err := n.client.PendingNonceAt(n.context(), n.faucet)
	n.must(err, "fund")
	txs := make([]rpc.BatchElem, len(to))
	for i, a := range to {
		txs[i] = rpc.BatchElem{Method: "eth_sendTransaction", Result: new(common.Hash), Args: []any{map[string]any{
			"from": n.faucet, "to": a, "value": (*hexutil.Big)(wei), "gas": hexutil.Uint64(21_000),
			"nonce": hexutil.Uint64(nonce + uint64(i)),
		}}}
	}
	n.must(n.client.Client().BatchCallContext(n.context(), txs), "fund")
	for i, tx := range txs {
		if tx.Error != nil && (strings.Contains(tx.Error.Error(), txpool.ErrReplaceUnderpriced.Error()) || strings.Contains(tx.Error.Error(), core.ErrNonceTooLow.Error())) {
			again = append(again, to[i])
			continue
		}
		n.must(tx.Error, "fund")
		n.mined(*tx.Result.(*common.Hash))
	}
	return again
}

// Counter creates a contract that counts its calls (see package contracts), and returns its address.
func (n *Node) Counter() common.Address {
	n.t.Helper()
	var tx common.Hash
	n.must(n.client.Client().CallContext(n.context(), &tx, "eth_sendTransaction", map[string]any{
		"from": n.faucet, "data": hexutil.Bytes(contracts.CounterCode()), "gas": hexutil.Uint64(contracts.DeployGas),
	}), "create the counter")
	return n.mined(tx).ContractAddress
}

// mined waits until a transaction of the faucet has succeeded.
func (n *Node) mined(tx common.Hash) *types.Receipt {
	n.t.Helper()
	ctx := n.context()
	for {
		switch receipt, err := n.client.TransactionReceipt(ctx, tx); {
		case err == nil && receipt.Status == types.ReceiptStatusSuccessful:
			return receipt
		case err == nil:
			n.t.Fatalf("geth %s: transaction %v failed with %d gas used", n.URL(), tx, receipt.GasUsed)
		case ctx.Err() != nil:
			n.t.Fatalf("geth %s: transaction %v was not mined: %v", n.URL(), tx, err)
		}
		testproc.Pause(ctx)
	}
}

// awaitIndex waits until geth answers requests for unknown transactions. For a moment after the first block it returns
// an error, because it has no index yet.
func (n *Node) awaitIndex() {
	n.t.Helper()
	ctx := n.context()
	for {
		_, err := n.client.TransactionReceipt(ctx, common.Hash{1})
		if errors.Is(err, ethereum.NotFound) {
			return
		}
		if ctx.Err() != nil {
			n.t.Fatalf("geth %s did not index transactions: %v", n.URL(), err)
		}
		testproc.Pause(ctx)
	}
}

// context returns a context with the time limit of one operation of a healthy node.
func (n *Node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	n.t.Cleanup(cancel)
	return ctx
}

func (n *Node) must(err error, doing string) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s on geth %s: %v", doing, n.URL(), err)
	}
}

// launch starts the process and waits until it is ready.
func (n *Node) launch() error {
	if n.proc != nil {
		return errors.New("it runs already")
	}
	const modules = "eth,net,web3,txpool,debug,miner"
	port := strconv.Itoa(n.port)
	args := append([]string{
		"--dev", "--dev.period", "1", "--datadir", n.dir, "--ipcdisable", "--cache", "256",
		"--http", "--http.port", port, "--http.api", modules, "--ws", "--ws.port", port, "--ws.api", modules,
	}, n.args...)
	proc, err := testproc.Start(exec.Command(n.binary, args...), func(line string) bool {
		return strings.Contains(line, "HTTP server started") // the websocket starts with it, on the same port
	})
	n.proc = proc
	return err
}

// running returns the process and fails the test if there is none.
func (n *Node) running() *testproc.Process {
	n.t.Helper()
	if n.proc == nil {
		n.t.Fatalf("geth %s does not run", n.URL())
	}
	return n.proc
}

func (n *Node) stop(sig syscall.Signal) {
	n.t.Helper()
	p := n.running()
	n.proc = nil
	n.must(p.Stop(sig), sig.String())
}

// end is the cleanup: it closes the client and kills the process.
func (n *Node) end() {
	if n.client != nil {
		n.client.Close()
	}
	if n.proc != nil {
		if err := n.proc.Running(); err != nil {
			n.t.Logf("geth %s was not stopped by the test: %v", n.URL(), err)
		}
		n.proc.Kill()
	}
}
