package modeltest

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

var (
	baseFee = big.NewInt(1_000_000_000)
	minTip  = big.NewInt(1)
)

// block is immutable once it is made.
type block struct {
	evm.Header
	up     *block
	txs    []*types.Transaction
	nonces map[common.Address]uint64 // after it
}

// at returns the block of a number that leads to b; nil if there is none.
func (b *block) at(number uint64) *block {
	for b != nil && b.Number > number {
		b = b.up
	}
	if b == nil || b.Number != number {
		return nil
	}
	return b
}

func (b *block) leadsTo(head *block) bool { return head.at(b.Number) == b }

// find returns the block up to b that contains a transaction, and its index.
func (b *block) find(hash common.Hash) (*block, int) {
	for ; b != nil; b = b.up {
		for i, tx := range b.txs {
			if tx.Hash() == hash {
				return b, i
			}
		}
	}
	return nil, 0
}

// node is one endpoint: its head and its pool.
type node struct {
	head *block
	pool map[common.Address]map[uint64]*types.Transaction
}

// world is a chain in memory, with two nodes. The first one seals. The second follows it unless it is held back: then
// it keeps its head, even on a branch that the first one gives up, and receives nothing. Otherwise each node receives
// what the other accepts.
type world struct {
	chainID uint64

	mu      sync.Mutex
	nodes   [2]*node
	held    bool // the second node
	forgets int  // number of next transactions that are accepted and dropped at once
	genesis *block
	signer  types.Signer
	taken   map[common.Hash]*types.Transaction // all transactions that a relayer sent to any node
	moved   chan struct{}                      // closed when a head moves
	made    uint64
	asked   int64 // number of fee reads
}

func newWorld(chainID uint64) *world {
	w := &world{
		chainID: chainID, signer: types.LatestSignerForChainID(new(big.Int).SetUint64(chainID)),
		taken: map[common.Hash]*types.Transaction{}, moved: make(chan struct{}),
	}
	w.genesis = w.build(nil, nil)
	for i := range w.nodes {
		w.nodes[i] = &node{head: w.genesis, pool: map[common.Address]map[uint64]*types.Transaction{}}
	}
	return w
}

// build makes a block; txs are valid on top of up.
func (w *world) build(up *block, txs []*types.Transaction) *block {
	w.made++
	b := &block{up: up, txs: txs, nonces: map[common.Address]uint64{}}
	b.Hash = crypto.Keccak256Hash(fmt.Appendf(nil, "block %d of %d", w.made, w.chainID))
	b.Time, b.GasLimit, b.BaseFee = time.Unix(1_700_000_000+int64(w.made), 0), 30_000_000, baseFee
	if up != nil {
		b.Number, b.Parent = up.Number+1, up.Hash
		b.nonces = maps.Clone(up.nonces)
	}
	for _, tx := range txs {
		b.nonces[w.sender(tx)]++
	}
	return b
}

// sender returns who signed tx, or the zero address. tx keeps its sender after the first call.
func (w *world) sender(tx *types.Transaction) common.Address {
	from, _ := types.Sender(w.signer, tx)
	return from
}

// send sends a transaction to a node, and forwards an accepted one to the other.
func (w *world) send(n *node, raw []byte) evm.Outcome {
	tx := new(types.Transaction)
	if err := tx.UnmarshalBinary(raw); err != nil {
		return evm.Refused
	}
	outcome := w.offer(n, tx)
	if outcome == evm.Accepted && !w.held {
		for _, other := range w.nodes {
			if other != n {
				w.offer(other, tx)
			}
		}
	}
	return outcome
}

// offer implements geth's legacy pool, without its limits.
func (w *world) offer(n *node, tx *types.Transaction) evm.Outcome {
	from, nonce := w.sender(tx), tx.Nonce()
	old := n.pool[from][nonce]
	switch {
	case old != nil && old.Hash() == tx.Hash():
		return evm.AlreadyKnown
	case tx.GasFeeCap().Cmp(tx.GasTipCap()) < 0:
		return evm.TipAboveCap
	case tx.Gas() < 21_000:
		return evm.IntrinsicGas
	case nonce < n.head.nonces[from]:
		return evm.NonceTooLow
	case tx.GasTipCap().Cmp(minTip) < 0:
		return evm.Underpriced
	case old != nil && (!beats(tx.GasFeeCap(), old.GasFeeCap()) || !beats(tx.GasTipCap(), old.GasTipCap())):
		return evm.ReplacementUnderpriced
	}
	if n.pool[from] == nil {
		n.pool[from] = map[uint64]*types.Transaction{}
	}
	n.pool[from][nonce] = tx
	return evm.Accepted
}

func beats(fee, old *big.Int) bool {
	least := new(big.Int).Mul(old, big.NewInt(110))
	return fee.Cmp(old) > 0 && fee.Cmp(least.Div(least, big.NewInt(100))) >= 0
}

