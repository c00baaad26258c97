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
func (d *builder) publish() *State {
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

// set adds or replaces an entry and returns the previous one. The caller updates the owner's record.
func (d *builder) set(e *Entry) (before *Entry) {
	if name, ok := d.kindNames[e.Kind]; ok {
		e.Kind = name
	} else {
		d.kindNames[e.Kind] = e.Kind
	}
	before, _ = d.entries.Set(e.ID, e)
	d.entriesDirty = true
	if before == nil || before.Owner != e.Owner {
		if before != nil {
			d.removeFromOwner(before)
		}
		ids := d.owned[e.Owner]
		if ids == nil {
			ids = make(map[string]struct{})
			d.owned[e.Owner] = ids
		}
		ids[e.ID] = struct{}{}
	}
	if before == nil || before.Kind != e.Kind {
		if before != nil {
			d.count(before.Kind, -1)
		}
		d.count(e.Kind, 1)
	}
	return before
}

// remove deletes an entry and returns it, or nil if there is none.
func (d *builder) remove(id string) *Entry {
	e, ok := d.entries.Get(id)
	if !ok {
		return nil
	}
	d.entries.Delete(id)
	d.entriesDirty = true
	d.removeFromOwner(e)
	d.count(e.Kind, -1)
	return e
}

// removeFromOwner deletes an entry from its owner's index and count.
func (d *builder) removeFromOwner(e *Entry) {
	ids := d.owned[e.Owner]
	delete(ids, e.ID)
	if len(ids) == 0 {
		delete(d.owned, e.Owner)
	}
	if os, ok := d.owners.Get(e.Owner.String()); ok {
		d.setOwner(*os)
	}
}

// setOwner stores an owner's state, with the current number of its entries.
func (d *builder) setOwner(os ownerState) {
	os.entries = len(d.owned[os.owner])
	before, known := d.owners.Set(os.owner.String(), &os)
	d.ownersDirty = true
	if known && before.entries == 0 {
		d.idle--
	}
	if os.entries == 0 {
		d.idle++
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
func (d *builder) forgetIdleOwners() {
	d.forget(d.idleOwners(func(os *ownerState) bool { return d.epoch-os.answer.Epoch > rememberEpochs }))
}

// boundIdleOwners deletes the owners without entries that wrote the longest ago, if there are more than maxIdle. It
// keeps seven eighths of maxIdle.
func (d *builder) boundIdleOwners() {
	if d.idle <= maxIdle {
		return
	}
	idle := d.idleOwners(func(*ownerState) bool { return true })
	slices.SortStableFunc(idle, func(a, b *ownerState) int { return cmp.Compare(a.answer.Index, b.answer.Index) })
	d.forget(idle[:len(idle)-maxIdle/8*7])
}

// idleOwners lists, in name order, the owners without entries for which drop returns true.
func (d *builder) idleOwners(drop func(*ownerState) bool) (idle []*ownerState) {
	d.owners.Scan(func(_ string, os *ownerState) bool {
		if os.entries == 0 && drop(os) {
			idle = append(idle, os)
		}
		return true
	})
	return idle
}

func (d *builder) forget(idle []*ownerState) {
	for _, os := range idle {
		d.owners.Delete(os.owner.String())
		d.ownersDirty = true
	}
	d.idle -= len(idle)
}

func (d *builder) count(kind string, by int) {
	n, _ := d.kinds.Get(kind)
	if n += by; n == 0 {
		d.kinds.Delete(kind)
		delete(d.kindNames, kind)
	} else {
		d.kinds.Set(kind, n)
	}
	d.kindsDirty = true
}
