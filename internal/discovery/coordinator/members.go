package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	observePeriod = 5 * time.Second
	changeTimeout = 5 * time.Second
	// peerInfoTTL is how long a voter's reported version is valid, because the voter may restart as an older version.
	peerInfoTTL = 2 * observePeriod
)

// promotionQueue is a leader's state of the nodes that will vote once they have caught up. It is lost with the
// leadership. The nodes have recorded that they will vote, and ask again.
type promotionQueue struct {
	// turn is held by the one request that is being served, because serving it uses the network.
	turn chan struct{}
	// caught is the index that a node must have in its log before it may vote: the leader's commit index when the node
	// first asked.
	caught map[string]uint64
}

func newPromotionQueue() promotionQueue {
	return promotionQueue{turn: make(chan struct{}, 1), caught: make(map[string]uint64)}
}

// serveRejoin serves PeerService.Rejoin on an established leader. It verifies the
// request with the member itself, at the member's known address.
func (n *Node) serveRejoin(ctx context.Context, l *leader, r *raft.Raft, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	select {
	case l.promotionQueue.turn <- struct{}{}:
		defer func() { <-l.promotionQueue.turn }()
	case <-ctx.Done():
		return nil, status.Errorf(codes.Unavailable, "another member is being served: %v", context.Cause(ctx))
	}
	if req.Node == n.cfg.ID {
		return nil, status.Errorf(codes.FailedPrecondition, "%s leads, and has not lost its disk; two nodes with one id?", req.Node)
	}
	member, ok := find(r, raft.ServerID(req.Node))
	if !ok {
		return nil, status.Errorf(codes.NotFound, "an operator must add it: rollcall cluster add %s %s", req.Node, req.Address)
	}
	at := n.peers.address(member)
	d := n.peers.describe(ctx, []raft.Server{member}, peerTimeout)[member.ID]
	switch {
	case d == nil:
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s asks from %s but does not answer at %s; if it has moved: rollcall cluster add %[1]s %[2]s", req.Node, req.Address, at)
	case req.Empty && (d.HasState || d.Cluster != ""):
		return nil, status.Errorf(codes.FailedPrecondition, "%s at %s has not lost its disk; two nodes with one id?", req.Node, at)
	case req.Empty:
		return n.admitWithoutVote(ctx, l, r, member)
	case member.Suffrage == raft.Voter:
		delete(l.promotionQueue.caught, req.Node)
		return &rollcallv1.RejoinResponse{MayStart: true, Voter: true}, nil
	case d.Cluster != n.identity():
		return nil, &foreignClusterError{expected: n.identity(), actual: d.Cluster}
	case !d.Rejoining:
		return nil, status.Errorf(codes.FailedPrecondition, "%s at %s does not wait for a vote", req.Node, at)
	}
	need, asked := l.promotionQueue.caught[req.Node]
	if !asked {
		// All entries that it may have acknowledged before it lost its disk are at or below this index.
		need = r.CommitIndex()
		l.promotionQueue.caught[req.Node] = need
	}
	if d.CommitIndex < need {
		return &rollcallv1.RejoinResponse{MayStart: true}, nil
	}
	if err := r.AddVoter(member.ID, member.Address, 0, changeTimeout).Error(); err != nil {
		return nil, membershipError("give "+req.Node+" its vote", err)
	}
	delete(l.promotionQueue.caught, req.Node)
	n.log.Info("member has caught up and votes", "member", req.Node)
	return &rollcallv1.RejoinResponse{MayStart: true, Voter: true}, nil
}

// admitWithoutVote adds a member with an empty disk as a non-voter, because its earlier votes and acknowledgements may
// have been lost with its disk.
func (n *Node) admitWithoutVote(ctx context.Context, l *leader, r *raft.Raft, member raft.Server) (*rollcallv1.RejoinResponse, error) {
	id := string(member.ID)
	delete(l.promotionQueue.caught, id) // its log is gone
	if member.Suffrage == raft.Voter {
		if err := n.notifyMembership(ctx, member, true); err != nil {
			return nil, err
		}
		n.log.Warn("member starts with an empty disk; it has lost its disk, or never started before. It votes once it has caught up", "member", id)
	}
	// Demote the member even if it has no vote here, because that configuration may not be committed yet, and may be
	// undone.
	if err := r.DemoteVoter(member.ID, 0, changeTimeout).Error(); err != nil {
		return nil, membershipError("take the vote of "+id, err)
	}
	if at := raft.ServerAddress(n.peers.address(member)); member.Address != at {
		if err := r.AddNonvoter(member.ID, at, 0, changeTimeout).Error(); err != nil {
			return nil, membershipError("change the address of "+id, err)
		}
	}
	return &rollcallv1.RejoinResponse{MayStart: true, Term: r.CurrentTerm(), Cluster: n.identity()}, nil
}

