package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// submitRequest is a draft and the channel for its result.
type submitRequest struct {
	draft   *store.NewTransaction
	verdict chan store.AcceptResult // buffers one
}

// accept passes a draft to the intake and waits for its result.
//
// If the caller's context ends first, it returns [relayer.ErrUnknown]: the draft may have been stored, or may be stored
// later.
func (p *Service) accept(ctx context.Context, d *store.NewTransaction) (store.AcceptResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.DatabaseTimeout, errPatience)
	defer cancel()
	a := &submitRequest{draft: d, verdict: make(chan store.AcceptResult, 1)}
	select {
	case p.requests <- a:
	case <-p.stopped:
		return store.AcceptResult{}, fmt.Errorf("%w: it is shutting down", relayer.ErrUnavailable)
	case <-ctx.Done():
		return store.AcceptResult{}, fmt.Errorf("%w: %w", relayer.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case v := <-a.verdict:
		return v, v.Err
	case <-ctx.Done():
		return store.AcceptResult{}, fmt.Errorf("%w: %w", relayer.ErrUnknown, context.Cause(ctx))
	}
}

var errPatience = errors.New("the database takes too long")

// intakes is how many groups are stored concurrently: one holds the keys' locks, the others wait for the disk.
const intakes = 4

// batcher stores incoming drafts, in groups, until ctx ends.
func (p *Service) batcher(ctx context.Context) {
	for ctx.Err() == nil {
		p.takeTurn(ctx)
	}
}

// takeTurn stores one group. The intakes take turns: the next one begins when the keys' locks are released.
func (p *Service) takeTurn(ctx context.Context) {
	p.turn.Lock()
	next := sync.OnceFunc(p.turn.Unlock)
	defer next()
	select {
	case first := <-p.requests:
		p.store(context.WithoutCancel(ctx), p.collect(first), next)
	case <-ctx.Done():
	}
}

// collect adds the drafts that have arrived to a group.
func (p *Service) collect(first *submitRequest) []*submitRequest {
	group := []*submitRequest{first}
	for len(group) < p.cfg.Group {
		select {
		case next := <-p.requests:
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

// store accepts a group, returns the results to its callers, and passes transactions with a nonce to the sender. It calls
// next when another group may be stored.
func (p *Service) store(ctx context.Context, group []*submitRequest, next func()) {
	drafts := make([]*store.NewTransaction, len(group))
	for i, a := range group {
		drafts[i] = a.draft
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, p.cfg.DatabaseTimeout)
	verdicts, err := p.cfg.Store.AcceptNotify(limited, p.terms, drafts, next)
	cancel()
	p.cfg.Metrics.groupSize.Observe(float64(len(group)))
	p.cfg.Metrics.groupDuration.Observe(time.Since(began).Seconds())
	if err != nil {
		p.cfg.Log.Warn("transactions could not be stored", "count", len(group), "after", time.Since(began), "err", err)
		if !errors.Is(err, relayer.ErrUnknown) && !errors.Is(err, relayer.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", relayer.ErrUnavailable, err)
		}
		for _, a := range group {
			a.verdict <- store.AcceptResult{Err: err}
		}
		return
	}
	var jobs []*sender.Job
	for i, v := range verdicts {
		group[i].verdict <- v
		if v.Err == nil && !v.Replayed && v.Tx.Nonce != nil {
			jobs = append(jobs, sender.NewJob(v.Tx))
		}
	}
	p.cfg.Sender.Sign(jobs...)
}
