package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// tendLimit bounds what each step takes up at once.
const tendLimit = 500

// maintain looks after what is pending. Its steps do not depend on each other. Steps that have to wait for signers come last, and
// tend does not wait for them.
func (r *round) maintain(ctx context.Context) error {
	todo := signerTasks{}
	err := runAll(
		func() error { return r.unsent(ctx, todo) },
		func() error { return r.missing(ctx, todo) },
		func() error { return r.unsigned(ctx) },
		func() error { return r.expire(ctx) },
		func() error { return r.dispatchQueued(ctx) },
		func() error { return r.purge(ctx) },
		func() error { return r.intended(ctx, todo) },
		func() error { return r.requestedBumps(ctx, todo) },
		func() error { return r.bumpLowestPending(ctx, todo) },
	)
	r.runSignerTasks(ctx, todo)
	return err
}

// signerTasks are what each key's signer is needed for, in order.
type signerTasks map[common.Address][]func() error

func (c signerTasks) add(key common.Address, chore func() error) { c[key] = append(c[key], chore) }

// outbidLimit bounds how many keys have something outbid at once.
const outbidLimit = 32

// runSignerTasks does what signers are needed for, of each key beside the others: one that hangs does not delay the others. A
// chore that finds its key still busy, or too many others, is repeated at the next tending.
func (r *round) runSignerTasks(ctx context.Context, todo signerTasks) {
	for key, of := range todo {
		if !r.begin(key) {
			continue
		}
		r.maintenance.Go(func() {
			defer r.end(key)
			for _, chore := range of {
				err := chore()
				if err == nil || errors.Is(err, sender.ErrAtCap) { // at the cap it waits for the base fee to fall
					continue
				}
				if ctx.Err() != nil {
					return
				}
				r.cfg.Metrics.rounds.WithLabelValues("failed").Inc()
				r.cfg.Log.Warn("outbidding what is pending", "relayer", key, "err", err)
				if errors.Is(err, sender.ErrNotSigned) {
					return // nor would the next one be
				}
			}
		})
	}
}

// begin takes a key to be outbid for; it fails while that is being done, or too much else is.
func (t *Tracker) begin(key common.Address) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signing[key] || len(t.signing) >= outbidLimit {
		return false
	}
	t.signing[key] = true
	return true
}

func (t *Tracker) end(key common.Address) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.signing, key)
}

// unsigned signs for nonces that were claimed by somebody who did not get further.
func (r *round) unsigned(ctx context.Context) error {
	held := slices.DeleteFunc(r.mined(), func(f store.KeyNonce) bool { return !slices.Contains(r.cfg.Terms.Held, f.Key) })
	txs, err := r.cfg.Store.Unsigned(ctx, held, r.cfg.Abandoned, tendLimit)
	if err != nil || len(txs) == 0 {
		return err
	}
	r.cfg.Log.Info("signing what somebody else claimed", "count", len(txs))
	r.sign(txs)
	return nil
}

func (r *round) sign(txs []*relayer.Transaction) {
	jobs := make([]*sender.Job, len(txs))
	for i, tx := range txs {
		jobs[i] = sender.NewJob(tx)
	}
	r.cfg.Sender.Sign(jobs...)
}

// unsent broadcasts stored bytes that no node is known to have.
func (r *round) unsent(ctx context.Context, todo signerTasks) error {
	atOnce, err := r.eager(ctx)
	if err != nil {
		return err
	}
	attempts, err := r.cfg.Store.Unsent(ctx, r.mined(), r.cfg.Abandoned, store.Resends{LowestOnly: lowestOnly, AtOnce: atOnce}, tendLimit)
	if err != nil {
		return err
	}
	return r.resend(ctx, todo, attempts)
}

