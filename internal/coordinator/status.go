package coordinator

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxStatus bounds an answer of GetStatus. It is about 130 bytes a service: a million fit.
const maxStatus = 256 << 20

// Status is the leader's GetStatusResponse as it is encoded, asked from the leader where this node follows. Nobody here
// takes it apart: decoded, ten thousand services are fifty thousand allocations.
func (n *Node) Status(ctx context.Context) ([]byte, error) {
	s, err := n.leaderStatus()
	if err == nil {
		return proto.Marshal(s)
	}
	elsewhere, ok := errors.AsType[*notLeaderError](err)
	if !ok || elsewhere.leader == nil {
		return nil, err
	}
	conn, err := n.peers.conn(elsewhere.leader.Address)
	if err != nil {
		return nil, err
	}
	var answer encoded
	err = conn.Invoke(ctx, rollcallv1.DiscoveryService_GetStatus_FullMethodName, &rollcallv1.GetStatusRequest{}, &answer,
		grpc.ForceCodecV2(relay{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(maxStatus))
	return answer, err
}

// Led reports whether this node knows a leader, itself included. That one may not answer.
func (n *Node) Led() bool { return n.leaderHint() != nil }

// relay sends messages as ever and leaves what comes back encoded.
type relay struct{ encoding.CodecV2 }

type encoded []byte

func (relay) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*encoded) = data.Materialize()
	return nil
}
