package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/cli"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// fickle is a leader that does not know what becomes of a transfer.
type fickle struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	rollcallv1.UnimplementedClusterServiceServer
	address string
	next    string // leads after the transfer, if anybody does
	asked   atomic.Bool
}

func (f *fickle) Ping(context.Context, *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	node, epoch := "coordinator-1", uint64(5)
	if f.asked.Load() && f.next != "" {
		node, epoch = f.next, 6
	}
	return &rollcallv1.PingResponse{
		Cluster: "c", Epoch: epoch, Node: node, Leader: &rollcallv1.Leader{Node: node, Address: f.address, ClientAddress: f.address},
	}, nil
}

func (f *fickle) TransferLeadership(context.Context, *rollcallv1.TransferLeadershipRequest) (*rollcallv1.TransferLeadershipResponse, error) {
	f.asked.Store(true)
	s, err := status.New(codes.Unknown, "the outcome is unknown").WithDetails(&rollcallv1.UnknownOutcome{Cause: "leadership transfer timeout"})
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}

// A transfer that Raft gave up on may still happen: the command looks who leads, and says what it saw.
func TestClusterTransfer_OutcomeUnknown_ReportsTheLeader(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		next   string
		code   int
		output string
	}{
		"it happened":          {"coordinator-2", 0, "coordinator-2 leads, epoch 6\n"},
		"another member leads": {"coordinator-3", cli.ExitNotDone, "rollcall cluster transfer: not done: coordinator-3 leads, epoch 6"},
		"no other leader soon": {"", cli.ExitUnknown, "rollcall cluster transfer: may be done or not: coordinator-1 leads as far as is known, epoch 5, and may hand over yet (leadership transfer timeout); if it stays the leader, repeat the transfer\nLook before you repeat it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			server := grpc.NewServer()
			fake := &fickle{address: listener.Addr().String(), next: tc.next}
			rollcallv1.RegisterDiscoveryServiceServer(server, fake)
			rollcallv1.RegisterClusterServiceServer(server, fake)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			r := rollcall(t, "cluster", "transfer", "coordinator-2", "--coordinators", fake.address)
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Contains(t, r.stdout+r.stderr, tc.output)
		})
	}
}
