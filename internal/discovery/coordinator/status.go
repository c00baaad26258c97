package coordinator

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxStatus is the maximum size of a GetStatus response. At about 130 bytes per service, a million services fit.
const maxStatus = 256 << 20

// Status appends the leader's encoded GetStatusResponse to b. A follower requests it from the leader. This node does
// not decode it, because ten thousand decoded services are fifty thousand allocations.
func (n *Node) Status(ctx context.Context, b []byte) ([]byte, error) {
	b, err := n.leaderStatus(b)
	elsewhere, ok := errors.AsType[*notLeaderError](err)
	if !ok || elsewhere.leader == nil {
		return b, err
	}
	conn, err := n.peers.conn(elsewhere.leader.Address)
	if err != nil {
		return b, err
	}
	err = conn.Invoke(ctx, rollcallv1.DiscoveryService_GetStatus_FullMethodName, &rollcallv1.GetStatusRequest{}, (*encoded)(&b),
		grpc.ForceCodecV2(relay{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(maxStatus))
	return b, err
}

// HasLeader reports whether this node has a leader, possibly itself. The leader may be unreachable.
func (n *Node) HasLeader() bool { return n.leaderHint() != nil }

// relay encodes requests as usual, and leaves responses encoded.
type relay struct{ encoding.CodecV2 }

// encoded is an encoded message. Unmarshal appends to it.
type encoded []byte

func (relay) Unmarshal(data mem.BufferSlice, v any) error {
	b, size := v.(*encoded), data.Len()
	*b = slices.Grow(*b, size)
	*b = (*b)[:len(*b)+size]
	data.CopyTo((*b)[len(*b)-size:])
	return nil
}
