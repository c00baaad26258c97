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
func (l *desiredState) update(upserts []*Entry, removed []string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := len(l.stale) == 0 && len(l.changed) == 0
	for _, e := range upserts {
		l.entries[e.ID] = e
		l.addKind(e.Kind)
		delete(l.removedURLs, e.ID)
		if e.checkedHere() {
			delete(l.lostMembers, e.ID)
		}
		l.stale[e.ID] = struct{}{}
		l.compare(e.ID, now)
	}
	for _, id := range removed {
		e, ok := l.entries[id]
		if !ok {
			continue
		}
		delete(l.entries, id)
		delete(l.lostMembers, id)
		l.removedURLs[id] = e.URL
		l.stale[id] = struct{}{}
		l.compare(id, now)
	}
	if !l.loaded {
		l.loaded = true
		l.compareAll(now)
	}
	if len(l.changed) > 0 || idle {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// addKinds adds kinds that an earlier leader mirrored.
func (l *desiredState) addKinds(kinds []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range kinds {
		l.addKind(kind)
	}
}

// addKind adds a mirrored kind.
func (l *desiredState) addKind(kind string) {
	if l.listed[kind] == nil {
		l.listed[kind] = set{}
	}
}

// wantedKind returns the kind whose set should contain an id, or an empty string.
func (l *desiredState) wantedKind(id string) string {
	e, ok := l.entries[id]
	switch {
	case !ok:
		return ""
	case e.checkedHere() && e.Status == Healthy:
		return e.Kind
	case e.checkedHere():
		return ""
	}
	if _, ok := l.listed[e.Kind][id]; ok || l.lostMembers[id] == e.Kind {
		return e.Kind
	}
	return ""
}

// compare queues an id whose membership differs from the desired one.
func (l *desiredState) compare(id string, now time.Time) {
	if _, ok := l.changed[id]; ok {
		return
	}
	want := l.wantedKind(id)
	for kind, ids := range l.listed {
		if _, ok := ids[id]; ok != (kind == want) {
			l.changed[id] = now
			return
		}
	}
}

// compareAll queues all differences, including leftovers of earlier leaders and of other clients.
func (l *desiredState) compareAll(now time.Time) {
	for id := range l.entries {
		l.compare(id, now)
	}
	for _, ids := range l.listed {
		for id := range ids {
			l.compare(id, now)
		}
	}
	for _, id := range l.orphanedHashes {
		if _, ok := l.entries[id]; !ok {
			l.stale[id] = struct{}{}
		}
	}
	l.orphanedHashes = nil
}

// reconcile records the content of Redis and queues all differences. With all, Redis does not hold this leader's last
// state, so the hashes are written again too. It returns how many memberships differ from the known ones, and which
// removals with an unknown outcome were applied.
func (l *desiredState) reconcile(v View, all bool, now time.Time) (drift int, removed []Removal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.listed
	l.listed = map[string]set{}
	for kind := range before {
		l.addKind(kind)
	}
	for kind, ids := range v.Active {
		l.addKind(kind)
		for _, id := range ids {
			l.listed[kind][id] = struct{}{}
			if _, ok := before[kind][id]; !ok {
				drift++
			}
		}
	}
	for kind, ids := range before {
		for id := range ids {
			if _, ok := l.listed[kind][id]; ok {
				continue
			}
			drift++
			if e, ok := l.entries[id]; !l.loaded || ok && !e.checkedHere() {
				l.lostMembers[id] = kind
			}
		}
	}
	for _, kind := range v.Wrong {
		l.wrongTypeKinds[kind] = struct{}{}
	}
	l.orphanedHashes = v.Services
	if all {
		for id := range l.entries {
			l.stale[id] = struct{}{}
		}
	}
	if l.loaded {
		l.compareAll(now)
	}
	for _, r := range l.unconfirmedRemovals {
		if _, still := l.listed[r.Kind][r.ID]; !still {
			removed = append(removed, r)
		}
	}
	l.unconfirmedRemovals = nil
	return drift, removed
}

// pending reports whether sets must be changed, and whether hashes must be written.
func (l *desiredState) pending() (changes, status bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return false, false
	}
	return len(l.changed) > 0 || len(l.wrongTypeKinds) > 0, len(l.stale) > 0
}

// take removes the next batch for a write of the kind op. Each batch names all sets, to get their sizes.
func (l *desiredState) take(op Op) batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := batch{kinds: slices.Sorted(maps.Keys(l.listed)), changed: map[string]time.Time{}}
	switch op {
	case OpChange:
		for id, since := range l.changed {
			if len(b.changed) == changeBatch {
				break
			}
			b.changed[id] = since
			delete(l.changed, id)
		}
		for _, kind := range b.kinds {
			b.sets = append(b.sets, l.setChange(kind, b.changed))
		}
		for _, s := range b.sets {
			b.removes = b.removes || len(s.Remove) > 0
			for _, m := range s.Remove {
				if l.wantedKind(m.ID) == "" {
					b.removals = append(b.removals, Removal{m.ID, s.Kind, m.URL, m.Reason, l.lastCheck(m.ID)})
				}
			}
		}
		// The hashes of moved services are written with them.
		for id := range b.changed {
			l.takeStatus(&b, id)
		}
	case OpStatus:
		for len(b.status) < statusBatch && len(l.stale) > 0 {
			if len(l.writeQueue) == 0 {
				l.writeQueue = slices.AppendSeq(l.writeQueue, maps.Keys(l.stale))
			}
			last := len(l.writeQueue) - 1
			id := l.writeQueue[last]
			l.writeQueue = l.writeQueue[:last]
			if _, ok := l.stale[id]; ok {
				l.takeStatus(&b, id)
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
func (l *desiredState) lastCheck(id string) time.Time {
	if e, ok := l.entries[id]; ok {
		return e.LastCheck
	}
	return time.Time{}
}

func (l *desiredState) setChange(kind string, ids map[string]time.Time) SetChange {
	s := SetChange{Kind: kind}
	_, s.Replace = l.wrongTypeKinds[kind]
	delete(l.wrongTypeKinds, kind)
	for id := range ids {
		_, is := l.listed[kind][id]
		should := l.wantedKind(id) == kind
		switch e, ok := l.entries[id]; {
		case is == should:
		case should:
			s.Add = append(s.Add, Member{id, e.URL, e.Reason})
		case ok:
			s.Remove = append(s.Remove, Member{id, e.URL, e.Reason})
		default:
			url, known := l.removedURLs[id]
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

func (l *desiredState) takeStatus(b *batch, id string) {
	if len(b.status) == statusBatch {
		return
	}
	delete(l.stale, id)
	e, ok := l.entries[id]
	if !ok {
		b.status = append(b.status, StatusChange{ID: id})
		return
	}
	b.status = append(b.status, StatusChange{
		ID:     id,
		Fields: statusFields(e, l.epoch),
		// An earlier leader's result is kept until this leader has checked the service.
		Inherit: e.Status == Unknown || e.Status == "",
	})
}

// applied records that a batch was written. It reports whether the sets have the expected sizes.
func (l *desiredState) applied(b batch, sizes []int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range b.sets {
		for _, m := range s.Add {
			l.listed[s.Kind][m.ID] = struct{}{}
			delete(l.lostMembers, m.ID)
		}
		for _, m := range s.Remove {
			delete(l.listed[s.Kind], m.ID)
		}
	}
	for id := range b.changed {
		// The entry may have changed again during the write.
		l.compare(id, now)
	}
	for _, st := range b.status {
		if _, ok := l.changed[st.ID]; !ok {
			delete(l.removedURLs, st.ID)
		}
	}
	for i, size := range sizes {
		if i < len(b.sets) && size != len(l.listed[b.sets[i].Kind]) {
			return false
		}
	}
	return true
}

// requeue records that a batch was not written, or, with unknown, that its outcome is unknown. Its removals then count
// as done, so that they do not look like members that Redis lost.
func (l *desiredState) requeue(b batch, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range b.sets {
		if s.Replace {
			l.wrongTypeKinds[s.Kind] = struct{}{}
		}
		for _, m := range s.Remove {
			if unknown {
				delete(l.listed[s.Kind], m.ID)
			}
		}
	}
	if unknown {
		l.unconfirmedRemovals = append(l.unconfirmedRemovals, b.removals...)
	}
	maps.Copy(l.changed, b.changed)
	for _, st := range b.status {
		l.stale[st.ID] = struct{}{}
	}
}

// kinds returns the mirrored kinds, sorted.
func (l *desiredState) kinds() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.listed))
}

// readActive calls read with active, with l.mu held.
func (l *desiredState) readActive(read func(active func(id, kind string) bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read(l.active)
}

// active reports whether an id is in a set, checking the set of kind first. l.mu is held.
func (l *desiredState) active(id, kind string) bool {
	if _, ok := l.listed[kind][id]; ok {
		return true
	}
	for _, ids := range l.listed {
		if _, ok := ids[id]; ok {
			return true
		}
	}
	return false
}

func (l *desiredState) activeOf(kind string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.listed[kind])
}
