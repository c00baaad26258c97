package mirror

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// The limits of one script, so that none keeps Redis busy for long: 500 hashes take about 2 ms, 10,000 members and
// their events about 20 ms. Only a fleet of more than changeBatch is added or removed in several steps. Redis accepts
// at most a million arguments.
const (
	statusBatch = 500
	changeBatch = 20_000
)

// desiredState holds the desired and the current content of Redis, and the pending changes between them. It is safe
// for concurrent use.
type desiredState struct {
	epoch uint64
	// wake holds a token when there may be new changes to write.
	wake chan struct{}

	mu sync.Mutex
	// loaded: the directory has been received. Until then, the writer neither adds nor removes members.
	loaded  bool
	entries map[string]*Entry
	// listed are the sets as last written or read. Every kind that was ever mirrored has one.
	listed map[string]set
	// lostMembers has the kind of ids that were listed when Redis lost them. An id that is still unknown is listed
	// again.
	lostMembers map[string]string
	// changed are ids whose membership may differ from listed, with the time of the change.
	changed map[string]time.Time
	// stale are ids whose hash must be written or deleted.
	stale set
	// writeQueue holds ids from stale, possibly also others, that are written next. Iterating over a large map for
	// each batch would take longer than writing.
	writeQueue []string
	// orphanedHashes are ids with a hash, from before the directory was received.
	orphanedHashes []string
	// removedURLs has the URL of ids that left the directory, until the removal is written.
	removedURLs map[string]string
	// wrongTypeKinds are the kinds whose key is not a set.
	wrongTypeKinds set
	// unconfirmedRemovals are removals with an unknown outcome, until the sets are read again.
	unconfirmedRemovals []Removal
}

type set = map[string]struct{}

// batch is the content of one write. It ends in applied or in requeue.
type batch struct {
	sets    []SetChange
	status  []StatusChange
	kinds   []string
	changed map[string]time.Time
	// removes: at least one id leaves a set. removals are the services that leave all sets.
	removes  bool
	removals []Removal
}

func newDesiredState(epoch uint64) *desiredState {
	return &desiredState{
		epoch:          epoch,
		wake:           make(chan struct{}, 1),
		entries:        map[string]*Entry{},
		listed:         map[string]set{"relayer": {}},
		lostMembers:    map[string]string{},
		changed:        map[string]time.Time{},
		stale:          set{},
		removedURLs:    map[string]string{},
		wrongTypeKinds: set{},
	}
}

