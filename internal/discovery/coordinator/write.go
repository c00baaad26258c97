package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// established returns the leadership that this node serves, or a refusal that names the leader.
func (n *Node) established() (*leader, error) {
	if l := n.currentLeader(); l != nil {
		return l, nil
	}
	r := n.raft.Load()
	if n.stopping.Err() != nil {
		return nil, errStopping
	}
	if r != nil && r.State() == raft.Leader {
		return nil, errNotEstablished
	}
	return nil, &notLeaderError{leader: n.leaderHint(), epoch: n.machine.State().Epoch()}
}

// leaderHint returns the known leader, this node if it is established, or nil.
func (n *Node) leaderHint() *rollcallv1.Leader {
	if n.currentLeader() != nil {
		return &rollcallv1.Leader{Node: n.cfg.ID, Address: n.cfg.Advertise, ClientAddress: n.cfg.AdvertiseClient}
	}
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	addr, id := r.LeaderWithID()
	if id == "" || string(id) == n.cfg.ID {
		return nil // leading, but not established: there is no leader to name
	}
	hint := &rollcallv1.Leader{Node: string(id), Address: n.peers.address(raft.Server{ID: id, Address: addr})}
	hint.ClientAddress = hint.Address
	if d := n.peers.peerInfoOf(string(id)); d != nil && d.ClientAddress != "" {
		hint.ClientAddress = d.ClientAddress
	}
	return hint
}

// encodeAll encodes services in the directory's form.
func encodeAll(services []*rollcallv1.Service) (ids []string, encoded [][]byte, err error) {
	ids, encoded = make([]string, len(services)), make([][]byte, len(services))
	for i, s := range services {
		ids[i] = s.GetId()
		if encoded[i], err = fsm.EncodeService(s); err != nil {
			return nil, nil, fmt.Errorf("encode service %s: %w", s.GetId(), err)
		}
	}
	return ids, encoded, nil
}

// registerRequest serves a caller's registration.
func (n *Node) registerRequest(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (fsm.Answer, error) {
	l, err := n.established()
	if err != nil {
		return fsm.Answer{}, err
	}
	fence, err := admit(ctx, l, req, len(req.Services), func() []rollcallv1.Violation { return checkRegistration(n.machine.State(), req) })
	if err != nil {
		return fsm.Answer{}, err
	}
	return n.register(ctx, l, req, fence)
}

// register writes a valid batch, or answers without a write if nothing changes.
func (n *Node) register(ctx context.Context, l *leader, req *rollcallv1.RegisterServicesRequest, fence *rollcallv1.WriteFence) (fsm.Answer, error) {
	owner := fsm.OwnerOf(fence.Owner)
	ids, encoded, err := encodeAll(req.Services)
	if err != nil {
		return fsm.Answer{}, err
	}
	op := &rollcallv1.RegisterOperation{Fence: fence, Services: encoded, FullSet: req.FullSet, Force: req.Force}
	alone, end, err := n.begin(l, fence, func() fsm.BodyHash { return hashRegister(op) })
	if err != nil {
		return fsm.Answer{}, err
	}
	state := n.machine.State()
	if alone && knows(state, owner, fence) {
		if answer, ok := state.Unchanged(owner, ids, encoded, req.FullSet); ok {
			defer end()
			if err := l.confirm(ctx, n); err != nil {
				return fsm.Answer{}, err
			}
			n.metrics.unchanged.Inc()
			return answer, nil
		}
	}
	n.metrics.batch.Observe(float64(len(ids)))
	op.Gone = l.ownerSessions.expiredOwners(state, owner, ids)
	result, err := l.proposer.propose(ctx, &rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{Register: op}}, end)
	return result.Answer, err
}

// knows reports whether the directory has this incarnation of the owner. A new incarnation must be committed even if
// nothing else changes, because it supersedes the previous one.
func knows(s *fsm.State, o fsm.Owner, f *rollcallv1.WriteFence) bool {
	if f.Seq == 0 {
		return true
	}
	info, ok := s.Owner(o)
	return ok && info.Incarnation == f.Incarnation && info.Seq < f.Seq
}

func (n *Node) deregisterRequest(ctx context.Context, req *rollcallv1.DeregisterServicesRequest) (fsm.Answer, error) {
	l, err := n.established()
	if err != nil {
		return fsm.Answer{}, err
	}
	fence, err := admit(ctx, l, req, len(req.Ids), func() []rollcallv1.Violation { return checkIDs(req.Ids) })
	if err != nil {
		return fsm.Answer{}, err
	}
	op := &rollcallv1.DeregisterOperation{Fence: fence, Ids: req.Ids, Force: req.Force}
	_, end, err := n.begin(l, fence, func() fsm.BodyHash { return hashDeregister(op) })
	if err != nil {
		return fsm.Answer{}, err
	}
	result, err := l.proposer.propose(ctx, &rollcallv1.Operation{Kind: &rollcallv1.Operation_Deregister{Deregister: op}}, end)
	return result.Answer, err
}

// confirm confirms the term for a caller. It maps a lost term to the refusal for the caller.
func (l *leader) confirm(ctx context.Context, n *Node) error {
	err := l.confirmer.confirm(ctx)
	if !errors.Is(err, errLostLeadership) {
		return err
	}
	if _, err := n.established(); err != nil {
		return err
	}
	return errNotEstablished
}