// resend broadcasts what has not been used up, and gives up what no node can ever take.
func (r *round) resend(ctx context.Context, todo signerTasks, attempts []*relayer.Attempt) error {
	open := slices.DeleteFunc(attempts, func(a *relayer.Attempt) bool { return r.used(a.From, a.Nonce) })
	open, err := r.absent(ctx, open)
	if err != nil || len(open) == 0 {
		return err
	}
	r.cfg.Metrics.resends.Add(float64(len(open)))
	results, err := r.cfg.Sender.Resend(ctx, open)
	if err != nil {
		return err
	}
	for i, result := range results {
		outcome := result.Outcome
		if outcome == evm.FeeCapExceeded {
			if outcome, err = r.resendPreviousAttempt(ctx, open[i]); err != nil {
				return err
			}
		}
		if outcome == evm.IntrinsicGas {
			more, err := r.moreGas(ctx, todo, open[i])
			if err != nil {
				return err
			}
			if more {
				continue
			}
		}
		if !r.permanentlyRejected(open[i], outcome) || open[i].Purpose == relayer.PurposeNoop {
			continue
		}
		if err := r.giveUp(ctx, open[i], outcome, result.Err); err != nil {
			return err
		}
	}
	return nil
}

// moreGas has a no-op or a top-up signed with more gas, and reports whether it may have more.
func (r *round) moreGas(ctx context.Context, todo signerTasks, a *relayer.Attempt) (bool, error) {
	signed, err := payload(a.Raw)
	if err != nil || signed.GasLimit >= evm.MaxTransferGas {
		return false, err
	}
	tx, err := r.cfg.Store.Transaction(ctx, a.TxID)
	if err != nil || a.Purpose != relayer.PurposeNoop && tx.Kind != relayer.KindTopUp {
		return false, err
	}
	todo.add(a.From, func() error { return r.outbid(ctx, tx, a.Number) })
	return true, nil
}

// giveUp has a no-op take the nonce of what no node is going to take, unless that is decided already, or it is mined after all.
func (r *round) giveUp(ctx context.Context, a *relayer.Attempt, o evm.Outcome, said error) error {
	tx, err := r.cfg.Store.Transaction(ctx, a.TxID)
	if err != nil || tx.Intent != relayer.IntentSend || tx.Status == relayer.Mined || tx.Status.Final() {
		return err
	}
	_, err = r.cfg.Store.SetIntent(ctx, a.TxID, relayer.IntentFail, o.String())
	if _, ok := errors.AsType[*relayer.StateError](err); ok {
		return nil
	}
	if err != nil {
		return err
	}
	r.cfg.Metrics.hopeless.Inc()
	r.cfg.Log.Warn("no node will ever take the transaction; a no-op takes its nonce",
		"tx", a.TxID, "relayer", a.From, "nonce", a.Nonce, "outcome", o.String(), "err", said)
	return nil
}

// resendPreviousAttempt sends what was signed before an attempt whose whole fee is above what nodes allow, and does the same: a bump of ours
// may have lifted it there. It returns what became of the last one that costs little enough, FeeCapExceeded if none does.
func (r *round) resendPreviousAttempt(ctx context.Context, a *relayer.Attempt) (evm.Outcome, error) {
	attempts, err := r.cfg.Store.Attempts(ctx, a.TxID)
	if err != nil {
		return 0, err
	}
	for _, before := range slices.Backward(attempts) {
		if before.Number >= a.Number {
			continue
		}
		if before.From != a.From || before.Nonce != a.Nonce || before.Purpose != a.Purpose {
			break
		}
		if same, err := samePayload(before.Raw, a.Raw); err != nil || !same {
			return evm.FeeCapExceeded, err
		}
		results, err := r.cfg.Sender.Resend(ctx, []*relayer.Attempt{before})
		if err != nil {
			return 0, err
		}
		switch outcome := results[0].Outcome; {
		case outcome == evm.FeeCapExceeded:
		case outcome.Done(): // what the row is told of an attempt before its latest does not count
			return outcome, r.cfg.Store.RecordBroadcasts(ctx, []store.Broadcast{{
				TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: before.Hash, Status: relayer.Broadcasted,
			}})
		default:
			return outcome, nil
		}
	}
	return evm.FeeCapExceeded, nil
}

