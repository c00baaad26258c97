package status

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// budget bounds how long a reader waits for the leader, so that the whole answer stays under 100 ms, also where
	// there is nothing else to be said: refused now, the reader finds in a moment what came too late for it.
	budget = 80 * time.Millisecond
	// patience is how long it waits where the last answer is recent, no older than that when it was asked for.
	patience = 10 * time.Millisecond
	recent   = 500 * time.Millisecond
	// questionLimit ends a question that nobody waits for any longer.
	questionLimit = 2 * time.Second
)

// source asks the leader, once for all who want to know at the same time, and remembers what it said: an answer that
// comes too late for its reader serves the next one.
type source struct {
	ask func(context.Context) ([]byte, error)
	led func() bool
	ctx context.Context // of questions
	// close ends the questions; their goroutines are waited for with running.
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	asking *question // nil when nobody asks
	last   *fleet    // nil before the first answer
	lastAt time.Time // when it was asked for
}

// question is one call. What is below done is set before that is closed.
type question struct {
	done  chan struct{}
	fleet *fleet
	err   error
}

func newSource(ask func(context.Context) ([]byte, error), led func() bool) *source {
	s := &source{ask: ask, led: led}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

// latest is the leader's answer. Where that does not come in time, or at all, it is the last one with its age, as
// long as a leader is known.
func (s *source) latest() (f *fleet, age time.Duration, err error) {
	q, last, at := s.question()
	wait := budget
	if last != nil && time.Since(at) < recent {
		wait = patience
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-q.done:
		if q.err == nil {
			return q.fleet, 0, nil
		}
		err = q.err
	case <-timer.C:
		err = fmt.Errorf("nothing came within %v", wait)
	}
	if last != nil && s.led() {
		return last, time.Since(at), nil
	}
	return nil, 0, err
}

// question joins the one that is being asked, or asks one.
func (s *source) question() (q *question, last *fleet, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking == nil {
		s.asking = &question{done: make(chan struct{})}
		q := s.asking
		s.running.Go(func() { s.put(q) })
	}
	return s.asking, s.last, s.lastAt
}

func (s *source) put(q *question) {
	ctx, cancel := context.WithTimeout(s.ctx, questionLimit)
	defer cancel()
	at := time.Now()
	raw, err := s.ask(ctx)
	if err == nil {
		q.fleet, err = readFleet(raw)
	}
	q.err = err
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = nil
	if err == nil {
		s.last, s.lastAt = q.fleet, at
	}
	close(q.done)
}
