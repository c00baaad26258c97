package coordinator

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// peer serves PeerService.
type peer struct {
	rollcallv1.UnimplementedPeerServiceServer
	*Node
}

func (n peer) ConfirmTerm(context.Context, *rollcallv1.ConfirmTermRequest) (*rollcallv1.ConfirmTermResponse, error) {
	r := n.raft.Load()
	if r == nil {
		return nil, toStatus(errNotEstablished)
	}
	return &rollcallv1.ConfirmTermResponse{Term: r.CurrentTerm()}, nil
}

func (n peer) Describe(context.Context, *rollcallv1.DescribeRequest) (*rollcallv1.DescribeResponse, error) {
	return n.describe(), nil
}

// describe is what the node says of itself.
func (n *Node) describe() *rollcallv1.DescribeResponse {
	s := n.machine.State()
	d := &rollcallv1.DescribeResponse{
		Node: n.cfg.ID, Cluster: s.Cluster(), Epoch: s.Epoch(), AppliedIndex: s.Index(),
		CommandVersion: fsm.CommandVersion, Version: n.cfg.Version, RelayerCount: uint32(n.cfg.RelayerCount),
		ClientAddress: n.cfg.AdvertiseClient, HttpAddress: n.cfg.HTTPAddress,
		Leader: n.reigning() != nil,
	}
	if r := n.raft.Load(); r != nil {
		d.HasState, d.Term = r.LastIndex() > bootstrapIndex, r.CurrentTerm()
		if addr, _ := r.LeaderWithID(); addr != "" {
			d.LeaderAddress = string(addr)
		}
	}
	return d
}

func (n peer) Rejoin(_ context.Context, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	l, err := n.established()
	if err != nil {
		return nil, toStatus(err)
	}
	r := n.raft.Load()
	if r == nil || r.State() != raft.Leader {
		return nil, toStatus(errNotEstablished)
	}
	resp, err := n.serveRejoin(l, r, req)
	return resp, toStatus(err)
}
