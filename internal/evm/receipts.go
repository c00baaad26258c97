package evm

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Receipt holds the fields of a mined transaction's receipt that this package needs.
type Receipt struct {
	TxHash      common.Hash
	BlockHash   common.Hash
	BlockNumber uint64
	Index       uint     // in the block
	Succeeded   bool     // false: it was mined and reverted
	GasUsed     uint64   //
	GasPrice    *big.Int // wei paid for each gas; nil if the node does not report it
	// Canonical reports whether the block leads to the View's. Otherwise the receipt is of a later block, or of one
	// that is on no chain any more.
	Canonical bool

	text []byte // as the node wrote it; nil outside of this package
}

func parseReceipt(b []byte) (r Receipt, err error) {
	var got int
	err = fields(b, func(key string, value []byte) (err error) {
		if isNull(value) {
			return nil
		}
		got++
		switch key {
		case "transactionHash":
			r.TxHash, err = parseHash(value)
		case "blockHash":
			r.BlockHash, err = parseHash(value)
		case "blockNumber":
			r.BlockNumber, err = parseUint(value)
		case "transactionIndex":
			var i uint64
			i, err = parseUint(value)
			r.Index = uint(i)
		case "status":
			var s uint64
			s, err = parseUint(value)
			r.Succeeded = s == 1
		case "gasUsed":
			r.GasUsed, err = parseUint(value)
		default:
			got--
			if key == "effectiveGasPrice" {
				r.GasPrice, err = parseBig(value)
			}
		}
		if err != nil {
			return fmt.Errorf("%s of a receipt: %w", key, err)
		}
		return nil
	})
	if err == nil && got != 6 {
		err = fmt.Errorf("%w: a receipt without all of its fields", errMalformed)
	}
	return r, err
}