// holds reports whether a transaction is in the pool.
func (n *node) holds(hash common.Hash) bool {
	for _, waiting := range n.pool {
		for _, tx := range waiting {
			if tx.Hash() == hash {
				return true
			}
		}
	}
	return false
}

// pending returns the nonce after the mined transactions and those in the pool without a gap.
func (n *node) pending(a common.Address) uint64 {
	nonce := n.head.nonces[a]
	for n.pool[a][nonce] != nil {
		nonce++
	}
	return nonce
}

// seal makes a block of the pool's valid transactions, at most limit of each account.
func (w *world) seal(limit int) *block {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sealLocked(limit)
}

func (w *world) sealLocked(limit int) *block {
	first := w.nodes[0]
	var txs []*types.Transaction
	for _, a := range sortedKeys(first.pool) {
		nonce := first.head.nonces[a]
		for range limit {
			tx := first.pool[a][nonce]
			if tx == nil || tx.GasFeeCap().Cmp(baseFee) < 0 {
				break
			}
			txs = append(txs, tx)
			nonce++
		}
	}
	w.move(first, w.build(first.head, txs))
	return first.head
}

// move makes a block the head of a node, and of the second one, unless that is held back.
func (w *world) move(n *node, head *block) {
	n.head = head
	for a, waiting := range n.pool {
		maps.DeleteFunc(waiting, func(nonce uint64, _ *types.Transaction) bool { return nonce < head.nonces[a] })
	}
	if n == w.nodes[0] && !w.held {
		w.move(w.nodes[1], head)
		return
	}
	close(w.moved)
	w.moved = make(chan struct{})
}

// rewind removes the newest blocks. Their transactions return to the pool, unless they are lost.
func (w *world) rewind(depth int, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, gone := w.nodes[0], []*types.Transaction(nil)
	head := first.head
	for range depth {
		if head.up == nil {
			break
		}
		gone = append(gone, head.txs...)
		head = head.up
	}
	w.move(first, head)
	for _, tx := range gone {
		if !lost {
			w.offer(first, tx)
			if !w.held {
				w.offer(w.nodes[1], tx)
			}
		}
	}
}

// reorganize replaces the newest blocks by as many others and one more, like a node that receives a longer branch.
func (w *world) reorganize(depth, limit int, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.nodes[0]
	head, gone := first.head, []*types.Transaction(nil)
	for range depth {
		if head.up == nil {
			break
		}
		gone = append(gone, head.txs...)
		head = head.up
	}
	w.move(first, w.build(head, nil))
	for _, tx := range gone {
		if !lost {
			w.offer(first, tx)
		}
	}
	for first.head.Number <= head.Number+uint64(depth) {
		w.sealLocked(limit)
	}
}

// forget silently drops the picked transactions from all pools.
func (w *world) forget(pick func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range sortedKeys(w.nodes[0].pool) {
		for _, nonce := range slices.Sorted(maps.Keys(w.nodes[0].pool[a])) {
			if pick() {
				for _, n := range w.nodes {
					delete(n.pool[a], nonce)
				}
			}
		}
	}
}

// hold stops the second node at its head, or lets it catch up.
func (w *world) hold(held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
	if held {
		return
	}
	w.move(w.nodes[1], w.nodes[0].head)
	// Each receives the transactions that only the other one kept, like after a time without a connection.
	for _, n := range w.nodes {
		for _, other := range w.nodes {
			for _, a := range sortedKeys(n.pool) {
				for _, tx := range n.pool[a] {
					w.offer(other, tx)
				}
			}
		}
	}
}

// foreign sends with the key like a foreign sender, under the next nonce that the node does not have.
func (w *world) foreign(sign func(*types.Transaction) []byte, from common.Address) common.Hash {
	w.mu.Lock()
	defer w.mu.Unlock()
	tx := types.NewTx(&types.DynamicFeeTx{
		ChainID: new(big.Int).SetUint64(w.chainID), Nonce: w.nodes[0].pending(from), To: new(common.HexToAddress("0xf0")), Gas: 21_000,
		GasFeeCap: big.NewInt(50_000_000_000), GasTipCap: big.NewInt(40_000_000_000), Value: big.NewInt(int64(w.made)),
	})
	raw := sign(tx)
	w.send(w.nodes[0], raw)
	return crypto.Keccak256Hash(raw)
}

// waiting returns the number of transactions in the pools.
func (w *world) waiting() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, node := range w.nodes {
		for _, txs := range node.pool {
			n += len(txs)
		}
	}
	return n
}

func (w *world) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := ""
	for i, n := range w.nodes {
		out += fmt.Sprintf("node %d: head %d", i, n.head.Number)
		for _, a := range sortedKeys(n.pool) {
			out += fmt.Sprintf(", %s mined %d pooled %v", a.Hex()[:8], n.head.nonces[a], slices.Sorted(maps.Keys(n.pool[a])))
		}
		out += "\n"
	}
	return out
}

func sortedKeys[V any](m map[common.Address]V) []common.Address {
	return slices.SortedFunc(maps.Keys(m), common.Address.Cmp)
}
