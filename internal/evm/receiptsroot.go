package evm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"
)

// errReceiptType means that a receipt is of a type whose encoding this package does not know, such as a deposit on OP chains.
var errReceiptType = errors.New("a receipt of an unknown type")

// receiptsRoot returns the root that a header has for receipts, as far as their types are known.
func receiptsRoot(receipts []Receipt) (common.Hash, error) {
	list := &receiptList{receipts: receipts}
	root := types.DeriveSha(list, new(listTrie))
	return root, list.err
}

// receiptList encodes receipts from their texts. It holds one decoded receipt at a time.
type receiptList struct {
	receipts []Receipt
	err      error
}

func (l *receiptList) Len() int { return len(l.receipts) }

func (l *receiptList) EncodeIndex(i int, w *bytes.Buffer) {
	r, err := consensusReceipt(l.receipts[i].text)
	if err != nil {
		l.err = errors.Join(l.err, fmt.Errorf("receipt of %s: %w", l.receipts[i].TxHash, err))
		return
	}
	types.Receipts{r}.EncodeIndex(0, w)
}

// consensusReceipt parses the fields of a receipt that its encoding has.
func consensusReceipt(text []byte) (*types.Receipt, error) {
	r := new(types.Receipt)
	err := fields(text, func(key string, value []byte) (err error) {
		if isNull(value) {
			return nil
		}
		switch key {
		case "type":
			var kind uint64
			if kind, err = parseUint(value); err == nil && kind > types.SetCodeTxType {
				err = fmt.Errorf("%w: %#x", errReceiptType, kind)
			}
			r.Type = uint8(kind)
		case "status":
			r.Status, err = parseUint(value)
		case "cumulativeGasUsed":
			r.CumulativeGasUsed, err = parseUint(value)
		case "logs":
			err = elements(value, func(b []byte) error {
				var l Log
				err := parseLog(b, &l)
				r.Logs = append(r.Logs, &types.Log{Address: l.Contract, Topics: l.Topics, Data: l.Data})
				return err
			})
		}
		return err
	})
	r.Bloom = types.CreateBloom(r)
	return r, err
}

// listTrie is a Merkle Patricia trie of a list, of which only the root is needed. go-ethereum's would link its databases.
type listTrie struct{ items []trieItem }

type trieItem struct {
	path  []byte // the key's half bytes
	value []byte
}

// Reset implements types.ListHasher.
func (t *listTrie) Reset() { t.items = nil }

// Update implements types.ListHasher.
func (t *listTrie) Update(key, value []byte) error {
	path := make([]byte, 0, 2*len(key))
	for _, b := range key {
		path = append(path, b>>4, b&15)
	}
	t.items = append(t.items, trieItem{path, bytes.Clone(value)})
	return nil
}

// Hash implements types.ListHasher.
func (t *listTrie) Hash() common.Hash {
	if len(t.items) == 0 {
		return types.EmptyRootHash
	}
	slices.SortFunc(t.items, func(a, b trieItem) int { return bytes.Compare(a.path, b.path) })
	return crypto.Keccak256Hash(trieNode(t.items, 0))
}

// trieNode encodes the node of items whose paths share the first depth half bytes. No path of a list begins with another one.
func trieNode(items []trieItem, depth int) []byte {
	first, last := items[0].path, items[len(items)-1].path
	if len(items) == 1 {
		return encodeRLP([][]byte{compactPath(first[depth:], true), items[0].value})
	}
	shared := depth
	for first[shared] == last[shared] {
		shared++
	}
	if shared > depth {
		return encodeRLP([]rlp.RawValue{encodeRLP(compactPath(first[depth:shared], false)), trieReference(trieNode(items, shared))})
	}
	branch := make([]rlp.RawValue, 17)
	for i := range branch {
		n := 0
		for n < len(items) && items[n].path[depth] == byte(i) {
			n++
		}
		branch[i] = rlp.EmptyString
		if n > 0 {
			branch[i] = trieReference(trieNode(items[:n], depth+1))
		}
		items = items[n:]
	}
	return encodeRLP(branch)
}

// trieReference returns how a node contains another one.
func trieReference(node []byte) rlp.RawValue {
	if len(node) < common.HashLength {
		return node
	}
	return encodeRLP(crypto.Keccak256(node))
}

// compactPath encodes half bytes as bytes, with their parity and whether the path ends in a leaf.
func compactPath(path []byte, leaf bool) []byte {
	b := []byte{0}
	if leaf {
		b[0] = 2 << 4
	}
	if len(path)%2 == 1 {
		b[0] |= 1<<4 | path[0]
		path = path[1:]
	}
	for i := 0; i < len(path); i += 2 {
		b = append(b, path[i]<<4|path[i+1])
	}
	return b
}

func encodeRLP(value any) []byte {
	b, err := rlp.EncodeToBytes(value)
	if err != nil {
		panic(err) // these types can be encoded
	}
	return b
}
