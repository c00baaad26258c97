package tracker

import (
	"cmp"
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

// tendLimit bounds how many transactions each step handles at once.
const tendLimit = 500

// maintain maintains pending transactions. Its steps do not depend on each other. Steps that wait for signers come last,
// and maintain does not wait for them.
func (r *round) maintain(ctx context.Context) error {
	todo := signerTasks{}
	err := runAll(
		func() error { return r.expire(ctx) }, // before all steps that send or sign bytes of expired transactions
		func() error { return r.unsent(ctx, todo) },
		func() error { return r.missing(ctx, todo) },
		func() error { return r.topUps() },
		func() error { return r.unsigned(ctx) },
		func() error { return r.dispatchQueued(ctx) },
		func() error { return r.purge(ctx) },
		func() error { return r.intended(ctx, todo) },
		func() error { return r.requestedBumps(ctx, todo) },
		func() error { return r.bumpLowestPending(ctx, todo) },
	)
	r.runSignerTasks(ctx, todo)
	return err
}

// signerTasks are the tasks that need each key's signer, in order.
type signerTasks map[common.Address][]func() error

func (t signerTasks) add(key common.Address, chore func() error) { t[key] = append(t[key], chore) }

// signerTaskLimit bounds for how many keys signer tasks run concurrently.
const signerTaskLimit = 32

// runSignerTasks runs the signer tasks of each key concurrently: a key that hangs does not delay the others. A task whose
// key is still busy, or that exceeds signerTaskLimit, is repeated at the next maintenance.
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
				r.cfg.Log.Warn("outbidding what is pending", "key", key, "err", err)
				if errors.Is(err, sender.ErrNotSigned) {
					return // the next one would fail as well
				}
			}
		})
	}
}

// begin reserves a key for its signer tasks; it fails while they run, or while too many other keys' do.
func (t *Tracker) begin(key common.Address) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signing[key] || len(t.signing) >= signerTaskLimit {
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

// unsigned signs for nonces that another process allocated and did not sign for.
func (r *round) unsigned(ctx context.Context) error {
	held := slices.DeleteFunc(r.mined(), func(f store.KeyNonce) bool { return !slices.Contains(r.cfg.Allocation.Held, f.Key) })
	txs, err := r.cfg.Store.Unsigned(ctx, held, r.cfg.Abandoned, tendLimit)
	if err != nil || len(txs) == 0 {
		return err
	}
	r.cfg.Log.Info("signing transactions that another process claimed", "count", len(txs))
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

// topUps signs new top-ups at once.
func (r *round) topUps() error {
	r.sign(r.cfg.Events.TakeTopUps())
	return nil
}

// unsent broadcasts stored bytes that no node is recorded to have accepted.
func (r *round) unsent(ctx context.Context, todo signerTasks) error {
	atOnce, err := r.eager(ctx)
	if err != nil {
		return err
	}
	attempts, err := r.cfg.Store.Unsent(ctx, r.mined(), r.cfg.Abandoned, store.Resends{LowestOnly: lowestOnly, AtOnce: atOnce}, tendLimit)
	if err != nil {
		return err
	}
	sent, err := r.resend(ctx, todo, attempts)
	if err != nil {
		return err
	}
	for _, key := range atOnce {
		pace := r.observations.paces.of(key)
		if pace.early = false; sent.accepted[key] || sent.failed[key] {
			pace.sentEarly(time.Now(), sent.accepted[key])
		}
	}
	return nil
}

// resend broadcasts attempts whose nonce is not used yet, at the pace of their keys, and gives up those that no node can ever
// accept.
func (r *round) resend(ctx context.Context, todo signerTasks, attempts []*relayer.Attempt) (*resends, error) {
	open := slices.DeleteFunc(attempts, func(a *relayer.Attempt) bool { return r.used(a.From, a.Nonce) })
	open, err := r.absent(ctx, open)
	if err != nil {
		return nil, err
	}
	sends := newResends(r.observations.paces, open, time.Now())
	for {
		batch := sends.batch()
		if len(batch) == 0 {
			return sends, nil
		}
		r.cfg.Metrics.resends.Add(float64(len(batch)))
		results, err := r.cfg.Sender.Resend(ctx, batch)
		if err != nil {
			return nil, err
		}
		sends.sent(batch, results, time.Now())
		if err := r.judge(ctx, todo, batch, results); err != nil {
			return nil, err
		}
	}
}

// judge gives up attempts that no node can ever accept, according to the results of their broadcast, or changes them.
func (r *round) judge(ctx context.Context, todo signerTasks, open []*relayer.Attempt, results []evm.Result) error {
	for i, result := range results {
		var err error
		outcome := result.Outcome
		if outcome == evm.FeeCapExceeded {
			if outcome, err = r.resendPreviousAttempt(ctx, open[i]); err != nil {
				return err
			}
		}
		if outcome == evm.IntrinsicGas || result.Rejected == evm.IntrinsicGas {
			more, err := r.moreGas(ctx, todo, open[i])
			if err != nil {
				return err
			}
			if more {
				continue
			}
		}
		if result.Outcome == evm.Unknown {
			outcome = result.Rejected
		}
		if !r.permanentlyRejected(open[i], outcome, result.Outcome) || open[i].Purpose == relayer.PurposeNoop {
			continue
		}
		if err := r.giveUp(ctx, open[i], outcome, result.Err); err != nil {
			return err
		}
	}
	return nil
}

// moreGas schedules a no-op or a top-up to be signed with more gas, and reports whether it may have more.
func (r *round) moreGas(ctx context.Context, todo signerTasks, a *relayer.Attempt) (bool, error) {
	signed, err := payload(a.Raw)
	if err != nil || signed.GasLimit >= r.cfg.Chain.MaxTransferGas() {
		return false, err
	}
	tx, err := r.cfg.Store.Transaction(ctx, a.TxID)
	if err != nil || a.Purpose != relayer.PurposeNoop && tx.Kind != relayer.KindTopUp {
		return false, err
	}
	todo.add(a.From, func() error { return r.outbidWithMoreGas(ctx, tx, a.Number) })
	return true, nil
}

// giveUp sets the intent of a rejected transaction to fail, so that a no-op takes its nonce. It does nothing if the
// transaction has an intent already, or is mined after all.
func (r *round) giveUp(ctx context.Context, a *relayer.Attempt, o evm.Outcome, cause error) error {
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
	r.cfg.Metrics.rejected.Inc()
	r.cfg.Log.Warn("no node will ever take the transaction; a no-op takes its nonce",
		"tx", a.TxID, "key", a.From, "nonce", a.Nonce, "outcome", o.String(), "err", cause)
	return nil
}

// resendPreviousAttempt handles an attempt whose whole fee is above what nodes allow: one of our bumps may have raised it
// that far. It sends the previous attempts with the same contents, the latest first. It returns the outcome of the first
// that is cheap enough, FeeCapExceeded if none is.
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
		pace := r.observations.paces.of(a.From)
		pace.next = pace.next.Add(resendInterval)
		switch outcome := results[0].Outcome; {
		case outcome == evm.FeeCapExceeded:
		case outcome.Done(): // the row ignores results of attempts before its latest
			return outcome, r.cfg.Store.RecordBroadcasts(ctx, []store.Broadcast{{
				TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: before.Hash, Status: relayer.Broadcasted,
			}})
		default:
			return outcome, nil
		}
	}
	return evm.FeeCapExceeded, nil
}

