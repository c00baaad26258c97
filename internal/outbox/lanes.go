package outbox

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// sweepEvery is how often a claim begins at the oldest entry of each lane. The others begin sweepMargin before the latest entry
	// claimed: an entry is due since the begin of the transaction that inserts it, which may commit later than others.
	sweepEvery  = time.Second
	sweepMargin = time.Second
	// sweepShare is how many times longer than a slow sweep the pause to the next one is, and sweepPause the longest one. A busy machine makes
	// turns slow, too, and only a sweep finds the entry of a process that died before this one looked.
	sweepShare = 20
	sweepPause = 10 * time.Second
	// discoverEvery is how often a busy claimer looks for lanes that it does not know. A table may have thousands of lanes. The rows of the
	// benchmark are "escrow: messages accepted by the topic from a backlog", which a look in each turn makes 13 % lower, and "escrow: events
	// stored and accepted by the topic: processor time each, Postgres", which it makes 25 % higher.
	discoverEvery = 100 * time.Millisecond
	// discoverShare is how many times longer than a slow turn with a look the time to the next one is.
	discoverShare = 20
	// forgetAfter is after how long without a claimed entry a lane is forgotten. It is discovered again.
	forgetAfter = 10 * time.Second
	// topPartition is above all partitions.
	topPartition = 1<<31 - 1
)

// laneKey identifies a lane of a partition.
type laneKey struct {
	partition int32
	lane      string
}

func (k laneKey) compare(other laneKey) int {
	return cmp.Or(cmp.Compare(k.partition, other.partition), strings.Compare(k.lane, other.lane))
}

// lane is what a claimer knows about a lane.
type lane struct {
	laneKey
	foreign bool      // another worker's, which this one does not claim from
	full    bool      // the last claim got as many entries as it asked for, so there may be more
	since   time.Time // the lowest due_at of the next claim, by the database's clock; zero: the oldest entry
	asked   int       // by the current claim
	denied  bool      // by the current claim: other partitions of the lane asked for as many as the lane may get
	got     int       // by the current claim
	newest  time.Time // the latest due_at that the current claim got
	used    time.Time // of the latest entry, by this process's clock
}

// lanes is the set of lanes that have entries. It divides the room for claims among them: each lane gets an equal share, and each
// claim begins at the lane after the last one that got an entry. It is for one goroutine.
//
// An index keeps entries of rows that were deleted until the table is vacuumed, or as long as a transaction is open that may see
// them. lanes remembers where the live entries of each lane begin, so that most claims do not read past the others.
type lanes struct {
	mine       func(laneKey) bool
	sorted     []*lane
	after      laneKey // the last lane that got an entry
	sweepAt    time.Time
	busy       bool // the last claim got as many entries as it asked for
	discoverAt time.Time
}

// gaps are the ranges between the known lanes: from a lane of a partition, below another one; or whole partitions between two others.
type gaps struct {
	partitions, uptoPartitions []int32
	fromLanes, uptoLanes       []string
	whole                      []bool
}

// topLane is above all lanes, and next makes the lowest text above a lane: the columns have the collation "C".
const topLane, next = "\U0010FFFF", "\x01"

func (g *gaps) add(partition, upto int32, fromLane, uptoLane string, whole bool) {
	g.partitions, g.uptoPartitions = append(g.partitions, partition), append(g.uptoPartitions, upto)
	g.fromLanes, g.uptoLanes, g.whole = append(g.fromLanes, fromLane), append(g.uptoLanes, uptoLane), append(g.whole, whole)
}

// discovers reports whether the next claim looks for lanes.
func (l *lanes) discovers(now time.Time) bool { return !l.busy || !now.Before(l.discoverAt) }

// discovered adds the lanes that a turn found, which began at a time.
func (l *lanes) discovered(found []laneKey, begin time.Time) {
	l.discoverAt = begin.Add(max(discoverEvery, discoverShare*time.Since(begin)))
	for _, k := range found {
		l.add(k, begin)
	}
}

func (l *lanes) gaps() (g gaps) {
	partition, from := int32(-1), ""
	for _, k := range l.sorted {
		if k.partition != partition {
			if partition >= 0 {
				g.add(partition, partition, from, topLane, false)
			}
			if k.partition > partition+1 {
				g.add(partition, k.partition, "", "", true)
			}
			partition, from = k.partition, ""
		}
		g.add(partition, partition, from, k.lane, false)
		from = k.lane + next
	}
	if partition >= 0 {
		g.add(partition, partition, from, topLane, false)
	}
	g.add(partition, topPartition, "", "", true)
	return g
}

