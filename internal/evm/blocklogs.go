package evm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
)

// SealedHeader returns the header of a block at one endpoint, which need not have it on its chain. [Header.Proven] may hold for it.
// ErrMissing means that the endpoint does not know the block.
func (c *Client) SealedHeader(ctx context.Context, endpoint string, block common.Hash) (Header, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return Header{}, err
	}
	h, _, err := ep.sealedHeader(ctx, block)
	if err != nil {
		return Header{}, fmt.Errorf("read block %s: %w", block, err)
	}
	return h, nil
}

// sealedHeader returns a block's header and the hashes of its transactions.
func (ep *endpoint) sealedHeader(ctx context.Context, block common.Hash) (h Header, txs []common.Hash, err error) {
	read := blockByHash(block)
	if limit := ep.rateLimit(read.method); limit != nil {
		return Header{}, nil, limit
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
		return Header{}, nil, err
	}
	if _, err = headerOf(answers[0]); err != nil {
		return Header{}, nil, err
	}
	return h, txs, nil
}

// Proof is whether a block's logs are proven by its hash.
type Proof int

// The proofs.
const (
	// NotProvable means that nothing can be concluded. Chains have headers and receipts of their own, and a false header looks like
	// one.
	NotProvable Proof = iota
	// Proven means that the receipts have the root that the header has, and the header the hash. So the logs are all that the block
	// has, but for the hashes of their transactions, which no receipt contains: those are right if another endpoint has a header with
	// the same Transactions.
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
	Header Header
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
	receipts, err := c.view(ep, h).blockReceipts(ctx, block, txs)
	if err != nil {
		return BlockLogs{}, err
	}
	b := BlockLogs{Header: h, Logs: []Log{}}
	for i := range receipts {
		if b.Logs, err = appendLogs(b.Logs, &receipts[i], h.Number, topics); err != nil {
			return BlockLogs{}, ep.distrust(blockReceiptsMethod, fmt.Errorf("receipt of %s: %w", receipts[i].TxHash, err))
		}
	}
	for i := range b.Logs { // no receipt proves it
		b.Logs[i].BlockTime = uint64(h.Time.Unix())
	}
	if !h.Proven() {
		return b, nil
	}
	switch root, err := receiptsRoot(receipts); {
	case errors.Is(err, errReceiptType):
	case err != nil:
		return BlockLogs{}, ep.distrust(blockReceiptsMethod, err)
	case root == h.seal.receiptsRoot:
		b.Proof = Proven
	default:
		b.Proof = Disproven
	}
	return b, nil
}

// appendLogs appends the logs of a receipt of a block that have one of the topics. No receipt's root contains the number of the block.
func appendLogs(logs []Log, r *Receipt, number uint64, topics []common.Hash) ([]Log, error) {
	err := fields(r.text, func(key string, value []byte) error {
		if key != "logs" {
			return nil
		}
		return elements(value, func(b []byte) error {
			var l Log
			if err := parseLog(b, &l); err != nil {
				return err
			}
			if l.BlockHash != r.BlockHash || l.TxHash != r.TxHash || l.BlockNumber != number {
				return fmt.Errorf("a log of transaction %s in block %d, %s", l.TxHash, l.BlockNumber, l.BlockHash)
			}
			if len(l.Topics) > 0 && slices.Contains(topics, l.Topics[0]) {
				logs = append(logs, l)
			}
			return nil
		})
	})
	return logs, err
}
