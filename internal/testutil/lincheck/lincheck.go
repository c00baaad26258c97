package lincheck

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is the kind of a call.
type Kind string

// The calls that are checked.
const (
	Register   Kind = "register"
	Replace    Kind = "replace" // a full set
	Deregister Kind = "deregister"
	List       Kind = "list"
)

// Call is a client's call.
type Call struct {
	Shard int
	Kind  Kind
	// Owner and Seq fence a write: a lower seq than the owner's last has no effect.
	Owner string
	Seq   uint64
	// Values are the values to register, by id; other calls use only the ids.
	Values map[string]string
}

// Answer is the result of a call.
type Answer struct {
	// Unknown marks a write that may have been done, or may be done at any later time, or never.
	Unknown bool
	// Conflict marks a write that was rejected because another owner holds an entry.
	Conflict                       bool
	Registered, Unchanged, Removed int
	// Entries are the result of a list, by id: owner and value.
	Entries map[string]Entry
}

// Entry is a service in the specification.
type Entry struct{ Owner, Value string }

// History records calls and answers. It is safe for concurrent use.
type History struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
}

// NewHistory returns a history that starts now.
func NewHistory() *History { return &History{start: time.Now()} }

// Begin records the start of a client's call; the function it returns records the answer. A call without an answer must
// be ended as Unknown. It must not be ended at all if it certainly had no effect.
func (h *History) Begin(client int, call Call) (end func(Answer)) {
	begun := time.Since(h.start)
	return func(a Answer) {
		ended := int64(time.Since(h.start))
		if a.Unknown {
			ended = math.MaxInt64 // it may still happen
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: call, Call: int64(begun), Output: a, Return: ended})
	}
}

// Len returns the number of calls with an answer, including the unknown ones.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// Unknown returns the number of calls with an unknown outcome.
func (h *History) Unknown() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.ops {
		if op.Output.(Answer).Unknown {
			n++
		}
	}
	return n
}

// Check returns nil if the history is linearizable, and otherwise an error with the reason, or that the check took too
// long.
func (h *History) Check(limit time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return check(h.ops, limit)
}

func check(ops []porcupine.Operation, limit time.Duration) error {
	switch porcupine.CheckOperationsTimeout(model, closed(ops), limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("history of %d calls not checked within %v", len(ops), limit)
	default:
		return fmt.Errorf("history of %d calls is not linearizable; %s", len(ops), culprit(ops))
	}
}

// culprit describes the first answer after which no order is valid, and the last calls of its shard before it.
func culprit(ops []porcupine.Operation) string {
	for _, shard := range model.Partition(ops) {
		if porcupine.CheckOperationsTimeout(model, closed(shard), time.Minute) != porcupine.Illegal {
			continue
		}
		slices.SortFunc(shard, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		first := sort.Search(len(shard), func(i int) bool {
			return porcupine.CheckOperationsTimeout(model, closed(until(shard, shard[i].Return)), time.Minute) == porcupine.Illegal
		})
		var b strings.Builder
		for _, op := range until(shard, shard[min(first, len(shard)-1)].Return) {
			if i := slices.IndexFunc(shard, func(o porcupine.Operation) bool { return o.Call == op.Call && o.ClientId == op.ClientId }); i+30 > first {
				fmt.Fprintf(&b, "\n%d %v-%v %s", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), model.DescribeOperation(op.Input, op.Output))
			}
		}
		return "the last of these fits nowhere:" + b.String()
	}
	return "no shard alone shows why"
}

// until returns the history as of a time: calls without an answer by then are open.
func until(ops []porcupine.Operation, at int64) (known []porcupine.Operation) {
	for _, op := range ops {
		if op.Call > at {
			continue
		}
		if op.Return > at {
			if op.Input.(Call).Kind == List {
				continue
			}
			op.Output, op.Return = Answer{Unknown: true}, math.MaxInt64
		}
		known = append(known, op)
	}
	return known
}