// notifyMembership reports to a node, before its membership changes, whether it will vote. It returns once the node
// has recorded that.
func (n *Node) notifyMembership(ctx context.Context, server raft.Server, vote bool) error {
	client, err := n.peers.client(server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	_, err = client.Invite(ctx, &rollcallv1.InviteRequest{Node: string(server.ID), Cluster: n.identity(), Vote: vote})
	if err != nil {
		return fmt.Errorf("tell %s at %s that its membership changes: %w", server.ID, n.peers.address(server), err)
	}
	return nil
}

func find(r *raft.Raft, id raft.ServerID) (raft.Server, bool) {
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// membershipError classifies Raft's errors of a membership change whose outcome may be unknown.
func membershipError(what string, err error) error {
	if applied := applyError(err); errors.Is(applied, errNotEstablished) {
		return fmt.Errorf("%s: %w", what, applied)
	}
	return fmt.Errorf("%s: %w", what, &unknownError{err})
}

// leaderlessRounds is after how many rounds without a leader a node checks whether its peers belong to another cluster.
const leaderlessRounds = 3

// observeMembers refreshes the members' descriptions: the leader's client address for Ping, the command versions for
// the proposer, the static fleet's size for the operator.
func (n *Node) observeMembers(ctx context.Context, r *raft.Raft) error {
	changed := make(chan raft.Observation, 8)
	o := raft.NewObserver(changed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.RegisterObserver(o)
	defer r.DeregisterObserver(o)
	tick := time.NewTicker(observePeriod)
	defer tick.Stop()
	warned := make(map[string]uint32)
	leaderless := 0 // rounds in a row
	for {
		servers := r.GetConfiguration().Configuration().Servers
		if len(servers) == 0 { // the node was admitted, and has received no log yet
			servers = n.configured()
		}
		answers := n.peers.describe(ctx, without(servers, n.cfg.ID), peerTimeout)
		_, leader := r.LeaderWithID()
		if string(leader) == n.cfg.ID {
			if err := n.checkRivals(r, answers); err != nil {
				return err
			}
		}
		if leaderless++; leader != "" {
			leaderless = 0
		}
		if leaderless >= leaderlessRounds {
			if err := n.checkCluster(answers); err != nil {
				return err
			}
		}
		if leader != "" && string(leader) != n.cfg.ID {
			if d := n.peers.peerInfoOf(string(leader)); d != nil && d.RelayerCount != uint32(n.cfg.RelayerCount) && warned[string(leader)] != d.RelayerCount+1 {
				warned[string(leader)] = d.RelayerCount + 1
				n.log.Warn("the leader was started with another RELAYER_COUNT", "leader", leader, "its", d.RelayerCount, "own", n.cfg.RelayerCount)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-changed:
		}
	}
}

// commandVersion returns the newest command version, up to own, that every voter is known to support.
func (n *Node) commandVersion(r *raft.Raft, own uint32) uint32 {
	version := own
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == n.cfg.ID {
			continue
		}
		d := n.peers.peerInfoRefresh(string(s.ID), peerInfoTTL)
		if d == nil {
			return 1 // it may be of the first version
		}
		version = min(version, max(d.CommandVersion, 1))
	}
	return version
}

// tolerance returns the number of voters, and how many of those that answer may fail while a quorum is left.
func (n *Node) tolerance(r *raft.Raft) (voters, tolerance int) {
	answering := 0
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if d := n.peers.peerInfoRefresh(string(s.ID), peerInfoTTL); string(s.ID) == n.cfg.ID || d != nil && d.Cluster == n.identity() {
			answering++
		}
	}
	return voters, max(0, answering-(voters/2+1))
}

// sinceVersion returns the command version that added an operation. An operation without a case here belongs to no
// version yet, and is never proposed.
func sinceVersion(op *rollcallv1.Operation) uint32 {
	switch kind := op.Kind.(type) {
	case *rollcallv1.Operation_LeaderEstablished, *rollcallv1.Operation_Register, *rollcallv1.Operation_Deregister:
		return 1
	case *rollcallv1.Operation_StageImport:
		return importVersion
	case *rollcallv1.Operation_FinishImport:
		if !kind.FinishImport.Apply {
			return 1 // a voter that cannot read it has stopped at the staged parts before
		}
		return importVersion
	default:
		return fsm.CommandVersion + 1
	}
}

// checkCommandVersion refuses an operation that an older voter would stop at.
func (n *Node) checkCommandVersion(r *raft.Raft, needed uint32) error {
	if needed <= 1 {
		return nil // every version supports the first commands
	}
	if has := n.commandVersion(r, fsm.CommandVersion); has < needed {
		for _, s := range without(r.GetConfiguration().Configuration().Servers, n.cfg.ID) {
			if s.Suffrage == raft.Voter && n.peers.peerInfoRefresh(string(s.ID), peerInfoTTL) == nil {
				return status.Errorf(codes.FailedPrecondition,
					"%[1]s has not answered for %[2]v, and a version of it that cannot read this would stop at it; nothing was changed; start it, or take it out: rollcall cluster remove %[1]s",
					s.ID, peerInfoTTL)
			}
		}
		return status.Errorf(codes.FailedPrecondition,
			"a voter understands commands only up to version %d and this needs %d; upgrade every coordinator first", has, needed)
	}
	return nil
}

// notes returns the differences between members that are relevant to an operator.
func (n *Node) notes(r *raft.Raft) []string {
	var notes []string
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if string(s.ID) == n.cfg.ID {
			continue
		}
		if d := n.peers.peerInfoOf(string(s.ID)); d != nil && d.RelayerCount != uint32(n.cfg.RelayerCount) {
			notes = append(notes, fmt.Sprintf("%s was started with RELAYER_COUNT=%d, the leader with %d", s.ID, d.RelayerCount, n.cfg.RelayerCount))
		}
	}
	return notes
}
