package fsm

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// CommandVersion is the newest kind of command this version understands. Raise it with each new operation or
// field in log.proto.
const CommandVersion = 1

// MaxOperations bounds one command.
const MaxOperations = 1 << versionBits

// An entry's version is its command's index and, below it, the operation's position in the command.
const versionBits = 10

// Answer is the result of a write that was not refused for its fence.
type Answer struct {
	Epoch uint64
	// Index is the Raft index at which the directory held what was written.
	Index                                   uint64
	Registered, Unchanged, Removed, Yielded int
}

// Result is what one operation came to. Err is nil, *StaleEpochError, *SupersededError or *ConflictError.
type Result struct {
	Answer
	// Term is the entry's Raft term; of leader-established only.
	Term uint64
	Err  error
}

// apply applies one command and reports what it changed.
func (d *draft) apply(index, term uint64, data []byte) ([]Result, []Change, error) {
	var cmd rollcallv1.Command
	if err := proto.Unmarshal(data, &cmd); err != nil {
		return nil, nil, err
	}
	if n := len(cmd.Operations); n == 0 || n > MaxOperations {
		return nil, nil, fmt.Errorf("command of %d operations", n)
	}
	if err := known(&cmd); err != nil {
		return nil, nil, err
	}
	d.index = index
	results := make([]Result, len(cmd.Operations))
	var changes []Change
	for i, op := range cmd.Operations {
		if err := known(op); err != nil {
			return nil, nil, err
		}
		version := index<<versionBits | uint64(i)
		var err error
		switch k := op.Kind.(type) {
		case *rollcallv1.Operation_LeaderEstablished:
			results[i], err = d.establish(k.LeaderEstablished, term)
		case *rollcallv1.Operation_Register:
			results[i], changes, err = d.register(k.Register, version, changes)
		case *rollcallv1.Operation_Deregister:
			results[i], changes, err = d.deregister(k.Deregister, changes)
		default:
			err = fmt.Errorf("operation %d is of an unknown kind", i)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return results, changes, nil
}

// known refuses messages with fields that this version does not know.
func known(msgs ...proto.Message) error {
	for _, m := range msgs {
		if r := m.ProtoReflect(); r.IsValid() && len(r.GetUnknown()) > 0 {
			return fmt.Errorf("%s has a field that this version does not know", r.Descriptor().FullName())
		}
	}
	return nil
}

// establish opens an epoch. Owners that own nothing are forgotten: the new epoch fences their old writes.
func (d *draft) establish(op *rollcallv1.LeaderEstablished, term uint64) (Result, error) {
	if err := known(op); err != nil {
		return Result{}, err
	}
	if d.cluster == "" {
		d.cluster = op.Cluster
	}
	d.epoch = max(d.epoch+1, term, op.AtLeast)
	d.leader = op.Node
	var gone []string
	d.owners.Scan(func(key string, os *ownerState) bool {
		if os.entries == 0 {
			gone = append(gone, key)
		}
		return true
	})
	for _, key := range gone {
		d.owners.Delete(key)
		d.ownersDirty = true
	}
	return Result{Answer: Answer{Epoch: d.epoch, Index: d.index}, Term: term}, nil
}

// admit checks a write's fence. done is true when the result stands already.
func (d *draft) admit(f *rollcallv1.WriteFence) (owner Owner, r Result, done bool, err error) {
	if err := known(f, f.GetOwner()); err != nil {
		return Owner{}, Result{}, false, err
	}
	owner = OwnerOf(f.GetOwner())
	if owner.Kind == rollcallv1.OwnerKind_OWNER_KIND_UNSPECIFIED {
		return Owner{}, Result{}, false, fmt.Errorf("write without an owner")
	}
	if f.Epoch != d.epoch {
		return owner, Result{Err: &StaleEpochError{Epoch: d.epoch}}, true, nil
	}
	os, ok := d.owners.Get(owner.String())
	if !ok || f.Seq == 0 || f.Incarnation > os.incarnation {
		return owner, Result{}, false, nil
	}
	switch {
	case f.Incarnation < os.incarnation || f.Seq < os.seq:
		return owner, Result{Err: &SupersededError{owner, os.incarnation, os.seq}}, true, nil
	case f.Seq == os.seq:
		return owner, os.answer, true, nil
	}
	return owner, Result{}, false, nil
}

// record remembers a write and its result for the owner's next one.
func (d *draft) record(owner Owner, f *rollcallv1.WriteFence, r Result) Result {
	if f.Seq == 0 {
		// Not fenced: what an earlier fenced write left stays.
		if os, ok := d.owners.Get(owner.String()); ok {
			d.setOwner(*os)
		} else {
			d.setOwner(ownerState{owner: owner})
		}
		return r
	}
	d.setOwner(ownerState{owner: owner, incarnation: f.Incarnation, seq: f.Seq, answer: r})
	return r
}

func (d *draft) register(op *rollcallv1.RegisterOperation, version uint64, changes []Change) (Result, []Change, error) {
	if err := known(op); err != nil {
		return Result{}, nil, err
	}
	owner, r, done, err := d.admit(op.Fence)
	if err != nil || done {
		return r, changes, err
	}
	entries := make([]*Entry, len(op.Services))
	for i, raw := range op.Services {
		if entries[i], err = newEntry(raw, owner, version); err != nil {
			return Result{}, nil, fmt.Errorf("service %d: %w", i, err)
		}
	}
	if conflicts := d.conflicts(op, owner, entries); len(conflicts) > 0 {
		return d.record(owner, op.Fence, Result{Err: &ConflictError{Conflicts: conflicts}}), changes, nil
	}

	a := Answer{Epoch: d.epoch, Index: d.index}
	var defined map[string]struct{}
	if op.FullSet {
		defined = make(map[string]struct{}, len(entries))
	}
	for _, e := range entries {
		if op.FullSet {
			defined[e.ID] = struct{}{}
		}
		before, ok := d.entries.Get(e.ID)
		switch {
		case ok && owner == Static && before.Owner != Static:
			a.Yielded++
		case ok && before.Owner == owner && bytes.Equal(before.raw, e.raw):
			a.Unchanged++
		default:
			changes = append(changes, Change{Before: d.set(e), After: e})
			a.Registered++
		}
	}
	if op.FullSet {
		var ghosts []string
		for id := range d.owned[owner] {
			if _, ok := defined[id]; !ok {
				ghosts = append(ghosts, id)
			}
		}
		slices.Sort(ghosts)
		for _, id := range ghosts {
			changes = append(changes, Change{Before: d.remove(id)})
			a.Removed++
		}
	}
	return d.record(owner, op.Fence, Result{Answer: a}), changes, nil
}

// conflicts lists the entries that the write must not touch.
func (d *draft) conflicts(op *rollcallv1.RegisterOperation, owner Owner, entries []*Entry) []Conflict {
	if op.Force || owner == Static {
		return nil
	}
	var cs []Conflict
	for i, e := range entries {
		before, ok := d.entries.Get(e.ID)
		if !ok || before.Owner == owner || before.Owner == Static {
			continue
		}
		if slices.ContainsFunc(op.Gone, func(g *rollcallv1.Owner) bool { return OwnerOf(g) == before.Owner }) {
			continue
		}
		cs = append(cs, Conflict{Index: i, ID: e.ID, Owner: before.Owner})
	}
	return cs
}

func (d *draft) deregister(op *rollcallv1.DeregisterOperation, changes []Change) (Result, []Change, error) {
	if err := known(op); err != nil {
		return Result{}, nil, err
	}
	owner, r, done, err := d.admit(op.Fence)
	if err != nil || done {
		return r, changes, err
	}
	var cs []Conflict
	for i, id := range op.Ids {
		if e, ok := d.entries.Get(id); ok && e.Owner != owner && !op.Force {
			cs = append(cs, Conflict{Index: i, ID: id, Owner: e.Owner})
		}
	}
	if len(cs) > 0 {
		return d.record(owner, op.Fence, Result{Err: &ConflictError{Deregister: true, Conflicts: cs}}), changes, nil
	}
	a := Answer{Epoch: d.epoch, Index: d.index}
	for _, id := range op.Ids {
		if e := d.remove(id); e != nil {
			changes = append(changes, Change{Before: e})
			a.Removed++
		}
	}
	return d.record(owner, op.Fence, Result{Answer: a}), changes, nil
}
