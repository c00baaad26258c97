package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// unexplainedNonce is a used nonce for which none of our attempts has a receipt.
type unexplainedNonce struct {
	heads int         // the number of heads at which it was unexplained
	head  common.Hash // the last of them
	used  *evm.Used   // the transaction that used it, once found
}

// searchAfter is the number of heads after which an unexplained nonce is searched: a receipt may come later than the count.
const searchAfter = 4

// checkUnexplainedNonces looks for other senders' transactions at used nonces for which none of our attempts has a receipt.
func (r *round) checkUnexplainedNonces(ctx context.Context, sought []store.MinedCandidate, found []store.Mined) error {
	done := map[uuid.UUID]bool{}
	for _, m := range found {
		done[m.TxID] = true
	}
	open := slices.DeleteFunc(sought, func(s store.MinedCandidate) bool { return done[s.ID] })
	seen, err := r.unexplainedSince(ctx, open)
	if err != nil {
		return err
	}
	before := r.unexplained
	r.unexplained = map[store.KeyNonce]*unexplainedNonce{}
	looked := 0
	for _, s := range open {
		nonce := store.KeyNonce{Key: s.Key, Nonce: s.Nonce}
		l := before[nonce]
		if l == nil {
			l = &unexplainedNonce{heads: seen[nonce]}
		}
		r.unexplained[nonce] = l
		if l.head != r.head.Hash { // a round may be repeated at its head
			l.head = r.head.Hash
			l.heads++
		}
		if !l.due() && (l.used == nil || l.used.BlockNumber > r.final) {
			continue
		}
		if looked == 4 {
			l.heads, l.head = l.heads-1, common.Hash{} // it is searched at the next head
			continue
		}
		looked++
		err := r.displace(ctx, s, l)
		_, hides := errors.AsType[*hiddenReceiptError](err)
		switch {
		case hides:
			r.hidden = cmp.Or(r.hidden, err)
		case err != nil: // a node that does not keep old state; that must not block everything else
			r.cfg.Log.Warn("nonce was used, and it is not known by whom", "tx", s.ID, "key", s.Key, "nonce", s.Nonce, "err", err)
		}
	}
	return nil
}

// due reports whether the nonce is searched at this head. Searching is expensive, so the interval between searches doubles
// each time, in heads.
func (u *unexplainedNonce) due() bool { return u.heads >= searchAfter && u.heads&(u.heads-1) == 0 }

// unexplainedSince returns for how many heads each key's lowest unexplained nonce has been unexplained, less than
// searchAfter. The time is stored, because the tracking process may change more often than blocks are made.
func (r *round) unexplainedSince(ctx context.Context, open []store.MinedCandidate) (map[store.KeyNonce]int, error) {
	marks, lowest := map[common.Address]string{}, map[common.Address]uint64{}
	if !r.marksCleared {
		for _, k := range r.keys {
			marks[k.Address] = ""
		}
	}
	for nonce := range r.unexplained {
		marks[nonce.Key] = ""
	}
	for _, s := range open {
		if n, ok := lowest[s.Key]; !ok || s.Nonce < n {
			lowest[s.Key], marks[s.Key] = s.Nonce, strconv.FormatUint(s.Nonce, 10)
		}
	}
	timers, err := r.cfg.Store.Timers(ctx, "unexplained", r.head.Number, marks)
	if err != nil {
		return nil, err
	}
	r.marksCleared = true
	since := map[store.KeyNonce]int{}
	for key, t := range timers {
		heads := r.head.Number - min(t.Head, r.head.Number)
		since[store.KeyNonce{Key: key, Nonce: lowest[key]}] = int(min(heads, searchAfter-1))
	}
	return since, nil
}

// hiddenReceiptError means that a node contradicts itself.
type hiddenReceiptError struct{ block uint64 }

func (e *hiddenReceiptError) Error() string {
	return fmt.Sprintf("the node has our transaction in block %d, and no receipt of it", e.block)
}

// displace finds the transaction that used a nonce of ours, and once it is deep enough queues ours for another nonce.
func (r *round) displace(ctx context.Context, s store.MinedCandidate, l *unexplainedNonce) error {
	known := l.used != nil
	if err := r.trace(ctx, s, l); err != nil || l.used == nil {
		return err
	}
	used := l.used
	log := r.cfg.Log.With("tx", s.ID, "key", s.Key, "nonce", s.Nonce, "hash", used.TxHash, "block", used.BlockNumber)
	if slices.Contains(s.Hashes, used.TxHash) {
		l.used = nil
		return r.view.Distrust("eth_getTransactionReceipt", &hiddenReceiptError{used.BlockNumber})
	}
	if used.BlockNumber > r.final {
		if !known {
			log.Warn("nonce used by another sender; waiting for finality")
		}
		return nil
	}
	if !used.Authorization { // an authorization is part of another account's transaction
		if same, err := r.matchForeign(ctx, s, *used); err != nil || same {
			return err
		}
	}
	displaced, err := r.cfg.Store.RecordNonceConflicts(ctx, s.ID, s.Key, r.keys[0].Generation, s.Nonce, used.TxHash, store.Block{Number: used.BlockNumber, Hash: used.BlockHash})
	if err != nil || !displaced {
		return err
	}
	r.cfg.Metrics.displaced.Inc()
	log.Warn("nonce used by another sender for good; transaction gets another nonce")
	return nil
}

// trace finds the transaction that used a nonce. It keeps the result while the block is part of the chain. Nodes may
// discard the state that it was found by before the block is deep enough.
func (r *round) trace(ctx context.Context, s store.MinedCandidate, l *unexplainedNonce) error {
	if l.used != nil {
		headers, err := r.view.Headers(ctx, l.used.BlockNumber, l.used.BlockNumber)
		if err != nil || headers[0].Hash == l.used.BlockHash {
			return err
		}
		l.used = nil
	}
	used, err := r.view.FindNonce(ctx, s.Key, s.Nonce, 0)
	if errors.Is(err, evm.ErrNonceUnused) {
		return nil
	}
	if _, answered := errors.AsType[*evm.RPCError](err); answered {
		return fmt.Errorf("%w (if the node has no state that old, let one that keeps all of it be the first endpoint)", err)
	}
	if err != nil {
		return err
	}
	l.used = &used
	return nil
}
