package fsm

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Machine is the directory that Raft drives. Only Raft calls Apply, ApplyBatch and Restore, one at a time. The other
// methods are safe for concurrent use.
type Machine struct {
	state atomic.Pointer[State]

	mu     sync.Mutex // publishes a new state and its changes together
	window *window

	builder builder // only Apply and Restore touch it
}

var (
	_ raft.BatchingFSM = (*Machine)(nil)
	_ raft.FSMSnapshot = (*snapshot)(nil)
)

// New returns an empty directory.
func New() *Machine {
	m := &Machine{window: newWindow(0), builder: newDraft()}
	m.state.Store(m.builder.publish())
	return m
}

// State returns the current state.
func (m *Machine) State() *State { return m.state.Load() }

// Watch returns the current state and a feed of all later changes.
func (m *Machine) Watch() (*State, *Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Load(), &Feed{at: m.window.tail()}
}

// WatchFrom returns a feed of all changes after the command with the index. It returns ErrCompacted if some of them
// are no longer kept, or if this replica has not applied the index yet.
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
	return &Feed{at: n}, nil
}

// Apply applies one log entry. It returns a []Result with one Result for each operation.
func (m *Machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies log entries in order. It publishes the final state before Raft answers any of them, so a caller
// that has its answer reads a state that contains its write. If an entry cannot be decoded, ApplyBatch panics with a
// *DecodeError and changes nothing.
func (m *Machine) ApplyBatch(logs []*raft.Log) []any {
	commands := make([]*command, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue // membership, which Raft stores itself
		}
		c, err := decode(l.Index, l.Term, l.Data)
		if err != nil {
			panic(&DecodeError{Index: l.Index, Err: err})
		}
		commands[i] = c
	}

	responses := make([]any, len(logs))
	var first uint64
	var feed []Changes
	for i, c := range commands {
		if c == nil {
			continue
		}
		if first == 0 {
			first = c.index
		}
		results, changes := m.builder.apply(c)
		responses[i] = results
		if len(changes) > 0 {
			feed = append(feed, Changes{Index: c.index, Changes: changes})
		}
	}
	if first > 0 {
		m.publish(first, feed)
	}
	return responses
}

// publish publishes a new state together with the changes that led to it. first is the index of the first command in
// it.
func (m *Machine) publish(first uint64, feed []Changes) {
	s := m.builder.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Store(s)
	if m.window.first == 0 {
		m.window.first = first
	}
	for _, c := range feed {
		m.window.append(c)
	}
}

// Snapshot captures the current state at no cost: Persist writes an immutable state concurrently with Apply.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) { return &snapshot{m.State()}, nil }

// Restore replaces the directory with a snapshot and ends every feed with ErrCompacted. If the snapshot cannot be
// read, the directory does not change. The entries that follow must have higher indexes than the snapshot, so that
// versions grow.
func (m *Machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	d, err := readSnapshot(r)
	if err != nil {
		return &DecodeError{Err: err}
	}
	s := d.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.builder = d
	m.state.Store(s)
	m.window.end()
	m.window = newWindow(s.index)
	return nil
}