// silentNodeFactor is how much longer a transaction is kept when a node does not answer whether it accepts the bytes.
const silentNodeFactor = 12

// permanentlyRejected reports that no node will ever accept the bytes, after a rejection. A tip above the fee is wrong at
// any time and node. A rejection for another reason (the size, the gas, the whole fee) may come from one node's policy, its
// newest block or its operator's mistake, and where gas depends on another chain's price it passes. The node that would
// accept the bytes may be unavailable; combined is then Unknown. Such a rejection gets time to pass. The bytes still count
// as possibly sent.
func (r *round) permanentlyRejected(a *relayer.Attempt, rejection, combined evm.Outcome) bool {
	age := r.now().Sub(a.CreatedAt)
	switch {
	case rejection == evm.TipAboveCap:
		return true
	case !rejection.MaybePermanent():
		return false
	case combined == evm.Unknown:
		return age > silentNodeFactor*r.cfg.StuckAfter
	default:
		return age > r.cfg.StuckAfter
	}
}

// missing sends attempts again that a node's pool does not have (any more), and fills nonces without a row. A node that has
// accepted an attempt before does not receive it within its pause. It does if transactions of the key were mined since,
// because a full pool then has room again.
func (r *round) missing(ctx context.Context, todo signerTasks) error {
	pending, err := r.view.PendingNonces(ctx, r.addresses)
	if err != nil {
		return err
	}
	first, marks := make([]uint64, len(r.keys)), map[common.Address]string{}
	for i, k := range r.keys {
		marks[k.Address] = ""
		if first[i] = max(pending[i], r.sure[i]); r.sure[i] < r.counts[i] {
			first[i] = r.sure[i] // the endpoint's pending count contains its mined count
		}
		if first[i] < k.NextNonce {
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
		before, known := r.observations.resent[k.Address]
		if r.observations.paces.of(k.Address).ready(time.Now()) || !known {
			r.observations.resent[k.Address] = r.sure[i]
			if known && r.sure[i] > before {
				atOnce = append(atOnce, k.Address)
			}
		}
		if err := r.fill(ctx, k, r.sure[i]); err != nil {
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
	_, err = r.resend(ctx, todo, attempts)
	return err
}

// fill fills nonces without a row with no-ops, because all nonces above them are blocked. One endpoint's count does not
// decide where they begin. A no-op at a nonce that was used long ago is never mined, and counts against the key's Cap.
func (r *round) fill(ctx context.Context, k *relayer.Key, mined uint64) error {
	missing, err := r.cfg.Store.Gap(ctx, k.Address, k.Generation, mined)
	if err != nil {
		return err
	}
	if missing == 0 {
		foreign, err := r.cfg.Store.HasForeign(ctx, k.Address, k.Generation, mined, r.head.Number)
		if err != nil || !foreign {
			return err
		}
	}
	mined, answered := r.countOfMost(ctx, k.Address)
	if !answered {
		return nil // retry in the next round
	}
	if err := r.cfg.Store.DropForeignTransactions(ctx, k.Address, k.Generation, mined, r.head.Number); err != nil {
		return err
	}
	filled, err := r.cfg.Store.FillNonceGaps(ctx, k.Address, k.Generation, mined, r.cfg.NoopsPerHour)
	if errors.Is(err, store.ErrFillLimit) {
		err = nil
		r.cfg.Metrics.fillLimited.Inc()
		if time.Since(r.limited) >= time.Minute {
			r.limited = time.Now()
			r.cfg.Log.Error("no more gaps of a key are filled in this hour", "key", k.Address, "next", k.NextNonce, "mined", mined, "limit", r.cfg.NoopsPerHour)
		}
	}
	if err != nil || len(filled) == 0 {
		return err
	}
	r.cfg.Metrics.filled.Add(float64(len(filled)))
	r.cfg.Log.Warn("filling nonces without a transaction", "key", k.Address, "lowest", *filled[0].Nonce, "count", len(filled))
	r.sign(filled)
	return nil
}

// expire sets the intent of transactions past their valid_until to expire.
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

// intended schedules the no-ops that cancellations, expiries and failures still need.
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

// requestedBumps schedules the bumps that operators requested, regardless of lower pending nonces and of how long the
// transactions have waited.
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

// dispatchQueued allocates keys to queued transactions and signs them.
func (r *round) dispatchQueued(ctx context.Context) error {
	for {
		dispatched, err := r.cfg.Store.Dispatch(ctx, r.cfg.Allocation, tendLimit)
		if err != nil || len(dispatched) == 0 {
			return err
		}
		r.sign(dispatched)
	}
}

// bumpLowestPending bumps each key's lowest pending transaction, and marks keys that it has blocked for longer than
// StuckAfter as stuck.
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
			continue // a round that received too high a count must not end anything
		}
		// A stuck key stays stuck until it moves on, even if this process's StuckAfter is longer than the previous one's.
		stuck := tx != nil && (b.age >= r.cfg.StuckAfter || !k.StuckSince.IsZero() && r.now().Sub(k.StuckSince) <= b.age)
		if stuck == k.StuckSince.IsZero() {
			if _, err := r.cfg.Store.ChangeKey(ctx, k.Address, store.KeyChange{Stuck: &stuck}); err != nil {
				return err
			}
			if stuck {
				r.cfg.Log.Warn("key stuck", "key", k.Address, "tx", tx.ID, "nonce", *tx.Nonce)
			} else {
				r.cfg.Log.Info("key no longer stuck", "key", k.Address)
			}
		}
		if tx == nil || tx.Status == relayer.Allocated && tx.Attempts == 0 || tx.Status != relayer.Broadcasted && !bumpHelps(tx.StatusReason) {
			continue
		}
		todo.add(k.Address, func() error { return r.bump(ctx, tx, b) })
	}
	return nil
}

