package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

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

// checkWriter validates a writer and fills in its epoch.
func checkWriter(w *rollcallv1.Writer, l *leader) ([]rollcallv1.Violation, *rollcallv1.WriteFence) {
	var vs []rollcallv1.Violation
	add := func(field, description string) {
		vs = append(vs, rollcallv1.Violation{Field: "writer." + field, Description: description})
	}
	switch w.GetOwner().GetKind() {
	case rollcallv1.OwnerKind_OWNER_KIND_GATEWAY:
		if err := rollcallv1.CheckDNSLabel(w.Owner.Id); err != nil {
			add("owner.id", err.Error())
		}
		if w.Incarnation == 0 {
			add("incarnation", "is 0; a gateway's grows with each of its starts, such as its start time")
		}
		if w.Seq == 0 {
			add("seq", "is 0; a gateway's grows with each write, from 1")
		}
	case rollcallv1.OwnerKind_OWNER_KIND_OPERATOR:
		if w.Owner.Id != "" {
			add("owner.id", "must be empty for an operator")
		}
		if (w.Incarnation == 0) != (w.Seq == 0) {
			add("seq", "and incarnation must both be set, for a fenced write, or both be 0")
		}
	default:
		add("owner.kind", "must be OWNER_KIND_GATEWAY or OWNER_KIND_OPERATOR")
	}
	// The owner is copied field by field: an unknown field of a newer caller must not reach the log, where it ends every node.
	f := &rollcallv1.WriteFence{Owner: fsm.OwnerOf(w.GetOwner()).Proto(), Incarnation: w.GetIncarnation(), Seq: w.GetSeq(), Epoch: w.GetEpoch()}
	if f.Epoch == 0 {
		f.Epoch = l.Epoch
	}
	return vs, f
}

// checkBatch validates the services of a batch: each one, and the uniqueness of their ids.
func checkBatch(services []*rollcallv1.Service) []rollcallv1.Violation {
	var vs []rollcallv1.Violation
	at := make(map[string]int, len(services))
	for i, s := range services {
		for _, v := range s.Validate() {
			vs = append(vs, rollcallv1.Violation{Field: fmt.Sprintf("services[%d].%s", i, v.Field), Description: v.Description})
		}
		if first, ok := at[s.GetId()]; ok {
			vs = append(vs, rollcallv1.Violation{
				Field:       fmt.Sprintf("services[%d].id", i),
				Description: fmt.Sprintf("%q stands in services[%d] already", s.GetId(), first),
			})
			continue
		}
		at[s.GetId()] = i
	}
	return vs
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

// registerRequest serves a caller's registration. It validates the request, and refuses writes reserved for the
// leader.
func (n *Node) registerRequest(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (fsm.Answer, error) {
	l, err := n.established()
	if err != nil {
		return fsm.Answer{}, err
	}
	if count, size := len(req.Services), proto.Size(req); count > rollcallv1.MaxServicesPerCall || size > rollcallv1.MaxBytesPerCall {
		return fsm.Answer{}, &tooLargeError{count, size}
	}
	if err := authorizeWriter(ctx, req.GetWriter()); err != nil {
		return fsm.Answer{}, err
	}
	vs, fence := checkWriter(req.Writer, l)
	vs = append(vs, checkBatch(req.Services)...)
	operator := req.GetWriter().GetOwner().GetKind() == rollcallv1.OwnerKind_OWNER_KIND_OPERATOR
	if req.Force && !operator {
		vs = append(vs, rollcallv1.Violation{Field: "force", Description: "is for operators only"})
	}
	if len(req.Services) == 0 {
		switch {
		case !req.FullSet:
			vs = append(vs, rollcallv1.Violation{Field: "services", Description: "is empty; name at least one service"})
		case !req.AllowEmpty:
			vs = append(vs, rollcallv1.Violation{
				Field: "services", Description: "is an empty full set, which removes all that the owner defines; set allow_empty if that is meant",
			})
		}
	}
	if len(vs) > 0 {
		return fsm.Answer{}, &invalidError{vs}
	}
	return n.register(ctx, l, req, fence)
}

// register writes a valid batch, or answers without a write if nothing changes.
func (n *Node) register(ctx context.Context, l *leader, req *rollcallv1.RegisterServicesRequest, fence *rollcallv1.WriteFence) (fsm.Answer, error) {
	if fence.Epoch != l.Epoch {
		return fsm.Answer{}, &fsm.StaleEpochError{Epoch: l.Epoch}
	}
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
	if count, size := len(req.Ids), proto.Size(req); count > rollcallv1.MaxServicesPerCall || size > rollcallv1.MaxBytesPerCall {
		return fsm.Answer{}, &tooLargeError{count, size}
	}
	if err := authorizeWriter(ctx, req.GetWriter()); err != nil {
		return fsm.Answer{}, err
	}
	vs, fence := checkWriter(req.Writer, l)
	seen := make(map[string]int, len(req.Ids))
	for i, id := range req.Ids {
		field := fmt.Sprintf("ids[%d]", i)
		if err := rollcallv1.CheckDNSLabel(id); err != nil {
			vs = append(vs, rollcallv1.Violation{Field: field, Description: err.Error()})
		}
		if first, ok := seen[id]; ok {
			vs = append(vs, rollcallv1.Violation{Field: field, Description: fmt.Sprintf("%q stands in ids[%d] already", id, first)})
		} else {
			seen[id] = i
		}
	}
	if len(req.Ids) == 0 {
		vs = append(vs, rollcallv1.Violation{Field: "ids", Description: "is empty; name at least one service"})
	}
	if req.Force && req.GetWriter().GetOwner().GetKind() != rollcallv1.OwnerKind_OWNER_KIND_OPERATOR {
		vs = append(vs, rollcallv1.Violation{Field: "force", Description: "is for operators only"})
	}
	if len(vs) > 0 {
		return fsm.Answer{}, &invalidError{vs}
	}
	if fence.Epoch != l.Epoch {
		return fsm.Answer{}, &fsm.StaleEpochError{Epoch: l.Epoch}
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
	if err == nil && l.ctx.Err() != nil {
		err = errLostLeadership // a restore may have replaced the directory after the caller's read
	}
	if !errors.Is(err, errLostLeadership) {
		return err
	}
	if _, err := n.established(); err != nil {
		return err
	}
	return errNotEstablished
}
