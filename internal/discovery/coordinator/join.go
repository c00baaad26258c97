package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// joinPeriod is how often a node that has not joined yet asks again.
	joinPeriod   = 200 * time.Millisecond
	regainPeriod = time.Second
	peerTimeout  = time.Second
)

// The keys below are Raft's own keys for its term and its vote in the stable store.
var (
	keyCurrentTerm  = []byte("CurrentTerm")
	keyLastVoteTerm = []byte("LastVoteTerm")
	keyLastVoteCand = []byte("LastVoteCand")
)

// join starts Raft once that is safe. It is safe with state on disk. Without state, the node asks its peers first. If
// all founders have no state, they bootstrap together. If the cluster exists, this node has lost entries that it once
// acknowledged, and joins only after its vote was taken away.
func (n *Node) join(ctx context.Context) (*raft.Raft, <-chan bool, error) {
	has, err := raft.HasExistingState(n.stores.Log, n.stores.Stable, n.stores.Snapshots)
	if err != nil {
		return nil, nil, fmt.Errorf("read raft state: %w", err)
	}
	if has {
		if len(n.cfg.BootstrapWithout) > 0 {
			n.log.Error("bootstrap-without is for the very first start alone; remove it, or nodes that lose their disks may found another cluster",
				"bootstrap_without", n.cfg.BootstrapWithout)
		}
		err = n.checkPeers(ctx)
	} else {
		err = n.joinEmpty(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	return n.startRaft()
}

// joinEmpty prepares a node without a log for Raft.
func (n *Node) joinEmpty(ctx context.Context) error {
	if err := n.setIdentity(""); err != nil { // an interrupted start may have left one
		return err
	}
	if n.isRejoining() || !n.cfg.founder() { // an operator must add the latter
		return n.askToRejoin(ctx)
	}
	cluster, err := n.meetFounders(ctx)
	if err != nil {
		return err
	}
	if cluster == "" {
		return n.askToRejoin(ctx)
	}
	return n.bootstrap(cluster)
}

// configured returns the configured peers as Raft servers.
func (n *Node) configured() []raft.Server {
	servers := make([]raft.Server, len(n.cfg.Peers))
	for i, p := range n.cfg.Peers {
		servers[i] = raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)}
	}
	return servers
}

// askToRejoin repeats its request until a leader has admitted this node without a vote.
func (n *Node) askToRejoin(ctx context.Context) error {
	// A founder gets a vote later. It records that before any leader can take its vote, so that a leader failure does
	// not matter. For a node added later the leader decides, and reports the decision.
	if n.cfg.founder() {
		if err := n.setRejoining(true); err != nil {
			return err
		}
	}
	req := &rollcallv1.RejoinRequest{Node: n.cfg.ID, Address: n.cfg.Advertise, Empty: true}
	var last string
	for {
		resp, err := n.rejoin(ctx, n.configured(), req)
		if err == nil && resp.MayStart && resp.Cluster == "" {
			return fmt.Errorf("the leader admits this node: %w", errEarlierBuild)
		}
		if err == nil && resp.MayStart {
			if err := n.setIdentity(resp.Cluster); err != nil {
				return err
			}
			if err := n.rememberTerm(resp.Term); err != nil {
				return err
			}
			n.log.Info("admitted as a non-voter; copying the log", "term", resp.Term)
			return nil
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			n.log.Warn("waiting for leader to admit this node", "err", err)
		}
		if err := sleep(ctx, joinPeriod); err != nil {
			return err
		}
	}
}

// rememberTerm stores a term, and a vote in it, in Raft's stable store. Before it lost its disk, the node may have
// voted in any term up to the one in which its vote was taken. If a delayed request of a candidate arrived now, a
// second vote could elect a second leader in the same term. The term alone is not enough, because the node may have
// voted in that term too. So it stores a vote for itself, which no candidate requests. In later terms, a candidate
// without the entry that took the vote gets no majority.
func (n *Node) rememberTerm(term uint64) error {
	if term == 0 {
		return nil
	}
	// The term is stored last, because with it the node has state and would not ask again.
	err := n.stores.Stable.SetUint64(keyLastVoteTerm, term)
	if err == nil {
		err = n.stores.Stable.Set(keyLastVoteCand, []byte(n.cfg.Advertise))
	}
	if err == nil {
		err = n.stores.Stable.SetUint64(keyCurrentTerm, term)
	}
	if err != nil {
		return fmt.Errorf("note the term: %w", err)
	}
	return nil
}

// requestVote requests the vote while the node waits for one. It gets the vote once it has caught up.
func (n *Node) requestVote(ctx context.Context, r *raft.Raft) error {
	for {
		if err := sleep(ctx, regainPeriod); err != nil {
			return nil
		}
		if !n.isRejoining() {
			continue
		}
		voter := n.currentLeader() != nil // it got its vote, and was elected before the response arrived
		if !voter {
			servers := r.GetConfiguration().Configuration().Servers
			if len(servers) == 0 {
				servers = n.configured()
			}
			resp, err := n.rejoin(ctx, servers, &rollcallv1.RejoinRequest{Node: n.cfg.ID, Address: n.cfg.Advertise})
			if err != nil {
				n.log.Debug("vote not regained yet", "err", err)
				continue
			}
			voter = resp.Voter
		}
		if voter {
			n.log.Info("caught up, voting")
			if err := n.setRejoining(false); err != nil {
				return err
			}
		}
	}
}

// rejoin finds the leader among the servers, or through one of them, and calls it.
func (n *Node) rejoin(ctx context.Context, servers []raft.Server, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	others := without(servers, n.cfg.ID)
	var leader string
	empty := len(servers) - len(others)
	for id, d := range n.peers.describe(ctx, others, joinPeriod) {
		switch {
		case d.Leader:
			i := slices.IndexFunc(others, func(s raft.Server) bool { return s.ID == id })
			leader = n.peers.address(others[i])
		case leader == "":
			leader = d.LeaderAddress // the leader may have been added after this node's peer list was written
		}
		if d.Rejoining && !d.HasState {
			empty++
		}
	}
	switch {
	case leader != "":
	case req.Empty && empty > len(servers)/2:
		return nil, fmt.Errorf("no leader answers, and none can be elected: %d of %d coordinators have lost their disks. "+
			"Bring back the data folder of one of them, or give the directory up: stop all, empty all their data folders, start them, restart all gateways, and then run: rollcall mirror take-over", empty, len(servers))
	default:
		return nil, errors.New("no leader answers")
	}
	conn, err := n.peers.conn(leader)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*peerTimeout)
	defer cancel()
	resp, err := rollcallv1.NewPeerServiceClient(conn).Rejoin(ctx, req)
	if status.Code(err) == codes.NotFound {
		return nil, fmt.Errorf("this node is not a member: %s", status.Convert(err).Message())
	}
	return resp, err
}

// sleep waits for d. It returns the cause if ctx ends earlier.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
