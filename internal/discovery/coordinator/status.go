package coordinator

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxStatus is the maximum size of a GetStatus response. At about 130 bytes per service, a million services fit.
const maxStatus = 256 << 20

// Status returns the leader's status. A follower requests it from the leader.
func (n *Node) Status(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
	raw, err := n.leaderStatus()
	if elsewhere, ok := errors.AsType[*notLeaderError](err); ok && elsewhere.leader != nil {
		conn, err := n.peers.conn(elsewhere.leader.Address)
		if err != nil {
			return nil, err
		}
		return rollcallv1.NewDiscoveryServiceClient(conn).GetStatus(ctx, &rollcallv1.GetStatusRequest{}, grpc.MaxCallRecvMsgSize(maxStatus))
	}
	if err != nil {
		return nil, err
	}
	status := new(rollcallv1.GetStatusResponse)
	if err := proto.Unmarshal(raw, status); err != nil {
		return nil, fmt.Errorf("decode the status: %w", err)
	}
	return status, nil
}

// HasLeader reports whether this node has a leader, possibly itself. The leader may be unreachable.
func (n *Node) HasLeader() bool { return n.leaderHint() != nil }
