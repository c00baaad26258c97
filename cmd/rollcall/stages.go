package main

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// serve runs a process whose HTTP server is open while it starts. The server is the first stage that stops; run opens the process's
// parts, calls started, and runs until its own stages have ended. serve returns nil if ctx ends before the start: the process was
// stopped while it waited for a database.
func serve(ctx context.Context, web func(context.Context) error, run func(stages *shutdownStages, started func()) error) error {
	working, stop := context.WithCancelCause(ctx)
	stages := newStages(working)
	stages.add(web)
	started := false
	err := run(stages, func() { started = true })
	stop(err)
	if failed := stages.wait(); failed != nil {
		err = failed
	}
	if err != nil && (started || ctx.Err() == nil) {
		return err
	}
	return nil
}

// shutdownStages run together, and stop one after the other.
type shutdownStages struct {
	ctx   context.Context
	group *errgroup.Group
	last  <-chan struct{} // closed when the stage before has ended
}

func newStages(ctx context.Context) *shutdownStages {
	group, ctx := errgroup.WithContext(ctx)
	return &shutdownStages{ctx: ctx, group: group, last: ctx.Done()}
}

// add starts a stage that is told to stop when the one before has ended; the first one when ctx does. A stage that
// fails ends everything.
func (s *shutdownStages) add(parts ...func(context.Context) error) {
	working, stop := context.WithCancelCause(context.WithoutCancel(s.ctx))
	before, ended := s.last, make(chan struct{})
	s.last = ended
	s.group.Go(func() error {
		defer close(ended)
		defer stop(nil)
		var all errgroup.Group
		failed := make(chan struct{}, len(parts))
		for _, part := range parts {
			all.Go(func() error {
				err := part(working)
				if err != nil {
					failed <- struct{}{}
				}
				return err
			})
		}
		select {
		case <-before:
		case <-failed:
		}
		stop(context.Cause(s.ctx))
		return all.Wait()
	})
}

func (s *shutdownStages) wait() error { return s.group.Wait() }
