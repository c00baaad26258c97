package worker

import (
	"sync"
	"time"
)

// ahead is for how much time messages are fetched in advance. It covers a round trip to the backend. Messages that wait
// here wait for this process alone, so slow handlers have none in advance.
const ahead = 50 * time.Millisecond

// Pool runs a function for messages, for at most n of them concurrently. It is safe for concurrent use.
type Pool[T any] struct {
	n   int
	run func(T)
	wg  sync.WaitGroup

	mu       sync.Mutex
	running  int
	reserved int // promised to fetches
	waiting  []T
	mean     time.Duration // moving average of run's duration; 0 before the first
	stopped  bool
	changed  chan struct{}
}

// New returns a Pool. n is at least 1.
func New[T any](n int, run func(T)) *Pool[T] {
	return &Pool[T]{n: n, run: run, changed: make(chan struct{}, 1)}
}

// Changed receives a value when a run has ended or room was released.
func (p *Pool[T]) Changed() <-chan struct{} { return p.changed }

// Reserve reserves room for up to most messages, and returns for how many: 0 if there is no room. The caller passes that
// number to Add or Release.
func (p *Pool[T]) Reserve(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0
	}
	room := max(0, min(most, p.n+p.prefetch()-p.running-p.reserved-len(p.waiting)))
	p.reserved += room
	return room
}

// prefetch returns how many messages the handlers end within ahead, at most n.
func (p *Pool[T]) prefetch() int {
	switch {
	case p.mean == 0:
		return 0
	case p.mean <= ahead:
		return p.n
	}
	return int(int64(p.n) * int64(ahead) / int64(p.mean))
}

// Add uses room that was reserved: it runs the messages as soon as less than n run. It returns the messages that the
// caller must give back because the pool was stopped.
func (p *Pool[T]) Add(reserved int, messages ...T) (refused []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= reserved
	if p.stopped {
		return messages
	}
	p.waiting = append(p.waiting, messages...)
	p.startLocked()
	if len(messages) < reserved {
		p.signal()
	}
	return nil
}

func (p *Pool[T]) startLocked() {
	for p.running < p.n && len(p.waiting) > 0 {
		m := p.waiting[0]
		var zero T
		p.waiting[0] = zero
		p.waiting = p.waiting[1:]
		p.running++
		p.wg.Go(func() { p.do(m) })
	}
}

func (p *Pool[T]) do(m T) {
	begin := time.Now()
	p.run(m)
	took := max(time.Since(begin), 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == 0 {
		p.mean = took
	}
	p.mean = max(1, p.mean+(took-p.mean)/16)
	p.running--
	p.startLocked()
	p.signal()
}

func (p *Pool[T]) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Stop starts nothing more and returns the messages that have not been started.
func (p *Pool[T]) Stop() []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	waiting := p.waiting
	p.waiting = nil
	return waiting
}

// Wait returns when nothing runs. Call it after Stop.
func (p *Pool[T]) Wait() { p.wg.Wait() }
