package reconciler

import (
	"context"
	"errors"
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// late begins to ask the relayers that have accepted transactions late whether they have executed them, unless those of an earlier round
// are still being asked. The relayers of the rows are asked as usual.
func (r *Reconciler) late(ctx context.Context, silent *sync.Map) error {
	if r.asking.late.Load() {
		return nil
	}
	due, err := r.cfg.Store.TakeLate(ctx)
	if len(due) > 0 {
		r.asking.startLate(ctx, due, func(ctx context.Context, l *store.Late) error { return r.askLate(ctx, l, silent) })
	}
	return err
}

// askLate asks one relayer. It fails only if the answer cannot be stored.
func (r *Reconciler) askLate(ctx context.Context, l *store.Late, silent *sync.Map) error {
	ctx = tracing.Extract(ctx, l.Transaction.Traceparent) // log lines about the transaction carry the ids of its trace
	log := r.log.With("tx", l.Transaction.ID, "service", l.Route.Relayer, "relayer_tx", l.Route.RelayerTx)
	if l.Checks == 1 {
		r.metrics.late.Inc()
		log.WarnContext(ctx, "relayer accepted a transaction that another relayer has, or that is final: both are asked",
			"status", string(l.Transaction.Status), "other", l.Transaction.Relayer)
	}
	tx := *l.Transaction
	tx.Route = l.Route
	_, got, err := r.find(ctx, &store.Due{Transaction: &tx}, upstream.Ref{ID: l.Route.RelayerID, Scope: l.Route.Scope}, silent)
	switch {
	case errors.Is(err, upstream.ErrNotFound) && l.Checks >= checksUntilLost && l.Age < upstream.ListedFor:
		return r.settle(ctx, l, nil)
	case err != nil:
		log.InfoContext(ctx, "relayer not asked", "err", err)
		return nil
	case got.Status == dispatch.Confirmed && got.Hash != (common.Hash{}) && isCall(&got, &tx.Call):
		return r.settle(ctx, l, &got.Hash)
	case got.Status.Final() && got.Status != dispatch.Confirmed:
		return r.settle(ctx, l, nil)
	}
	return nil
}

// settle ends a late acceptance.
func (r *Reconciler) settle(ctx context.Context, l *store.Late, executed *common.Hash) error {
	changed, err := r.cfg.Store.SettleLate(ctx, l, executed)
	if err != nil {
		return err
	}
	log := r.log.With("tx", l.Transaction.ID, "service", l.Route.Relayer, "relayer_tx", l.Route.RelayerTx, "status", string(l.Transaction.Status))
	switch {
	case executed == nil:
		log.InfoContext(ctx, "relayer did not execute a transaction that it accepted late")
	case changed && l.Transaction.Relayer == "":
		log.WarnContext(ctx, "relayer executed a transaction that it accepted late", "hash", executed.Hex())
	default: // the row's relayer may have executed it, too, or the client was told otherwise
		log.ErrorContext(ctx, "relayer executed a transaction that another relayer has too", "hash", executed.Hex(), "other", l.Transaction.Relayer, "other_tx", l.Transaction.RelayerTx)
	}
	return nil
}

// isCall reports whether a relayer's transaction has the effect of a call, as far as the answer contains it.
func isCall(t *upstream.Transaction, c *dispatch.Call) bool {
	if !t.CallComplete {
		return true
	}
	reported := dispatch.Call{To: *t.To, Value: t.Value, Data: t.Data}
	return reported.Digest() == c.Digest()
}
