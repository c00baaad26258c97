package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// submission is one attempt to submit a transaction, under a lease.
type submission struct {
	*Consumer
	id, holder uuid.UUID
	deadline   time.Time // of the lease, counted from before it was taken
	*delivery
	tx *dispatch.Transaction
}

// errLate means that the lease has too little time left for a request: this process was frozen.
var errLate = errors.New("the lease has ended")

// post posts the transaction to a relayer and stores the outcome. resumed reports that a relayer of the scope may have it
// from an earlier attempt. next reports that another relayer may be tried at once.
func (s *submission) post(ctx context.Context, choice Choice, resumed bool) (v outbox.Result, next bool) {
	defer choice.Done(nil)
	if time.Now().After(s.deadline.Add(-s.cfg.Lease / 2)) {
		s.log.WarnContext(ctx, "submission given up before its request", "tx", s.id, "err", errLate)
		if !resumed {
			return s.requeue(ctx, choice.Route, errLate.Error())
		}
		return s.release(ctx, afterUnknown), false
	}
	traceparent, span := s.trace(ctx, choice.Route.Relayer)
	ctx = trace.ContextWithSpan(ctx, span)
	// A request that outlasts the lease would go on while another consumer resumes.
	leased, cancel := context.WithDeadline(ctx, s.deadline)
	defer cancel()
	result := choice.Relayer.Submit(leased, upstream.Submission{
		RelayerID: choice.Route.RelayerID, IdempotencyKey: s.tx.RelayerKey(), Scope: choice.Route.Scope, Network: choice.Network, To: &s.tx.To, Data: s.tx.Data, Value: s.tx.Value,
		GasLimit: s.tx.GasLimit, Speed: string(s.tx.Speed), Traceparent: traceparent,
	})
	span.SetAttributes(attribute.String("rollcall.outcome", result.Outcome.String()), attribute.String("rollcall.relayer_transaction", result.Transaction.ID))
	span.End()
	choice.Done(&result)
	s.metrics.submissions.WithLabelValues(result.Outcome.String()).Inc()
	s.metrics.duration.Observe(result.Took.Seconds())
	log := s.log.With("tx", s.id, "service", choice.Route.Relayer)
	switch result.Outcome {
	case upstream.Accepted:
		return s.accepted(ctx, choice.Route, &result.Transaction), false
	case upstream.Rejected:
		if resumed && time.Since(s.tx.QuietSince) < s.cfg.Settled {
			// The earlier request may still be on its way, and be accepted. This one has an answer.
			return s.release(ctx, afterUnknown), false
		}
		log.InfoContext(ctx, "transaction rejected", "err", result.Reason)
		if s.rejected = append(s.rejected, choice.Route.Relayer); s.othersAsked(choice.Route, resumed) {
			return s.requeue(ctx, choice.Route, result.Reason)
		}
		return s.end(ctx, s.cfg.Store.Fail, result.Reason, outbox.Finished()), false
	case upstream.NotDone:
		log.InfoContext(ctx, "relayer did not take a transaction", "err", result.Reason)
		if resumed { // it proves nothing about the earlier request
			return s.release(ctx, max(afterUnknown, result.RetryAfter)), false
		}
		v, next = s.requeue(ctx, choice.Route, result.Reason)
		if next && result.Busy && !s.cfg.Relayers.Besides(s.tried) {
			// Otherwise another consumer asks the relayer earlier than it allows, and then passes it over for all other transactions.
			v = outbox.Later(min(max(v.Delay, result.RetryAfter), longestPause))
		}
		return v, next
	case upstream.Unknown:
		if result.KeyReused || result.Code == http.StatusGone { // no repetition tells more
			return s.park(ctx, result.Reason), false
		}
	}
	log.WarnContext(ctx, "outcome of a submission unknown", "err", result.Reason)
	request := store.Unanswered
	if result.Code == http.StatusInternalServerError { // a proxy's 502 or 504 does not end the request at the relayer
		request = store.Failed
	}
	return s.giveBack(ctx, request, afterUnknown), false
}

