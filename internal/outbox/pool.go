package outbox

import (
	"sync"
	"time"
)

// ahead is for how much time entries are claimed in advance. It covers a turn. Entries that wait here wait for this process alone,
// so slow handlers have none in advance.
const ahead = 50 * time.Millisecond

// pool runs a function for claims, for at most n of them concurrently. It is safe for concurrent use.
type pool struct {
	n   int
	run func(*claim)
	wg  sync.WaitGroup

	mu       sync.Mutex
	running  int
	reserved int // promised to claims that are being made
	waiting  []*claim
	mean     time.Duration // moving average of run's duration; 0 before the first
	stopped  bool
}

// reserve reserves room for up to most claims, and returns for how many. The caller passes that number to add.
func (p *pool) reserve(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0
	}
	room := max(0, min(most, p.n+p.prefetch()-p.running-p.reserved-len(p.waiting)))
	p.reserved += room
	return room
}

// prefetch returns how many claims the handlers end within ahead, at most n.
func (p *pool) prefetch() int {
	switch {
	case p.mean == 0:
		return 0
	case p.mean <= ahead:
		return p.n
	}
	return int(int64(p.n) * int64(ahead) / int64(p.mean))
}

// add uses room that was reserved: it runs the claims as soon as less than n run. It returns those that the caller must give back
// because the pool was stopped.
func (p *pool) add(reserved int, claims []*claim) (refused []*claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= reserved
	if p.stopped {
		return claims
	}
	p.waiting = append(p.waiting, claims...)
	p.startLocked()
	return nil
}

func (p *pool) startLocked() {
	for p.running < p.n && len(p.waiting) > 0 {
		p.running++
		p.wg.Go(p.work)
	}
}

// work runs claims until none waits. A goroutine for each would grow its stack each time.
func (p *pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.waiting) > 0 {
		c := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		p.mu.Unlock()
		begin := time.Now()
		p.run(c)
		took := max(time.Since(begin), 1)
		p.mu.Lock()
		if p.mean == 0 {
			p.mean = took
		}
		p.mean = max(1, p.mean+(took-p.mean)/16)
	}
	p.running--
}

// stop starts nothing more and returns the claims that have not been started.
func (p *pool) stop() []*claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	waiting := p.waiting
	p.waiting = nil
	return waiting
}
