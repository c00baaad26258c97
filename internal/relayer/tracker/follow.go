package tracker

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
)

const (
	// soughtLimit bounds what is looked for at once.
	soughtLimit = 2000
	// headersLimit bounds how far back blocks are compared at once.
	headersLimit = 500
	// fewReceipts are asked for one by one: above it whole blocks are cheaper.
	fewReceipts = 32
	// blocksLimit bounds how many whole blocks are read to find receipts; older ones are asked for by hash.
	blocksLimit = 16
)

// follow brings the store up to the head.
func (r *round) follow(ctx context.Context) error {
	canonical, err := r.reorganize(ctx)
	if err != nil {
		return err
	}
	found, err := r.find(ctx)
	if err != nil {
		return err
	}
	if err := r.confirm(ctx, append(canonical, found...)); err != nil {
		return err
	}
	if err := r.raise(ctx); err != nil {
		return err
	}
	return r.moveAnchor(ctx)
}

// reorganize puts back what stands in blocks that are gone, and returns those with transactions that are part of the chain.
func (r *round) reorganize(ctx context.Context) (canonical []ledger.Block, err error) {
	blocks, err := r.cfg.Ledger.MinedBlocks(ctx)
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
	var gone []ledger.Block
	for _, b := range blocks {
		switch hash, known := hashes[b.Number]; {
		case !known: // the endpoint is not there yet
		case hash == b.Hash:
			canonical = append(canonical, b)
		default:
			gone = append(gone, b)
		}
	}
	if len(gone) == 0 {
		return canonical, nil
	}
	n, err := r.cfg.Ledger.Unmine(ctx, gone)
	if err != nil {
		return nil, err
	}
	r.cfg.Metrics.reorgs.Inc()
	r.cfg.Metrics.putBack.Add(float64(n))
	r.cfg.Log.Warn("chain was reorganized", "blocks", len(gone), "lowest", gone[0].Number, "put_back", n)
	r.tended = time.Time{} // what was put back may have to be sent again
	return canonical, nil
}

// find looks for what the chain has used the nonce of, and returns the blocks in which it found something.
func (r *round) find(ctx context.Context) (blocks []ledger.Block, err error) {
	seen := map[common.Hash]bool{}
	for {
		sought, err := r.cfg.Ledger.Sought(ctx, r.mined(), soughtLimit)
		if err != nil || len(sought) == 0 {
			return blocks, err
		}
		found, err := r.receipts(ctx, sought)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			if err := r.restore(ctx, sought, found); err != nil {
				return nil, err
			}
			if err := r.cfg.Ledger.RecordMined(ctx, found); err != nil {
				return nil, err
			}
			r.freed = true
			for _, m := range found {
				if !seen[m.BlockHash] {
					seen[m.BlockHash] = true
					blocks = append(blocks, ledger.Block{Number: m.BlockNumber, Hash: m.BlockHash})
				}
			}
			r.cfg.Log.Debug("transactions mined", "count", len(found), "head", r.head.Number)
		}
		if len(found) < len(sought) {
			return blocks, r.notFound(ctx, sought, found)
		}
		if len(sought) < soughtLimit {
			return blocks, nil
		}
	}
}

