package foreman

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// load is how much of one write, the most that a gateway can have, services take. An id counts once, however many
// define it.
type load struct {
	node  string // stands in where a service names none
	ids   map[string]claim
	bytes int
}

type claim struct{ definitions, bytes int }

// load of what files and advertisements define.
func (f *Foreman) load(files map[string]file, advertised map[string]*rollcallv1.Service) *load {
	l := &load{node: f.cfg.Node, ids: map[string]claim{}}
	for _, file := range files {
		l.add(file.services)
	}
	for _, s := range advertised {
		l.add([]*rollcallv1.Service{s})
	}
	return l
}

func (l *load) add(services []*rollcallv1.Service) {
	for _, s := range services {
		c, n := l.ids[s.GetId()], l.size(s)
		l.bytes += max(c.bytes, n) - c.bytes
		l.ids[s.GetId()] = claim{c.definitions + 1, max(c.bytes, n)}
	}
}

func (l *load) remove(services []*rollcallv1.Service) {
	for _, s := range services {
		c := l.ids[s.GetId()]
		if c.definitions--; c.definitions > 0 {
			l.ids[s.GetId()] = c
			continue
		}
		l.bytes -= c.bytes
		delete(l.ids, s.GetId())
	}
}

// size of a service in a request, at the most.
func (l *load) size(s *rollcallv1.Service) int {
	n := proto.Size(s) + 4 // a tag and a length around it
	if s.GetWorkerRef().GetNode() == "" {
		n += len(l.node) + 4
	}
	return n
}

// check says why it is more than fits, nil when it is not, nor more than it was before.
func (l *load) check(services, bytes int) error {
	const maxBytes = rollcallv1.MaxBytesPerCall - 1024 // the rest is for who writes, and when
	const how = "split them across several gateway ids: at most %d fit in one"
	switch n := len(l.ids); {
	case n > rollcallv1.MaxServicesPerCall && n > services:
		return &Problem{What: fmt.Sprintf("more than %d services on this host", rollcallv1.MaxServicesPerCall), How: fmt.Sprintf(how, rollcallv1.MaxServicesPerCall)}
	case l.bytes > maxBytes && l.bytes > bytes:
		return &Problem{What: fmt.Sprintf("services of more than %d bytes on this host", maxBytes), How: fmt.Sprintf(how, maxBytes)}
	}
	return nil
}

// admit returns files without new versions with which all that is defined would not fit into one write. As with
// any other fault the last good version stays; the new one waits for room.
func (f *Foreman) admit(before, files map[string]file, advertised map[string]*rollcallv1.Service) (after map[string]file) {
	after = maps.Clone(files)
	settled := maps.Clone(files)
	var changed []string
	for name, is := range after {
		if was := before[name]; is.waiting != nil || !sameVersion(was, is) {
			settled[name] = was
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	l := f.load(settled, advertised)
	for _, name := range changed {
		was, is := before[name], after[name]
		if is.waiting != nil {
			is.services, is.known, is.err, is.waiting = is.waiting, true, nil, nil
		}
		services, bytes := len(l.ids), l.bytes
		l.remove(was.services)
		l.add(is.services)
		if err := l.check(services, bytes); err != nil {
			l.remove(is.services)
			l.add(was.services)
			was = was.broken(err, is.read, time.Now())
			was.waiting = is.services
			is = was
		}
		after[name] = is
	}
	return after
}

// sameVersion reports whether a and b have the same services: a version is read once, so they are the same slice.
func sameVersion(a, b file) bool {
	return a.known == b.known && len(a.services) == len(b.services) &&
		(len(a.services) == 0 || &a.services[0] == &b.services[0])
}
