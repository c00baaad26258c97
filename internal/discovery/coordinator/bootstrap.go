package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// foundingPoll is how often a founder asks the others again. A founder that reaches the last of them after they
	// have elected a leader is late, and gets its vote a second or two later.
	foundingPoll = 50 * time.Millisecond
	// foundingLog is how often a founder logs the founders that it waits for.
	foundingLog = 10 * time.Second
	// bootstrapIndex and bootstrapTerm are those of the first entry, which every founder writes itself. A longer log is a
	// history.
	bootstrapIndex = 1
	bootstrapTerm  = 1
)

// founder reports whether the peer list names this node.
func (c *Config) founder() bool {
	return slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.ID == c.ID })
}

// meetFounders asks the other founders until it knows whether the cluster exists. One founder with a history is
// decisive; meetFounders then returns "". Otherwise all founders have answered, except those of
// Config.BootstrapWithout, and none has a history. It then returns the identity of the new cluster, on which all of
// them agree.
//
// A founder that has not answered may be the last one that holds an older cluster. Only an operator can exclude that.
func (n *Node) meetFounders(ctx context.Context) (cluster string, err error) {
	if err := n.propose(); err != nil {
		return "", err
	}
	others := without(n.configured(), n.cfg.ID)
	for logged := time.Now(); ; {
		n.peers.resetBackoff(others)
		answers := n.peers.describe(ctx, others, joinPeriod)
		for id, d := range answers {
			// A peer that has just restarted has the log. A peer that lost its own disk has no state, but may know the
			// cluster from another peer.
			if d.HasState || d.Rejoining {
				n.log.Info("cluster exists, joining it with an empty disk", "cluster", d.Cluster, "peer", id)
				return "", nil
			}
		}
		if err := n.checkPeerLists(answers); err != nil {
			return "", err
		}
		missing := n.missingFounders(answers)
		excluded := n.excluded(answers)
		if len(missing) == 0 && !slices.Contains(excluded, n.cfg.ID) { // an excluded one waits for the cluster of the others
			return n.agree(answers, excluded)
		}
		if time.Since(logged) >= foundingLog {
			logged = time.Now()
			n.log.Warn("waiting for every coordinator before the first start; if one will not come, and none of them ever ran before, start the others with --bootstrap-without",
				"missing", strings.Join(missing, ","))
		}
		if err := sleep(ctx, foundingPoll); err != nil {
			return "", err
		}
	}
}

// missingFounders returns the needed founders that have not answered with a proposal or an identity.
func (n *Node) missingFounders(answers map[raft.ServerID]*rollcallv1.DescribeResponse) (missing []string) {
	for _, p := range n.cfg.Peers {
		if p.ID == n.cfg.ID || slices.Contains(n.cfg.BootstrapWithout, p.ID) {
			continue
		}
		if d := answers[raft.ServerID(p.ID)]; d.GetCluster() == "" && d.GetProposedCluster() == "" {
			missing = append(missing, p.ID)
		}
	}
	return missing
}

// checkPeerLists refuses to found a cluster with a peer that has another list of peers: each founder writes its own list
// into the first entry.
func (n *Node) checkPeerLists(answers map[raft.ServerID]*rollcallv1.DescribeResponse) error {
	own := n.peerIDs()
	for id, d := range answers {
		if theirs := slices.Sorted(slices.Values(d.Peers)); len(theirs) > 0 && !slices.Equal(theirs, own) {
			return fmt.Errorf("the peers are %s here and %s at %s; give all coordinators the same ROLLCALL_PEERS before the first start",
				strings.Join(own, ","), strings.Join(theirs, ","), id)
		}
	}
	return nil
}

// peerIDs returns the sorted ids of the configured peers.
func (n *Node) peerIDs() []string {
	ids := make([]string, len(n.cfg.Peers))
	for i, p := range n.cfg.Peers {
		ids[i] = p.ID
	}
	slices.Sort(ids)
	return ids
}

// excluded returns the founders that this node or an answering one was told not to wait for.
func (n *Node) excluded(answers map[raft.ServerID]*rollcallv1.DescribeResponse) []string {
	excluded := slices.Clone(n.cfg.BootstrapWithout)
	for _, d := range answers {
		excluded = append(excluded, d.BootstrapWithout...)
	}
	return excluded
}

// agree returns the identity of the new cluster: that of the founders that have bootstrapped already, or else the
// proposal of the founder with the lowest id that is not excluded. All founders find the same one, because proposals do
// not change.
func (n *Node) agree(answers map[raft.ServerID]*rollcallv1.DescribeResponse, excluded []string) (string, error) {
	cluster, from := "", raft.ServerID("")
	lowest, proposal := n.cfg.ID, n.proposed()
	for id, d := range answers {
		switch {
		case d.Cluster != "" && cluster != "" && d.Cluster != cluster:
			return "", fmt.Errorf("%s founds cluster %s and %s founds cluster %s; stop all coordinators, empty their data folders, start them again",
				from, cluster, id, d.Cluster)
		case d.Cluster != "":
			cluster, from = d.Cluster, id
		case string(id) < lowest && !slices.Contains(excluded, string(id)):
			lowest, proposal = string(id), d.ProposedCluster
		}
	}
	if cluster != "" {
		return cluster, nil
	}
	return proposal, nil
}

// bootstrap founds a cluster. Its identity is on disk before the first entry.
func (n *Node) bootstrap(cluster string) error {
	if err := n.setIdentity(cluster); err != nil {
		return err
	}
	servers := n.configured()
	// raft.BootstrapCluster stores the term first. A node that is interrupted after that has a term and no log; it would
	// not found the cluster again, and could not elect a leader. Raft accepts a log without a term.
	err := n.stores.Log.StoreLog(&raft.Log{
		Index: bootstrapIndex, Term: bootstrapTerm, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: servers}),
	})
	if err == nil {
		err = n.stores.Stable.SetUint64(keyCurrentTerm, bootstrapTerm)
	}
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	n.log.Info("cluster bootstrapped", "cluster", cluster, "peers", len(servers))
	return nil
}
