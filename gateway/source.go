package gateway

import (
	"context"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Source defines the services that a Gateway keeps registered.
type Source interface {
	// Services returns the set that the source defines now. It may block, for example for first health checks. The
	// source announces changes during the call on Changed, which leads to another call.
	Services(ctx context.Context) (Set, error)
	// Changed receives a value after the set has changed. It should have a buffer of one, so that sending never blocks
	// and simultaneous changes are announced once. It is nil if the set never changes.
	Changed() <-chan struct{}
}

// Set is the set of a source at one moment. Neither the Gateway nor the source may change the services.
type Set struct {
	// Services are offered to the directory.
	Services []*rollcallv1.Service
	// NotReady are defined but not offered yet, because they never passed a health check here. The Gateway keeps those
	// that an earlier run registered; the others wait.
	NotReady []*rollcallv1.Service
	// Complete reports whether Services and NotReady are all that the source defines. If it is set, the Gateway
	// removes all its other services from the directory, or all services if the set is empty. Otherwise it removes
	// only ids that this run registered.
	Complete bool
}

// Static returns the Source of a process that registers itself: a set that never changes. Without services the set is
// not Complete, so that an accidentally empty list removes nothing.
func Static(services ...*rollcallv1.Service) Source { return static(services) }

type static []*rollcallv1.Service

func (s static) Services(context.Context) (Set, error) {
	return Set{Services: s, Complete: len(s) > 0}, nil
}

func (static) Changed() <-chan struct{} { return nil }
