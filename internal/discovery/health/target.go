package health

import (
	"container/heap"
	"time"
)

// Target is a service to check.
type Target struct {
	ID, Kind, URL string
	// Version is handed back with results. A new version at the same URL keeps the verdict.
	Version uint64
}

// Verdict is what the checks say of a target.
type Verdict int8

// The verdicts.
const (
	// Unknown: not checked yet at its present URL.
	Unknown Verdict = iota
	Up
	Down
)

func (v Verdict) String() string { return [...]string{"unknown", "up", "down"}[v] }

// Result is what is known of a target after its last check that was not void.
type Result struct {
	Target
	Verdict Verdict
	// At is when the check ended.
	At time.Time
	// Latency is how long it took.
	Latency time.Duration
	// Failures in a row; 0 after a success.
	Failures int
	// Reason of the last failure; empty after a success.
	Reason string
}

// place says where a target is. It is in exactly one.
type place int8

const (
	queued    place = iota // waits to be checked at once
	scheduled              // waits for its time in the schedule
	running
	gone // removed, or replaced by one with another URL
)

// target is a Target with its history. Checker.mu guards what changes.
type target struct {
	id    string
	probe probe // made for the first check
	phase time.Duration

	result Result
	place  place
	// recheck: somebody asked for a check that begins after the one running.
	recheck bool
	// reported: its result waits in Checker.results.
	reported bool
	// inBurst: the running check is one of those that nothing spreads over the interval.
	inBurst bool
	// due is when the next or running check was to begin; zero when nothing but the queue decides.
	due time.Time
	// index in the schedule.
	index int
	// streak counts the last results that oppose the verdict; voids the last void checks.
	streak, voids int
}

// close drops what its probe holds; no check runs.
func (t *target) close() {
	if t.probe != nil {
		t.probe.close()
	}
}

// judge takes the outcome of a check that was not void, and reports whether the verdict is still undecided: the
// check opposes it but not often enough.
func (t *target) judge(err error, rise, fall int) (undecided bool) {
	t.voids = 0
	r := &t.result
	needed, opposite := rise, Up
	if err == nil {
		r.Failures, r.Reason = 0, ""
		if r.Verdict == Unknown {
			needed = 1 // what answers is up; only what was down has to prove itself
		}
	} else {
		r.Failures++
		r.Reason = reason(err)
		needed, opposite = fall, Down
	}
	if r.Verdict == opposite {
		t.streak = 0
		return false
	}
	if t.streak++; t.streak < needed {
		return true
	}
	r.Verdict = opposite
	t.streak = 0
	return false
}

// schedule is a heap of targets by the time they are due.
type schedule []*target

var _ heap.Interface = (*schedule)(nil)

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push is heap.Interface's.
func (s *schedule) Push(x any) {
	t := x.(*target)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop is heap.Interface's.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return t
}