// permanentlyRejected says that no node is ever going to take the bytes. Some outcomes are the bytes' own fault, whatever the time and
// the node. A refusal for another reason, for the size, the gas or the whole fee, may be one node's policy, its newest block's
// or its operator's mistake, while the one that would take them is away: that is given time to pass. The bytes still count as
// possibly sent.
func (r *round) permanentlyRejected(a *relayer.Attempt, o evm.Outcome) bool {
	switch o {
	case evm.IntrinsicGas, evm.TipAboveCap:
		return true
	case evm.ExceedsBlockGas, evm.Oversized, evm.Refused, evm.FeeCapExceeded:
		return r.now().Sub(a.CreatedAt) > r.cfg.StuckAfter
	default:
		return false
	}
}

// missing sends again what a node's pool does not have, or not any more, and fills nonces that nobody has. A node that has
// accepted an attempt before is not sent it within its pause, unless transactions of the key were mined since: a full pool then
// has room again.
func (r *round) missing(ctx context.Context, todo signerTasks) error {
	pending, err := r.view.PendingNonces(ctx, r.addresses)
	if err != nil {
		return err
	}
	first, marks := make([]uint64, len(r.keys)), map[common.Address]string{}
	for i, k := range r.keys {
		marks[k.Address] = ""
		if first[i] = max(pending[i], r.counts[i]); first[i] < k.NextNonce {
			marks[k.Address] = "lags"
		}
	}
	lagging, err := r.cfg.Store.Timers(ctx, "node lags", r.head.Number, marks)
	if err != nil {
		return err
	}
	var froms []store.KeyNonce
	var atOnce []common.Address
	for i, k := range r.keys {
		if lag, ok := lagging[k.Address]; !ok || lag.Age < r.cfg.Abandoned {
			continue
		}
		if time.Since(r.observations.found[k.Address]) < foundPause*r.cfg.Abandoned {
			continue
		}
		froms = append(froms, store.KeyNonce{Key: k.Address, Nonce: first[i]})
		if before, ok := r.observations.resent[k.Address]; ok && r.counts[i] > before {
			atOnce = append(atOnce, k.Address)
		}
		r.observations.resent[k.Address] = r.counts[i]
		if err := r.fill(ctx, k, r.counts[i]); err != nil {
			return err
		}
	}
	if len(froms) == 0 {
		return nil
	}
	attempts, err := r.cfg.Store.ListUnconfirmed(ctx, froms, r.cfg.Abandoned, atOnce, tendLimit)
	if err != nil {
		return err
	}
	return r.resend(ctx, todo, attempts)
}

// fill gives nonces that nobody has to no-ops: everything above them waits. One endpoint's count does not decide where they begin:
// a no-op at a nonce that was used long ago is never mined, and takes a place of the key.
func (r *round) fill(ctx context.Context, k *relayer.Key, mined uint64) error {
	missing, err := r.cfg.Store.Gap(ctx, k.Address, k.Era, mined)
	if err != nil {
		return err
	}
	if missing == 0 {
		foreign, err := r.cfg.Store.HasForeign(ctx, k.Address, k.Era, mined, r.head.Number)
		if err != nil || !foreign {
			return err
		}
	}
	mined, answered := r.countOfMost(ctx, k.Address)
	if !answered {
		return nil // at the next round
	}
	if err := r.cfg.Store.DropForeignTransactions(ctx, k.Address, k.Era, mined, r.head.Number); err != nil {
		return err
	}
	filled, err := r.cfg.Store.FillNonceGaps(ctx, k.Address, k.Era, mined, r.cfg.NoopsPerHour)
	if errors.Is(err, store.ErrFillLimit) {
		err = nil
		r.cfg.Metrics.fillLimited.Inc()
		if time.Since(r.limited) >= time.Minute {
			r.limited = time.Now()
			r.cfg.Log.Error("no more gaps of a key are filled in this hour", "relayer", k.Address, "next", k.NextNonce, "mined", mined, "limit", r.cfg.NoopsPerHour)
		}
	}
	if err != nil || len(filled) == 0 {
		return err
	}
	r.cfg.Metrics.filled.Add(float64(len(filled)))
	r.cfg.Log.Warn("filling nonces that nobody has", "relayer", k.Address, "lowest", *filled[0].Nonce, "count", len(filled))
	r.sign(filled)
	return nil
}

