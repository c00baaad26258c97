package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// stopLimit is the default limit of a step of the end.
const stopLimit = 30 * time.Second

// step is one thing that the end stops.
type step struct {
	name  string
	limit time.Duration
	stop  func() error // returns when it has stopped
}

// OnStop has a part closed at the end, at its place in the reverse order. limit is how long that may take; 30 s by default.
func (p *Process) OnStop(name string, limit time.Duration, stop func() error) {
	p.add(name, limit, stop)
}

func (p *Process) add(name string, limit time.Duration, stop func() error) *step {
	s := &step{name, cmp.Or(limit, stopLimit), stop}
	p.order = append(p.order, s)
	return s
}

// Go runs the parts of a stage, each until its context ends, which is at the stage's place in the reverse order. If a part returns an
// error before, everything is stopped, and Run returns the error. limit is how long the parts may take to stop; 30 s by default.
func (p *Process) Go(name string, limit time.Duration, parts ...func(context.Context) error) {
	p.goStage(name, limit, parts...)
}

func (p *Process) goStage(name string, limit time.Duration, parts ...func(context.Context) error) *step {
	working, stop := context.WithCancelCause(context.WithoutCancel(p.ctx))
	var group errgroup.Group
	for _, part := range parts {
		group.Go(func() error {
			err := part(working)
			if err != nil {
				p.fail(err)
			}
			return err
		})
	}
	return p.add(name, limit, func() error {
		stop(context.Cause(p.ctx))
		return group.Wait()
	})
}

// stop stops everything in reverse order. It returns the errors of the steps, without the one that caused the end; cause is nil for a
// requested end.
func (p *Process) stop(cause error) error {
	var errs []error
	for _, s := range slices.Backward(p.order) {
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.stop() }()
		limit := time.NewTimer(s.limit)
		select {
		case err := <-done:
			if err != nil && (cause == nil || !errors.Is(err, cause)) {
				errs = append(errs, err)
			}
			p.Log.Info("stage stopped", "stage", s.name, "took", time.Since(began).Round(time.Millisecond).String())
		case <-limit.C:
			errs = append(errs, fmt.Errorf("%s has not stopped within %v", s.name, s.limit))
			p.Log.Error("stage not stopped in time: the others are stopped without it", "stage", s.name, "limit", s.limit.String())
		}
		limit.Stop()
	}
	return errors.Join(errs...)
}
