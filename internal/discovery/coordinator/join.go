package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// joinPeriod is how often a node that has not joined yet asks again.
	joinPeriod = 200 * time.Millisecond
	// bootstrapPoll is how often a founder asks the others again. A founder that reaches the last of them after they
	// have elected a leader is late, and gets its vote a second or two later.
	bootstrapPoll = 50 * time.Millisecond
	regainPeriod  = time.Second
	peerTimeout   = time.Second
	// rejoinMark is the file that records that this node waits for a vote. It also records that its cluster exists,
	// whatever its store and its peers report. The node writes the file before it asks any node to take its vote away.
	rejoinMark = "rejoining"
	// bootstrapIndex is the index of the first entry, which every founder writes itself. A longer log is a history.
	bootstrapIndex = 1
)

// The keys below are Raft's own keys for its term and its vote in the stable store.
var (
	keyCurrentTerm  = []byte("CurrentTerm")
	keyLastVoteTerm = []byte("LastVoteTerm")
	keyLastVoteCand = []byte("LastVoteCand")
)

// join starts Raft once that is safe. It is safe with state on disk. Without state, the node asks its peers first. If
// no peer has state, they bootstrap together. If the cluster exists, this node has lost entries that it once
// acknowledged, and joins only after its vote was taken away.
func (n *Node) join(ctx context.Context) (*raft.Raft, <-chan bool, error) {
	has, err := raft.HasExistingState(n.stores.Log, n.stores.Stable, n.stores.Snapshots)
	if err != nil {
		return nil, nil, fmt.Errorf("read raft state: %w", err)
	}
	if has {
		if err := n.checkPeers(ctx); err != nil {
			return nil, nil, err
		}
	} else {
		n.forgetCluster()
		exists := n.isRejoining()
		if !exists {
			if exists, err = n.clusterExists(ctx); err != nil {
				return nil, nil, err
			}
		}
		if exists {
			err = n.askToRejoin(ctx)
		} else {
			err = n.bootstrap()
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return n.startRaft()
}

// configured returns the configured peers as Raft servers.
func (n *Node) configured() []raft.Server {
	servers := make([]raft.Server, len(n.cfg.Peers))
	for i, p := range n.cfg.Peers {
		servers[i] = raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)}
	}
	return servers
}

// clusterExists asks the peers until enough have responded. One peer with a cluster is decisive. Otherwise all peers
// must have responded or, after BootstrapWait, a majority including this node.
func (n *Node) clusterExists(ctx context.Context) (bool, error) {
	servers := n.configured()
	others := without(servers, n.cfg.ID)
	if len(others) == len(servers) {
		return true, nil // not a founder: an operator must add it
	}
	deadline := time.Now().Add(n.cfg.BootstrapWait)
	for logged := false; ; {
		n.peers.resetBackoff(others)
		answers := n.peers.describe(ctx, others, joinPeriod)
		for id, d := range answers {
			// A peer that has just restarted has the log, but reports its cluster only once there is a leader. A peer
			// that lost its own disk has no state, but may have received the cluster from another peer.
			if d.Cluster != "" || d.HasState || d.Rejoining {
				n.log.Info("cluster exists, joining it with an empty disk", "cluster", d.Cluster, "peer", id)
				return true, nil
			}
		}
		waited := time.Now().After(deadline)
		if len(answers) == len(others) || waited && len(answers)+1 > len(servers)/2 {
			return false, nil
		}
		if waited && !logged {
			logged = true
			n.log.Warn("waiting for peers before the first start", "answered", len(answers), "needed", len(servers)/2)
		}
		if err := sleep(ctx, bootstrapPoll); err != nil {
			return false, err
		}
	}
}

func (n *Node) bootstrap() error {
	servers := n.configured()
	// Raft uses the transport only for protocol versions below 3.
	err := raft.BootstrapCluster(n.raftConfig(), n.stores.Log, n.stores.Stable, n.stores.Snapshots, nil,
		raft.Configuration{Servers: servers})
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	n.log.Info("cluster bootstrapped", "peers", len(servers))
	return nil
}

// founder reports whether the peer list names this node.
func (c *Config) founder() bool {
	return slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.ID == c.ID })
}

// askToRejoin repeats its request until a leader has admitted this node without a vote.
func (n *Node) askToRejoin(ctx context.Context) error {
	// A founder gets a vote later. It records that before any leader can take its vote, so that a leader failure does
	// not matter. For a node added later the leader decides, and reports the decision.
	if n.cfg.founder() {
		if err := n.setRejoining(); err != nil {
			return err
		}
	}
	req := &rollcallv1.RejoinRequest{Node: n.cfg.ID, Address: n.cfg.Advertise, Empty: true}
	var last string
	for {
		resp, err := n.rejoin(ctx, n.configured(), req)
		if err == nil && resp.MayStart {
			if err := n.rememberTerm(resp.Term); err != nil {
				return err
			}
			n.log.Info("taken in without a vote, catching up", "term", resp.Term)
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
			if err := n.unmark(); err != nil {
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
			"Bring back the data folder of one of them, or give the directory up: stop all, empty all their data folders, start them", empty, len(servers))
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

// setRejoining records durably that the node must request a vote.
func (n *Node) setRejoining() error {
	if n.cfg.DataDir == "" {
		n.rejoining.Store(true)
		return nil
	}
	if err := writeMarker(n.cfg.DataDir, rejoinMark); err != nil {
		return fmt.Errorf("note that the vote is pending: %w", err)
	}
	return nil
}

// isRejoining reports whether the node waits for a vote. If the mark cannot be checked, it returns true, because a
// needless request is harmless.
func (n *Node) isRejoining() bool {
	if n.cfg.DataDir == "" {
		return n.rejoining.Load()
	}
	_, err := os.Stat(filepath.Join(n.cfg.DataDir, rejoinMark))
	return !errors.Is(err, fs.ErrNotExist)
}

func (n *Node) unmark() error {
	if n.cfg.DataDir == "" {
		n.rejoining.Store(false)
		return nil
	}
	if err := removeMarker(n.cfg.DataDir, rejoinMark); err != nil {
		return fmt.Errorf("note that the vote is not pending: %w", err)
	}
	return nil
}

// syncDir makes the names in a folder durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
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
