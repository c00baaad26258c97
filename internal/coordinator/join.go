package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// joinPeriod is how often a node that is not taking part yet asks again.
	joinPeriod   = 200 * time.Millisecond
	regainPeriod = time.Second
	peerTimeout  = time.Second
	// rejoinMark is the file that says that this node waits for a vote, should it restart meanwhile.
	rejoinMark = "rejoining"
	// bootstrapIndex is of the first entry, which every founder writes for itself. More than that is a history.
	bootstrapIndex = 1
)

// join starts Raft once that is safe. With state on disk it is. Without, the node asks its peers first: where
// nobody has anything either, they bootstrap together; where the cluster exists, this node has forgotten what it
// once acknowledged, and takes part only after its vote was taken away.
func (n *Node) join(ctx context.Context) (*raft.Raft, <-chan bool, error) {
	has, err := raft.HasExistingState(n.stores.Log, n.stores.Stable, n.stores.Snapshots)
	if err != nil {
		return nil, nil, fmt.Errorf("read raft state: %w", err)
	}
	if !has {
		exists, err := n.clusterExists(ctx)
		if err != nil {
			return nil, nil, err
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

// configured lists the peers of the configuration as Raft names them.
func (n *Node) configured() []raft.Server {
	servers := make([]raft.Server, len(n.cfg.Peers))
	for i, p := range n.cfg.Peers {
		servers[i] = raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)}
	}
	return servers
}

// clusterExists asks the peers until enough have answered to know. One that has a cluster decides. Otherwise all
// must have answered, or, after BootstrapWait, a majority counting this node.
func (n *Node) clusterExists(ctx context.Context) (bool, error) {
	servers := n.configured()
	others := without(servers, n.cfg.ID)
	if len(others) == len(servers) {
		return true, nil // not one of the founders: it can only be added
	}
	deadline := time.Now().Add(n.cfg.BootstrapWait)
	for logged := false; ; {
		answers := n.peers.describe(ctx, others, joinPeriod)
		for id, d := range answers {
			// A peer that has just restarted knows its cluster only once somebody leads, but has the log.
			if d.Cluster != "" || d.HasState {
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
		if err := sleep(ctx, joinPeriod); err != nil {
			return false, err
		}
	}
}

func (n *Node) bootstrap() error {
	servers := n.configured()
	// The transport counts for protocol versions below 3 only.
	err := raft.BootstrapCluster(n.raftConfig(), n.stores.Log, n.stores.Stable, n.stores.Snapshots, nil,
		raft.Configuration{Servers: servers})
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	n.log.Info("cluster bootstrapped", "peers", len(servers))
	return nil
}

// askToRejoin repeats until a leader has taken this node in without a vote, or refuses for good.
func (n *Node) askToRejoin(ctx context.Context) error {
	req := &rollcallv1.RejoinRequest{Node: n.cfg.ID, Address: n.cfg.Advertise, Empty: true}
	var last string
	for {
		resp, err := n.rejoin(ctx, n.configured(), req)
		if err == nil && resp.MayStart {
			if resp.Voter {
				if err := n.mark(); err != nil {
					return err
				}
			}
			n.log.Info("taken in without a vote, catching up")
			return nil
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			n.log.Warn("not taken in yet", "err", err)
		}
		if err := sleep(ctx, joinPeriod); err != nil {
			return err
		}
	}
}

// regainVote asks for the vote back once the node has caught up, and tells the leader of a changed address.
func (n *Node) regainVote(ctx context.Context, r *raft.Raft) error {
	for {
		if err := sleep(ctx, regainPeriod); err != nil {
			return nil
		}
		if !n.marked() {
			return nil
		}
		servers := r.GetConfiguration().Configuration().Servers
		if len(servers) == 0 {
			servers = n.configured()
		}
		resp, err := n.rejoin(ctx, servers, &rollcallv1.RejoinRequest{
			Node: n.cfg.ID, Address: n.cfg.Advertise, AppliedIndex: n.machine.State().Index(),
		})
		if err != nil {
			n.log.Debug("vote not regained yet", "err", err)
			continue
		}
		if resp.Voter {
			n.log.Info("caught up, voting again")
			return n.unmark()
		}
	}
}

// rejoin finds the leader among the servers and asks it.
func (n *Node) rejoin(ctx context.Context, servers []raft.Server, req *rollcallv1.RejoinRequest) (*rollcallv1.RejoinResponse, error) {
	others := without(servers, n.cfg.ID)
	for id, d := range n.peers.describe(ctx, others, joinPeriod) {
		if !d.Leader {
			continue
		}
		for _, s := range others {
			if s.ID != id {
				continue
			}
			client, err := n.peers.client(s)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, 5*peerTimeout)
			defer cancel()
			resp, err := client.Rejoin(ctx, req)
			if status.Code(err) == codes.NotFound {
				return nil, fmt.Errorf("this node is not a member: %s", status.Convert(err).Message())
			}
			return resp, err
		}
	}
	return nil, errors.New("no leader answers")
}

func (n *Node) mark() error {
	if n.cfg.DataDir == "" {
		n.rejoining.Store(true)
		return nil
	}
	f, err := os.OpenFile(filepath.Join(n.cfg.DataDir, rejoinMark), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note that the vote is pending: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

func (n *Node) marked() bool {
	if n.cfg.DataDir == "" {
		return n.rejoining.Load()
	}
	_, err := os.Stat(filepath.Join(n.cfg.DataDir, rejoinMark))
	return err == nil
}

func (n *Node) unmark() error {
	if n.cfg.DataDir == "" {
		n.rejoining.Store(false)
		return nil
	}
	return os.Remove(filepath.Join(n.cfg.DataDir, rejoinMark))
}

// sleep waits, or fails with the cause of ctx's end.
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