// Receipts returns the receipts of transactions, in the order of the hashes; nil for one without a receipt.
func (v *View) Receipts(ctx context.Context, hashes []common.Hash) ([]*Receipt, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	receipts, err := v.receipts(ctx, hashes)
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	// A receipt counts only if its block leads to the View's, and some of those blocks have not been read yet.
	var check []uint64
	v.mu.Lock()
	for _, r := range receipts {
		if r != nil && r.BlockNumber <= v.h.Number && v.canonical[r.BlockNumber] == (common.Hash{}) {
			check = append(check, r.BlockNumber)
		}
	}
	v.mu.Unlock()
	slices.Sort(check)
	// The View's block is checked even without any receipt: their absence is also a statement about that block.
	if _, err := v.ask(ctx, nil, append(slices.Compact(check), v.h.Number)...); err != nil {
		return nil, fmt.Errorf("read the blocks of receipts: %w", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range receipts {
		if r != nil {
			r.Canonical, r.text = v.canonical[r.BlockNumber] == r.BlockHash, nil
		}
	}
	return receipts, nil
}

func (v *View) receipts(ctx context.Context, hashes []common.Hash) ([]*Receipt, error) {
	calls, receipts := make([]call, len(hashes)), make([]*Receipt, len(hashes))
	for i, h := range hashes {
		calls[i] = call{method: "eth_getTransactionReceipt", params: []any{h}, decode: func(result []byte) error {
			if isNull(result) {
				return nil
			}
			r, err := parseReceipt(result)
			if err == nil && r.TxHash != h {
				err = fmt.Errorf("the receipt of %s is that of %s", h, r.TxHash)
			}
			r.text = result
			receipts[i] = &r
			return err
		}}
	}
	answers, err := v.ep.askPatiently(ctx, calls)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if a.err != nil {
			return nil, a.err
		}
	}
	return receipts, nil
}

// BlockReceipts returns the receipts of all transactions of a block, in its order. If the hash comes from Header or
// Headers, the receipts are Canonical.
func (v *View) BlockReceipts(ctx context.Context, block common.Hash) ([]Receipt, error) {
	receipts, err := v.blockReceipts(ctx, block, nil)
	if err != nil {
		return nil, fmt.Errorf("read the receipts of block %s: %w", block, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range receipts {
		r := &receipts[i]
		r.Canonical, r.text = v.canonical[r.BlockNumber] == block, nil
	}
	return receipts, nil
}

// blockReceipts reads a block's receipts in one call, or one by one if that fails. The call is optional: providers sell
// it on larger plans, and its answer may be too large. txs are the block's transactions; nil if they are not known.
func (v *View) blockReceipts(ctx context.Context, block common.Hash, txs []common.Hash) ([]Receipt, error) {
	if until := v.ep.noBlockReceipts.Load(); v.oneByOne.Load() || until != nil && time.Now().Before(*until) ||
		v.ep.healthOf(time.Now(), blockReceiptsMethod) == standingLimited {
		return v.receiptsOneByOne(ctx, block, txs)
	}
	receipts, err := v.wholeBlockReceipts(ctx, block, txs)
	if err == nil || ctx.Err() != nil {
		return receipts, err
	}
	v.oneByOne.Store(true)
	if e, ok := errors.AsType[*RPCError](err); ok && notOffered(e) || errors.Is(err, ErrTooLarge) {
		v.ep.log.Info("endpoint has no receipts by block, they are read one by one", "err", err, "for", unsupportedPardon)
		v.ep.noBlockReceipts.Store(new(time.Now().Add(unsupportedPardon)))
	}
	receipts, oneByOne := v.receiptsOneByOne(ctx, block, txs)
	if oneByOne != nil {
		return nil, errors.Join(oneByOne, err)
	}
	return receipts, nil
}

const blockReceiptsMethod = "eth_getBlockReceipts"

func (v *View) wholeBlockReceipts(ctx context.Context, block common.Hash, txs []common.Hash) ([]Receipt, error) {
	answers, err := v.ep.askPatiently(ctx, []call{{
		method: blockReceiptsMethod, params: []any{map[string]any{"blockHash": block}}, answers: anyError,
	}})
	if err != nil {
		return nil, err
	}
	if answers[0].err != nil {
		return nil, answers[0].err
	}
	if isNull(answers[0].result) {
		return nil, v.stale("a block before it is unknown")
	}
	var receipts []Receipt
	err = elements(answers[0].result, func(b []byte) error {
		r, err := parseReceipt(b)
		if err == nil && r.BlockHash != block {
			err = fmt.Errorf("the receipt of %s is of block %s", r.TxHash, r.BlockHash)
		}
		// Some chains add receipts of no transaction.
		if len(txs) > 0 && r.TxHash == txs[0] {
			txs = txs[1:]
		}
		r.text = b
		receipts = append(receipts, r)
		return err
	})
	if err == nil && len(txs) > 0 {
		err = fmt.Errorf("the receipts of the block are without that of %s", txs[0])
	}
	if err != nil {
		return nil, v.ep.transportError(true, err)
	}
	return receipts, nil
}

func (v *View) receiptsOneByOne(ctx context.Context, block common.Hash, txs []common.Hash) ([]Receipt, error) {
	if txs == nil {
		answers, err := v.ep.askPatiently(ctx, []call{blockByHash(block)})
		if err != nil {
			return nil, err
		}
		if _, err := headerOf(answers[0]); errors.Is(err, ErrMissing) {
			return nil, v.stale("a block before it is unknown")
		} else if err != nil {
			return nil, err
		}
		if txs, err = transactionsOf(answers[0].result); err != nil {
			return nil, v.ep.transportError(true, err)
		}
	}
	found, err := v.receipts(ctx, txs)
	if err != nil {
		return nil, err
	}
	receipts := make([]Receipt, len(found))
	for i, r := range found {
		if r == nil || r.BlockHash != block {
			return nil, v.stale("a block before it was replaced")
		}
		receipts[i] = *r
	}
	return receipts, nil
}

// transactionsOf returns the hashes of a block's transactions, never nil.
func transactionsOf(block []byte) ([]common.Hash, error) {
	hashes := []common.Hash{}
	err := fields(block, func(key string, value []byte) error {
		if key != "transactions" {
			return nil
		}
		return elements(value, func(b []byte) error {
			h, err := parseHash(b)
			hashes = append(hashes, h)
			return err
		})
	})
	return hashes, err
}
