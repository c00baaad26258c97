package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrUnknown means that the caller stopped waiting before its batch ended: its call may take effect or not.
var ErrUnknown = errors.New("outcome of the batch unknown")

// Config configures a Group.
type Config struct {
	// Size is the most calls of a batch. Default 256.
	Size int
	// Concurrency is how many batches run concurrently. Default 2: one waits for the disk while another is prepared.
	Concurrency int
	// Timeout limits a batch. Default 20 s.
	Timeout time.Duration
}

// Group groups calls of one function. It is safe for concurrent use.
type Group[In, Out any] struct {
	cfg Config
	do  func(context.Context, []In) ([]Out, error)

	mu      sync.Mutex
	waiting []*call[In, Out]
	running int
	idle    chan struct{} // closed when nothing runs; nil if no call of Wait waits for that
}

type call[In, Out any] struct {
	in   In
	out  Out
	err  error
	done chan struct{}
}

// New returns a Group. do returns a result for each call, in their order, or an error for all of them.
func New[In, Out any](cfg Config, do func(context.Context, []In) ([]Out, error)) *Group[In, Out] {
	if cfg.Size <= 0 {
		cfg.Size = 256
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = 2
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 20 * time.Second
	}
	return &Group[In, Out]{cfg: cfg, do: do}
}

// Do calls the function, possibly together with other calls. It fails with [ErrUnknown] if ctx ends before the batch. A
// batch that has begun goes on then.
func (g *Group[In, Out]) Do(ctx context.Context, in In) (out Out, err error) {
	c := &call[In, Out]{in: in, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	if g.running < g.cfg.Concurrency {
		g.running++
		go g.run(context.WithoutCancel(ctx))
	}
	g.mu.Unlock()
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		if g.withdraw(c) {
			return out, ctx.Err()
		}
		return out, fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// withdraw removes a call that no batch has taken yet, and reports whether it did.
func (g *Group[In, Out]) withdraw(c *call[In, Out]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, w := range g.waiting {
		if w == c {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// run executes batches until no call waits.
func (g *Group[In, Out]) run(ctx context.Context) {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), g.cfg.Size)
		if n == 0 {
			g.running--
			if g.running == 0 && g.idle != nil {
				close(g.idle)
				g.idle = nil
			}
			g.mu.Unlock()
			return
		}
		calls := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		g.mu.Unlock()
		g.execute(ctx, calls)
	}
}

// execute runs one batch.
func (g *Group[In, Out]) execute(ctx context.Context, calls []*call[In, Out]) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	ins := make([]In, len(calls))
	for i, c := range calls {
		ins[i] = c.in
	}
	outs, err := g.do(ctx, ins)
	if err == nil && len(outs) != len(calls) {
		err = fmt.Errorf("batch of %d calls has %d results", len(calls), len(outs)) // a programmer's mistake
	}
	for i, c := range calls {
		if err == nil {
			c.out = outs[i]
		}
		c.err = err
		close(c.done)
	}
}

// Wait waits until no batch runs. Callers of Do must have stopped before.
func (g *Group[In, Out]) Wait() {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	<-idle
}
