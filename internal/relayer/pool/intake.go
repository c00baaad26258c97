package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
)

// arrival is a draft and who waits for what becomes of it.
type arrival struct {
	draft   *ledger.Draft
	verdict chan ledger.Verdict // holds one
}

// accept hands a draft to the intake and waits for its verdict.
//
// A caller that gives up gets [relayer.ErrUnknown]: the draft may have been stored, or be stored yet.
func (p *Pool) accept(ctx context.Context, d *ledger.Draft) (ledger.Verdict, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Patience, errPatience)
	defer cancel()
	a := &arrival{draft: d, verdict: make(chan ledger.Verdict, 1)}
	select {
	case p.arrivals <- a:
	case <-p.stopped:
		return ledger.Verdict{}, fmt.Errorf("%w: it is shutting down", relayer.ErrUnavailable)
	case <-ctx.Done():
		return ledger.Verdict{}, fmt.Errorf("%w: %w", relayer.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case v := <-a.verdict:
		return v, v.Err
	case <-ctx.Done():
		return ledger.Verdict{}, fmt.Errorf("%w: %w", relayer.ErrUnknown, context.Cause(ctx))
	}
}

var errPatience = errors.New("the database takes too long")

// intakes is how many groups are stored at once: one has the keys' locks, the others wait for the disk.
const intakes = 4

// intake stores what arrives, in groups, until ctx ends.
func (p *Pool) intake(ctx context.Context) {
	for ctx.Err() == nil {
		p.takeTurn(ctx)
	}
}

// takeTurn stores one group. The intakes take turns: the next one begins when the keys' locks are free.
func (p *Pool) takeTurn(ctx context.Context) {
	p.turn.Lock()
	next := sync.OnceFunc(p.turn.Unlock)
	defer next()
	select {
	case first := <-p.arrivals:
		p.store(context.WithoutCancel(ctx), p.collect(first), next)
	case <-ctx.Done():
	}
}

// collect adds to a group what has arrived.
func (p *Pool) collect(first *arrival) []*arrival {
	group := []*arrival{first}
	for len(group) < p.cfg.Group {
		select {
		case next := <-p.arrivals:
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

// store has a group accepted, answers its callers, and passes on what got a nonce. It calls next when another group may be stored.
func (p *Pool) store(ctx context.Context, group []*arrival, next func()) {
	drafts := make([]*ledger.Draft, len(group))
	for i, a := range group {
		drafts[i] = a.draft
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, p.cfg.Patience)
	verdicts, err := p.cfg.Ledger.AcceptNotify(limited, p.terms, drafts, next)
	cancel()
	p.cfg.Metrics.groupSize.Observe(float64(len(group)))
	p.cfg.Metrics.groupDuration.Observe(time.Since(began).Seconds())
	if err != nil {
		p.cfg.Log.Warn("transactions could not be stored", "count", len(group), "after", time.Since(began), "err", err)
		if !errors.Is(err, relayer.ErrUnknown) && !errors.Is(err, relayer.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", relayer.ErrUnavailable, err)
		}
		for _, a := range group {
			a.verdict <- ledger.Verdict{Err: err}
		}
		return
	}
	var jobs []*sender.Job
	for i, v := range verdicts {
		group[i].verdict <- v
		if v.Err == nil && !v.Replayed && v.Tx.Nonce != nil {
			jobs = append(jobs, sender.First(v.Tx))
		}
	}
	p.cfg.Sender.Sign(jobs...)
}