// bumpHelps reports whether a higher fee may make nodes accept a transaction rejected for a reason. Where it cannot, each
// bump would only delay giving it up.
func bumpHelps(reason string) bool {
	switch reason {
	case evm.IntrinsicGas.String(), evm.ExceedsBlockGas.String(), evm.Oversized.String(), evm.Refused.String(), evm.InsufficientFunds.String():
		return false
	}
	return true
}

// blocked is how long a key has waited for its lowest transaction. A transaction sent long ago behind many others counts
// only from when it became the lowest.
type blocked struct {
	age  time.Duration
	head uint64 // when its number of attempts was first seen
}

// blocked reads from the store for how long keys have waited, because the tracking process may change often.
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

// bump outbids the last attempt of a transaction, if that has waited long enough, and a block was made since that could
// have included it.
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
		// On a chain that makes no blocks, repeated bumps would raise the fee without limit, and it would be paid when the
		// chain continues. But a chain that makes blocks only for transactions continues only if one offers its price.
		low, err := r.cfg.Sender.Underbids(ctx, tx, last)
		if err != nil || !low {
			return err
		}
	}
	err = r.outbid(ctx, tx, last.Number)
	// A node may have accepted the attempt and not forward it. Every bump reaches all nodes, and at the cap there is none. A
	// resend to all nodes takes its place, and sets the pause until the next one.
	if errors.Is(err, sender.ErrAtCap) && tx.Status == relayer.Broadcasted && !last.Paused && last.LastError != evm.FeeCapExceeded.String() {
		r.cfg.Metrics.resends.Inc()
		_, resent := r.cfg.Sender.Resend(ctx, attempts[len(attempts)-1:])
		return cmp.Or(resent, err)
	}
	return err
}

