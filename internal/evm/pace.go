package evm

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// paceWindow is the time in which a limit allows its number of calls. It exceeds the provider's second by paceJitter,
	// because requests do not take equally long to arrive.
	paceWindow = time.Second + paceJitter
	paceJitter = 50 * time.Millisecond
	// paceMemory is how late a refusal may arrive after its request, and still lower the limit.
	paceMemory = 15 * time.Second
	// paceGrowth is how a learned limit grows: by a factor of e^(paceGrowth·t²), t seconds after the last refusal. That is a
	// tenth after 10 s, and 36 after a minute, so one false refusal does not slow an endpoint down for long.
	paceGrowth = 0.001
	// paceForget is the limit above which a learned one has no effect any more.
	paceForget = 10_000
)

// pace bounds the calls that are sent to an endpoint in any second. Each item of a batch is a call. Several clients of an
// endpoint share it.
type pace struct {
	most float64 // by configuration; 0 for any
	// Of each portion one caller waits for room, and holds its turn. Callers of a kind wait in line for that, so that a long
	// line of sends does not hold up reads: the first ones of the lines take turns.
	turns [len(portions)]chan struct{}
	lines [len(portions)][kinds]chan struct{}

	mu        sync.Mutex
	waiting   [len(portions)][kinds]int
	recent    []sent    // within paceMemory and paceWindow before that, oldest first
	learned   float64   // at refusedAt; 0 if no limit is known
	refusedAt time.Time // when the limit was last lowered
}

// sent is a request.
type sent struct {
	at             time.Time
	calls, refused int
	by             portion
}

// portion is the part of a limit that a client may use.
type portion int

const (
	wholeLimit portion = iota
	halfLimit          // leaves the other half to the calls with which transactions are sent
)

var portions = [...]float64{wholeLimit: 1, halfLimit: 0.5}

// kind is a kind of callers.
type kind int

const (
	reads kind = iota
	sends
	kinds
)

func newPace(most int) *pace {
	p := &pace{most: float64(most)}
	for i := range p.turns {
		p.turns[i] = make(chan struct{}, 1)
		for k := range p.lines[i] {
			p.lines[i][k] = make(chan struct{}, 1)
		}
	}
	return p
}

// take waits until at least one of n calls may be sent, and returns how many may. If that is not before the deadline of
// ctx, it returns the time to wait.
func (p *pace) take(ctx context.Context, n int, by portion, k kind) (granted int, wait time.Duration, err error) {
	wait, leave := p.join(by, k)
	defer leave()
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		return 0, wait, nil
	}
	for _, turn := range []chan struct{}{p.lines[by][k], p.turns[by]} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	for {
		if granted, wait = p.tryTake(n, by); granted > 0 {
			return granted, 0, nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return 0, wait, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, 0, ctx.Err()
		}
	}
}

// join counts a caller as waiting until it leaves. It returns the least time that the callers before it in line take.
func (p *pace) join(by portion, k kind) (wait time.Duration, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit := p.limit(time.Now()); limit > 0 {
		inWindow := max(1, int(limit*portions[by]))
		wait = time.Duration(p.waiting[by][k]/inWindow-1) * paceWindow
	}
	p.waiting[by][k]++
	return max(0, wait), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waiting[by][k]--
	}
}

func (p *pace) tryTake(n int, by portion) (granted int, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.expire(now)
	if limit := p.limit(now); limit > 0 {
		all, own, oldest := 0, 0, now
		for _, s := range slices.Backward(p.recent) {
			if now.Sub(s.at) >= paceWindow {
				break
			}
			if all, oldest = all+s.calls, s.at; s.by == by {
				own += s.calls
			}
		}
		if n = min(n, int(limit)-all, max(1, int(limit*portions[by]))-own); n <= 0 {
			return 0, max(oldest.Add(paceWindow).Sub(now), time.Millisecond)
		}
	}
	p.recent = append(p.recent, sent{at: now, calls: n, by: by})
	return n, 0
}

func (p *pace) expire(now time.Time) {
	old := 0
	for old < len(p.recent) && now.Sub(p.recent[old].at) >= paceMemory+paceWindow {
		old++
	}
	p.recent = p.recent[old:]
}

// limit returns the calls that may be sent in a second, at least 1; 0 for any number.
func (p *pace) limit(now time.Time) float64 {
	limit := p.most
	if p.learned > 0 {
		t := now.Sub(p.refusedAt).Seconds()
		if grown := p.learned * math.Exp(paceGrowth*t*t); grown > paceForget {
			p.learned = 0
		} else if limit == 0 || grown < limit {
			limit = grown
		}
	}
	return limit
}

// refuse records that the provider has refused some of the calls of a request, sent at a time, because of their number. It
// lowers the limit to what the provider accepted of the calls sent in the second before, but by no more than half. Requests
// that were sent before the limit was last lowered, or within a second after that, do not lower it again. It returns the
// limit, 0 if none is known.
func (p *pace) refuse(calls int, at time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.mark(calls, at)
	before := p.limit(now)
	if p.learned > 0 && at.Sub(p.refusedAt) < paceWindow || now.Sub(at) >= paceMemory {
		return before
	}
	all, accepted := 0, 0
	for _, s := range p.recent {
		if d := at.Sub(s.at); d < paceWindow && d >= -paceJitter {
			all += s.calls
			accepted += s.calls - s.refused
		}
	}
	if before == 0 {
		before = float64(all)
	}
	p.learned, p.refusedAt = max(1, min(0.9*before, max(float64(accepted), before/2))), now
	return p.limit(now)
}

// void records that the provider has refused a whole batch, sent at a time, for a reason that is not known yet.
func (p *pace) void(calls int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark(calls, at)
}

// mark marks calls of the newest requests that were sent by a time as refused. p.mu is held.
func (p *pace) mark(calls int, at time.Time) {
	for i := len(p.recent) - 1; i >= 0 && calls > 0; i-- {
		s := &p.recent[i]
		if s.at.After(at) {
			continue
		}
		more := min(calls, s.calls-s.refused)
		s.refused += more
		calls -= more
	}
}