// expire gives up what is past its time.
func (r *round) expire(ctx context.Context) error {
	txs, err := r.cfg.Store.ListExpired(ctx, tendLimit)
	if err != nil {
		return err
	}
	for _, tx := range txs {
		if tx.Nonce != nil && r.used(tx.From, *tx.Nonce) {
			continue
		}
		var state *relayer.StateError
		if _, err := r.cfg.Store.SetIntent(ctx, tx.ID, relayer.IntentExpire, "past its valid_until"); err != nil && !errors.As(err, &state) {
			return err
		}
	}
	return nil
}

// intended signs the no-ops that cancellations, expiries and failures still lack.
func (r *round) intended(ctx context.Context, todo signerTasks) error {
	txs, err := r.cfg.Store.ListPendingNoops(ctx, r.mined(), tendLimit)
	if err != nil {
		return err
	}
	for _, tx := range txs {
		todo.add(tx.From, func() error { return r.supersede(ctx, tx) })
	}
	return nil
}

// requestedBumps bumps what an operator wants to have bumped, whatever waits below it and for however short a time.
func (r *round) requestedBumps(ctx context.Context, todo signerTasks) error {
	txs, err := r.cfg.Store.ListBumpRequests(ctx, tendLimit)
	if err != nil {
		return err
	}
	for _, tx := range txs {
		attempts, err := r.cfg.Store.Attempts(ctx, tx.ID)
		if err != nil {
			return err
		}
		if n := len(attempts); n > 0 {
			todo.add(tx.From, func() error { return r.outbid(ctx, tx, attempts[n-1].Number) })
		}
	}
	return nil
}

// dispatchQueued gives keys to what had none.
func (r *round) dispatchQueued(ctx context.Context) error {
	for {
		seated, err := r.cfg.Store.Dispatch(ctx, r.cfg.Terms, tendLimit)
		if err != nil || len(seated) == 0 {
			return err
		}
		r.sign(seated)
	}
}

// bumpLowestPending bumps each key's lowest pending transaction and marks keys that it has blocked for longer than StuckAfter as stuck.
func (r *round) bumpLowestPending(ctx context.Context, todo signerTasks) error {
	lowest, err := r.cfg.Store.ListLowestPending(ctx, r.mined())
	if err != nil {
		return err
	}
	blocking := map[common.Address]*relayer.Transaction{}
	for _, tx := range lowest {
		blocking[tx.From] = tx
	}
	blocked, err := r.blocked(ctx, blocking)
	if err != nil {
		return err
	}
	for _, k := range r.keys {
		tx, b := blocking[k.Address], blocked[k.Address]
		if tx == nil && k.PendingCount > 0 {
			continue // a round that was told too high a count must not end anything
		}
		// A key that is stuck stays so until it moves on, also where this process is more patient than the one before.
		stuck := tx != nil && (b.age >= r.cfg.StuckAfter || !k.StuckSince.IsZero() && r.now().Sub(k.StuckSince) <= b.age)
		if stuck == k.StuckSince.IsZero() {
			if _, err := r.cfg.Store.ChangeKey(ctx, k.Address, store.KeyChange{Stuck: &stuck}); err != nil {
				return err
			}
			if stuck {
				r.cfg.Log.Warn("key stuck", "relayer", k.Address, "tx", tx.ID, "nonce", *tx.Nonce)
			} else {
				r.cfg.Log.Info("key no longer stuck", "relayer", k.Address)
			}
		}
		if tx == nil || tx.Status == relayer.Allocated && (tx.Attempts == 0 || !bumpHelps(tx.StatusReason)) {
			continue
		}
		todo.add(k.Address, func() error { return r.bump(ctx, tx, b) })
	}
	return nil
}