// receipts of whatever stands in blocks that lead to the head.
func (r *round) receipts(ctx context.Context, sought []ledger.Sought) ([]ledger.Mined, error) {
	owner := map[common.Hash]uuid.UUID{}
	for _, s := range sought {
		for _, hash := range s.Hashes {
			owner[hash] = s.ID
		}
	}
	times := map[common.Hash]time.Time{r.head.Hash: r.head.Time}
	var found []ledger.Mined
	take := func(receipt *chain.Receipt) {
		id, ours := owner[receipt.TxHash]
		if !ours || !receipt.Canonical {
			return
		}
		delete(owner, receipt.TxHash)
		price := receipt.GasPrice
		if price == nil {
			price = new(big.Int)
		}
		found = append(found, ledger.Mined{
			TxID: id, Hash: receipt.TxHash, BlockNumber: receipt.BlockNumber, BlockHash: receipt.BlockHash, BlockTime: times[receipt.BlockHash],
			Succeeded: receipt.Succeeded, GasUsed: receipt.GasUsed, GasPrice: price,
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

// blockTimes adds when the receipts' blocks were made.
func (r *round) blockTimes(ctx context.Context, receipts []*chain.Receipt, times map[common.Hash]time.Time) error {
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

// confirm makes final what stands in those of the blocks, which are part of the chain, that are deep enough.
func (r *round) confirm(ctx context.Context, canonical []ledger.Block) error {
	var deep []ledger.Block
	for _, b := range canonical {
		if b.Number+r.cfg.Confirmations <= r.head.Number+1 {
			deep = append(deep, b)
		}
	}
	if len(deep) == 0 {
		return nil
	}
	_, err := r.cfg.Ledger.Confirm(ctx, deep)
	return err
}

// reconcile compares the store's nonces with all nodes' after the database failed over.
func (r *round) reconcile(ctx context.Context) error {
	over, err := r.cfg.Ledger.FailedOver(ctx)
	if err != nil || !over {
		return err
	}
	everywhere := r.cfg.Everywhere
	if everywhere == nil {
		everywhere = r.view.PendingNonces
	}
	nonces, err := everywhere(ctx, r.addresses)
	if err != nil {
		return err
	}
	pending := map[common.Address]uint64{}
	for i, address := range r.addresses {
		pending[address] = nonces[i]
		if nonces[i] > r.keys[i].NextNonce {
			r.cfg.Log.Error("database has forgotten transactions that nodes know of", "relayer", address,
				"nonce", r.keys[i].NextNonce, "nodes", nonces[i])
		}
	}
	if err := r.cfg.Ledger.Reconcile(ctx, r.keys[0].Era, pending); err != nil {
		return err
	}
	r.cfg.Log.Warn("database failed over: nonces were compared with the nodes'", "keys", len(pending))
	return nil
}

// raise follows keys that somebody else has used beyond what we gave out.
func (r *round) raise(ctx context.Context) error {
	for i, k := range r.keys {
		if r.counts[i] <= k.NextNonce {
			continue
		}
		raised, err := r.cfg.Ledger.Raise(ctx, k.Address, k.Era, r.counts[i])
		if err != nil {
			return err
		}
		if raised {
			r.cfg.Metrics.raised.Inc()
			r.cfg.Log.Warn("somebody else uses the key", "relayer", k.Address, "nonce", k.NextNonce, "chain", r.counts[i])
		}
	}
	return nil
}

// anchorDepth is how deep a block is that no reorganization reaches, on a chain that is long enough; anchorStep how often
// another one is remembered.
const anchorDepth, anchorStep = 64, 16

// moveAnchor remembers a block by which the chain is recognised. A young chain, too, has one: development chains begin anew
// with the same genesis block.
func (r *round) moveAnchor(ctx context.Context) error {
	depth := max(min(anchorDepth, r.head.Number/2), r.cfg.Confirmations)
	if r.head.Number <= depth {
		return nil
	}
	number := r.head.Number - depth
	if r.anchor.Number > 0 && number < r.anchor.Number+anchorStep {
		return nil
	}
	headers, err := r.view.Headers(ctx, number, number)
	if err != nil {
		return err
	}
	block := ledger.Block{Number: number, Hash: headers[0].Hash}
	if err := r.cfg.Ledger.MoveAnchor(ctx, r.keys[0].Era, block); err != nil {
		return err
	}
	r.anchor = block
	return nil
}

// notFound looks into nonces that are used, and not by any bytes of ours: is it somebody else's transaction?
func (r *round) notFound(ctx context.Context, sought []ledger.Sought, found []ledger.Mined) error {
	done := map[uuid.UUID]bool{}
	for _, m := range found {
		done[m.TxID] = true
	}
	before := r.unfound
	r.unfound = map[uuid.UUID]int{}
	looked := 0
	for _, s := range sought {
		if done[s.ID] {
			continue
		}
		r.unfound[s.ID] = before[s.ID] + 1
		// A receipt may come later than the count. Searching is dear, and done again after twice as many heads each time.
		n := r.unfound[s.ID]
		if n < 4 || n&(n-1) != 0 {
			continue
		}
		if looked == 4 {
			r.unfound[s.ID] = n - 1 // at the next head it is its turn again
			continue
		}
		looked++
		// A node that does not keep old state cannot tell. That is no reason to let everything else wait.
		if err := r.displace(ctx, s); err != nil {
			r.cfg.Log.Warn("nonce was used, and it is not known by whom", "tx", s.ID, "relayer", s.Key, "nonce", s.Nonce, "err", err)
		}
	}
	return nil
}

// displace finds the transaction that has used a nonce of ours, and once it is deep enough sends ours under another.
func (r *round) displace(ctx context.Context, s ledger.Sought) error {
	used, err := r.view.FindNonce(ctx, s.Key, s.Nonce, 0)
	switch {
	case errors.Is(err, chain.ErrNonceUnused):
		return nil
	case err != nil:
		return fmt.Errorf("find who used nonce %d of %s: %w", s.Nonce, s.Key, err)
	}
	log := r.cfg.Log.With("tx", s.ID, "relayer", s.Key, "nonce", s.Nonce, "hash", used.TxHash, "block", used.BlockNumber)
	if slices.Contains(s.Hashes, used.TxHash) {
		log.Info("transaction is mined, and its receipt is not there yet")
		return nil
	}
	if used.BlockNumber+r.cfg.Confirmations > r.head.Number+1 {
		log.Warn("somebody else's transaction has the nonce; ours waits until that is final")
		return nil
	}
	same, err := r.adopt(ctx, s, used)
	if err != nil || same {
		return err
	}
	displaced, err := r.cfg.Ledger.Displaced(ctx, s.ID, s.Key, r.keys[0].Era, s.Nonce, used.TxHash, ledger.Block{Number: used.BlockNumber, Hash: used.BlockHash})
	if err != nil || !displaced {
		return err
	}
	r.cfg.Metrics.displaced.Inc()
	log.Warn("somebody else's transaction took the nonce for good; ours gets another")
	return nil
}
