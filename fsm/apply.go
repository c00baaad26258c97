package fsm

import (
	"bytes"
	"slices"
)

// versionBits is the width of the operation's position in an entry's version; the bits above it hold the command's
// index.
const versionBits = 10

// Answer is the result of a write that passed its fence.
type Answer struct {
	Epoch uint64
	// Index is the Raft index at which the directory held the written entries.
	Index                                   uint64
	Registered, Unchanged, Removed, Yielded int
}

// Result is the outcome of one operation. Err is nil, *StaleEpochError, *SupersededError, *SequenceReusedError,
// *ConflictError or ErrImportLost.
type Result struct {
	Answer
	// Term is the entry's Raft term; only for leader-established.
	Term uint64
	Err  error
}

// apply applies one command. It returns the results and the changes, in order.
func (b *builder) apply(c *command) ([]Result, []Change) {
	b.index = c.index
	results := make([]Result, len(c.operations))
	var changes []Change
	for i, op := range c.operations {
		switch op := op.(type) {
		case establish:
			results[i] = b.establish(op, c.term)
		case register:
			results[i], changes = b.register(op, c.index<<versionBits|uint64(i), changes)
		case deregister:
			results[i], changes = b.deregister(op, changes)
		case stageImport:
			results[i] = b.stage(op)
		case finishImport:
			results[i], changes = b.finish(op, c.index<<versionBits|uint64(i), changes)
		}
	}
	return results, changes
}

// establish opens an epoch. It forgets owners that have owned nothing for a long time, because the new epoch fences
// their old writes. It drops the staged import, which only the earlier leader could finish.
func (b *builder) establish(op establish, term uint64) Result {
	if b.cluster == "" {
		b.cluster = op.cluster
	}
	// max includes d.epoch so that d.epoch+1 overflowing to 0 cannot lower the epoch.
	b.epoch = max(b.epoch, b.epoch+1, term, op.atLeast)
	b.leader = op.node
	b.staged = nil
	b.forgetIdleOwners()
	return Result{Answer: Answer{Epoch: b.epoch, Index: b.index}, Term: term}
}

// checkFence checks a write's fence. done reports whether r is already the final result.
func (b *builder) checkFence(f fence) (r Result, done bool) {
	if f.epoch != b.epoch {
		return Result{Err: &StaleEpochError{Epoch: b.epoch}}, true
	}
	os, ok := b.owners.Get(f.owner.String())
	switch {
	case !ok || f.seq == 0 || f.incarnation > os.incarnation:
		return Result{}, false
	case f.incarnation < os.incarnation || f.seq < os.seq:
		return Result{Err: &SupersededError{f.owner, os.incarnation, os.seq}}, true
	case f.seq > os.seq:
		return Result{}, false
	case f.body != os.body && f.body != BodyHash{} && os.body != BodyHash{}:
		// An entry without a hash, which an older leader proposed, gets the stored answer.
		return Result{Err: &SequenceReusedError{f.owner, f.incarnation, f.seq, os.body, f.body}}, true
	}
	return os.answer, true
}

// record stores an admitted write and its result until the owner's next write.
func (b *builder) record(f fence, r Result) Result {
	os := ownerState{owner: f.owner, incarnation: f.incarnation, seq: f.seq, body: f.body, answer: r.truncated()}
	if f.seq == 0 {
		// The write has no fence, so the state of an earlier fenced write is kept.
		os = ownerState{owner: f.owner}
		if known, ok := b.owners.Get(f.owner.String()); ok {
			os = *known
		}
	}
	b.setOwner(os)
	b.boundIdleOwners()
	return r
}

// maxConflicts is how many conflicts of a refusal are stored for a writer that repeats the write.
const maxConflicts = 100

// truncated returns the part of a result that is stored.
func (r Result) truncated() Result {
	ce, ok := r.Err.(*ConflictError) //nolint:errorlint // a result's error is never wrapped
	if ok && len(ce.Conflicts) > maxConflicts {
		r.Err = &ConflictError{Deregister: ce.Deregister, Conflicts: slices.Clone(ce.Conflicts[:maxConflicts])}
	}
	return r
}

func (b *builder) register(op register, version uint64, changes []Change) (Result, []Change) {
	r, done := b.checkFence(op.fence)
	if done {
		return r, changes
	}
	r.Epoch, r.Index = b.epoch, b.index
	befores, cs := b.findConflicts(op)
	if len(cs) > 0 {
		r.Err = &ConflictError{Conflicts: cs}
		return b.record(op.fence, r), changes
	}
	for i, e := range op.entries {
		before := befores[i]
		switch {
		case before != nil && op.owner == Static && before.Owner != Static:
			r.Yielded++
		case before != nil && before.Owner == op.owner && bytes.Equal(before.raw, e.raw):
			r.Unchanged++
		default:
			e.Owner, e.Version = op.owner, version
			changes = append(changes, Change{Before: b.set(e), After: e})
			r.Registered++
		}
	}
	if op.fullSet {
		for _, id := range b.staleEntries(op) {
			changes = append(changes, Change{Before: b.remove(id)})
			r.Removed++
		}
	}
	return b.record(op.fence, r), changes
}

// findConflicts returns the existing entry for each id of a registration, and the entries that it must not replace.
func (b *builder) findConflicts(op register) (befores []*Entry, cs []Conflict) {
	befores = make([]*Entry, len(op.entries))
	for i, e := range op.entries {
		before, ok := b.entries.Get(e.ID)
		if !ok {
			continue
		}
		befores[i] = before
		_, gone := op.gone[before.Owner]
		free := gone || before.Owner == op.owner || before.Owner == Static || op.owner == Static || op.force
		if !free {
			cs = append(cs, Conflict{Index: i, ID: e.ID, Owner: before.Owner})
		}
	}
	return befores, cs
}

// staleEntries lists, in order, the ids that the owner of a full set owns and the set does not contain.
func (b *builder) staleEntries(op register) (ids []string) {
	defined := make(map[string]struct{}, len(op.entries))
	for _, e := range op.entries {
		defined[e.ID] = struct{}{}
	}
	for id := range b.owned[op.owner] {
		if _, ok := defined[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (b *builder) deregister(op deregister, changes []Change) (Result, []Change) {
	r, done := b.checkFence(op.fence)
	if done {
		return r, changes
	}
	r.Epoch, r.Index = b.epoch, b.index
	var cs []Conflict
	for i, id := range op.ids {
		if e, ok := b.entries.Get(id); ok && e.Owner != op.owner && !op.force {
			cs = append(cs, Conflict{Index: i, ID: id, Owner: e.Owner})
		}
	}
	if len(cs) > 0 {
		r.Err = &ConflictError{Deregister: true, Conflicts: cs}
		return b.record(op.fence, r), changes
	}
	for _, id := range op.ids {
		if e := b.remove(id); e != nil {
			changes = append(changes, Change{Before: e})
			r.Removed++
		}
	}
	return b.record(op.fence, r), changes
}