// bumpHelps says that a higher fee may have nodes take what they refuse for a reason. Where it cannot, each bump would only put off
// that it is given up.
func bumpHelps(reason string) bool {
	switch reason {
	case evm.ExceedsBlockGas.String(), evm.Oversized.String(), evm.Refused.String(), evm.InsufficientFunds.String():
		return false
	}
	return true
}

// blocked is how long a key has waited for its lowest transaction: one that was sent long ago, behind many others, has not
// waited to be mined before it was its turn.
type blocked struct {
	age  time.Duration
	head uint64 // when its number of attempts was first seen
}

// blocked reads for how long keys have waited, by the store, because the process that follows the chain may change often.
func (r *round) blocked(ctx context.Context, by map[common.Address]*relayer.Transaction) (map[common.Address]blocked, error) {
	since, attempts := map[common.Address]string{}, map[common.Address]string{}
	for _, k := range r.keys {
		if tx := by[k.Address]; tx != nil {
			since[k.Address] = fmt.Sprintf("%s/%d", tx.ID, *tx.Nonce)
			attempts[k.Address] = fmt.Sprintf("%s/%d/%d", tx.ID, *tx.Nonce, tx.Attempts)
		} else if k.PendingCount == 0 {
			since[k.Address], attempts[k.Address] = "", ""
		}
	}
	ages, err := r.cfg.Store.Timers(ctx, "lowest", r.head.Number, since)
	if err != nil {
		return nil, err
	}
	heads, err := r.cfg.Store.Timers(ctx, "attempts", r.head.Number, attempts)
	if err != nil {
		return nil, err
	}
	all := map[common.Address]blocked{}
	for key, t := range ages {
		all[key] = blocked{age: t.Age, head: heads[key].Head}
	}
	return all, nil
}

// bump outbids the last attempt of a transaction, if that has waited long enough, and a block was made that might have taken it.
func (r *round) bump(ctx context.Context, tx *relayer.Transaction, b blocked) error {
	attempts, err := r.cfg.Store.Attempts(ctx, tx.ID)
	if err != nil || len(attempts) == 0 {
		return err
	}
	last := attempts[len(attempts)-1]
	after, ok := r.cfg.BumpAfter[tx.Speed]
	if !ok {
		after = r.cfg.BumpAfter[relayer.Fast]
	}
	if r.now().Sub(last.CreatedAt) < after || b.age < after {
		return nil
	}
	if r.head.Number <= b.head {
		// Where a chain stands still, its fees would grow beyond all measure, and be paid when it goes on. But one that waits
		// for something to put into a block goes on only where it is offered what it asks for.
		low, err := r.cfg.Sender.Underbids(ctx, tx, last)
		if err != nil || !low {
			return err
		}
	}
	return r.outbid(ctx, tx, last.Number)
}

// supersede signs the no-op of a transaction that is not to be sent any more, unless somebody else has.
func (r *round) supersede(ctx context.Context, tx *relayer.Transaction) error {
	tx, attempts, err := r.unmined(ctx, tx)
	if err != nil || tx == nil {
		return err
	}
	if n := len(attempts); n > 0 && attempts[n-1].Supersedes(tx) {
		return nil
	}
	return r.next(ctx, tx, relayer.PurposeNoop, attempts)
}

// outbid signs what does the same as the attempt of the given number and offers more. Time may have passed since that was the
// last one: if it no longer is, or its no-op is to outbid it, there is nothing to do. Bytes of a transaction that was canceled
// must not outbid its no-op, nor those that were replaced the new ones.
func (r *round) outbid(ctx context.Context, tx *relayer.Transaction, number int) error {
	tx, attempts, err := r.unmined(ctx, tx)
	if err != nil || tx == nil {
		return err
	}
	n := len(attempts)
	if n == 0 || attempts[n-1].Number != number || tx.Intent != relayer.IntentSend && attempts[n-1].Purpose != relayer.PurposeNoop {
		return nil
	}
	return r.next(ctx, tx, attempts[n-1].Purpose, attempts)
}

