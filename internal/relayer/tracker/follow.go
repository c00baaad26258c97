package tracker

import (
	"context"
	"errors"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

const (
	// soughtLimit bounds how many candidates are looked for at once.
	soughtLimit = 2000
	// headersLimit bounds how many blocks are compared at once.
	headersLimit = 500
	// fewReceipts is the number of transactions up to which receipts are read one by one: above it whole blocks are
	// cheaper.
	fewReceipts = 32
	// blocksLimit bounds how many whole blocks are read to find receipts; older receipts are read by hash.
	blocksLimit = 16
)

// follow brings the store up to the head.
func (r *round) follow(ctx context.Context) error {
	if err := r.checkConfirmed(ctx); err != nil {
		return err
	}
	canonical, err := r.reorganize(ctx)
	if err != nil {
		return err
	}
	if err := r.readFinal(ctx); err != nil {
		return err
	}
	found, err := r.find(ctx)
	if err != nil {
		return err
	}
	if err := r.confirm(ctx, append(canonical, found...)); err != nil {
		return err
	}
	return r.moveAnchor(ctx)
}

// noTagInterval is how often a missing tag is logged.
const noTagInterval = time.Minute

// untaggedError means that an endpoint did not return the block of the configured finality.
type untaggedError struct{ cause error }

func (e *untaggedError) Error() string { return e.cause.Error() }
func (e *untaggedError) Unwrap() error { return e.cause }

// readFinal finds the newest final block: deep enough and, if a tag is configured, at or below the tagged block. Without
// the tagged block nothing is final at this endpoint, and all else goes on.
func (r *round) readFinal(ctx context.Context) error {
	if r.final = 0; r.head.Number+1 > r.cfg.Confirmations {
		r.final = r.head.Number + 1 - r.cfg.Confirmations
	}
	if r.cfg.Finality == "" || r.final == 0 {
		return nil
	}
	tagged, err := r.view.Tagged(ctx, r.cfg.Finality)
	_, answered := errors.AsType[*evm.RPCError](err)
	switch {
	case answered || errors.Is(err, evm.ErrMissing):
		if time.Since(r.noTag) > noTagInterval {
			r.noTag = time.Now()
			r.cfg.Log.Warn("node has no block of the configured finality: nothing is confirmed by it", "tag", r.cfg.Finality, "err", err)
		}
		r.final, r.untagged = 0, &untaggedError{err}
		return nil
	case err != nil:
		return err
	}
	r.final = min(r.final, tagged.Number)
	return nil
}

// reorganize makes transactions in removed blocks pending again, and returns the blocks with transactions that are part of
// the chain.
func (r *round) reorganize(ctx context.Context) (canonical []store.Block, err error) {
	blocks, err := r.cfg.Store.MinedBlocks(ctx)
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	hashes := map[uint64]common.Hash{}
	for from := blocks[0].Number; from <= min(blocks[len(blocks)-1].Number, r.head.Number); from += headersLimit {
		headers, err := r.view.Headers(ctx, from, min(from+headersLimit-1, r.head.Number))
		if err != nil {
			return nil, err
		}
		for _, h := range headers {
			hashes[h.Number] = h.Hash
		}
	}
	var gone []store.Block
	for _, b := range blocks {
		switch hash, known := hashes[b.Number]; {
		case !known: // the endpoint does not have it yet
		case hash == b.Hash:
			canonical = append(canonical, b)
		default:
			gone = append(gone, b)
		}
	}
	if len(gone) == 0 {
		return canonical, nil
	}
	n, err := r.cfg.Store.MarkReorged(ctx, gone)
	if err != nil {
		return nil, err
	}
	r.cfg.Metrics.reorgs.Inc()
	r.cfg.Metrics.reorged.Add(float64(n))
	r.cfg.Log.Warn("chain was reorganized", "blocks", len(gone), "lowest", gone[0].Number, "put_back", n)
	r.tended = time.Time{} // transactions that are pending again may have to be sent again
	return canonical, nil
}

// find looks for transactions whose nonce the chain has used, and returns the blocks in which it found some.
func (r *round) find(ctx context.Context) (blocks []store.Block, err error) {
	seen := map[common.Hash]bool{}
	for {
		sought, err := r.cfg.Store.ListMinedCandidates(ctx, r.froms(r.counts), soughtLimit)
		if err != nil {
			return nil, err
		}
		if len(sought) == 0 {
			return blocks, r.checkUnexplainedNonces(ctx, nil, nil)
		}
		found, err := r.receipts(ctx, sought)
		if err != nil {
			return nil, err
		}
		raced := false
		if len(found) > 0 {
			if err := r.restore(ctx, sought, found); err != nil {
				return nil, err
			}
			r.addRevertData(ctx, found)
			err := r.cfg.Store.RecordMined(ctx, found)
			if raced = errors.Is(err, store.ErrRaced); err != nil && !raced {
				return nil, err
			}
			r.freed = true
			for _, m := range found {
				if !seen[m.BlockHash] {
					seen[m.BlockHash] = true
					blocks = append(blocks, store.Block{Number: m.BlockNumber, Hash: m.BlockHash})
				}
			}
			r.cfg.Log.Debug("transactions mined", "count", len(found), "head", r.head.Number)
		}
		// A caller replaced contents after the search, so it is repeated: nothing else would search before the next head. This
		// ends, because each replacement offers a tenth more, and the cap or the key's balance bounds that.
		if raced {
			continue
		}
		if len(found) < len(sought) || len(sought) < soughtLimit {
			return blocks, r.checkUnexplainedNonces(ctx, sought, found)
		}
	}
}

// receipts returns the mined transactions among sought, in blocks that lead to the head.
func (r *round) receipts(ctx context.Context, sought []store.MinedCandidate) ([]store.Mined, error) {
	owner, newest := map[common.Hash]uuid.UUID{}, map[uuid.UUID]common.Hash{}
	for _, s := range sought {
		for _, hash := range s.Hashes {
			owner[hash] = s.ID
		}
		if len(s.Hashes) > 0 {
			newest[s.ID] = s.Hashes[0] // the store lists the newest attempt first
		}
	}
	times := map[common.Hash]time.Time{r.head.Hash: r.head.Time}
	var found []store.Mined
	take := func(receipt *evm.Receipt) {
		id, ours := owner[receipt.TxHash]
		if !ours || !receipt.Canonical {
			return
		}
		delete(owner, receipt.TxHash)
		price := receipt.GasPrice
		if price == nil {
			price = new(big.Int)
		}
		found = append(found, store.Mined{
			TxID: id, Hash: receipt.TxHash, BlockNumber: receipt.BlockNumber, BlockHash: receipt.BlockHash, BlockTime: times[receipt.BlockHash],
			Succeeded: receipt.Succeeded, GasUsed: receipt.GasUsed, GasPrice: price, Newest: newest[id],
		})
	}
	if len(sought) > fewReceipts {
		from := r.head.Number - min(r.head.Number, blocksLimit-1)
		if !r.last.IsZero() {
			from = max(from, min(r.last.Number+1, r.head.Number))
		}
		headers, err := r.view.Headers(ctx, from, r.head.Number)
		if err != nil {
			return nil, err
		}
		for _, h := range headers {
			times[h.Hash] = h.Time
			if r.blocks[h.Hash] == nil {
				if r.blocks[h.Hash], err = r.view.BlockReceipts(ctx, h.Hash); err != nil {
					return nil, err
				}
			}
			for i := range r.blocks[h.Hash] {
				take(&r.blocks[h.Hash][i])
			}
		}
	}
	taken := map[uuid.UUID]bool{}
	for _, m := range found {
		taken[m.TxID] = true
	}
	var rest []common.Hash
	for hash, id := range owner {
		if !taken[id] {
			rest = append(rest, hash)
		}
	}
	if len(rest) == 0 {
		return found, nil
	}
	receipts, err := r.view.Receipts(ctx, rest)
	if err != nil {
		return nil, err
	}
	if err := r.blockTimes(ctx, receipts, times); err != nil {
		return nil, err
	}
	for _, receipt := range receipts {
		if receipt != nil {
			take(receipt)
		}
	}
	return found, nil
}

// blockTimes adds the times of the receipts' blocks.
func (r *round) blockTimes(ctx context.Context, receipts []*evm.Receipt, times map[common.Hash]time.Time) error {
	for _, receipt := range receipts {
		if receipt == nil || !receipt.Canonical {
			continue
		}
		if _, known := times[receipt.BlockHash]; known {
			continue
		}
		headers, err := r.view.Headers(ctx, receipt.BlockNumber, receipt.BlockNumber)
		if err != nil {
			return err
		}
		times[headers[0].Hash] = headers[0].Time
	}
	return nil
}

// confirm makes transactions final in those of the canonical blocks that are deep enough.
func (r *round) confirm(ctx context.Context, canonical []store.Block) error {
	var deep []store.Block
	for _, b := range canonical {
		if b.Number <= r.final {
			deep = append(deep, b)
		}
	}
	if len(deep) == 0 {
		return nil
	}
	if _, err := r.cfg.Store.Confirm(ctx, deep); err != nil {
		return err
	}
	for _, b := range deep {
		if b.Number >= r.confirmed.Number {
			r.confirmed = b
		}
	}
	return nil
}

// checkConfirmed reports a reorganization that removed a block whose transactions were made final. Their bytes
// are sent again; an operator has to correct their statuses.
func (r *round) checkConfirmed(ctx context.Context) error {
	number := r.confirmed.Number
	if number == 0 {
		return nil
	}
	if r.confirmedDue = r.confirmedDue || r.head.Parent != r.last.Hash; !r.confirmedDue || number > r.head.Number {
		return nil
	}
	headers, err := r.view.Headers(ctx, number, number)
	if err != nil {
		return err
	}
	r.confirmedDue = false
	if headers[0].Hash == r.confirmed.Hash {
		return nil
	}
	// A process that fails after this line has reported nothing. The next one would report a block that no longer matters.
	if err := r.cfg.Store.ForgetFinalBlock(ctx, r.confirmed); err != nil {
		return err
	}
	r.cfg.Metrics.finalReorgs.Inc()
	r.cfg.Log.Error("final transactions lost their block in a reorganization: `rollcall keys resync --reorganized` puts their statuses right",
		"block", number, "before", r.confirmed.Hash, "now", headers[0].Hash)
	r.confirmed = store.Block{}
	return nil
}

// anchorStep is the number of blocks after which another anchor is recorded.
const anchorStep = 16

// moveAnchor records a block by which the chain is recognized. A young chain needs one too, because development chains
// restart with the same genesis block. More than half of all endpoints must have the block: each later answer is compared with it,
// so a false one would stop sending.
func (r *round) moveAnchor(ctx context.Context) error {
	depth := max(min(r.cfg.AnchorDepth, r.head.Number/2), r.cfg.Confirmations)
	if r.head.Number <= depth {
		return nil
	}
	number := r.head.Number - depth
	if !r.anchorDue(number) {
		return nil
	}
	finalized, err := r.view.Tagged(ctx, "finalized")
	_, answered := errors.AsType[*evm.RPCError](err) // some chains answer so for each tag
	if err != nil && !answered && !errors.Is(err, evm.ErrMissing) {
		return err
	}
	if finalized.Number > 0 { // a chain that tags its genesis block has finalized nothing yet, or never does
		number = min(number, finalized.Number)
	}
	if !r.anchorDue(number) {
		return nil
	}
	headers, err := r.view.Headers(ctx, number, number)
	if err != nil {
		return err
	}
	block := store.Block{Number: number, Hash: headers[0].Hash}
	if have, all := r.countHaving(ctx, block); 2*have <= all {
		r.anchorTried = number // a node that hangs must not delay each round
		r.cfg.Log.Warn("anchor stays: no majority of the nodes has a newer block", "anchor", r.anchor.Number, "block", number, "have", have, "nodes", all)
		return nil
	}
	if err := r.cfg.Store.MoveAnchor(ctx, r.keys[0].Generation, block); err != nil {
		return err
	}
	r.anchor, r.anchorTried = block, 0
	return nil
}

// countHaving returns how many endpoints have a block, and how many there are.
func (r *round) countHaving(ctx context.Context, b store.Block) (have, all int) {
	anchors := r.cfg.Chain.Anchors(ctx, b.Number, slowNodeGrace)
	for _, a := range anchors {
		if a.Block.Hash == b.Hash {
			have++
		}
	}
	return have, len(anchors)
}

// anchorDue reports whether a block is far enough above the recorded anchor, and above the last one that no majority had.
func (r *round) anchorDue(number uint64) bool {
	return (r.anchor.Number == 0 || number >= r.anchor.Number+anchorStep) && (r.anchorTried == 0 || number >= r.anchorTried+anchorStep)
}
