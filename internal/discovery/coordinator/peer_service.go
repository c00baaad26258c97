package coordinator

import (
	"context"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	return &rollcallv1.ConfirmTermResponse{Term: r.CurrentTerm(), Node: n.cfg.ID, Cluster: n.identity()}, nil
}

func (n peer) Describe(context.Context, *rollcallv1.DescribeRequest) (*rollcallv1.DescribeResponse, error) {
	return n.describe(), nil
}

// describe returns the node's description of itself.
func (n *Node) describe() *rollcallv1.DescribeResponse {
	s := n.machine.State()
	d := &rollcallv1.DescribeResponse{
		Node: n.cfg.ID, Cluster: n.identity(), ProposedCluster: n.proposed(), Epoch: s.Epoch(), AppliedIndex: s.Index(),
		CommandVersion: fsm.CommandVersion, Version: n.cfg.Version, RelayerCount: uint32(n.cfg.RelayerCount),
		ClientAddress: n.cfg.AdvertiseClient, HttpAddress: n.cfg.HTTPAddress,
		Leader: n.currentLeader() != nil, Rejoining: n.isRejoining(), HasState: n.hasHistory(),
		Peers: n.peerIDs(), BootstrapWithout: n.cfg.BootstrapWithout,
	}
	if r := n.raft.Load(); r != nil {
		d.Term, d.CommitIndex = r.CurrentTerm(), r.CommitIndex()
		if addr, _ := r.LeaderWithID(); addr != "" {
			d.LeaderAddress = string(addr)
		}
	}
	return d
}

// hasHistory reports whether the node holds more than every founder begins with. Raft takes long to read a long log,
// and a peer that lost its disk must not mistake that for a first start. So the stores are read as well. An unreadable
// store counts as a history.
func (n *Node) hasHistory() bool {
	if r := n.raft.Load(); r != nil {
		return r.LastIndex() > bootstrapIndex
	}
	last, err := n.stores.Log.LastIndex()
	if err != nil || last > bootstrapIndex {
		return true
	}
	snapshots, err := n.stores.Snapshots.List()
	return err != nil || len(snapshots) > 0
}

func (n peer) Rejoin(ctx context.Context, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	l, err := n.established()
	if err != nil {
		return nil, toStatus(err)
	}
	r := n.raft.Load()
	if r == nil || r.State() != raft.Leader {
		return nil, toStatus(errNotEstablished)
	}
	resp, err := n.serveRejoin(ctx, l, r, req)
	return resp, toStatus(err)
}

func (n peer) Invite(_ context.Context, req *rollcallv1.InviteRequest) (*rollcallv1.InviteResponse, error) {
	if req.Node != n.cfg.ID {
		return nil, status.Errorf(codes.NotFound, "this is %s, not %s", n.cfg.ID, req.Node)
	}
	if own := n.identity(); own != "" && own != req.Cluster {
		return nil, toStatus(&foreignClusterError{expected: req.Cluster, actual: own})
	}
	return &rollcallv1.InviteResponse{}, toStatus(n.setRejoining(req.Vote))
}
