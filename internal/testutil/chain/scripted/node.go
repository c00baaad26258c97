package scripted

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
)

// Node is a node of a chain. Its methods are safe for concurrent use.
type Node struct {
	addr string

	mu        sync.Mutex
	chain     *Chain
	canonical []*Block // by number
	final     *Block   // nil: no block is tagged
	known     map[common.Hash]bool
	heads     map[chan *Block]struct{} // of subscriptions
}

// Serve starts a node that shows the chain up to its first block. It ends with the test.
func Serve(t testing.TB, c *Chain) *Node {
	t.Helper()
	n := &Node{chain: c, canonical: []*Block{c.genesis}, known: map[common.Hash]bool{c.genesis.Hash: true}, heads: map[chan *Block]struct{}{}}
	server := rpc.NewServer()
	if err := server.RegisterName("eth", &api{n}); err != nil {
		t.Fatalf("serve a node: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("serve a node: %v", err)
	}
	n.addr = l.Addr().String()
	ws := server.WebsocketHandler([]string{"*"})
	s := &http.Server{ReadHeaderTimeout: 30 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			ws.ServeHTTP(w, r)
			return
		}
		server.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // it ends with Close
	}()
	t.Cleanup(func() {
		_ = s.Close()
		server.Stop()
		<-done
	})
	return n
}

// URL returns http://host:port.
func (n *Node) URL() string { return "http://" + n.addr }

// WSURL returns ws://host:port.
func (n *Node) WSURL() string { return "ws://" + n.addr }

// SetHead makes a block the newest one.
func (n *Node) SetHead(b *Block) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.canonical[len(n.canonical)-1] == b {
		return
	}
	n.canonical = append(n.canonical, make([]*Block, max(0, int(b.Number)+1-len(n.canonical)))...)[:b.Number+1]
	for at := b; at != nil && n.canonical[at.Number] != at; at = at.Parent {
		n.canonical[at.Number], n.known[at.Hash] = at, true
	}
	for heads := range n.heads {
		select {
		case heads <- b:
		default: // the subscriber is slow
		}
	}
}

// SetFinal makes a block the newest final one; nil for none.
func (n *Node) SetFinal(b *Block) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.final = b
}

// Head returns the newest block.
func (n *Node) Head() *Block {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.canonical[len(n.canonical)-1]
}

// api has the methods that the node serves.
type api struct{ n *Node }

var (
	errUnknownBlock = errors.New("unknown block")
	errBeyondHead   = errors.New("block range extends beyond current head block")
	errTag          = errors.New("finalized block not found")
)

// ChainId is eth_chainId.
func (a *api) ChainId() hexutil.Uint64 { return hexutil.Uint64(a.n.chain.id) }

// BlockNumber is eth_blockNumber.
func (a *api) BlockNumber() hexutil.Uint64 { return hexutil.Uint64(a.n.Head().Number) }

// Syncing is eth_syncing.
func (a *api) Syncing() bool { return false }

// GetBlockByNumber is eth_getBlockByNumber.
func (a *api) GetBlockByNumber(number string, _ bool) (map[string]any, error) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	switch number {
	case "latest":
		return a.n.canonical[len(a.n.canonical)-1].marshal(), nil
	case "finalized", "safe":
		if a.n.final == nil {
			return nil, errTag
		}
		return a.n.final.marshal(), nil
	}
	at, err := hexutil.DecodeUint64(number)
	if err != nil || at >= uint64(len(a.n.canonical)) {
		return nil, err
	}
	return a.n.canonical[at].marshal(), nil
}

// GetBlockByHash is eth_getBlockByHash.
func (a *api) GetBlockByHash(hash common.Hash, _ bool) map[string]any {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	if b := a.n.block(hash); b != nil {
		return b.marshal()
	}
	return nil
}

// block returns a block that the node knows; nil if it does not. n.mu is held.
func (n *Node) block(hash common.Hash) *Block {
	if !n.known[hash] {
		return nil
	}
	return n.chain.Block(hash)
}

// query is the parameter of eth_getLogs.
type query struct {
	BlockHash *common.Hash     `json:"blockHash"`
	FromBlock hexutil.Uint64   `json:"fromBlock"`
	ToBlock   hexutil.Uint64   `json:"toBlock"`
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
}

// GetLogs is eth_getLogs.
func (a *api) GetLogs(q query) ([]*types.Log, error) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	var blocks []*Block
	switch {
	case q.BlockHash != nil:
		b := a.n.block(*q.BlockHash)
		if b == nil {
			return nil, errUnknownBlock
		}
		blocks = []*Block{b}
	case uint64(q.ToBlock) >= uint64(len(a.n.canonical)) || q.FromBlock > q.ToBlock:
		return nil, errBeyondHead
	default:
		blocks = a.n.canonical[q.FromBlock : q.ToBlock+1]
	}
	logs := []*types.Log{}
	for _, b := range blocks {
		for _, l := range b.Logs() {
			if (len(q.Address) == 0 || slices.Contains(q.Address, l.Address)) &&
				(len(q.Topics) == 0 || len(l.Topics) > 0 && slices.Contains(q.Topics[0], l.Topics[0])) {
				logs = append(logs, l)
			}
		}
	}
	return logs, nil
}

// GetBlockReceipts is eth_getBlockReceipts.
func (a *api) GetBlockReceipts(block struct {
	BlockHash common.Hash `json:"blockHash"`
}) ([]map[string]any, error) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	b := a.n.block(block.BlockHash)
	if b == nil {
		return nil, nil
	}
	all := make([]map[string]any, len(b.receipts))
	for i, r := range b.receipts {
		var err error
		if all[i], err = marshalReceipt(r); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// GetTransactionReceipt is eth_getTransactionReceipt.
func (a *api) GetTransactionReceipt(tx common.Hash) (map[string]any, error) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	for _, b := range a.n.canonical {
		for _, r := range b.receipts {
			if r.TxHash == tx {
				return marshalReceipt(r)
			}
		}
	}
	return nil, nil
}

// NewHeads is the subscription to newHeads.
func (a *api) NewHeads(ctx context.Context) (*rpc.Subscription, error) {
	notifier, ok := rpc.NotifierFromContext(ctx)
	if !ok {
		return nil, rpc.ErrNotificationsUnsupported
	}
	sub := notifier.CreateSubscription()
	heads := make(chan *Block, 1024)
	a.n.mu.Lock()
	a.n.heads[heads] = struct{}{}
	a.n.mu.Unlock()
	go func() {
		defer func() {
			a.n.mu.Lock()
			delete(a.n.heads, heads)
			a.n.mu.Unlock()
		}()
		for {
			select {
			case b := <-heads:
				_ = notifier.Notify(sub.ID, b.header) // the connection may have ended
			case <-sub.Err(): //nolint:errcheck // it only tells that the subscription has ended
				return
			}
		}
	}()
	return sub, nil
}

// marshal returns the block as nodes write it.
func (b *Block) marshal() map[string]any {
	all, err := object(b.header)
	if err != nil {
		panic(err) // a header has a text
	}
	txs := make([]common.Hash, len(b.receipts))
	for i, r := range b.receipts {
		txs[i] = r.TxHash
	}
	all["hash"], all["transactions"], all["uncles"], all["size"] = b.Hash, txs, []common.Hash{}, "0x1"
	return all
}

func marshalReceipt(r *types.Receipt) (map[string]any, error) {
	all, err := object(r)
	if err == nil && len(r.Logs) == 0 {
		all["logs"] = []any{}
	}
	return all, err
}

// object returns a value as a JSON object.
func object(v any) (all map[string]any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}
