package coordinator

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// staticFleet returns the services that RELAYER_COUNT and RELAYER_URL_TEMPLATE define.
func (c *Config) staticFleet() []*rollcallv1.Service {
	fleet := make([]*rollcallv1.Service, c.RelayerCount)
	for i := range fleet {
		fleet[i] = &rollcallv1.Service{
			Id:        fmt.Sprintf("oz-relayer-%d", i),
			Kind:      rollcallv1.KindRelayer,
			WorkerRef: &rollcallv1.WorkerRef{Url: strings.ReplaceAll(c.RelayerURLTemplate, "{N}", strconv.Itoa(i))},
		}
	}
	return fleet
}

// reconcileStaticServices writes the static fleet at the beginning of an epoch, which also removes the rest of an
// earlier leader's larger fleet. It writes again whenever an entry leaves the directory. This restores an entry that a
// gateway took over and then deregistered. It also writes again after an import of static services.
func (n *Node) reconcileStaticServices(l *leader) {
	fleet := n.cfg.staticFleet()
	policy := retryPolicy()
	for seq := uint64(1); ; seq++ {
		state, feed := n.machine.Watch()
		if n.staticComplete(state, fleet) {
			policy.Reset()
			if err := awaitStaticChange(l.ctx, feed); err != nil {
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

// staticComplete reports whether the directory holds every member, with any owner, and no other static service.
func (n *Node) staticComplete(s *fsm.State, fleet []*rollcallv1.Service) bool {
	ids, encoded, err := encodeAll(fleet)
	if err != nil {
		return false
	}
	_, ok := s.Unchanged(fsm.Static, ids, encoded, true)
	return ok
}

// awaitStaticChange returns nil once an entry has left the directory or became static, or once the directory must be read
// again. It returns an error when ctx ends.
func awaitStaticChange(ctx context.Context, feed *fsm.Feed) error {
	for {
		changes, err := feed.Next(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return nil // compacted: read the directory again
		}
		for _, c := range changes.Changes {
			if c.After == nil || c.After.Owner == fsm.Static {
				return nil
			}
		}
	}
}
