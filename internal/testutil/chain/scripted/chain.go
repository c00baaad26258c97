package scripted

import (
	"encoding/binary"
	"math/big"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/trie"
)

// blockTime is the number of seconds between two blocks, and firstTime the time of the first.
const blockTime, firstTime = 2, 1_700_000_000

// Tx is a transaction. Its hash is its own: the same one may be in blocks of several branches.
type Tx struct {
	Hash common.Hash
	Logs []types.Log // contract, topics and data; an index other than 0 is the one that nodes report
}

// Block is a block of a chain. It must not be changed.
type Block struct {
	Number uint64
	Hash   common.Hash
	Time   uint64
	Parent *Block // nil: the first one
	Txs    []Tx

	header   *types.Header
	receipts types.Receipts
}

// Logs returns the logs of the block in order, as nodes report them.
func (b *Block) Logs() (logs []*types.Log) {
	for _, r := range b.receipts {
		logs = append(logs, r.Logs...)
	}
	return logs
}

// At returns the block of a number on the branch that ends with b; nil if it is after b.
func (b *Block) At(number uint64) *Block {
	for b != nil && b.Number > number {
		b = b.Parent
	}
	if b == nil || b.Number != number {
		return nil
	}
	return b
}

// Chain has the blocks of a chain. Its methods are safe for concurrent use.
type Chain struct {
	id      uint64
	genesis *Block

	mu     sync.Mutex
	made   uint64
	blocks map[common.Hash]*Block
}

// New returns a chain with one block. Chains of the same id have the same first block.
func New(id uint64) *Chain {
	c := &Chain{id: id, blocks: map[common.Hash]*Block{}}
	c.genesis = c.add(&types.Header{Number: new(big.Int), Time: firstTime, Difficulty: new(big.Int), GasLimit: 30_000_000, BaseFee: big.NewInt(1e9)}, nil, nil)
	return c
}

// Genesis returns the first block.
func (c *Chain) Genesis() *Block { return c.genesis }

// Mine makes a block. No two are equal.
func (c *Chain) Mine(parent *Block, txs ...Tx) *Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	return c.add(&types.Header{
		ParentHash: parent.Hash, Number: new(big.Int).SetUint64(parent.Number + 1), Time: parent.Time + blockTime, Difficulty: new(big.Int),
		GasLimit: 30_000_000, BaseFee: big.NewInt(1e9), Extra: binary.BigEndian.AppendUint64(nil, c.made),
	}, parent, txs)
}

func (c *Chain) add(h *types.Header, parent *Block, txs []Tx) *Block {
	b := &Block{Number: h.Number.Uint64(), Time: h.Time, Parent: parent, Txs: slices.Clone(txs), header: h}
	for _, tx := range txs {
		r := &types.Receipt{Type: types.DynamicFeeTxType, Status: types.ReceiptStatusSuccessful, CumulativeGasUsed: uint64(len(b.receipts)+1) * 21_000}
		for _, l := range tx.Logs {
			r.Logs = append(r.Logs, &l)
		}
		r.Bloom = types.CreateBloom(r)
		b.receipts = append(b.receipts, r)
	}
	h.UncleHash, h.TxHash, h.Root = types.EmptyUncleHash, crypto.Keccak256Hash(h.Extra), types.EmptyRootHash
	h.ReceiptHash, h.Bloom = types.DeriveSha(b.receipts, trie.NewStackTrie(nil)), types.MergeBloom(b.receipts)
	b.Hash = h.Hash()
	index := uint(0)
	for i, r := range b.receipts {
		r.BlockHash, r.BlockNumber, r.TransactionIndex, r.TxHash, r.GasUsed = b.Hash, h.Number, uint(i), txs[i].Hash, 21_000
		r.EffectiveGasPrice = big.NewInt(1e9)
		for _, l := range r.Logs {
			l.BlockHash, l.BlockNumber, l.BlockTimestamp, l.TxHash, l.TxIndex = b.Hash, b.Number, b.Time, r.TxHash, uint(i)
			if l.Index == 0 {
				l.Index = index
			}
			index++
		}
	}
	c.blocks[b.Hash] = b
	return b
}

// Block returns the block of a hash; nil if the chain never had it.
func (c *Chain) Block(hash common.Hash) *Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocks[hash]
}