// closed ends each call of unknown outcome where the owner's next answered write ends. From then on its seq fences it:
// it is either done by then or never has an effect, which the specification allows at once. If it stayed open, the
// check would try it at every later step, and never end.
func closed(ops []porcupine.Operation) []porcupine.Operation {
	owners := make(map[string][]porcupine.Operation)
	for _, op := range ops {
		if c := op.Input.(Call); c.Kind != List && !op.Output.(Answer).Unknown {
			owners[c.Owner] = append(owners[c.Owner], op)
		}
	}
	bySeq := func(op porcupine.Operation, seq uint64) int { return cmp.Compare(op.Input.(Call).Seq, seq) }
	for _, answered := range owners {
		slices.SortFunc(answered, func(a, b porcupine.Operation) int { return bySeq(a, b.Input.(Call).Seq) })
	}
	ops = slices.Clone(ops)
	for i, op := range ops {
		if !op.Output.(Answer).Unknown {
			continue
		}
		answered, c := owners[op.Input.(Call).Owner], op.Input.(Call)
		if at, _ := slices.BinarySearchFunc(answered, c.Seq+1, bySeq); at < len(answered) {
			ops[i].Return = answered[at].Return
		}
	}
	return ops
}

// CheckWithout checks the history without one acknowledged write whose effect is in a later list. It must fail, which
// proves that the checker can.
func (h *History) CheckWithout(limit time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := make(map[string]bool) // values are unique
	for _, op := range h.ops {
		for _, e := range op.Output.(Answer).Entries {
			seen[e.Value] = true
		}
	}
	for i, op := range h.ops {
		call, a := op.Input.(Call), op.Output.(Answer)
		if a.Unknown || a.Registered == 0 {
			continue
		}
		for _, v := range call.Values {
			if seen[v] && h.firstWrite(v) == i {
				return check(slices.Delete(slices.Clone(h.ops), i, i+1), limit)
			}
		}
	}
	return fmt.Errorf("no list has seen an acknowledged write: the history proves nothing")
}

// firstWrite returns the index of the only call that wrote a value; -1 if there are several.
func (h *History) firstWrite(value string) int {
	found := -1
	for i, op := range h.ops {
		for _, v := range op.Input.(Call).Values {
			if v != value || op.Input.(Call).Kind == List {
				continue
			}
			if found >= 0 {
				return -1
			}
			found = i
		}
	}
	return found
}

// state is the state of one shard. It is immutable.
type state struct {
	entries map[string]Entry
	seqs    map[string]uint64
}

func (s state) clone() state { return state{maps.Clone(s.entries), maps.Clone(s.seqs)} }

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		shards := make(map[int][]porcupine.Operation)
		for _, op := range history {
			shard := op.Input.(Call).Shard
			shards[shard] = append(shards[shard], op)
		}
		return slices.Collect(maps.Values(shards))
	},
	Init: func() any { return state{map[string]Entry{}, map[string]uint64{}} },
	Step: func(s, in, out any) (bool, any) { return step(s.(state), in.(Call), out.(Answer)) },
	Equal: func(a, b any) bool {
		s, t := a.(state), b.(state)
		return maps.Equal(s.entries, t.entries) && maps.Equal(s.seqs, t.seqs)
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	DescribeState: func(s any) string {
		var b strings.Builder
		for _, id := range slices.Sorted(maps.Keys(s.(state).entries)) {
			fmt.Fprintf(&b, "%s=%v ", id, s.(state).entries[id])
		}
		return b.String()
	},
}

// step is the specification: it applies a call to a state, and reports whether the answer is correct.
func step(s state, c Call, a Answer) (bool, state) {
	if c.Kind == List {
		found := make(map[string]Entry)
		for id := range c.Values {
			if e, ok := s.entries[id]; ok {
				found[id] = e
			}
		}
		return maps.Equal(found, a.Entries), s
	}
	if c.Seq <= s.seqs[c.Owner] {
		return a.Unknown, s // fenced: no effect, and no caller got another answer
	}
	next := s.clone()
	next.seqs[c.Owner] = c.Seq
	for id := range c.Values {
		if e, ok := s.entries[id]; ok && e.Owner != c.Owner {
			return a.Unknown || a.Conflict, next
		}
	}
	want := Answer{Unknown: a.Unknown}
	if c.Kind == Deregister {
		for id := range c.Values {
			if _, ok := s.entries[id]; ok {
				want.Removed++
				delete(next.entries, id)
			}
		}
	} else {
		for id, v := range c.Values {
			if e, ok := s.entries[id]; ok && e.Value == v {
				want.Unchanged++
			} else {
				want.Registered++
				next.entries[id] = Entry{c.Owner, v}
			}
		}
	}
	if c.Kind == Replace {
		for id, e := range s.entries {
			if _, ok := c.Values[id]; !ok && e.Owner == c.Owner {
				want.Removed++
				delete(next.entries, id)
			}
		}
	}
	fits := a.Unknown || !a.Conflict && a.Registered == want.Registered && a.Unchanged == want.Unchanged && a.Removed == want.Removed
	return fits, next
}