// update records changed and removed services. The first call sets loaded.
func (d *desiredState) update(upserts []*Entry, removed []string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	idle := len(d.stale) == 0 && len(d.changed) == 0
	for _, e := range upserts {
		d.entries[e.ID] = e
		d.addKind(e.Kind)
		delete(d.removedURLs, e.ID)
		if e.checkedHere() {
			delete(d.lostMembers, e.ID)
		}
		d.stale[e.ID] = struct{}{}
		d.compare(e.ID, now)
	}
	for _, id := range removed {
		e, ok := d.entries[id]
		if !ok {
			continue
		}
		delete(d.entries, id)
		delete(d.lostMembers, id)
		d.removedURLs[id] = e.URL
		d.stale[id] = struct{}{}
		d.compare(id, now)
	}
	if !d.loaded {
		d.loaded = true
		d.compareAll(now)
	}
	if len(d.changed) > 0 || idle {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// addKinds adds kinds that an earlier leader mirrored.
func (d *desiredState) addKinds(kinds []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, kind := range kinds {
		d.addKind(kind)
	}
}

// addKind adds a mirrored kind.
func (d *desiredState) addKind(kind string) {
	if d.listed[kind] == nil {
		d.listed[kind] = set{}
	}
}

// wantedKind returns the kind whose set should contain an id, or an empty string.
func (d *desiredState) wantedKind(id string) string {
	e, ok := d.entries[id]
	switch {
	case !ok:
		return ""
	case e.checkedHere() && e.Status == Healthy:
		return e.Kind
	case e.checkedHere():
		return ""
	}
	if _, ok := d.listed[e.Kind][id]; ok || d.lostMembers[id] == e.Kind {
		return e.Kind
	}
	return ""
}

// compare queues an id whose membership differs from the desired one.
func (d *desiredState) compare(id string, now time.Time) {
	if _, ok := d.changed[id]; ok {
		return
	}
	want := d.wantedKind(id)
	for kind, ids := range d.listed {
		if _, ok := ids[id]; ok != (kind == want) {
			d.changed[id] = now
			return
		}
	}
}

// compareAll queues all differences, including leftovers of earlier leaders and of other clients.
func (d *desiredState) compareAll(now time.Time) {
	for id := range d.entries {
		d.compare(id, now)
	}
	for _, ids := range d.listed {
		for id := range ids {
			d.compare(id, now)
		}
	}
	for _, id := range d.orphanedHashes {
		if _, ok := d.entries[id]; !ok {
			d.stale[id] = struct{}{}
		}
	}
	d.orphanedHashes = nil
}

// reconcile records the content of Redis and queues all differences. With all, Redis does not hold this leader's last
// state, so the hashes are written again too. It returns how many memberships differ from the known ones, and which
// removals with an unknown outcome were applied.
func (d *desiredState) reconcile(v View, all bool, now time.Time) (drift int, removed []Removal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.listed
	d.listed = map[string]set{}
	for kind := range before {
		d.addKind(kind)
	}
	for kind, ids := range v.Active {
		d.addKind(kind)
		for _, id := range ids {
			d.listed[kind][id] = struct{}{}
			if _, ok := before[kind][id]; !ok {
				drift++
			}
		}
	}
	for kind, ids := range before {
		for id := range ids {
			if _, ok := d.listed[kind][id]; ok {
				continue
			}
			drift++
			if e, ok := d.entries[id]; !d.loaded || ok && !e.checkedHere() {
				d.lostMembers[id] = kind
			}
		}
	}
	for _, kind := range v.Wrong {
		d.wrongTypeKinds[kind] = struct{}{}
	}
	d.orphanedHashes = v.Services
	if all {
		for id := range d.entries {
			d.stale[id] = struct{}{}
		}
	}
	if d.loaded {
		d.compareAll(now)
	}
	for _, r := range d.unconfirmedRemovals {
		if _, still := d.listed[r.Kind][r.ID]; !still {
			removed = append(removed, r)
		}
	}
	d.unconfirmedRemovals = nil
	return drift, removed
}

// pending reports whether sets must be changed, and whether hashes must be written.
func (d *desiredState) pending() (changes, status bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.loaded {
		return false, false
	}
	return len(d.changed) > 0 || len(d.wrongTypeKinds) > 0, len(d.stale) > 0
}

// take removes the next batch for a write of the kind op. Each batch names all sets, to get their sizes.
func (d *desiredState) take(op Op) batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := batch{kinds: slices.Sorted(maps.Keys(d.listed)), changed: map[string]time.Time{}}
	switch op {
	case OpChange:
		for id, since := range d.changed {
			if len(b.changed) == changeBatch {
				break
			}
			b.changed[id] = since
			delete(d.changed, id)
		}
		for _, kind := range b.kinds {
			b.sets = append(b.sets, d.setChange(kind, b.changed))
		}
		for _, s := range b.sets {
			b.removes = b.removes || len(s.Remove) > 0
			for _, m := range s.Remove {
				if d.wantedKind(m.ID) == "" {
					b.removals = append(b.removals, Removal{m.ID, s.Kind, m.URL, m.Reason, d.lastCheck(m.ID)})
				}
			}
		}
		// The hashes of moved services are written with them.
		for id := range b.changed {
			d.takeStatus(&b, id)
		}
	case OpStatus:
		for len(b.status) < statusBatch && len(d.stale) > 0 {
			if len(d.writeQueue) == 0 {
				d.writeQueue = slices.AppendSeq(d.writeQueue, maps.Keys(d.stale))
			}
			last := len(d.writeQueue) - 1
			id := d.writeQueue[last]
			d.writeQueue = d.writeQueue[:last]
			if _, ok := d.stale[id]; ok {
				d.takeStatus(&b, id)
			}
		}
	}
	if b.sets == nil {
		for _, kind := range b.kinds {
			b.sets = append(b.sets, SetChange{Kind: kind})
		}
	}
	return b
}

// lastCheck returns when an entry was checked, or zero without an entry.
func (d *desiredState) lastCheck(id string) time.Time {
	if e, ok := d.entries[id]; ok {
		return e.LastCheck
	}
	return time.Time{}
}

func (d *desiredState) setChange(kind string, ids map[string]time.Time) SetChange {
	s := SetChange{Kind: kind}
	_, s.Replace = d.wrongTypeKinds[kind]
	delete(d.wrongTypeKinds, kind)
	for id := range ids {
		_, is := d.listed[kind][id]
		should := d.wantedKind(id) == kind
		switch e, ok := d.entries[id]; {
		case is == should:
		case should:
			s.Add = append(s.Add, Member{id, e.URL, e.Reason})
		case ok:
			s.Remove = append(s.Remove, Member{id, e.URL, e.Reason})
		default:
			url, known := d.removedURLs[id]
			reason := "not in the directory"
			if known {
				reason = "deregistered"
			}
			s.Remove = append(s.Remove, Member{id, url, reason})
		}
	}
	byID := func(a, b Member) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(s.Add, byID)
	slices.SortFunc(s.Remove, byID)
	return s
}

func (d *desiredState) takeStatus(b *batch, id string) {
	if len(b.status) == statusBatch {
		return
	}
	delete(d.stale, id)
	e, ok := d.entries[id]
	if !ok {
		b.status = append(b.status, StatusChange{ID: id})
		return
	}
	b.status = append(b.status, StatusChange{
		ID:     id,
		Fields: statusFields(e, d.epoch),
		// An earlier leader's result is kept until this leader has checked the service.
		Inherit: e.Status == Unknown || e.Status == "",
	})
}

// applied records that a batch was written. It reports whether the sets have the expected sizes.
func (d *desiredState) applied(b batch, sizes []int, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range b.sets {
		for _, m := range s.Add {
			d.listed[s.Kind][m.ID] = struct{}{}
			delete(d.lostMembers, m.ID)
		}
		for _, m := range s.Remove {
			delete(d.listed[s.Kind], m.ID)
		}
	}
	for id := range b.changed {
		// The entry may have changed again during the write.
		d.compare(id, now)
	}
	for _, st := range b.status {
		if _, ok := d.changed[st.ID]; !ok {
			delete(d.removedURLs, st.ID)
		}
	}
	for i, size := range sizes {
		if i < len(b.sets) && size != len(d.listed[b.sets[i].Kind]) {
			return false
		}
	}
	return true
}

// requeue records that a batch was not written, or, with unknown, that its outcome is unknown. Its removals then count
// as done, so that they do not look like members that Redis lost.
func (d *desiredState) requeue(b batch, unknown bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range b.sets {
		if s.Replace {
			d.wrongTypeKinds[s.Kind] = struct{}{}
		}
		for _, m := range s.Remove {
			if unknown {
				delete(d.listed[s.Kind], m.ID)
			}
		}
	}
	if unknown {
		d.unconfirmedRemovals = append(d.unconfirmedRemovals, b.removals...)
	}
	maps.Copy(d.changed, b.changed)
	for _, st := range b.status {
		d.stale[st.ID] = struct{}{}
	}
}

// kinds returns the mirrored kinds, sorted.
func (d *desiredState) kinds() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.listed))
}

// readActive calls read with active, with d.mu held.
func (d *desiredState) readActive(read func(active func(id, kind string) bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	read(d.active)
}

// active reports whether an id is in a set, checking the set of kind first. d.mu is held.
func (d *desiredState) active(id, kind string) bool {
	if _, ok := d.listed[kind][id]; ok {
		return true
	}
	for _, ids := range d.listed {
		if _, ok := ids[id]; ok {
			return true
		}
	}
	return false
}

func (d *desiredState) activeOf(kind string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.listed[kind])
}
