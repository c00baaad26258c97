package fsm

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"
)

// builder is the state under construction, and the indexes that only Apply needs.
type builder struct {
	State
	// The ids each owner owns. Rebuilt on restore.
	owned map[Owner]map[string]struct{}
	// How many owners own nothing. Counted again on restore.
	idle int
	// Kinds are few and repeat in every entry.
	kindNames map[string]string

	// The published trees; replaced when dirty.
	last                                  *State
	entriesDirty, kindsDirty, ownersDirty bool
}

// degree of the trees: a node holds up to twice as many entries. A change copies a node a level, so small nodes
// make writes cheap, large ones make the tree shallow and dense. BenchmarkApply and BenchmarkMemory at 8, 12, 16,
// 24 and 32: with a million services a batch of 10,000 takes a third less time with 16 than with 32, a single one
// a tenth less, and a service 1 % more memory; below 16 little more is gained, with a smaller directory nothing.
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

// publish freezes the draft as it stands. Trees that did not change are shared with the state before.
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

// set adds or replaces an entry and gives the one before. The owner's record is the caller's to set.
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

// remove takes an entry out and gives it; nil when there is none.
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

// removeFromOwner takes an entry out of its owner's index and count.
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

// setOwner stores what is known of an owner, with the present number of its entries.
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
	// rememberEpochs is for how many epochs after its last write an owner of nothing is remembered: a writer that does
	// not know the outcome of its last write repeats it with the next leader, or the one after, and must get the answer
	// it would have got, though what it removed may be another's by then. A refused write counts as well.
	rememberEpochs = 16
	// maxIdle is how many owners of nothing are remembered. The latest writers stay: gateways whose ids
	// never come again must not fill the memory while one epoch goes on for months.
	maxIdle = 1 << 14
)

// forgetIdleOwners drops what is known of owners that own nothing and have not written for a while.
func (d *builder) forgetIdleOwners() {
	d.forget(d.idleOwners(func(os *ownerState) bool { return d.epoch-os.answer.Epoch > rememberEpochs }))
}

// boundIdleOwners drops, where there are too many owners of nothing, an eighth of those allowed or more: those whose
// last write is the longest ago.
func (d *builder) boundIdleOwners() {
	if d.idle <= maxIdle {
		return
	}
	idle := d.idleOwners(func(*ownerState) bool { return true })
	slices.SortStableFunc(idle, func(a, b *ownerState) int { return cmp.Compare(a.answer.Index, b.answer.Index) })
	d.forget(idle[:len(idle)-maxIdle/8*7])
}

// idleOwners lists, in the order of their names, the owners of nothing for which drop is true.
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
