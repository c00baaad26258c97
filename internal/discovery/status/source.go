package status

import (
	"context"
	"fmt"
	"sync"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// budget is how long a reader waits for the leader, so that the whole response takes less than 100 ms. If the
	// reader is refused for lack of an answer, its next request gets the late answer.
	budget = 80 * time.Millisecond
	// patience is the wait if the last answer was requested less than recent ago.
	patience = 10 * time.Millisecond
	recent   = 500 * time.Millisecond
	// questionLimit is the time limit of a request to the leader that no reader waits for.
	questionLimit = 2 * time.Second
)

// source requests the status from the leader, once for all concurrent readers, and stores it. A late answer serves the
// next reader.
type source struct {
	ask       func(context.Context) (*rollcallv1.GetStatusResponse, error)
	hasLeader func() bool
	// encode returns the page of an answer that is age old. Readers of a current answer share its page.
	encode func(_ *rollcallv1.GetStatusResponse, age time.Duration) page
	budget time.Duration   // the constant, unless a test sets it
	ctx    context.Context // of requests
	// close cancels the requests. running waits for their goroutines.
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	asking *fetch        // nil if there is no request
	last   *leaderAnswer // nil before the first answer
}

// leaderAnswer is the leader's last answer.
type leaderAnswer struct {
	*rollcallv1.GetStatusResponse
	at      time.Time   // when it was requested
	current func() page // as of the time when it arrived
}

// fetch is one request. The fields below done are set before done is closed.
type fetch struct {
	done chan struct{}
	err  error
}

func newSource(
	ask func(context.Context) (*rollcallv1.GetStatusResponse, error), led func() bool, encode func(*rollcallv1.GetStatusResponse, time.Duration) page,
) *source {
	s := &source{ask: ask, hasLeader: led, encode: encode, budget: budget}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

// latest returns the page of the leader's answer. If the answer is late or missing, it returns the last one with its
// age, as long as there is a leader.
func (s *source) latest() (page, error) {
	q, wait := s.newFetch()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-q.done:
		err = q.err
	case <-timer.C:
		err = fmt.Errorf("nothing came within %v", wait)
	}
	led := err == nil || s.hasLeader()
	s.mu.Lock()
	a := s.last
	s.mu.Unlock()
	switch {
	case a == nil || !led:
		return page{}, err
	case err != nil:
		return s.encode(a.GetStatusResponse, time.Since(a.at)), nil
	}
	return a.current(), nil
}

// newFetch joins the running request, or starts one, and returns how long the reader should wait.
func (s *source) newFetch() (q *fetch, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking == nil {
		s.asking = &fetch{done: make(chan struct{})}
		q := s.asking
		s.running.Go(func() { s.store(q) })
	}
	if s.last != nil && time.Since(s.last.at) < recent {
		return s.asking, patience
	}
	return s.asking, s.budget
}

func (s *source) store(q *fetch) {
	ctx, cancel := context.WithTimeout(s.ctx, questionLimit)
	defer cancel()
	at := time.Now()
	status, err := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = nil
	if q.err = err; err == nil {
		s.last = &leaderAnswer{status, at, sync.OnceValue(func() page { return s.encode(status, 0) })}
	}
	close(q.done)
}
