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
	ask       func(_ context.Context, b []byte) ([]byte, error)
	hasLeader func() bool
	ctx       context.Context // of questions
	// close ends the questions; their goroutines are waited for with running.
	close   context.CancelFunc
	running sync.WaitGroup
	// previous has fleets that nobody reads any longer, for their memory. Made again for each question it would keep the
	// garbage collector busy, and readers waiting for it.
	previous sync.Pool

	mu     sync.Mutex
	asking *fetch          // nil when nobody asks
	last   *statusSnapshot // nil before the first answer
	lastAt time.Time       // when it was asked for
}

// fetch is one call. The fields below done are set before done is closed.
type fetch struct {
	done chan struct{}
	err  error
}

func newSource(ask func(_ context.Context, b []byte) ([]byte, error), led func() bool) *source {
	s := &source{ask: ask, hasLeader: led, previous: sync.Pool{New: func() any { return new(statusSnapshot) }}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

// latest is the leader's answer. Where that does not come in time, or at all, it is the last one with its age, as
// long as a leader is known. The fleet is to be released.
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

// release says that the fleet is not read any longer.
func (s *source) release(f *statusSnapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(f)
}

// drop takes a reader off. s.mu is held.
func (s *source) drop(f *statusSnapshot) {
	if f.readers--; f.readers == 0 {
		s.previous.Put(f)
	}
}

// newFetch joins the one that is being asked, or asks one, and says how long it is worth waiting for.
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
	f.readers = 1 // this function, and then whoever asks for the last one: the source
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
