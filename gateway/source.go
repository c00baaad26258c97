package gateway

import (
	"context"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Source knows which services a Gateway is to keep registered.
type Source interface {
	// Services returns what the source defines now. It may take its time, for first health checks say; changes
	// that happen meanwhile are announced by Changed and lead to another call.
	Services(ctx context.Context) (Set, error)
	// Changed gets a value after the set has changed. It should hold one, so that announcing never blocks and
	// changes that come together are announced once. Nil if the set never changes.
	Changed() <-chan struct{}
}

// Set is what a source defines at one moment. The Gateway does not change the services, nor must the source.
type Set struct {
	// Services are offered: the directory is to hold them.
	Services []*rollcallv1.Service
	// NotReady are defined too, but not offered yet, because they never passed a health check here. One that this
	// gateway has in the directory, from an earlier run, stays; the others wait.
	NotReady []*rollcallv1.Service
	// Complete says that Services and Held are all that the source defines: what else this gateway has in the
	// directory is removed, everything when there are none. Without it only ids that this run registered are
	// ever removed.
	Complete bool
}

// Static is the Source of a process that registers itself: a set that never changes. Without services it is
// not Complete, so that a list that is empty by mistake removes nothing.
func Static(services ...*rollcallv1.Service) Source { return static(services) }

type static []*rollcallv1.Service

func (s static) Services(context.Context) (Set, error) {
	return Set{Services: s, Complete: len(s) > 0}, nil
}

func (static) Changed() <-chan struct{} { return nil }
