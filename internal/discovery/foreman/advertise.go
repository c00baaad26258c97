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
	if err := check(services); err != nil {
		return err
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	next := maps.Clone(f.advertised)
	var taken *Problem
	for _, s := range services {
		if e := f.entries[s.GetId()]; e != nil && e.origin != "" {
			taken = taken.orAdd(s.GetId(), e.origin)
		}
		next[s.GetId()] = f.withNode(s)
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
	return f.useAdvertised(next)
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
	for _, id := range ids {
		if e := f.entries[id]; e != nil && e.origin != "" && next[id] == nil {
			taken = taken.orAdd(id, e.origin)
		}
		delete(next, id)
	}
	removed := len(f.advertised) - len(next)
	f.mu.Unlock()
	if taken != nil {
		return 0, taken
	}
	return removed, f.useAdvertised(next)
}

// useAdvertised stores next and then uses it. The caller holds f.writing.
func (f *Foreman) useAdvertised(next map[string]*rollcallv1.Service) error {
	f.mu.Lock()
	same := maps.EqualFunc(f.advertised, next, func(a, b *rollcallv1.Service) bool { return proto.Equal(a, b) })
	files := f.folder.files
	unsaved := f.stateErr != nil
	f.mu.Unlock()
	if same && !unsaved {
		return nil
	}
	if err := f.saveState(files, next); err != nil {
		return fmt.Errorf("remember what is advertised: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advertised = next
	f.reconcile()
	return nil
}

// saveState stores files and advertisements. The caller holds f.writing.
func (f *Foreman) saveState(files map[string]file, advertised map[string]*rollcallv1.Service) error {
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
	err := saveState(f.cfg.StateDir, m)
	f.mu.Lock()
	f.stateErr = err
	f.mu.Unlock()
	return err
}
