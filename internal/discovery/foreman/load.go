package foreman

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// load is the size of services in one write, which limits a gateway. An id counts once, however many definitions it
// has.
type load struct {
	node  string // default for services without a node
	ids   map[string]claim
	bytes int
}

type claim struct{ definitions, bytes int }

// load returns the load of files and advertisements.
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

// size returns the maximum size of a service in a request.
func (l *load) size(s *rollcallv1.Service) int {
	n := proto.Size(s) + 4 // tag and length
	if s.GetWorkerRef().GetNode() == "" {
		n += len(l.node) + 4
	}
	return n
}

// check returns an error if the load exceeds the limits and has grown from services and bytes.
func (l *load) check(services, bytes int) error {
	const maxBytes = rollcallv1.MaxBytesPerCall - 1024 // the rest is for the writer's fields
	const how = "split them across several gateway ids: at most %d fit in one"
	switch n := len(l.ids); {
	case n > rollcallv1.MaxServicesPerCall && n > services:
		return &Problem{What: fmt.Sprintf("more than %d services on this host", rollcallv1.MaxServicesPerCall), How: fmt.Sprintf(how, rollcallv1.MaxServicesPerCall)}
	case l.bytes > maxBytes && l.bytes > bytes:
		return &Problem{What: fmt.Sprintf("services of more than %d bytes on this host", maxBytes), How: fmt.Sprintf(how, maxBytes)}
	}
	return nil
}

// admit returns files without new versions that would make all definitions exceed one write. As with any other fault,
// the last good version stays. The new one waits for room.
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

// sameVersion reports whether a and b have the same version. A version is read once, so its slice is identical.
func sameVersion(a, b file) bool {
	return a.known == b.known && len(a.services) == len(b.services) &&
		(len(a.services) == 0 || &a.services[0] == &b.services[0])
}
