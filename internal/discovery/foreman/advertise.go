package foreman

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Advertise adds or changes services that local processes define, all or nothing. Once it returns nil, they survive a
// restart. An error caused by the caller is a *Problem.
func (f *Foreman) Advertise(services []*rollcallv1.Service) error {
	// The node counts, because the service is stored and offered with it.
	withNode := make([]*rollcallv1.Service, len(services))
	for i, s := range services {
		withNode[i] = f.withNode(s)
	}
	if err := check(withNode); err != nil {
		return err
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	next := maps.Clone(f.advertised)
	var taken *Problem
	ids := make([]string, 0, len(withNode))
	for _, s := range withNode {
		if e := f.entries[s.GetId()]; e != nil && e.origin != "" {
			taken = taken.orAdd(s.GetId(), e.origin)
		}
		next[s.GetId()] = s
		ids = append(ids, s.GetId())
	}
	files, now := f.folder.files, f.advertised
	f.mu.Unlock()
	if taken != nil {
		return taken
	}
	before := f.load(files, now)
	if err := f.load(files, next).check(len(before.ids), before.bytes); err != nil {
		return err
	}
	return f.useAdvertised(next, ids)
}

// orAdd returns a problem with one more id that a file defines.
func (p *Problem) orAdd(id, file string) *Problem {
	if p == nil {
		p = &Problem{What: "service defined by a file", Where: file, How: "change it there, or use another id"}
	}
	p.Violations = append(p.Violations, fmt.Sprintf("%s: is defined by %s", id, file))
	return p
}

// Withdraw removes advertised services, all or nothing, and returns their number. Ids that are not advertised count as
// withdrawn.
func (f *Foreman) Withdraw(ids []string) (int, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	next := maps.Clone(f.advertised)
	var taken *Problem
	removed := map[string]bool{}
	for _, id := range ids {
		if f.advertised[id] != nil || f.skipped[id].fault != nil {
			removed[id] = true
		} else if e := f.entries[id]; e != nil && e.origin != "" {
			taken = taken.orAdd(id, e.origin)
		}
		delete(next, id)
	}
	f.mu.Unlock()
	if taken != nil {
		return 0, taken
	}
	return len(removed), f.useAdvertised(next, ids)
}

// useAdvertised stores next, which has news of ids, and then uses it. The caller holds f.writing.
func (f *Foreman) useAdvertised(next map[string]*rollcallv1.Service, ids []string) error {
	f.mu.Lock()
	same := maps.EqualFunc(f.advertised, next, func(a, b *rollcallv1.Service) bool { return proto.Equal(a, b) })
	files := f.folder.files
	still := maps.Clone(f.skipped)
	for _, id := range ids {
		delete(still, id)
	}
	unsaved := f.stateErr != nil || len(still) != len(f.skipped)
	f.mu.Unlock()
	if same && !unsaved {
		return nil
	}
	if err := f.saveState(files, next, still); err != nil {
		return fmt.Errorf("remember what is advertised: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advertised = next
	if len(still) != len(f.skipped) {
		f.skipped = still
		signal(f.changed) // the set may be complete now
	}
	f.reconcile()
	return nil
}

// saveState stores files and advertisements, also those that are not used. The caller holds f.writing.
func (f *Foreman) saveState(files map[string]file, advertised map[string]*rollcallv1.Service, notUsed map[string]skipped) error {
	if f.cfg.StateDir == "" {
		return nil
	}
	m := persistedState{Files: map[string][]definition{}}
	for name, file := range files {
		if file.known {
			m.Files[name] = definitions(file.services)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(advertised)) {
		m.Advertised = append(m.Advertised, definitionOf(advertised[id]))
	}
	for _, id := range slices.Sorted(maps.Keys(notUsed)) {
		m.Advertised = append(m.Advertised, notUsed[id].definition)
	}
	err := saveState(f.cfg.StateDir, m)
	f.mu.Lock()
	f.stateErr = err
	f.mu.Unlock()
	return err
}
