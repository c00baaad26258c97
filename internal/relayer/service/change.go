package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Cancel implements [relayer.Service]. It cancels a transaction without a nonce at once, and any other with a no-op that takes
// its nonce.
func (s *Service) Cancel(ctx context.Context, id string, tx uuid.UUID, caller string) (*relayer.Transaction, error) {
	if _, err := s.Transaction(ctx, id, tx); err != nil {
		return nil, err
	}
	canceled, err := s.cfg.Store.SetIntent(ctx, tx, relayer.IntentCancel, "canceled by "+caller)
	if _, ok := errors.AsType[*relayer.StateError](err); ok {
		if now, err := s.cfg.Store.Transaction(ctx, tx); err == nil {
			return nil, stateError(now, "cancel")
		}
	}
	if err != nil {
		return nil, wrapUnknownOutcome(err, postgres.Uncertain(err))
	}
	s.cfg.Log.InfoContext(ctx, "transaction canceled", "tx", tx, "caller", caller, "status", canceled.Status)
	// If this fails, the tracker reads the stored intent and signs the no-op.
	work, cancel := detachedContext(ctx)
	defer cancel()
	if err := s.supersede(work, canceled); err != nil {
		s.cfg.Log.WarnContext(ctx, "no-op is left to the tracker", "tx", tx, "err", err)
	}
	if now, err := s.cfg.Store.Transaction(ctx, tx); err == nil {
		return now, nil
	}
	return canceled, nil // the intent is stored
}

// stateError returns the error for a transaction whose state does not allow an operation, in the API's terms.
func stateError(tx *relayer.Transaction, doing string) error {
	e := &relayer.StateError{Status: tx.Status, Doing: doing, Why: fmt.Sprintf("the transaction is %s", tx.Status.API(tx.Attempts > 0))}
	if tx.Status.Final() || tx.Status == relayer.Mined {
		return e
	}
	switch {
	case tx.Kind != relayer.KindTransaction:
		e.Why = "it is the relayer's own"
	case tx.Intent == relayer.IntentCancel:
		e.Why = "it is being canceled"
	case tx.Intent == relayer.IntentExpire:
		e.Why = "it is past its valid_until, and being taken back"
	case tx.Intent == relayer.IntentFail:
		e.Why = "it is given up, and being taken back: no node would take it"
	}
	return e
}

// wrapUnknownOutcome returns the caller's error for a failed change in the database. lost reports that the change may have
// been made.
func wrapUnknownOutcome(err error, lost bool) error {
	known := unavailable(err)
	if lost && errors.Is(known, relayer.ErrUnavailable) && !errors.Is(err, relayer.ErrUnavailable) {
		return fmt.Errorf("%w: %w", relayer.ErrUnknown, err)
	}
	return known
}

// maxConflictRetries is how often another process may sign first for the transaction before the service gives up.
const maxConflictRetries = 5

// errConflict is returned after maxConflictRetries.
var errConflict = fmt.Errorf("%w: others sign for the transaction at the same time; nothing was changed", relayer.ErrUnavailable)

// finishLimit bounds the work on a stored change; the tracker does the rest.
const finishLimit = 10 * time.Second

// detachedContext returns the context for that work: the caller may have disconnected, but a stored change must still be
// sent.
func detachedContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishLimit)
}

// supersede signs, stores and broadcasts the no-op that a transaction's intent requires, if the transaction has a nonce.
func (s *Service) supersede(ctx context.Context, tx *relayer.Transaction) error {
	if tx.Nonce == nil || tx.Status.Final() {
		return nil
	}
	for range maxConflictRetries {
		attempts, err := s.cfg.Store.Attempts(ctx, tx.ID)
		if err != nil {
			return err
		}
		if n := len(attempts); n > 0 && attempts[n-1].Supersedes(tx) {
			return nil // another process was faster
		}
		attempt, err := s.cfg.Sender.Next(ctx, tx, relayer.PurposeNoop, attempts)
		if err != nil {
			return err
		}
		if stored, err := s.cfg.Sender.Store(ctx, attempt); stored || err != nil {
			return err
		}
	}
	return errConflict
}

// cancelGroup is how many transactions one statement cancels.
const cancelGroup = 500

// CancelPending implements [relayer.Service]. It does not cancel transactions posted after the call, because otherwise it might
// never end. The tracker signs the no-ops, of which there may be many.
func (s *Service) CancelPending(ctx context.Context, id, caller string) (relayer.CancelResult, error) {
	var done relayer.CancelResult
	key, err := s.target(id)
	if err != nil {
		return done, err
	}
	by, err := s.cfg.Store.Now(ctx)
	if err != nil {
		return done, unavailable(err)
	}
	for {
		some, err := s.cfg.Store.CancelPending(ctx, key, by, "canceled by "+caller, cancelGroup)
		if err != nil { // the transactions canceled before stay canceled
			return done, wrapUnknownOutcome(err, len(done.Queued) > 0 || postgres.Uncertain(err))
		}
		if len(some) == 0 {
			return done, nil
		}
		s.cfg.Log.InfoContext(ctx, "transactions canceled", "count", len(some), "target", id, "caller", caller)
		done.Queued = append(done.Queued, some...)
	}
}