// find returns the position of a lane, or where it belongs.
func (l *lanes) find(k laneKey) (int, bool) {
	return slices.BinarySearchFunc(l.sorted, k, func(known *lane, k laneKey) int { return known.compare(k) })
}

// add adds a lane that was discovered. It counts as full until a claim shows otherwise.
func (l *lanes) add(k laneKey, now time.Time) {
	if i, known := l.find(k); !known {
		l.sorted = slices.Insert(l.sorted, i, &lane{laneKey: k, foreign: !l.mine(k), full: true, used: now})
	}
}

// demand is a claim for several lanes, in the order in which they are preferred.
type demand struct {
	partitions []int32
	lanes      []string
	since      []time.Time
	shares     []int32
	most       int // in all
	sweep      bool
}

// demand returns the claim of up to most entries. allowed returns how many of a lane may be claimed.
func (l *lanes) demand(most int, now time.Time, allowed func(lane string) int) demand {
	d := demand{most: most, sweep: !now.Before(l.sweepAt)}
	if d.sweep {
		l.sorted = slices.DeleteFunc(l.sorted, func(k *lane) bool { return now.Sub(k.used) > forgetAfter })
	}
	full := 0
	for _, k := range l.sorted {
		k.asked, k.got, k.denied = 0, 0, false
		if k.full && !k.foreign {
			full++
		}
	}
	share := (most + full) / max(full, 1)
	first, _ := l.find(l.after)
	if first < len(l.sorted) && l.sorted[first].laneKey == l.after {
		first++
	}
	// A lane may have several partitions. Full ones divide its limit. The others are probably empty, so they leave it to the full
	// ones; the worker gives back the claims that exceed the limit.
	taken := map[string]int{}
	for i := range l.sorted {
		k := l.sorted[(first+i)%len(l.sorted)]
		if k.foreign {
			continue
		}
		most := allowed(k.lane)
		if k.full {
			k.denied = most > 0 && most <= taken[k.lane]
			most -= taken[k.lane]
		}
		if k.asked = min(share, most); k.asked <= 0 {
			k.asked = 0
			continue
		}
		if k.full {
			taken[k.lane] += k.asked
		}
		since := k.since
		if d.sweep {
			since = time.Time{}
		}
		d.partitions, d.lanes = append(d.partitions, k.partition), append(d.lanes, k.lane)
		d.since, d.shares = append(d.since, since), append(d.shares, int32(k.asked))
	}
	return d
}

// got records an entry of the current claim.
func (l *lanes) got(k laneKey, due, now time.Time) {
	i, known := l.find(k)
	if !known {
		return
	}
	lane := l.sorted[i]
	if lane.got++; lane.got == 1 || due.After(lane.newest) {
		lane.newest = due
	}
	lane.used = now
}

// end records the end of a claim. now is the database's time, and begin this process's at the begin of the claim. The entries of
// each lane were the oldest, so the next claim begins at the latest of them. more reports that there may be others to claim at
// once.
func (l *lanes) end(d demand, picked, blocked, claimed int, now, begin time.Time) (more bool) {
	// left is how many entries wait for a lower one that another transaction was changing.
	left := picked - blocked - claimed
	complete := picked < d.most && picked == claimed // all lanes were asked, and no entry was left out
	more = picked == d.most || blocked > 0 || left > 0
	last, turn := -1, 0
	denied, emptied := false, false
	for i, k := range l.sorted {
		emptied = emptied || k.full && k.got < k.asked
		denied = denied || k.denied
		k.full = k.denied || k.asked > 0 && k.got == k.asked
		more = more || k.full && !k.denied
		switch {
		case k.got > 0 && (k.full || !complete):
			k.since = k.newest.Add(-sweepMargin)
		case complete && k.asked > 0:
			k.since = now.Add(-sweepMargin)
		}
		if position := l.position(i); k.got > 0 && position >= turn {
			last, turn = i, position
		}
	}
	more = more || denied && emptied // the limit that an empty partition left
	if last >= 0 {
		l.after = l.sorted[last].laneKey
	}
	if d.sweep {
		took := time.Since(begin)
		l.sweepAt = begin.Add(max(sweepEvery, took+min(sweepShare*took, sweepPause)))
	}
	if left > 0 {
		l.sweepAt = time.Time{}
	}
	l.busy = picked == d.most
	return more
}

// position returns the position of a lane in the order of the current claim.
func (l *lanes) position(i int) int {
	first, known := l.find(l.after)
	if known {
		first++
	}
	return (i - first + 2*len(l.sorted)) % len(l.sorted)
}
