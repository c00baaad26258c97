package coordinator

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxStatus is the maximum size of a GetStatus response. At about 130 bytes per service, a million services fit.
const maxStatus = 256 << 20

// Status returns the leader's status. A follower requests it from the leader.
func (n *Node) Status(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
	s, err := n.leaderStatus()
	if elsewhere, ok := errors.AsType[*notLeaderError](err); ok && elsewhere.leader != nil {
		conn, err := n.peers.conn(elsewhere.leader.Address)
		if err != nil {
			return nil, err
		}
		return rollcallv1.NewDiscoveryServiceClient(conn).GetStatus(ctx, &rollcallv1.GetStatusRequest{}, grpc.MaxCallRecvMsgSize(maxStatus))
	}
	return s, err
}

// HasLeader reports whether this node has a leader, possibly itself. The leader may be unreachable.
func (n *Node) HasLeader() bool { return n.leaderHint() != nil }
