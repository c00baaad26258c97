package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func (n cluster) TransferLeadership(ctx context.Context, req *rollcallv1.TransferLeadershipRequest) (*rollcallv1.TransferLeadershipResponse, error) {
	_, r, err := n.leading()
	if err != nil {
		return nil, toStatus(err)
	}
	if req.To == n.cfg.ID {
		return &rollcallv1.TransferLeadershipResponse{}, nil
	}
	to := n.otherVoters(r)
	if req.To != "" {
		to = slices.DeleteFunc(to, func(s raft.Server) bool { return string(s.ID) != req.To })
	}
	switch {
	case len(to) > 0:
	case req.To != "":
		return nil, status.Errorf(codes.NotFound, "%q is not a voter", req.To)
	default:
		return nil, status.Errorf(codes.FailedPrecondition, "%s is the only voter; there is none to hand the leadership over to", n.cfg.ID)
	}
	err = n.transfer(ctx, r, to)
	if _, unknown := errors.AsType[*unknownError](err); err != nil && !unknown {
		code := codes.Aborted
		if errors.Is(err, errNotCaughtUp) {
			code = codes.FailedPrecondition
		}
		return nil, status.Errorf(code, "leadership not handed over: %v", err)
	}
	return &rollcallv1.TransferLeadershipResponse{}, toStatus(err)
}

// handOver transfers the leadership to another voter, if there is one, before this node stops.
func (n *Node) handOver(r *raft.Raft) {
	others := n.otherVoters(r)
	if len(others) == 0 || r.State() != raft.Leader {
		return
	}
	switch err := n.transfer(context.Background(), r, others); {
	case err == nil:
		n.log.Info("leadership handed over")
	case r.State() != raft.Leader:
		// The chosen voter may have won its election after Raft stopped waiting for it.
		n.log.Info("leadership gone while it was handed over", "err", err)
	default:
		n.log.Warn("leadership not handed over", "err", err)
	}
}

// errNotCaughtUp reports that no voter accepts Raft's messages.
var errNotCaughtUp = errors.New("does not answer, or has not caught up since it was away; rollcall cluster status shows when it has")

// transfer hands the leadership to one of the voters. It tries them in turn until transferLimit, because a dead
// connection to a restarted voter shows only when it is used.
//
// An *unknownError means that a voter may still take over. Any other error means that none will: errNotCaughtUp if
// none could be asked, otherwise Raft's error.
func (n *Node) transfer(ctx context.Context, r *raft.Raft, voters []raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	policy := retryPolicy()
	asked := make(map[raft.ServerID]int)
	for {
		to, err := n.ask(ctx, r, voters, asked)
		switch {
		case err == nil:
			return nil
		case to != "":
			asked[to]++
		}
		// The chosen voter may win its election after Raft stopped waiting for it.
		if _, now := r.LeaderWithID(); asked[now] > 0 {
			return nil
		}
		if r.State() != raft.Leader || sleep(ctx, policy.NextBackOff()) != nil {
			if len(asked) > 0 {
				return &unknownError{err}
			}
			return err
		}
	}
}

// ask makes Raft transfer the leadership to the first of the voters that were asked least often. to is empty if no
// voter was asked. A hung transfer is abandoned; it ends with Raft.
//
// Raft waits until the replication to the voter has taken the transfer's notice. If that takes longer than an
// election, the notice remains, and Raft would block on the next one, forever if the leadership ends first. It would
// then refuse writes whenever this node leads (hashicorp/raft #696). So only voters that keep up are asked, one at a
// time.
func (n *Node) ask(ctx context.Context, r *raft.Raft, voters []raft.Server, asked map[raft.ServerID]int) (to raft.ServerID, err error) {
	select {
	case n.transferring <- struct{}{}:
	case <-ctx.Done():
		return "", raft.ErrLeadershipTransferInProgress
	}
	able := n.replication.caughtUpVoters(r.CurrentTerm(), voters, n.cfg.Timing.Election)
	if len(able) == 0 {
		<-n.transferring
		return "", fmt.Errorf("%s %w", names(voters), errNotCaughtUp)
	}
	next := slices.MinFunc(able, func(a, b raft.Server) int { return cmp.Compare(asked[a.ID], asked[b.ID]) })
	done := make(chan error, 1)
	go func() {
		began := time.Now()
		err := r.LeadershipTransferToServer(next.ID, raft.ServerAddress(n.peers.address(next))).Error()
		if time.Since(began) >= n.cfg.Timing.Election {
			n.replication.transferTimedOut(next.ID)
		}
		<-n.transferring
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		return next.ID, context.Cause(ctx)
	}
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) || errors.Is(err, raft.ErrEnqueueTimeout) {
		return "", err
	}
	return next.ID, err
}

func names(servers []raft.Server) string {
	ids := make([]string, len(servers))
	for i, s := range servers {
		ids[i] = string(s.ID)
	}
	return strings.Join(ids, ", ")
}

// otherVoters returns the members with a vote, except this node.
func (n *Node) otherVoters(r *raft.Raft) (others []raft.Server) {
	for _, s := range without(r.GetConfiguration().Configuration().Servers, n.cfg.ID) {
		if s.Suffrage == raft.Voter {
			others = append(others, s)
		}
	}
	return others
}
