package fsm

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/tidwall/btree"
)

// Machine is the directory as Raft drives it. Apply, ApplyBatch and Restore are Raft's to call, one at a time;
// everything else is safe for concurrent use.
type Machine struct {
	state     atomic.Pointer[State]
	published atomic.Uint64 // changes given to the feed so far

	mu     sync.Mutex // makes a new state and its changes appear together
	window *window

	draft draft // only Apply and Restore touch it
}

var (
	_ raft.BatchingFSM = (*Machine)(nil)
	_ raft.FSMSnapshot = (*snapshot)(nil)
)

// New returns an empty directory.
func New() *Machine {
	m := &Machine{window: newWindow(0), draft: newDraft()}
	m.state.Store(m.draft.publish())
	return m
}

// State is the present state.
func (m *Machine) State() *State { return m.state.Load() }

// Watch returns a state and the feed of all that changes after it.
func (m *Machine) Watch() (*State, *Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Load(), &Feed{at: m.window.tail(), m: m}
}

// WatchFrom returns the feed of all changes after the command with the index, or ErrCompacted when some of
// them are no longer kept, or when the index lies ahead of this replica.
func (m *Machine) WatchFrom(index uint64) (*Feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if index > m.state.Load().index {
		return nil, ErrCompacted
	}
	n := m.window.after(index)
	if n == nil {
		return nil, ErrCompacted
	}
	return &Feed{at: n, m: m}, nil
}

// Apply applies one log entry. The result is a []Result with one for each operation.
func (m *Machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies log entries in order and publishes the state after the last one, before Raft answers any
// of them: whoever has an answer reads a state that holds it.
func (m *Machine) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	feed := make([]Changes, 0, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue // membership; Raft keeps it itself
		}
		results, changes, err := m.draft.apply(l.Index, l.Term, l.Data)
		if err != nil {
			panic(&DecodeError{Index: l.Index, Err: err})
		}
		responses[i] = results
		if len(changes) > 0 {
			feed = append(feed, Changes{Index: l.Index, Changes: changes})
		}
	}
	s := m.draft.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Store(s)
	for _, c := range feed {
		m.window.append(c)
	}
	m.published.Store(m.window.tail().total)
	return responses
}

// Snapshot captures the present state. It costs nothing: Persist writes an immutable state beside Apply.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) { return &snapshot{m.State()}, nil }

// Restore replaces the directory by a snapshot and ends every feed with ErrCompacted. A snapshot that cannot be
// read leaves the directory as it was.
func (m *Machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	d, err := readSnapshot(r)
	if err != nil {
		return &DecodeError{Err: err}
	}
	s := d.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draft = d
	m.state.Store(s)
	old := m.window
	m.window = newWindow(s.index)
	// Totals go on, so that a reader of the old list is never taken for one ahead of the new.
	m.window.tail().total = old.tail().total
	old.end()
	return nil
}

// draft is the state under construction, and the indexes that only Apply needs.
type draft struct {
	State
	// What each owner owns. Rebuilt on restore.
	owned map[Owner]map[string]struct{}
	// Kinds are few and repeat in every entry.
	kindNames map[string]string

	// The published trees; replaced when dirty.
	last                                  *State
	entriesDirty, kindsDirty, ownersDirty bool
}

// Degree of the trees: a change copies one node a level, so small nodes make single writes cheap, large ones
// make the tree shallow. Measured best for 200-byte services from 1,000 to 1,000,000.
const degree = 32

func newDraft() draft {
	return draft{
		State: State{
			entries: btree.NewMap[string, *Entry](degree),
			kinds:   btree.NewMap[string, int](degree),
			owners:  btree.NewMap[string, *ownerState](degree),
		},
		owned:        make(map[Owner]map[string]struct{}),
		kindNames:    make(map[string]string),
		entriesDirty: true, kindsDirty: true, ownersDirty: true,
	}
}

// publish freezes the draft as it stands. Trees that did not change are shared with the state before.
func (d *draft) publish() *State {
	s := d.State
	if d.last != nil {
		s.entries, s.kinds, s.owners = d.last.entries, d.last.kinds, d.last.owners
	}
	if d.entriesDirty {
		s.entries = d.entries.Copy()
	}
	if d.kindsDirty {
		s.kinds = d.kinds.Copy()
	}
	if d.ownersDirty {
		s.owners = d.owners.Copy()
	}
	d.entriesDirty, d.kindsDirty, d.ownersDirty = false, false, false
	d.last = &s
	return &s
}

// set adds or replaces an entry and gives the one before.
func (d *draft) set(e *Entry) (before *Entry) {
	if name, ok := d.kindNames[e.Kind]; ok {
		e.Kind = name
	} else {
		d.kindNames[e.Kind] = e.Kind
	}
	before, _ = d.entries.Set(e.ID, e)
	if before == nil || before.Owner != e.Owner {
		if before != nil {
			d.disown(before)
		}
		ids := d.owned[e.Owner]
		if ids == nil {
			ids = make(map[string]struct{})
			d.owned[e.Owner] = ids
		}
		ids[e.ID] = struct{}{}
	}
	if before == nil {
		d.count(e.Kind, 1)
	} else if before.Kind != e.Kind {
		d.count(before.Kind, -1)
		d.count(e.Kind, 1)
	}
	d.entriesDirty = true
	return before
}

// remove takes an entry out and gives it.
func (d *draft) remove(id string) *Entry {
	e, ok := d.entries.Delete(id)
	if !ok {
		return nil
	}
	d.disown(e)
	d.count(e.Kind, -1)
	d.entriesDirty = true
	return e
}

// disown takes an entry out of its owner's index and count.
func (d *draft) disown(e *Entry) {
	ids := d.owned[e.Owner]
	delete(ids, e.ID)
	if len(ids) == 0 {
		delete(d.owned, e.Owner)
	}
	if os, ok := d.owners.Get(e.Owner.String()); ok {
		d.setOwner(*os)
	}
}

// setOwner stores what is known of an owner, with the present number of its entries.
func (d *draft) setOwner(os ownerState) {
	os.entries = len(d.owned[os.owner])
	d.owners.Set(os.owner.String(), &os)
	d.ownersDirty = true
}

func (d *draft) count(kind string, by int) {
	n, _ := d.kinds.Get(kind)
	if n += by; n == 0 {
		d.kinds.Delete(kind)
		delete(d.kindNames, kind)
	} else {
		d.kinds.Set(kind, n)
	}
	d.kindsDirty = true
}
