package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
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
	to, err := n.successors(ctx, r, req.To)
	if err != nil {
		return nil, err
	}
	switch err := n.transfer(ctx, r, to); {
	case err == nil:
		return &rollcallv1.TransferLeadershipResponse{}, nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return nil, status.Errorf(codes.Aborted, "leadership not handed over: %v", err)
	default:
		return nil, toStatus(err)
	}
}

// handOver gives the leadership to another voter, if there is one, before this node stops. A transfer that hangs is
// left behind; it ends with Raft, which is shut down next.
func (n *Node) handOver(r *raft.Raft) {
	if r.State() != raft.Leader || len(n.otherVoters(r, "")) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), transferLimit)
	defer cancel()
	to, err := n.successors(ctx, r, "")
	if err == nil {
		err = n.transfer(ctx, r, to)
	}
	switch {
	case err == nil:
		n.log.Info("leadership handed over")
	case r.State() != raft.Leader:
		// Whoever was told to stand for election may have won after Raft stopped waiting for it.
		n.log.Info("leadership gone while it was handed over", "err", err)
	default:
		n.log.Warn("leadership not handed over", "err", err)
	}
}

// transfer hands the leadership to one of the voters, which are asked in turn while there is time: the connection to
// a node that has restarted shows only when it is used that it is dead. One that let a transfer run out is not asked
// again until it has caught up, see slowTakers.
//
// It returns raft.ErrNotLeader or raft.ErrLeadershipTransferInProgress where no voter was asked, and an *unknownError
// where one may still take over.
func (n *Node) transfer(ctx context.Context, r *raft.Raft, to []raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	policy := retryPolicy()
	asked := false
	for {
		next := to[0]
		began := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- r.LeadershipTransferToServer(next.ID, raft.ServerAddress(n.peers.address(next))).Error()
		}()
		var err error
		select {
		case err = <-done:
		case <-ctx.Done():
			return &unknownError{context.Cause(ctx)}
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			asked = true
			// The other node may have been told to stand for election, and win after Raft stopped waiting for it.
			if _, now := r.LeaderWithID(); now == next.ID {
				return nil
			}
		}
		to = to[1:]
		if time.Since(began) < n.cfg.Timing.Election {
			to = append(to, next)
		} else {
			n.slowTakers.add(next.ID, n.machine.State().Index())
		}
		if len(to) == 0 || r.State() != raft.Leader || sleep(ctx, policy.NextBackOff()) != nil {
			if asked {
				return &unknownError{err}
			}
			return err
		}
	}
}

// successors are the voters that may take the leadership, of those that answer now, the one with the most of the log
// first; name leaves only that one, if it is not empty. Raft would pick one by the log alone.
func (n *Node) successors(ctx context.Context, r *raft.Raft, name string) ([]raft.Server, error) {
	others := n.otherVoters(r, name)
	switch {
	case name != "" && len(others) == 0:
		return nil, status.Errorf(codes.NotFound, "%q is not a voter", name)
	case len(others) == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "%s is the only voter; there is none to hand the leadership over to", n.cfg.ID)
	}
	facts := n.peers.describe(ctx, others, peerTimeout)
	answering := slices.DeleteFunc(others, func(s raft.Server) bool { return facts[s.ID] == nil })
	if len(answering) == 0 {
		if name != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "%s does not answer; bring it back first, or hand the leadership to another", name)
		}
		return nil, status.Error(codes.FailedPrecondition, "none of the other voters answers; bring one back first")
	}
	able := slices.DeleteFunc(answering, func(s raft.Server) bool { return n.slowTakers.has(s.ID, facts[s.ID].AppliedIndex) })
	if len(able) == 0 {
		return nil, status.Error(codes.FailedPrecondition,
			"no voter that answers has caught up since it last let a transfer run out; try again when rollcall cluster status shows that one has")
	}
	slices.SortStableFunc(able, func(a, b raft.Server) int {
		return cmp.Compare(facts[b.ID].AppliedIndex, facts[a.ID].AppliedIndex)
	})
	return able, nil
}

// slowTakers are the voters that let a transfer run out, with what had been applied by then. What replicates to such a
// voter, which may be waiting for seconds before it tries again, has not seen the first transfer yet; Raft would wait
// for it with a second one for ever, and refuse writes whenever this node leads (hashicorp/raft #696). That the voter
// has caught up shows that it is over.
type slowTakers struct {
	mu      sync.Mutex
	applied map[raft.ServerID]uint64
}

func (s *slowTakers) add(id raft.ServerID, applied uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied == nil {
		s.applied = make(map[raft.ServerID]uint64)
	}
	s.applied[id] = applied
}

// has says whether the voter is one of them, and forgets it once it has applied enough.
func (s *slowTakers) has(id raft.ServerID, applied uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	least, ok := s.applied[id]
	if ok && applied >= least {
		delete(s.applied, id)
		return false
	}
	return ok
}

// otherVoters are the members with a vote, without this node; name leaves only that one, if it is not empty.
func (n *Node) otherVoters(r *raft.Raft, name string) (others []raft.Server) {
	for _, s := range without(r.GetConfiguration().Configuration().Servers, n.cfg.ID) {
		if s.Suffrage == raft.Voter && (name == "" || string(s.ID) == name) {
			others = append(others, s)
		}
	}
	return others
}
