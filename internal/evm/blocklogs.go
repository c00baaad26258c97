package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// SealedHeader is a header with the parts that prove what its block holds.
type SealedHeader struct {
	Header
	// Proven reports whether the hash of the header's fields is that of the block. It is false on chains with other headers.
	Proven bool

	receiptsRoot common.Hash
	bloom        types.Bloom
}

// Excludes reports whether the block certainly has no log with any of the topics. It is false unless the header is proven. On a chain
// whose blooms do not cover the logs of their own block the caller must not rely on it.
func (h SealedHeader) Excludes(topics ...common.Hash) bool {
	return h.Proven && !slices.ContainsFunc(topics, func(t common.Hash) bool { return h.bloom.Test(t[:]) })
}

// SealedHeader returns the header of a block at one endpoint, which need not have it on its chain. ErrMissing means that the endpoint
// does not know the block.
func (c *Client) SealedHeader(ctx context.Context, endpoint string, block common.Hash) (SealedHeader, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return SealedHeader{}, err
	}
	h, _, err := ep.sealedHeader(ctx, block)
	if err != nil {
		return SealedHeader{}, fmt.Errorf("read block %s: %w", block, err)
	}
	return h, nil
}

// sealedHeader returns a block's header and the hashes of its transactions.
func (ep *endpoint) sealedHeader(ctx context.Context, block common.Hash) (h SealedHeader, txs []common.Hash, err error) {
	read := blockByHash(block)
	if limit := ep.rateLimit(read.method); limit != nil {
		return SealedHeader{}, nil, limit
	}
	read.decode = func(result []byte) (err error) {
		if isNull(result) {
			return nil
		}
		if h, err = parseSealedHeader(result); err != nil {
			return err
		}
		if h.Hash != block {
			return fmt.Errorf("it is block %s", h.Hash)
		}
		txs, err = transactionsOf(result)
		return err
	}
	answers, err := ep.askPatiently(ctx, []call{read})
	if err != nil {
		return SealedHeader{}, nil, err
	}
	if _, err = headerOf(answers[0]); err != nil {
		return SealedHeader{}, nil, err
	}
	return h, txs, nil
}

func parseSealedHeader(b []byte) (h SealedHeader, err error) {
	if h.Header, err = parseHeader(b); err != nil {
		return h, err
	}
	var all types.Header
	if json.Unmarshal(b, &all) != nil {
		return h, nil // the chain's headers lack fields
	}
	h.Proven, h.receiptsRoot, h.bloom = all.Hash() == h.Hash, all.ReceiptHash, all.Bloom
	return h, nil
}

// Proof is whether a block's logs are proven by its hash.
type Proof int

// The proofs.
const (
	// NotProvable means that nothing can be concluded. Chains have headers and receipts of their own, and a false header looks like
	// one.
	NotProvable Proof = iota
	// Proven means that the receipts have the root that the header has, and the header the hash. So the logs are all that the block
	// has, but for the hashes of their transactions, which no receipt contains.
	Proven
	// Disproven means that the header has the hash, and the receipts another root: some are false or missing. Chains whose root leaves
	// out some receipts look like that, too (Polygon, in blocks with a state sync).
	Disproven
)

func (p Proof) String() string {
	switch p {
	case NotProvable:
		return "not provable"
	case Proven:
		return "proven"
	case Disproven:
		return "disproven"
	}
	return fmt.Sprintf("proof %d", int(p))
}

// BlockLogs are logs of one block.
type BlockLogs struct {
	Header SealedHeader
	Logs   []Log // in the block's order
	Proof  Proof
}

// BlockLogs reads the receipts of a block at one endpoint, and returns their logs that have one of the topics as the first. It serves
// where lists of logs differ, or where a single block has too many. Receipts are read by transaction where they are not offered by
// block. ErrMissing means that the endpoint does not know the block, and ErrStale that it has lost it meanwhile.
func (c *Client) BlockLogs(ctx context.Context, endpoint string, block common.Hash, topics []common.Hash) (BlockLogs, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return BlockLogs{}, err
	}
	logs, err := c.blockLogs(ctx, ep, block, topics)
	if err != nil {
		return BlockLogs{}, fmt.Errorf("read the logs of block %s from its receipts: %w", block, err)
	}
	return logs, nil
}

func (c *Client) blockLogs(ctx context.Context, ep *endpoint, block common.Hash, topics []common.Hash) (BlockLogs, error) {
	h, txs, err := ep.sealedHeader(ctx, block)
	if err != nil {
		return BlockLogs{}, err
	}
	receipts, err := c.view(ep, h.Header).blockReceipts(ctx, block, txs)
	if err != nil {
		return BlockLogs{}, err
	}
	b := BlockLogs{Header: h, Logs: []Log{}}
	for i := range receipts {
		if b.Logs, err = appendLogs(b.Logs, &receipts[i], topics); err != nil {
			return BlockLogs{}, ep.distrust(blockReceiptsMethod, fmt.Errorf("receipt of %s: %w", receipts[i].TxHash, err))
		}
	}
	if !h.Proven {
		return b, nil
	}
	switch root, err := receiptsRoot(receipts); {
	case errors.Is(err, errReceiptType):
	case err != nil:
		return BlockLogs{}, ep.distrust(blockReceiptsMethod, err)
	case root == h.receiptsRoot:
		b.Proof = Proven
	default:
		b.Proof = Disproven
	}
	return b, nil
}

// appendLogs appends the logs of a receipt that have one of the topics.
func appendLogs(logs []Log, r *Receipt, topics []common.Hash) ([]Log, error) {
	err := fields(r.text, func(key string, value []byte) error {
		if key != "logs" {
			return nil
		}
		return elements(value, func(b []byte) error {
			var l Log
			if err := parseLog(b, &l); err != nil {
				return err
			}
			if l.BlockHash != r.BlockHash || l.TxHash != r.TxHash {
				return fmt.Errorf("a log of transaction %s in block %s", l.TxHash, l.BlockHash)
			}
			if len(l.Topics) > 0 && slices.Contains(topics, l.Topics[0]) {
				logs = append(logs, l)
			}
			return nil
		})
	})
	return logs, err
}
