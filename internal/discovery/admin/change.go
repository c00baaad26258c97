package admin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// change calls the leader to change the cluster. A call that was certainly not done, because that node does not lead, is
// retried on the next one. A call that may have been done is a [gateway.UnknownOutcomeError]. The timeout limits all but the
// calls, which only ctx limits.
func (a *Admin) change(ctx context.Context, call func(context.Context, rollcallv1.ClusterServiceClient, ...grpc.CallOption) error) error {
	limit := time.Now().Add(a.timeout)
	for {
		searching, cancel := context.WithDeadline(ctx, limit)
		conn, _, err := a.client.LeaderConn(searching)
		cancel()
		if err != nil {
			return err
		}
		var to peer.Peer // filled in once the call is on its way
		began := time.Now()
		raw := call(ctx, rollcallv1.NewClusterServiceClient(conn), grpc.Peer(&to))
		limit = limit.Add(time.Since(began))
		err = gateway.FromStatus(raw)
		_, notLeader := errors.AsType[*gateway.NotLeaderError](err)
		if notLeader || errors.Is(err, gateway.ErrNotEstablished) {
			if !time.Now().Before(limit) { // a known leader is returned without a search
				return err
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(leaderPause):
			}
			continue
		}
		if cause, lost := brokenOff(raw); lost && to.Addr != nil {
			return &gateway.UnknownOutcomeError{Cause: cause, Err: err}
		}
		return err
	}
}

// leaderPause is the time between two calls to a leader that refuses them.
const leaderPause = 100 * time.Millisecond

// brokenOff reports whether a call ended without an answer, and why. A coordinator's own refusals are other errors once gateway
// has restored them.
func brokenOff(raw error) (cause string, lost bool) {
	err := gateway.FromStatus(raw)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err.Error(), true
	}
	s := status.Convert(err)
	return s.Message(), s.Code() == codes.Unavailable
}
