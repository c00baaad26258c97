package status

import (
	"context"
	"fmt"
	"sync"
	"time"
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
	ask       func(_ context.Context, b []byte) ([]byte, error)
	hasLeader func() bool
	ctx       context.Context // of requests
	// close cancels the requests. running waits for their goroutines.
	close   context.CancelFunc
	running sync.WaitGroup
	// previous has unused snapshots, to reuse their memory. New allocations for each request would keep the garbage
	// collector busy, and readers waiting for it.
	previous sync.Pool

	mu     sync.Mutex
	asking *fetch          // nil if there is no request
	last   *statusSnapshot // nil before the first answer
	lastAt time.Time       // when it was requested
}

// fetch is one request. The fields below done are set before done is closed.
type fetch struct {
	done chan struct{}
	err  error
}

func newSource(ask func(_ context.Context, b []byte) ([]byte, error), led func() bool) *source {
	s := &source{ask: ask, hasLeader: led, previous: sync.Pool{New: func() any { return new(statusSnapshot) }}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

// latest returns the leader's answer. If the answer is late or missing, it returns the last one with its age, as long
// as there is a leader. The caller must release the snapshot.
func (s *source) latest() (f *statusSnapshot, age time.Duration, err error) {
	q, wait := s.newFetch()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-q.done:
		err = q.err
	case <-timer.C:
		err = fmt.Errorf("nothing came within %v", wait)
	}
	led := err == nil || s.hasLeader()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || !led {
		return nil, 0, err
	}
	if err != nil {
		age = time.Since(s.lastAt)
	}
	s.last.readers++
	return s.last, age, nil
}

// release records that a reader has finished with the snapshot.
func (s *source) release(f *statusSnapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(f)
}

// drop removes a reader. s.mu is held.
func (s *source) drop(f *statusSnapshot) {
	if f.readers--; f.readers == 0 {
		s.previous.Put(f)
	}
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
	if s.last != nil && time.Since(s.lastAt) < recent {
		return s.asking, patience
	}
	return s.asking, budget
}

func (s *source) store(q *fetch) {
	ctx, cancel := context.WithTimeout(s.ctx, questionLimit)
	defer cancel()
	at := time.Now()
	f := s.previous.Get().(*statusSnapshot)
	f.raw, q.err = s.ask(ctx, f.raw[:0])
	if q.err == nil {
		q.err = f.read()
	}
	f.readers = 1 // this function, then the source, which holds the last one
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = nil
	if q.err == nil {
		f, s.last, s.lastAt = s.last, f, at
	}
	if f != nil {
		s.drop(f)
	}
	close(q.done)
}
