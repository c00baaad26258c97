package health

import (
	"container/heap"
	"time"
)

// Target is a service to check.
type Target struct {
	ID, Kind, URL string
	// Version is returned with results. A new version at the same URL keeps the verdict.
	Version uint64
}

// Verdict is the result of a target's checks.
type Verdict int8

// Unknown, Up and Down are the verdicts.
const (
	// Unknown: not checked yet at its current URL.
	Unknown Verdict = iota
	Up
	Down
)

func (v Verdict) String() string { return [...]string{"unknown", "up", "down"}[v] }

// Result is the state of a target after its last check that was not void.
type Result struct {
	Target
	Verdict Verdict
	// At is when the check ended.
	At time.Time
	// Latency is the check's duration.
	Latency time.Duration
	// Failures is the number of failures in a row; 0 after a success.
	Failures int
	// Reason is the reason of the last failure; empty after a success.
	Reason string
}

// place is the place of a target. A target is in exactly one.
type place int8

const (
	queued    place = iota // waits to be checked at once
	scheduled              // waits for its time in the schedule
	running
	gone // removed, or replaced by one with another URL
)

// target is a Target with its history. Checker.mu guards the mutable fields.
type target struct {
	id    string
	probe probe // made for the first check
	phase time.Duration

	result Result
	place  place
	// recheck: a check that begins after the running one was requested.
	recheck bool
	// reported: its result is in Checker.results.
	reported bool
	// inBurst: the running check is not spread over the interval.
	inBurst bool
	// due is when the next or running check was due; zero for a check from the queue.
	due time.Time
	// index is the index in the schedule.
	index int
	// streak counts consecutive results that oppose the verdict; voids counts consecutive void checks.
	streak, voids int
	// noAddressSince is when the first of the latest checks in a row without a local address ended; zero if the last
	// check had another outcome.
	noAddressSince time.Time
}

// close releases the probe's resources; no check runs.
func (t *target) close() {
	if t.probe != nil {
		t.probe.close()
	}
}

// applyOutcome applies the outcome of a check that was not void. It reports whether the verdict is still undecided: the check
// opposes the verdict, but not often enough in a row.
func (t *target) applyOutcome(err error, rise, fall int) (undecided bool) {
	t.voids = 0
	r := &t.result
	needed, opposite := rise, Up
	if err == nil {
		r.Failures, r.Reason = 0, ""
		if r.Verdict == Unknown {
			needed = 1 // an unknown target that responds is up; only a down target needs Rise successes
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

// schedule is a heap of targets by due time.
type schedule []*target

var _ heap.Interface = (*schedule)(nil)

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	t := x.(*target)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return t
}
