package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	observePeriod = 5 * time.Second
	changeTimeout = 5 * time.Second
)

// promotions is what a leader knows of nodes that are to vote once they have caught up. It is lost with the
// leadership; the nodes ask again.
type promotions struct {
	mu sync.Mutex
	// wanted are nodes an operator adds as voters, or that lost their vote with their disk.
	wanted map[string]bool
	// caught is the commit index that a node must have applied before it may vote: the leader's when the node
	// last asked.
	caught map[string]uint64
}

// rejoin serves PeerService.Rejoin on an established leader.
func (n *Node) serveRejoin(l *leader, r *raft.Raft, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	l.promotions.mu.Lock()
	defer l.promotions.mu.Unlock()
	id, addr := raft.ServerID(req.Node), raft.ServerAddress(req.Address)
	member, ok := find(r, id)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "an operator must add it: rollcall cluster add %s %s", req.Node, req.Address)
	}
	if req.Empty {
		if member.Suffrage == raft.Voter {
			// Demoted and re-added at once: it lost what it had acknowledged, so its vote counts for nothing.
			if err := r.DemoteVoter(id, 0, changeTimeout).Error(); err != nil {
				return nil, membershipError("take the vote of "+req.Node, err)
			}
			l.promotions.wanted[req.Node] = true
			n.log.Warn("member came back with an empty disk, its vote is taken until it has caught up", "member", req.Node)
		}
		if member.Address != addr {
			if err := r.AddNonvoter(id, addr, 0, changeTimeout).Error(); err != nil {
				return nil, membershipError("change the address of "+req.Node, err)
			}
		}
		return &rollcallv1.RejoinResponse{MayStart: true, Voter: l.promotions.wanted[req.Node]}, nil
	}
	if member.Suffrage == raft.Voter {
		delete(l.promotions.wanted, req.Node)
		return &rollcallv1.RejoinResponse{MayStart: true, Voter: true}, nil
	}
	need, asked := l.promotions.caught[req.Node]
	if !asked || req.AppliedIndex < need {
		// All that it may have acknowledged before its disk was lost stands at or below this index.
		if !asked {
			l.promotions.caught[req.Node] = n.machine.State().Index()
		}
		return &rollcallv1.RejoinResponse{MayStart: true}, nil
	}
	if err := r.AddVoter(id, addr, 0, changeTimeout).Error(); err != nil {
		return nil, membershipError("give "+req.Node+" its vote", err)
	}
	delete(l.promotions.wanted, req.Node)
	delete(l.promotions.caught, req.Node)
	n.log.Info("member has caught up and votes", "member", req.Node)
	return &rollcallv1.RejoinResponse{MayStart: true, Voter: true}, nil
}

func find(r *raft.Raft, id raft.ServerID) (raft.Server, bool) {
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// membershipError sorts what Raft says of a change that it may or may not have made.
func membershipError(what string, err error) error {
	if applied := applyError(err); errors.Is(applied, errNotEstablished) {
		return fmt.Errorf("%s: %w", what, applied)
	}
	return fmt.Errorf("%s: %w", what, &unknownError{err})
}

// observeMembers keeps what the members say of themselves fresh: the leader's client address for Ping, the
// command versions for the proposer, the static fleet's size for the operator.
func (n *Node) observeMembers(ctx context.Context, r *raft.Raft) error {
	changed := make(chan raft.Observation, 8)
	o := raft.NewObserver(changed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.RegisterObserver(o)
	defer r.DeregisterObserver(o)
	tick := time.NewTicker(observePeriod)
	defer tick.Stop()
	warned := make(map[string]uint32)
	for {
		servers := without(r.GetConfiguration().Configuration().Servers, n.cfg.ID)
		n.peers.describe(ctx, servers, peerTimeout)
		if _, leader := r.LeaderWithID(); leader != "" && string(leader) != n.cfg.ID {
			if d := n.peers.fact(string(leader)); d != nil && d.RelayerCount != uint32(n.cfg.RelayerCount) && warned[string(leader)] != d.RelayerCount+1 {
				warned[string(leader)] = d.RelayerCount + 1
				n.log.Warn("the leader was started with another RELAYER_COUNT", "leader", leader, "its", d.RelayerCount, "own", n.cfg.RelayerCount)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-changed:
		}
	}
}

// commandVersion is the newest kind of command that every voter is known to understand.
func (n *Node) commandVersion(r *raft.Raft) uint32 {
	version := uint32(fsm.CommandVersion)
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == n.cfg.ID {
			continue
		}
		d := n.peers.fact(string(s.ID))
		if d == nil {
			return 1 // it may be of the first version
		}
		version = min(version, max(d.CommandVersion, 1))
	}
	return version
}

// sinceVersion is the command version that brought an operation.
func sinceVersion(op *rollcallv1.Operation) uint32 {
	switch op.Kind.(type) {
	case *rollcallv1.Operation_LeaderEstablished, *rollcallv1.Operation_Register, *rollcallv1.Operation_Deregister:
		return 1
	default:
		return fsm.CommandVersion
	}
}

// checkCommandVersion refuses an operation that an older voter would stop at.
func (n *Node) checkCommandVersion(r *raft.Raft, needed uint32) error {
	if needed <= 1 {
		return nil // every version understands the first commands
	}
	if has := n.commandVersion(r); has < needed {
		return status.Errorf(codes.FailedPrecondition,
			"a voter understands commands only up to version %d and this needs %d; upgrade every coordinator first", has, needed)
	}
	return nil
}

// notes are the differences between members that an operator should know of.
func (n *Node) notes(r *raft.Raft) []string {
	var notes []string
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if string(s.ID) == n.cfg.ID {
			continue
		}
		if d := n.peers.fact(string(s.ID)); d != nil && d.RelayerCount != uint32(n.cfg.RelayerCount) {
			notes = append(notes, fmt.Sprintf("%s was started with RELAYER_COUNT=%d, the leader with %d", s.ID, d.RelayerCount, n.cfg.RelayerCount))
		}
	}
	return notes
}