// othersAsked reports whether other relayers are asked before a transaction fails that this one has rejected: it may lack the money, or
// its own settings may not allow the receiver. Without a scope it shares nothing with others, and one that is only away is waited for.
// After an earlier request to the scope no other one may get the transaction: the relayer may have checked it before it looked for the key.
// One that this delivery has to avoid counts as another one: it can be asked after [store.AvoidedFor] at the latest.
func (s *submission) othersAsked(rejected dispatch.Route, resumed bool) bool {
	if len(s.rejected) >= triesPerEntry || resumed && rejected.Scope != "" {
		return false
	}
	if rejected.Scope == "" && time.Since(s.tx.AcceptedAt) < s.cfg.RejectedFor && s.cfg.Relayers.Besides(s.rejected) {
		return true
	}
	choice, ok := s.cfg.Relayers.Choose(Want{Exclude: append(slices.Clone(s.tried), rejected.Relayer)})
	if ok {
		choice.Done(nil)
	}
	return ok
}

// requeue returns the transaction to the queue. Another relayer may be tried at once; if there is none, v is the result.
func (s *submission) requeue(ctx context.Context, from dispatch.Route, reason string) (v outbox.Result, next bool) {
	s.tried = append(s.tried, from.Relayer)
	var ok bool
	err := s.repeat(ctx, func() (err error) {
		ok, err = s.cfg.Store.Requeue(ctx, s.id, s.holder, fmt.Sprintf("%s: %s", from.Relayer, reason))
		return err
	})
	if err != nil || !ok {
		return outbox.Later(afterDatabase), false // the row is resumed, or another consumer's
	}
	return outbox.Later(pause(s.tx.AcceptedAt)), true
}

// pause returns how long an entry waits whose transaction no relayer takes: the longer that has lasted, the longer.
func pause(since time.Time) time.Duration {
	return min(max(shortestPause, time.Since(since)/10), longestPause)
}

// trace starts a span in the trace of the client's request, and returns the header that names it.
func (s *submission) trace(ctx context.Context, relayer string) (traceparent string, _ trace.Span) {
	ctx, span := s.cfg.Tracer.Start(tracing.Extract(ctx, s.tx.Traceparent), "submit", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("rollcall.transaction", s.id.String()), attribute.String("rollcall.relayer", relayer)))
	return tracing.Inject(ctx), span
}

// accepted stores a relayer's acceptance. If the database is away, the next attempt finds it out again. If this process stood still and
// the transaction was given to another relayer, the store keeps the acceptance for the reconciler.
func (s *submission) accepted(ctx context.Context, by dispatch.Route, tx *upstream.Transaction) outbox.Result {
	by.RelayerTx = tx.ID
	a := store.Acceptance{ID: s.id, Attempt: s.tx.Attempt, Route: by}
	if tx.Hash != (common.Hash{}) {
		a.Hash = &tx.Hash
	}
	err := s.repeat(ctx, func() error { _, err := s.accepts.Do(ctx, a); return err })
	if err != nil {
		s.log.WarnContext(ctx, "acceptance not stored: the next attempt asks for it", "tx", s.id, "service", by.Relayer, "err", err)
		return outbox.Later(afterDatabase)
	}
	s.metrics.delay.Observe(time.Since(s.tx.AcceptedAt).Seconds())
	return outbox.Finished()
}

// resume goes on with a transaction that a relayer may have from an earlier attempt.
func (s *submission) resume(ctx context.Context) outbox.Result {
	s.metrics.resumed.Inc()
	if s.tx.Scope == "" {
		return s.lookUp(ctx)
	}
	choice, ok := s.cfg.Relayers.Choose(Want{Resume: true, Scope: s.tx.Scope})
	if !ok {
		// The scope may be gone for good. An alert reports the transaction's age then, and an operator resolves it.
		s.metrics.waits.WithLabelValues("no relayer of the scope").Inc()
		return s.release(ctx, pause(s.tx.QuietSince))
	}
	v, _ := s.post(ctx, choice, true)
	return v
}

// lookUp looks for a transaction at a relayer without idempotency keys.
func (s *submission) lookUp(ctx context.Context) outbox.Result {
	settled := time.Since(s.tx.QuietSince) > s.cfg.Settled
	relayer, ok := s.cfg.Relayers.At(s.tx.Route)
	if !ok {
		if settled {
			return s.park(ctx, "its relayer is not known any more")
		}
		return s.release(ctx, shortestPause)
	}
	found, err := relayer.Lookup(ctx, upstream.Ref{ID: s.tx.RelayerID}, upstream.Match{
		To: &s.tx.To, Data: s.tx.Data, Value: s.tx.Value, Since: s.tx.ChangedAt.Add(-s.cfg.ClockMargin),
	})
	if err == nil {
		found, err = s.unowned(ctx, found)
	}
	switch {
	case err != nil && settled:
		return s.park(ctx, "the relayer cannot be asked: "+err.Error())
	case err != nil:
		s.log.InfoContext(ctx, "transaction not looked up", "tx", s.id, "service", s.tx.Relayer, "err", err)
		return s.release(ctx, afterUnknown)
	case len(found) == 1:
		return s.accepted(ctx, s.tx.Route, &found[0])
	case len(found) > 1:
		return s.park(ctx, fmt.Sprintf("the relayer has %d transactions like it", len(found)))
	case settled:
		return s.notFound(ctx, relayer)
	default:
		return s.release(ctx, afterUnknown)
	}
}