// Replace implements [relayer.Service]. It replaces the contents and keeps nonce and metadata.
func (s *Service) Replace(ctx context.Context, id string, tx uuid.UUID, caller string, r relayer.Request) (*relayer.Transaction, error) {
	if _, err := s.target(id); err != nil {
		return nil, err
	}
	if !s.cfg.Enabled {
		return nil, fmt.Errorf("%w: RELAYER_ENABLED is false", relayer.ErrDisabled)
	}
	was, err := s.Transaction(ctx, id, tx)
	if err != nil {
		return nil, err
	}
	if err := checkMetadataUnchanged(was.Metadata, r.Metadata); err != nil {
		return nil, err
	}
	r.Metadata = was.Metadata // the guard checks the limits of this metadata
	if s.cfg.Guard != nil {
		if err := s.cfg.Guard.Admit(ctx, caller, &r); err != nil {
			return nil, err
		}
	}
	asked, key := r, was.OnlyKey()
	only, err := s.prepare(ctx, key, &r)
	if err != nil {
		return nil, err
	}
	reserve, err := s.reserve(ctx, &r)
	if err != nil {
		return nil, err
	}
	for range maxConflictRetries {
		was, err := s.Transaction(ctx, id, tx)
		if err != nil {
			return nil, err
		}
		if was.OnlyKey() != key { // it got or lost a nonce meanwhile
			r, key = asked, was.OnlyKey()
			if only, err = s.prepare(ctx, key, &r); err != nil {
				return nil, err
			}
			if reserve, err = s.reserve(ctx, &r); err != nil {
				return nil, err
			}
		}
		if was.Status.Final() || was.Status == relayer.Mined || was.Intent != relayer.IntentSend || was.Kind != relayer.KindTransaction {
			return nil, stateError(was, "replace")
		}
		if err := s.checkFunds(ctx, was, &r, reserve); err != nil {
			return nil, err
		}
		was.Request = r
		replacement := &store.Replacement{ID: tx, Request: r, Reserve: reserve, Only: only}
		if was.Nonce != nil {
			attempts, err := s.cfg.Store.Attempts(ctx, tx)
			if err != nil {
				return nil, unavailable(err)
			}
			attempt, err := s.cfg.Sender.Next(ctx, was, relayer.PurposeReplace, attempts)
			switch {
			case errors.Is(err, sender.ErrAtCap):
				return nil, relayer.Invalidf("max_fee_per_gas", "a replacement has to offer a tenth more than before, which is above the relayer's cap of %s wei; cancel the transaction instead", s.cfg.MaxFee)
			case err != nil:
				return nil, unavailable(err)
			}
			replacement.Attempt = attempt
		}
		err = s.cfg.Store.Replace(ctx, replacement)
		if _, ok := errors.AsType[*relayer.StateError](err); ok || errors.Is(err, store.ErrRaced) {
			continue // and read its current state
		}
		if err != nil {
			return nil, wrapUnknownOutcome(err, errors.Is(err, postgres.ErrUnknown))
		}
		s.cfg.Log.InfoContext(ctx, "transaction replaced", "tx", tx, "caller", caller)
		if replacement.Attempt != nil {
			work, cancel := detachedContext(ctx)
			if _, err := s.cfg.Sender.Resend(work, []*relayer.Attempt{replacement.Attempt}); err != nil {
				s.cfg.Log.WarnContext(ctx, "replacement is left to the tracker", "tx", tx, "err", err)
			}
			cancel()
		}
		if now, err := s.Transaction(ctx, id, tx); err == nil {
			return now, nil
		}
		return was, nil // with the new contents, which are stored
	}
	return nil, errConflict
}

// checkMetadataUnchanged rejects a replacement that changes metadata. Omitted fields are kept.
func checkMetadataUnchanged(was, given relayer.Metadata) error {
	for _, m := range []struct{ name, was, given string }{
		{"method", was.Method, given.Method},
		{"orderbook", was.Orderbook, given.Orderbook},
		{"trader", was.Trader, given.Trader},
		{"request_id", was.RequestID, given.RequestID},
		{"trace_id", was.TraceID, given.TraceID},
	} {
		if m.given != "" && m.given != m.was {
			return relayer.Invalidf("metadata."+m.name, "can't be replaced: it stays what it was (%q); leave it out", m.was)
		}
	}
	return nil
}

// visibleTo reports whether a transaction may be seen under a relayer's id.
func visibleTo(tx *relayer.Transaction, key common.Address) bool {
	return key == (common.Address{}) || tx.From == key || tx.From == (common.Address{}) && common.HexToAddress(tx.Target) == key
}