// supersede signs the no-op of a transaction that must not be sent any more, unless another process has.
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

// outbid signs an attempt with the contents of the attempt of the given number and a higher fee. That attempt may not be
// the latest any more, or its no-op is to outbid it: then outbid does nothing. Bytes of a canceled transaction must not
// outbid its no-op, nor replaced bytes the new ones.
func (r *round) outbid(ctx context.Context, tx *relayer.Transaction, number int) error {
	return r.outbidAs(ctx, tx, number, func(*relayer.Transaction) {})
}

// outbidWithMoreGas is outbid for an attempt that a node rejected for too little gas. The row may not tell that, because
// another node may not have answered.
func (r *round) outbidWithMoreGas(ctx context.Context, tx *relayer.Transaction, number int) error {
	return r.outbidAs(ctx, tx, number, func(tx *relayer.Transaction) {
		tx.Status, tx.StatusReason = relayer.Allocated, evm.IntrinsicGas.String()
	})
}

func (r *round) outbidAs(ctx context.Context, tx *relayer.Transaction, number int, change func(*relayer.Transaction)) error {
	tx, attempts, err := r.unmined(ctx, tx)
	if err != nil || tx == nil {
		return err
	}
	change(tx)
	n := len(attempts)
	if n == 0 || attempts[n-1].Number != number || tx.Intent != relayer.IntentSend && attempts[n-1].Purpose != relayer.PurposeNoop {
		return nil
	}
	return r.next(ctx, tx, attempts[n-1].Purpose, attempts)
}

// unmined reads a transaction and its attempts again; nil if its nonce is used or it is final.
func (r *round) unmined(ctx context.Context, tx *relayer.Transaction) (*relayer.Transaction, []*relayer.Attempt, error) {
	attempts, err := r.cfg.Store.Attempts(ctx, tx.ID)
	if err != nil {
		return nil, nil, err
	}
	// The transaction is read after its attempts. If its contents were replaced in between, that stored an attempt, so the
	// next number is taken.
	if tx, err = r.cfg.Store.Transaction(ctx, tx.ID); err != nil {
		return nil, nil, err
	}
	if tx.Nonce == nil || tx.Status.Final() || tx.Status == relayer.Mined || r.used(tx.From, *tx.Nonce) {
		return nil, nil, nil
	}
	return tx, attempts, nil
}

// next signs, stores and broadcasts a transaction's next attempt. If another process was faster, the attempt is not stored,
// which is no error.
func (r *round) next(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt) error {
	if err := r.affordable(ctx, tx, purpose, attempts); err != nil {
		return err
	}
	if n := len(attempts); purpose == relayer.PurposeReplace && n > 0 {
		// The row may have the contents of an earlier attempt that was mined, and then removed by a reorganization.
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
		r.cfg.Log.Info("transaction was outbid", "tx", tx.ID, "key", tx.From, "nonce", *tx.Nonce, "attempt", attempt.Number,
			"purpose", attempt.Purpose, "max_fee", attempt.MaxFee, "tip", attempt.MaxPriorityFee)
	}
	return err
}

// affordable fails with [sender.ErrAtCap] if nodes still reject a transaction's last attempt for its whole fee: they would
// reject the next as well. A no-op passes, because it needs less gas.
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

// purge deletes rows that are past their retention, a batch at a time.
func (r *round) purge(ctx context.Context) error {
	if time.Since(r.purged) < purgeInterval {
		return nil
	}
	n, err := r.cfg.Store.Purge(ctx, r.cfg.History, r.cfg.IdempotencyKeys, purgeLimit)
	if err != nil {
		return err
	}
	if n < purgeLimit { // otherwise there are more
		r.purged = time.Now()
	}
	return r.recountQueues(ctx)
}

// recountQueues corrects counters of queued transactions that differ from the rows. A counter that is too high would reject
// callers permanently.
func (r *round) recountQueues(ctx context.Context) error {
	corrected, err := r.cfg.Store.RecountQueues(ctx)
	if len(corrected) > 0 {
		r.cfg.Metrics.recounted.Add(float64(len(corrected)))
		r.cfg.Log.Error("queue counters corrected", "targets", corrected)
	}
	return err
}
