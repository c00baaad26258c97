package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// stagedImport is the part of an import that has been received. It is immutable: the next part makes a new one, which
// shares the array of parts.
type stagedImport struct {
	id    string
	parts []stageImport
}

type stageImport struct {
	epoch   uint64
	id      string
	part    uint32
	owners  []importedOwner
	entries []*Entry // without version; never changed, because a snapshot may read them
}

type importedOwner struct {
	Owner
	incarnation uint64
}

type finishImport struct {
	epoch uint64
	id    string
	parts uint32
	apply bool
}

func decodeStageImport(op *rollcallv1.StageImportOperation) (s stageImport, err error) {
	s = stageImport{
		epoch: op.GetEpoch(), id: op.GetImport(), part: op.GetPart(),
		owners: make([]importedOwner, len(op.GetOwners())), entries: make([]*Entry, len(op.GetServices())),
	}
	for i, o := range op.GetOwners() {
		if s.owners[i].Owner, err = decodeOwner(o.GetOwner()); err != nil {
			return s, err
		}
		s.owners[i].incarnation = o.GetIncarnation()
	}
	for i, is := range op.GetServices() {
		if s.entries[i], err = newEntry(is.GetService()); err == nil {
			s.entries[i].Owner, err = decodeOwner(is.GetOwner())
		}
		if err != nil {
			return s, fmt.Errorf("service %d: %w", i, err)
		}
	}
	return s, nil
}

func (s stageImport) proto() *rollcallv1.StageImportOperation {
	op := &rollcallv1.StageImportOperation{Epoch: s.epoch, Import: s.id, Part: s.part}
	for _, o := range s.owners {
		op.Owners = append(op.Owners, &rollcallv1.ImportedOwner{Owner: o.Proto(), Incarnation: o.incarnation})
	}
	for _, e := range s.entries {
		op.Services = append(op.Services, &rollcallv1.ImportedService{Service: e.raw, Owner: e.Owner.Proto()})
	}
	return op
}

// with returns the import with one more part. It returns nil if the part belongs to another import or is not the next.
func (s *stagedImport) with(part stageImport) *stagedImport {
	switch {
	case part.part == 0:
		return &stagedImport{id: part.id, parts: []stageImport{part}}
	case s == nil || s.id != part.id || int64(part.part) != int64(len(s.parts)):
		return nil
	}
	return &stagedImport{id: s.id, parts: append(s.parts, part)}
}

// entries iterates over the services of all parts.
func (s *stagedImport) entries() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, part := range s.parts {
			for _, e := range part.entries {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// incarnations returns every owner of the import, with its incarnation or 0.
func (s *stagedImport) incarnations() map[Owner]uint64 {
	owners := make(map[Owner]uint64)
	for e := range s.entries() {
		owners[e.Owner] = 0
	}
	for _, part := range s.parts {
		for _, o := range part.owners {
			owners[o.Owner] = max(owners[o.Owner], o.incarnation)
		}
	}
	return owners
}

// stage adds a part to the staged import, or begins another one.
func (b *builder) stage(op stageImport) Result {
	if op.epoch != b.epoch {
		return Result{Err: &StaleEpochError{Epoch: b.epoch}}
	}
	next := b.staged.with(op)
	if next == nil {
		return Result{Err: ErrImportLost}
	}
	b.staged = next
	return Result{Answer: Answer{Epoch: b.epoch, Index: b.index}}
}

// finish applies or drops the staged import.
func (b *builder) finish(op finishImport, version uint64, changes []Change) (Result, []Change) {
	if op.epoch != b.epoch {
		return Result{Err: &StaleEpochError{Epoch: b.epoch}}, changes
	}
	staged := b.staged
	if staged == nil || staged.id != op.id || op.apply && int64(op.parts) != int64(len(staged.parts)) {
		return Result{Err: ErrImportLost}, changes
	}
	b.staged = nil
	r := Result{Answer: Answer{Epoch: b.epoch, Index: b.index}}
	if !op.apply {
		return r, changes
	}
	first := r // of an owner that has written nothing here
	for _, id := range b.missingFrom(staged) {
		changes = append(changes, Change{Before: b.remove(id)})
		r.Removed++
	}
	for e := range staged.entries() {
		before, ok := b.entries.Get(e.ID)
		if ok && before.Owner == e.Owner && bytes.Equal(before.raw, e.raw) {
			r.Unchanged++
			continue
		}
		after := *e
		after.Version = version
		changes = append(changes, Change{Before: b.set(&after), After: &after})
		r.Registered++
	}
	b.raiseIncarnations(staged.incarnations(), first)
	return r, changes
}

// missingFrom lists, in order, the ids of the directory that the import does not contain.
func (b *builder) missingFrom(s *stagedImport) (ids []string) {
	imported := make(map[string]struct{})
	for e := range s.entries() {
		imported[e.ID] = struct{}{}
	}
	b.entries.Scan(func(id string, _ *Entry) bool {
		if _, ok := imported[id]; !ok {
			ids = append(ids, id)
		}
		return true
	})
	return ids
}

// raiseIncarnations updates the records of imported owners. A fence is never lowered, because a late write would become
// valid again. A raised one begins before the first write of its incarnation.
func (b *builder) raiseIncarnations(owners map[Owner]uint64, first Result) {
	for _, o := range slices.SortedFunc(maps.Keys(owners), func(a, b Owner) int { return cmp.Compare(a.String(), b.String()) }) {
		os, known := b.owners.Get(o.String())
		if !known || os.incarnation < owners[o] {
			os = &ownerState{owner: o, incarnation: owners[o], answer: first}
		}
		b.setOwner(*os)
	}
	b.boundIdleOwners()
}
