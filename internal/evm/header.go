package evm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
)

// Header holds the fields of a block that this package needs. The node reports the hash. On many chains it cannot be computed,
// because they add their own fields to headers: see Proven.
type Header struct {
	Number   uint64
	Hash     common.Hash
	Parent   common.Hash
	Time     time.Time
	GasLimit uint64
	GasUsed  uint64
	BaseFee  *big.Int // wei; nil on a chain without EIP-1559. Not to be changed

	seal *seal       // nil if it was not read, or does not have the hash
	txs  common.Hash // see Transactions
}

// seal is the part of a header, whose fields have the block's hash, that proves what the block holds.
type seal struct {
	receiptsRoot common.Hash
	bloom        types.Bloom
}

// Proven reports whether the hash of the header's fields is that of the block, so that the endpoint has not made them up for the hash. It
// is false on chains with other headers, and for headers that a View has read.
func (h Header) Proven() bool { return h.seal != nil }

// Excludes reports whether the block certainly has no log with any of the topics. It is false unless the header is proven. On a chain
// whose blooms do not cover the logs of their own block the caller must not rely on it.
func (h Header) Excludes(topics ...common.Hash) bool {
	return h.Proven() && !slices.ContainsFunc(topics, func(t common.Hash) bool { return h.seal.bloom.Test(t[:]) })
}

// Transactions returns one hash of all hashes of transactions that the node lists for the block; zero if it lists none, as in a head that was
// subscribed to, and for headers that a View has read. Receipts and their root contain no hash of a transaction, so the caller compares the
// lists of two nodes.
func (h Header) Transactions() common.Hash { return h.txs }

// IsZero reports whether there is no block.
func (h Header) IsZero() bool { return h.Hash == common.Hash{} }

// UnmarshalJSON decodes a block or header in the nodes' format.
func (h *Header) UnmarshalJSON(b []byte) error {
	var err error
	*h, err = parseSealedHeader(b)
	return err
}

// parseSealedHeader is parseHeader for a header that may be proven.
func parseSealedHeader(b []byte) (Header, error) {
	h, err := parseHeader(b)
	if err != nil {
		return h, err
	}
	var all types.Header
	if json.Unmarshal(b, &all) == nil && all.Hash() == h.Hash { // the chain's headers may lack fields
		h.seal = &seal{receiptsRoot: all.ReceiptHash, bloom: all.Bloom}
	}
	if txs, err := transactionsOf(b); err == nil && len(txs) > 0 {
		text := make([]byte, 0, len(txs)*common.HashLength)
		for _, tx := range txs {
			text = append(text, tx[:]...)
		}
		h.txs = crypto.Keccak256Hash(text)
	}
	return h, nil
}

var headerFields = []string{"number", "hash", "parentHash", "timestamp"}

func parseHeader(b []byte) (h Header, err error) {
	var got int
	err = fields(b, func(key string, value []byte) (err error) {
		if isNull(value) {
			return nil // the hash and number of a pending block
		}
		got++
		switch key {
		case "number":
			h.Number, err = parseUint(value)
		case "hash":
			h.Hash, err = parseHash(value)
		case "parentHash":
			h.Parent, err = parseHash(value)
		case "timestamp":
			var s uint64
			s, err = parseUint(value)
			h.Time = time.Unix(int64(s), 0)
		default:
			got--
			switch key {
			case "gasLimit":
				h.GasLimit, err = parseUint(value)
			case "gasUsed":
				h.GasUsed, err = parseUint(value)
			case "baseFeePerGas":
				h.BaseFee, err = parseBig(value)
			}
		}
		if err != nil {
			return fmt.Errorf("%s of a block: %w", key, err)
		}
		return nil
	})
	if err == nil && got < len(headerFields) {
		err = fmt.Errorf("%w: a block without all of %v", errMalformed, headerFields)
	}
	return h, err
}

// checkHeader is the decode function of a call that reads a block. Null is a valid result: the endpoint has no such block.
func checkHeader(result []byte) error {
	if isNull(result) {
		return nil
	}
	_, err := parseHeader(result)
	return err
}

// headerOf returns the header in the answer to eth_getBlockByNumber or ByHash. ErrMissing means that there is no such
// block.
func headerOf(a answer) (Header, error) { return headerBy(a, parseHeader) }

// sealedHeaderOf is headerOf for a header that may be proven.
func sealedHeaderOf(a answer) (Header, error) { return headerBy(a, parseSealedHeader) }

func headerBy(a answer, parse func([]byte) (Header, error)) (Header, error) {
	if a.err != nil {
		if e, ok := errors.AsType[*RPCError](a.err); ok && blockUnknown(e) {
			return Header{}, fmt.Errorf("%w: %w", ErrMissing, a.err)
		}
		return Header{}, a.err
	}
	if isNull(a.result) {
		return Header{}, ErrMissing
	}
	return parse(a.result)
}
