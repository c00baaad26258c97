package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// watched is a queue that hands out the context in which entries are taken.
type watched struct {
	Queue
	receiving chan context.Context
}

func (w *watched) Receive(ctx context.Context, handle outbox.Handler) error {
	w.receiving <- ctx
	return w.Queue.Receive(ctx, handle)
}

// signaled is a queue that reports when its entries are taken.
type signaled struct {
	Queue
	begun, ended chan struct{}
}

func (s *signaled) Receive(ctx context.Context, handle outbox.Handler) error {
	s.begun <- struct{}{}
	defer func() {
		select {
		case s.ended <- struct{}{}:
		default:
		}
	}()
	return s.Queue.Receive(ctx, handle)
}

// failing is a store whose acceptances fail.
type failing struct {
	*store.Store
	accepted func() error
}

func (f *failing) Accepted(context.Context, []store.Acceptance) error { return f.accepted() }

// unreleased is a store that is away when a lease is given back for the first time.
type unreleased struct {
	*store.Store
	failed atomic.Bool
}

func (u *unreleased) Release(ctx context.Context, id, holder uuid.UUID, request store.Request) error {
	if u.failed.CompareAndSwap(false, true) {
		return errors.New("the database is away")
	}
	return u.Store.Release(ctx, id, holder, request)
}

// hasty is a store in which a request is two hours old when its lease is given back.
type hasty struct {
	*store.Store
	db *pgxpool.Pool
}

func (h *hasty) Release(ctx context.Context, id, holder uuid.UUID, request store.Request) error {
	err := h.Store.Release(ctx, id, holder, request)
	if err == nil {
		_, err = h.db.Exec(ctx, `UPDATE relay_transactions SET updated_at = now() - interval '2 hours', requested_at = now() - interval '2 hours' WHERE id = $1`, id)
	}
	return err
}

// pausing is a store whose first Accepted waits.
type pausing struct {
	*store.Store
	paused       atomic.Bool
	asked, going chan struct{}
	goOn         func()
	done         chan error // the result
}

func newPausing(w *world) *pausing {
	p := &pausing{Store: w.Store, asked: make(chan struct{}), going: make(chan struct{}), done: make(chan error, 1)}
	p.goOn = sync.OnceFunc(func() { close(p.going) })
	return p
}

func (p *pausing) Accepted(ctx context.Context, accepted []store.Acceptance) error {
	if !p.paused.CompareAndSwap(false, true) {
		return p.Store.Accepted(ctx, accepted)
	}
	close(p.asked)
	<-p.going
	err := p.Store.Accepted(context.WithoutCancel(ctx), accepted) // its process was paused, not its limits
	p.done <- err
	return err
}

// interrupted is a store whose first Requeue fails.
type interrupted struct {
	*store.Store
	once   func() // called by it
	failed atomic.Bool
}

func (s *interrupted) Requeue(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error) {
	if s.failed.CompareAndSwap(false, true) {
		s.once()
		return false, errors.New("the database is away")
	}
	return s.Store.Requeue(ctx, id, holder, reason)
}