// widerMargin is how far a relayer's clock may be behind if its list is to prove that it does not have a transaction.
const widerMargin = 10 * time.Minute

// notFound ends an attempt at a relayer without idempotency keys, which does not show the transaction. If the relayer has answered the
// request, nothing of it is on its way any more. Then a list that is complete, also for a clock that is behind, proves that the relayer
// does not have it. Without an answer the request may still reach the relayer, for example from a paused process.
func (s *submission) notFound(ctx context.Context, relayer Relayer) outbox.Result {
	if s.cfg.ParkNotFound || !s.tx.RequestFailed || time.Since(s.tx.QuietSince) > upstream.ListedFor {
		return s.park(ctx, "the relayer does not show it")
	}
	found, err := relayer.Lookup(ctx, upstream.Ref{ID: s.tx.RelayerID}, upstream.Match{
		To: &s.tx.To, Data: s.tx.Data, Value: s.tx.Value, Since: s.tx.ChangedAt.Add(-widerMargin),
	})
	if err == nil {
		found, err = s.unowned(ctx, found)
	}
	switch {
	case err != nil:
		return s.park(ctx, "the relayer's list cannot be read: "+err.Error())
	case len(found) > 0:
		return s.park(ctx, fmt.Sprintf("the relayer has %d earlier transactions like it", len(found)))
	}
	s.log.WarnContext(ctx, "transaction queued again: its relayer has answered 500, and does not have it", "tx", s.id, "service", s.tx.Relayer)
	v, _ := s.requeue(ctx, s.tx.Route, "answered 500, and does not have it")
	return v
}

// unowned returns the relayer's transactions that no other row has.
func (s *submission) unowned(ctx context.Context, found []upstream.Transaction) (rest []upstream.Transaction, err error) {
	if len(found) == 0 {
		return nil, nil
	}
	ids := make([]string, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	owners, err := s.cfg.Store.Owners(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if owner, owned := owners[f.ID]; !owned || owner == s.id {
			rest = append(rest, f)
		}
	}
	return rest, nil
}

// park makes the transaction unknown, for an operator.
func (s *submission) park(ctx context.Context, reason string) outbox.Result {
	s.metrics.parked.Inc()
	s.log.ErrorContext(ctx, "transaction parked: `rollcall tx resolve` ends that", "tx", s.id, "service", s.tx.Relayer, "err", reason)
	return s.end(ctx, s.cfg.Store.Park, reason, outbox.Finished())
}

// end ends the submission by a change of the store, and returns the result.
func (s *submission) end(ctx context.Context, change func(context.Context, uuid.UUID, uuid.UUID, string) (bool, error), reason string, v outbox.Result) outbox.Result {
	var ok bool
	err := s.repeat(ctx, func() (err error) { ok, err = change(ctx, s.id, s.holder, reason); return err })
	if err != nil || !ok {
		return outbox.Later(afterDatabase) // the row is as before, or another consumer's
	}
	return v
}

// repeat repeats a change of the row while the database is away, until the lease ends or ctx does: what a relayer has answered is known
// to this process alone, and a row that is resumed without it may become unknown.
func (s *submission) repeat(ctx context.Context, change func() error) error {
	for {
		err := change()
		if err == nil || ctx.Err() != nil || time.Now().Add(afterDatabase).After(s.deadline) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(afterDatabase):
		}
	}
}

// release gives the lease back after no request, or one that a relayer certainly did not take, so that the next delivery of the entry
// goes on.
func (s *submission) release(ctx context.Context, after time.Duration) outbox.Result {
	return s.giveBack(ctx, store.NoRequest, after)
}

func (s *submission) giveBack(ctx context.Context, request store.Request, after time.Duration) outbox.Result {
	if err := s.cfg.Store.Release(ctx, s.id, s.holder, request); err != nil {
		s.log.DebugContext(ctx, "lease not released: it ends by itself", "tx", s.id, "err", err)
	}
	return outbox.Later(after)
}
