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

// submitRequest is a new transaction and the channel for its result.
type submitRequest struct {
	newTx  *store.NewTransaction
	result chan store.AcceptResult // buffers one
}

// accept passes a new transaction to the intake and waits for its result.
//
// If the caller's context ends first, it returns [relayer.ErrUnknown]: the new transaction may have been stored, or may be stored
// later.
func (s *Service) accept(ctx context.Context, d *store.NewTransaction) (store.AcceptResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.DatabaseTimeout, errPatience)
	defer cancel()
	a := &submitRequest{newTx: d, result: make(chan store.AcceptResult, 1)}
	select {
	case s.requests <- a:
	case <-s.stopped:
		return store.AcceptResult{}, fmt.Errorf("%w: it is shutting down", relayer.ErrUnavailable)
	case <-ctx.Done():
		return store.AcceptResult{}, fmt.Errorf("%w: %w", relayer.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case v := <-a.result:
		return v, v.Err
	case <-ctx.Done():
		return store.AcceptResult{}, fmt.Errorf("%w: %w", relayer.ErrUnknown, context.Cause(ctx))
	}
}

var errPatience = errors.New("the database takes too long")

// intakes is how many groups are stored concurrently: one holds the keys' locks, the others wait for the disk.
const intakes = 4

// batcher stores incoming new transactions, in groups, until ctx ends.
func (s *Service) batcher(ctx context.Context) {
	for ctx.Err() == nil {
		s.takeTurn(ctx)
	}
}

// takeTurn stores one group. The intakes take turns: the next one begins when the keys' locks are released.
func (s *Service) takeTurn(ctx context.Context) {
	s.turn.Lock()
	next := sync.OnceFunc(s.turn.Unlock)
	defer next()
	select {
	case first := <-s.requests:
		s.store(context.WithoutCancel(ctx), s.collect(first), next)
	case <-ctx.Done():
	}
}

// collect adds the new transactions that have arrived to a group.
func (s *Service) collect(first *submitRequest) []*submitRequest {
	group := []*submitRequest{first}
	for len(group) < s.cfg.Group {
		select {
		case next := <-s.requests:
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

// store accepts a group, returns the results to its callers, and passes transactions with a nonce to the sender. It calls
// next when another group may be stored.
func (s *Service) store(ctx context.Context, group []*submitRequest, next func()) {
	newTxs := make([]*store.NewTransaction, len(group))
	for i, a := range group {
		newTxs[i] = a.newTx
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, s.cfg.DatabaseTimeout)
	results, err := s.cfg.Store.AcceptNotify(limited, s.allocation, newTxs, next)
	cancel()
	s.cfg.Metrics.groupSize.Observe(float64(len(group)))
	s.cfg.Metrics.groupDuration.Observe(time.Since(began).Seconds())
	if err != nil {
		s.cfg.Log.Warn("transactions could not be stored", "count", len(group), "after", time.Since(began), "err", err)
		if !errors.Is(err, relayer.ErrUnknown) && !errors.Is(err, relayer.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", relayer.ErrUnavailable, err)
		}
		for _, a := range group {
			a.result <- store.AcceptResult{Err: err}
		}
		return
	}
	var jobs []*sender.Job
	for i, v := range results {
		group[i].result <- v
		if v.Err == nil && !v.Replayed && v.Tx.Nonce != nil {
			jobs = append(jobs, sender.NewJob(v.Tx))
		}
	}
	s.cfg.Sender.Sign(jobs...)
}