// unmined reads a transaction again, and what was signed for it; nil where its nonce is not open any more.
func (r *round) unmined(ctx context.Context, tx *relayer.Transaction) (*relayer.Transaction, []*relayer.Attempt, error) {
	attempts, err := r.cfg.Store.Attempts(ctx, tx.ID)
	if err != nil {
		return nil, nil, err
	}
	// Read after its attempts: contents that were replaced in between came with an attempt, whose number is taken then.
	if tx, err = r.cfg.Store.Transaction(ctx, tx.ID); err != nil {
		return nil, nil, err
	}
	if tx.Nonce == nil || tx.Status.Final() || tx.Status == relayer.Mined || r.used(tx.From, *tx.Nonce) {
		return nil, nil, nil
	}
	return tx, attempts, nil
}

// next signs, stores and broadcasts a transaction's next attempt. That somebody else is faster is fine: the number is taken.
func (r *round) next(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt) error {
	if err := r.affordable(ctx, tx, purpose, attempts); err != nil {
		return err
	}
	if n := len(attempts); purpose == relayer.PurposeReplace && n > 0 {
		// The row may have the contents of a loser that a reorganization has taken away again.
		replacement, err := payload(attempts[n-1].Raw)
		if err != nil {
			return err
		}
		tx.To, tx.Value, tx.Data, tx.GasLimit = replacement.To, replacement.Value, replacement.Data, replacement.GasLimit
	}
	attempt, err := r.cfg.Sender.NextAtMarketPrice(ctx, tx, purpose, attempts)
	if err != nil {
		return err
	}
	stored, err := r.cfg.Sender.Store(ctx, attempt)
	if stored {
		r.cfg.Metrics.bumps.Inc()
		r.cfg.Log.Info("transaction was outbid", "tx", tx.ID, "relayer", tx.From, "nonce", *tx.Nonce, "attempt", attempt.Number,
			"purpose", attempt.Purpose, "max_fee", attempt.MaxFee, "tip", attempt.MaxPriorityFee)
	}
	return err
}

// affordable fails with [sender.ErrAtCap] where nodes refuse a transaction's last attempt for its whole fee, still: they would
// refuse the next as well. A no-op needs less gas.
func (r *round) affordable(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt) error {
	n := len(attempts)
	if n == 0 || purpose == relayer.PurposeNoop {
		return nil
	}
	last := attempts[n-1]
	if last.From != tx.From || last.Nonce != *tx.Nonce || last.LastError != evm.FeeCapExceeded.String() {
		return nil
	}
	if last.Paused {
		return sender.ErrAtCap
	}
	results, err := r.cfg.Sender.Resend(ctx, attempts[n-1:])
	if err == nil && results[0].Outcome == evm.FeeCapExceeded {
		return sender.ErrAtCap
	}
	return err
}

// purgeInterval is how often old rows are deleted, purgeLimit how many at once.
const purgeInterval, purgeLimit = time.Minute, 5000

// purge deletes what is older than it has to be kept, a part at a time.
func (r *round) purge(ctx context.Context) error {
	if time.Since(r.purged) < purgeInterval {
		return nil
	}
	n, err := r.cfg.Store.Purge(ctx, r.cfg.History, r.cfg.IdempotencyKeys, purgeLimit)
	if err != nil {
		return err
	}
	if n < purgeLimit { // otherwise there is more
		r.purged = time.Now()
	}
	return r.recountQueues(ctx)
}

// recountQueues corrects counters of waiting transactions that differ from the rows: too high, they refuse callers for good.
func (r *round) recountQueues(ctx context.Context) error {
	corrected, err := r.cfg.Store.RecountQueues(ctx)
	if len(corrected) > 0 {
		r.cfg.Metrics.recounted.Add(float64(len(corrected)))
		r.cfg.Log.Error("queue counters corrected", "targets", corrected)
	}
	return err
}
