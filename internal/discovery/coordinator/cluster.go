package coordinator

import (
	"context"
	"fmt"
	"net"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// cluster serves ClusterService.
type cluster struct {
	rollcallv1.UnimplementedClusterServiceServer
	*Node
}

// leading returns the leadership and Raft, or a refusal.
func (n *Node) leading() (*leader, *raft.Raft, error) {
	l, err := n.established()
	if err != nil {
		return nil, nil, err
	}
	r := n.raft.Load()
	if r == nil {
		return nil, nil, errStopping
	}
	return l, r, nil
}

func (n cluster) ListMembers(ctx context.Context, _ *rollcallv1.ListMembersRequest) (*rollcallv1.ListMembersResponse, error) {
	r := n.raft.Load()
	if r == nil {
		return nil, status.Error(codes.Unavailable, "this node is not part of a cluster yet")
	}
	servers := r.GetConfiguration().Configuration().Servers
	facts := n.peers.describe(ctx, without(servers, n.cfg.ID), peerTimeout)
	facts[raft.ServerID(n.cfg.ID)] = n.describe()
	s := n.machine.State()
	resp := &rollcallv1.ListMembersResponse{Cluster: s.Cluster(), Epoch: s.Epoch()}
	for _, srv := range servers {
		m := &rollcallv1.Member{Id: string(srv.ID), Address: n.peers.address(srv), Suffrage: rollcallv1.Suffrage_SUFFRAGE_NON_VOTER}
		if srv.Suffrage == raft.Voter {
			m.Suffrage = rollcallv1.Suffrage_SUFFRAGE_VOTER
		}
		if d := facts[srv.ID]; d != nil && (d.Cluster == "" || d.Cluster == n.identity()) {
			m.Reachable, m.Leader, m.Term, m.AppliedIndex = true, d.Leader, d.Term, d.AppliedIndex
			m.CommandVersion, m.Version, m.RelayerCount = d.CommandVersion, d.Version, d.RelayerCount
			m.ClientAddress, m.HttpAddress = d.ClientAddress, d.HttpAddress
		}
		resp.Members = append(resp.Members, m)
	}
	return resp, nil
}

func (n cluster) AddMember(ctx context.Context, req *rollcallv1.AddMemberRequest) (*rollcallv1.AddMemberResponse, error) {
	var vs []rollcallv1.Violation
	if err := rollcallv1.CheckDNSLabel(req.Id); err != nil {
		vs = append(vs, rollcallv1.Violation{Field: "id", Description: err.Error()})
	}
	if _, port, err := net.SplitHostPort(req.Address); err != nil || port == "" {
		vs = append(vs, rollcallv1.Violation{Field: "address", Description: fmt.Sprintf("%q is not host:port", req.Address)})
	}
	if len(vs) > 0 {
		return nil, toStatus(&invalidError{vs})
	}
	_, r, err := n.leading()
	if err != nil {
		return nil, toStatus(err)
	}
	server := raft.Server{ID: raft.ServerID(req.Id), Address: raft.ServerAddress(req.Address)}
	if known := n.peers.address(server); known != req.Address {
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s is at %s by the peer list that the coordinators were started with, which counts for more than %s; change it there and restart them one by one",
			req.Id, known, req.Address)
	}
	member, present := find(r, server.ID)
	voter := present && member.Suffrage == raft.Voter
	if voter && !req.NonVoter && member.Address == server.Address {
		return &rollcallv1.AddMemberResponse{Index: n.machine.State().Index()}, nil
	}
	// A voter that does not respond, or follows another cluster, could cost this cluster its quorum, so the node is
	// identified first.
	d := n.peers.describe(ctx, []raft.Server{server}, peerTimeout)[server.ID]
	if err := n.mayJoin(server, d); err != nil {
		return nil, toStatus(err)
	}
	if voter && req.NonVoter {
		if req.Id == n.cfg.ID {
			return nil, status.Errorf(codes.FailedPrecondition, "%s leads; hand the leadership over first: rollcall cluster transfer", req.Id)
		}
		if err := n.checkQuorumWithout(ctx, r, req.Id); err != nil {
			return nil, err
		}
	}
	// The node records whether it will vote before the membership changes. A new node starts without a vote, and
	// requests it once it has caught up.
	if err := n.notifyMembership(ctx, server, !req.NonVoter); err != nil {
		return nil, toStatus(err)
	}
	if voter && req.NonVoter {
		if err := r.DemoteVoter(server.ID, 0, changeTimeout).Error(); err != nil {
			return nil, toStatus(membershipError("take the vote of "+req.Id, err))
		}
		voter = false
	}
	change := r.AddNonvoter
	if voter {
		change = r.AddVoter // it has a new address
	}
	f := change(server.ID, server.Address, 0, changeTimeout)
	if err := f.Error(); err != nil {
		return nil, toStatus(membershipError("add "+req.Id, err))
	}
	n.log.Info("member added", "member", req.Id, "address", req.Address, "voter", !req.NonVoter)
	return &rollcallv1.AddMemberResponse{Index: f.Index()}, nil
}

// mayJoin refuses a node that is unreachable or follows another cluster. d is the node's description of itself.
func (n *Node) mayJoin(s raft.Server, d *rollcallv1.DescribeResponse) error {
	switch {
	case d == nil:
		return status.Errorf(codes.FailedPrecondition, "no coordinator %q answers at %s; start it there first, naming this cluster's coordinators as its peers", s.ID, s.Address)
	case d.Cluster != "" && d.Cluster != n.identity():
		return &foreignClusterError{expected: n.identity(), actual: d.Cluster}
	}
	return nil
}

func (n cluster) RemoveMember(ctx context.Context, req *rollcallv1.RemoveMemberRequest) (*rollcallv1.RemoveMemberResponse, error) {
	_, r, err := n.leading()
	if err != nil {
		return nil, toStatus(err)
	}
	member, ok := find(r, raft.ServerID(req.Id))
	if !ok {
		return nil, status.Errorf(codes.NotFound, "%q is not a member", req.Id)
	}
	if member.Suffrage == raft.Voter {
		if err := n.checkQuorumWithout(ctx, r, req.Id); err != nil {
			return nil, err
		}
	}
	f := r.RemoveServer(member.ID, 0, changeTimeout)
	if err := f.Error(); err != nil {
		return nil, toStatus(membershipError("remove "+req.Id, err))
	}
	n.log.Info("member removed", "member", req.Id)
	return &rollcallv1.RemoveMemberResponse{Index: f.Index()}, nil
}

// checkQuorumWithout refuses the removal of a voter if the remaining voters could not form a quorum now.
func (n *Node) checkQuorumWithout(ctx context.Context, r *raft.Raft, id string) error {
	voters, reachable := 0, 0
	var others []raft.Server
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == id {
			continue
		}
		voters++
		if string(s.ID) == n.cfg.ID {
			reachable++
		} else {
			others = append(others, s)
		}
	}
	for _, d := range n.peers.describe(ctx, others, peerTimeout) {
		if d.Cluster == n.identity() { // a node with another log refuses this one's entries
			reachable++
		}
	}
	if voters == 0 || reachable < voters/2+1 {
		return status.Errorf(codes.FailedPrecondition,
			"without %s %d of %d voters would answer, which is no quorum; bring the others back first", id, reachable, voters)
	}
	return nil
}
