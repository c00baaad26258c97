package coordinator

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// staticKind is the kind of the services that RELAYER_COUNT describes.
const staticKind = "relayer"

// staticFleet is the set of services that RELAYER_COUNT and RELAYER_URL_TEMPLATE describe.
func (c *Config) staticFleet() []*rollcallv1.Service {
	fleet := make([]*rollcallv1.Service, c.RelayerCount)
	for i := range fleet {
		fleet[i] = &rollcallv1.Service{
			Id:        fmt.Sprintf("oz-relayer-%d", i),
			Kind:      staticKind,
			WorkerRef: &rollcallv1.WorkerRef{Url: strings.ReplaceAll(c.RelayerURLTemplate, "{N}", strconv.Itoa(i))},
		}
	}
	return fleet
}

// reconcileStaticServices writes the static fleet at the beginning of an epoch, which also removes what an earlier
// leader's larger one left, and again whenever one of its members leaves the directory: a gateway that had taken
// an entry over and then deregistered it gives it back that way.
func (n *Node) reconcileStaticServices(l *leader) {
	fleet := n.cfg.staticFleet()
	policy := retryPolicy()
	for seq := uint64(1); ; seq++ {
		state, feed := n.machine.Watch()
		if n.staticComplete(state, fleet) {
			policy.Reset()
			if err := awaitRemoval(l.ctx, feed); err != nil {
				return
			}
			continue
		}
		_, err := n.register(l.ctx, l, &rollcallv1.RegisterServicesRequest{Services: fleet, FullSet: true},
			&rollcallv1.WriteFence{Owner: fsm.Static.Proto(), Incarnation: l.Epoch, Seq: seq, Epoch: l.Epoch})
		if err != nil {
			if l.ctx.Err() != nil {
				return
			}
			n.log.Error("static fleet not registered", "epoch", l.Epoch, "err", err)
			if sleep(l.ctx, policy.NextBackOff()) != nil {
				return
			}
		}
	}
}

// staticComplete reports whether the directory holds every member, whoever owns it, and no static ghost.
func (n *Node) staticComplete(s *fsm.State, fleet []*rollcallv1.Service) bool {
	ids, encoded, err := encodeAll(fleet)
	if err != nil {
		return false
	}
	_, ok := s.Unchanged(fsm.Static, ids, encoded, true)
	return ok
}

// awaitRemoval returns once something has left the directory, or it must be looked at again; with an error when
// ctx ends.
func awaitRemoval(ctx context.Context, feed *fsm.Feed) error {
	for {
		changes, err := feed.Next(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return nil // compacted: look again
		}
		for _, c := range changes.Changes {
			if c.After == nil {
				return nil
			}
		}
	}
}
