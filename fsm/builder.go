package fsm

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"
)

// builder is the state under construction, with the indexes that only Apply uses.
type builder struct {
	State
	// owned holds the ids of each owner. It is rebuilt on restore.
	owned map[Owner]map[string]struct{}
	// idle is the number of owners without entries. It is counted again on restore.
	idle int
	// kindNames interns kinds, because few kinds repeat in all entries.
	kindNames map[string]string

	// last holds the published trees, which are replaced when dirty.
	last                                  *State
	entriesDirty, kindsDirty, ownersDirty bool
}

// degree is the degree of the trees: a node holds up to twice as many entries. A change copies one node per level.
// Small nodes make writes cheap; large nodes make the tree shallow and dense. Measured with BenchmarkApply and
// BenchmarkMemory at 8, 12, 16, 24 and 32, with a million services: compared with 32, at 16 a batch of 10,000 takes a
// third less time, a single write a tenth less, and a service 1 % more memory. Below 16 the gain is small; with a
// smaller directory there is none.
const degree = 16

func newDraft() builder {
	return builder{
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

// publish returns the builder's current state as an immutable State. It shares unchanged trees with the previous
// state.
func (b *builder) publish() *State {
	s := b.State
	if b.last != nil {
		s.entries, s.kinds, s.owners = b.last.entries, b.last.kinds, b.last.owners
	}
	if b.entriesDirty {
		s.entries = b.entries.Copy()
	}
	if b.kindsDirty {
		s.kinds = b.kinds.Copy()
	}
	if b.ownersDirty {
		s.owners = b.owners.Copy()
	}
	b.entriesDirty, b.kindsDirty, b.ownersDirty = false, false, false
	b.last = &s
	return &s
}

// set adds or replaces an entry and returns the previous one. The caller updates the owner's record.
func (b *builder) set(e *Entry) (before *Entry) {
	if name, ok := b.kindNames[e.Kind]; ok {
		e.Kind = name
	} else {
		b.kindNames[e.Kind] = e.Kind
	}
	before, _ = b.entries.Set(e.ID, e)
	b.entriesDirty = true
	if before == nil || before.Owner != e.Owner {
		if before != nil {
			b.removeFromOwner(before)
		}
		ids := b.owned[e.Owner]
		if ids == nil {
			ids = make(map[string]struct{})
			b.owned[e.Owner] = ids
		}
		ids[e.ID] = struct{}{}
	}
	if before == nil || before.Kind != e.Kind {
		if before != nil {
			b.count(before.Kind, -1)
		}
		b.count(e.Kind, 1)
	}
	return before
}

// remove deletes an entry and returns it, or nil if there is none.
func (b *builder) remove(id string) *Entry {
	e, ok := b.entries.Get(id)
	if !ok {
		return nil
	}
	b.entries.Delete(id)
	b.entriesDirty = true
	b.removeFromOwner(e)
	b.count(e.Kind, -1)
	return e
}

// removeFromOwner deletes an entry from its owner's index and count.
func (b *builder) removeFromOwner(e *Entry) {
	ids := b.owned[e.Owner]
	delete(ids, e.ID)
	if len(ids) == 0 {
		delete(b.owned, e.Owner)
	}
	if os, ok := b.owners.Get(e.Owner.String()); ok {
		b.setOwner(*os)
	}
}

// setOwner stores an owner's state, with the current number of its entries.
func (b *builder) setOwner(os ownerState) {
	os.entries = len(b.owned[os.owner])
	before, known := b.owners.Set(os.owner.String(), &os)
	b.ownersDirty = true
	if known && before.entries == 0 {
		b.idle--
	}
	if os.entries == 0 {
		b.idle++
	}
}

const (
	// rememberEpochs is for how many epochs after its last write an owner without entries is remembered. A writer with
	// an unknown outcome repeats its write with the next leader, or the one after. It must get the original answer,
	// although another owner may have registered the removed ids since. A refused write counts as a write.
	rememberEpochs = 16
	// maxIdle is how many owners without entries are remembered. The latest writers are kept. Gateways whose ids are
	// never reused must not fill the memory during an epoch of months.
	maxIdle = 1 << 14
)

// forgetIdleOwners deletes owners that own nothing and have not written for more than rememberEpochs.
func (b *builder) forgetIdleOwners() {
	b.forget(b.idleOwners(func(os *ownerState) bool { return b.epoch-os.answer.Epoch > rememberEpochs }))
}

// boundIdleOwners deletes the owners without entries that wrote the longest ago, if there are more than maxIdle. It
// keeps seven eighths of maxIdle.
func (b *builder) boundIdleOwners() {
	if b.idle <= maxIdle {
		return
	}
	idle := b.idleOwners(func(*ownerState) bool { return true })
	slices.SortStableFunc(idle, func(a, b *ownerState) int { return cmp.Compare(a.answer.Index, b.answer.Index) })
	b.forget(idle[:len(idle)-maxIdle/8*7])
}

// idleOwners lists, in name order, the owners without entries for which drop returns true.
func (b *builder) idleOwners(drop func(*ownerState) bool) (idle []*ownerState) {
	b.owners.Scan(func(_ string, os *ownerState) bool {
		if os.entries == 0 && drop(os) {
			idle = append(idle, os)
		}
		return true
	})
	return idle
}

func (b *builder) forget(idle []*ownerState) {
	for _, os := range idle {
		b.owners.Delete(os.owner.String())
		b.ownersDirty = true
	}
	b.idle -= len(idle)
}

func (b *builder) count(kind string, by int) {
	n, _ := b.kinds.Get(kind)
	if n += by; n == 0 {
		b.kinds.Delete(kind)
		delete(b.kindNames, kind)
	} else {
		b.kinds.Set(kind, n)
	}
	b.kindsDirty = true
}
