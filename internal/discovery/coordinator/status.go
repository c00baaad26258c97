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

// maxStatus bounds an answer of GetStatus. It is about 130 bytes a service: a million fit.
const maxStatus = 256 << 20

// Status appends to b the leader's GetStatusResponse as it is encoded, asked from the leader where this node follows.
// Nobody here takes it apart: decoded, ten thousand services are fifty thousand allocations.
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

// HasLeader reports whether this node knows a leader, itself included. That one may not answer.
func (n *Node) HasLeader() bool { return n.leaderHint() != nil }

// relay sends messages as ever, and leaves what comes back encoded.
type relay struct{ encoding.CodecV2 }

// encoded is a message. It is appended to what is there.
type encoded []byte

func (relay) Unmarshal(data mem.BufferSlice, v any) error {
	b, size := v.(*encoded), data.Len()
	*b = slices.Grow(*b, size)
	*b = (*b)[:len(*b)+size]
	data.CopyTo((*b)[len(*b)-size:])
	return nil
}
