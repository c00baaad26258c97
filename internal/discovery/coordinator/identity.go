package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Raft distinguishes logs by index and term alone, and two clusters of the same nodes soon agree in both. Raft then
// accepts the entries of one cluster for the other, and replicas diverge silently. So each log has an identity. A node
// stores it before it runs Raft, and accepts Raft's connections only from nodes with the same one.
//
// The founders agree on the identity before they bootstrap, and the directory takes it as the cluster's name. A cluster
// that was restored from a snapshot keeps its name and has a new identity, because its log is another one.

// stableState caches the node's own values in the stable store. It writes each value to the disk first.
type stableState struct {
	stable    raft.StableStore
	cluster   atomic.Value // string
	proposal  atomic.Value // string
	rejoining atomic.Bool
}

func (s *stableState) load(stable raft.StableStore) error {
	s.stable = stable
	cluster, err := raftstore.Get(stable, raftstore.KeyCluster)
	if err != nil {
		return fmt.Errorf("read the cluster's identity: %w", err)
	}
	proposal, err := raftstore.Get(stable, raftstore.KeyProposal)
	if err != nil {
		return fmt.Errorf("read the proposed identity: %w", err)
	}
	rejoining, err := raftstore.Get(stable, raftstore.KeyRejoining)
	if err != nil {
		return fmt.Errorf("read whether the vote is pending: %w", err)
	}
	s.cluster.Store(cluster)
	s.proposal.Store(proposal)
	s.rejoining.Store(rejoining != "")
	return nil
}

// identity returns the identity of the cluster whose log this node holds; "" before the node has one.
func (s *stableState) identity() string { return s.cluster.Load().(string) }

func (s *stableState) setIdentity(cluster string) error {
	if err := raftstore.Set(s.stable, raftstore.KeyCluster, cluster); err != nil {
		return fmt.Errorf("store the cluster's identity: %w", err)
	}
	s.cluster.Store(cluster)
	return nil
}

// proposed returns the identity that this node proposes for a new cluster; "" before it proposes one.
func (s *stableState) proposed() string { return s.proposal.Load().(string) }

// propose draws an identity for a new cluster, once. It is on disk before a peer can receive it, so that a restarted
// node proposes the same one.
func (s *stableState) propose() error {
	if s.proposed() != "" {
		return nil
	}
	cluster := strings.ToLower(rand.Text())
	if err := raftstore.Set(s.stable, raftstore.KeyProposal, cluster); err != nil {
		return fmt.Errorf("store the proposed identity: %w", err)
	}
	s.proposal.Store(cluster)
	return nil
}

// isRejoining reports whether the node waits for a vote.
func (s *stableState) isRejoining() bool { return s.rejoining.Load() }

// setRejoining stores durably whether the node waits for a vote.
func (s *stableState) setRejoining(waits bool) error {
	value := ""
	if waits {
		value = "yes"
	}
	if err := raftstore.Set(s.stable, raftstore.KeyRejoining, value); err != nil {
		return fmt.Errorf("store whether the vote is pending: %w", err)
	}
	s.rejoining.Store(waits)
	return nil
}

// otherClusterError stops a node whose peers belong to another cluster.
type otherClusterError struct{ own, peer, theirs, folder string }

func (e *otherClusterError) Error() string {
	return fmt.Sprintf("the data folder %s holds cluster %s, but %s holds cluster %s: one of them was founded or restored later. "+
		"Stop the coordinators of the one that you give up, empty their data folders, and start them again; they then join the other one", e.folder, e.own, e.peer, e.theirs)
}

// errEarlierBuild is the remedy for a log that has no identity.
var errEarlierBuild = errors.New("an earlier build wrote this cluster's log, and this build cannot take part in it; " +
	"run `rollcall cluster snapshot` with the earlier build, stop all coordinators, and run `rollcall cluster restore` with this one")

// checkPeers refuses to join peers of another cluster.
func (n *Node) checkPeers(ctx context.Context) error {
	if n.identity() == "" {
		return fmt.Errorf("the data folder %s: %w", n.cfg.DataDir, errEarlierBuild)
	}
	return n.checkCluster(n.peers.describe(ctx, without(n.configured(), n.cfg.ID), peerTimeout))
}

// checkCluster returns an error if one of the answers is from a node of another cluster that has a leader. A node of
// another cluster without a leader must not end this one: it may be the only one left behind.
func (n *Node) checkCluster(answers map[raft.ServerID]*rollcallv1.DescribeResponse) error {
	own := n.identity()
	for id, d := range answers {
		if d.Cluster != "" && d.Cluster != own && (d.Leader || d.LeaderAddress != "") {
			return &otherClusterError{own: own, peer: string(id), theirs: d.Cluster, folder: n.cfg.DataDir}
		}
	}
	return nil
}

// checkRivals returns an error if this node is the only voter of its cluster, as after a restore, and a peer leads another cluster
// that this one has to give way to. Otherwise both leaders would open epochs above each other's, and replace each other's live set
// in Redis, for ever. A cluster of several voters ends only for one that has Redis, which checkSuccessor finds.
func (n *Node) checkRivals(r *raft.Raft, answers map[raft.ServerID]*rollcallv1.DescribeResponse) error {
	own, epoch := n.identity(), n.machine.State().Epoch()
	members := map[string]int{own: 1}
	for _, d := range answers {
		if !d.Rejoining {
			members[d.Cluster]++
		}
	}
	for id, d := range answers {
		if d.Leader && d.Cluster != own && givesWay(epoch, d.Epoch, cmp.Or(cmp.Compare(members[own], members[d.Cluster]), cmp.Compare(own, d.Cluster))) &&
			!hasOtherVoters(r, n.cfg.ID) {
			return &otherClusterError{own: own, peer: string(id), theirs: d.Cluster, folder: n.cfg.DataDir}
		}
	}
	return nil
}

// checkSuccessor returns an error if a peer belongs to a cluster that leads, and that claimed Redis with an epoch that this
// cluster's leaders never open. The peer's cluster was restored later. This one would accept writes that no reader of Redis ever
// sees. If no such peer answers, the stored epoch may be wrong, so the cluster goes on.
func (n *Node) checkSuccessor(ctx context.Context, r *raft.Raft, claimed uint64) error {
	own := n.identity()
	answers := n.peers.describe(ctx, without(r.GetConfiguration().Configuration().Servers, n.cfg.ID), peerTimeout)
	for id, d := range answers {
		if d.Cluster != "" && d.Cluster != own && (d.Leader || d.LeaderAddress != "") && d.Epoch+maxEpochJump > claimed && claimed+maxEpochJump > d.Epoch {
			return &otherClusterError{own: own, peer: string(id), theirs: d.Cluster, folder: n.cfg.DataDir}
		}
	}
	return nil
}

// givesWay reports whether a cluster with an epoch gives way to another one with their epoch. No leader opens an epoch that is
// maxEpochJump above its own, so the cluster with a much higher one has Redis: one from before the restore can never take it back.
// Between close epochs rank decides: the cluster with fewer members gives way, then the one with the lower identity. Identities
// of one cluster's restores are in the order of their times.
func givesWay(epoch, theirs uint64, rank int) bool {
	switch {
	case theirs >= epoch+maxEpochJump:
		return true
	case epoch >= theirs+maxEpochJump:
		return false
	default:
		return rank < 0
	}
}

// hasOtherVoters reports whether a configuration has a voter besides a node.
func hasOtherVoters(r *raft.Raft, id string) bool {
	return slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool {
		return s.Suffrage == raft.Voter && string(s.ID) != id
	})
}

const (
	// maxIdentity is the maximum length of an identity, in bytes.
	maxIdentity = 255
	// refusalPeriod is how often a refused connection is logged.
	refusalPeriod = 10 * time.Second
)

// clusterStream is Raft's stream layer. Each connection begins with the identity of the dialing node's cluster, one byte
// of length first. A node refuses a connection of another cluster before Raft reads from it.
type clusterStream struct {
	raft.StreamLayer
	cluster string
	log     *slog.Logger
	warned  atomic.Int64 // UnixNano of the last refusal that was logged
}

func newClusterStream(layer raft.StreamLayer, cluster string, log *slog.Logger) (*clusterStream, error) {
	if len(cluster) > maxIdentity {
		return nil, fmt.Errorf("the cluster's identity has %d bytes, at most %d are allowed", len(cluster), maxIdentity)
	}
	return &clusterStream{StreamLayer: layer, cluster: cluster, log: log}, nil
}

// Dial implements raft.StreamLayer.
func (s *clusterStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := s.StreamLayer.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	if err = conn.SetWriteDeadline(time.Now().Add(timeout)); err == nil {
		_, err = conn.Write(append([]byte{byte(len(s.cluster))}, s.cluster...))
	}
	if err = errors.Join(err, conn.SetWriteDeadline(time.Time{})); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Accept implements raft.StreamLayer. The first Read of the connection compares the identities, so that a silent peer
// delays no other.
func (s *clusterStream) Accept() (net.Conn, error) {
	conn, err := s.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return &clusterConn{Conn: conn, stream: s}, nil
}

// clusterConn is an accepted connection. Only one goroutine reads from it.
type clusterConn struct {
	net.Conn
	stream  *clusterStream
	checked bool
}

func (c *clusterConn) Read(b []byte) (int, error) {
	if !c.checked {
		var length [1]byte
		if _, err := io.ReadFull(c.Conn, length[:]); err != nil {
			return 0, err
		}
		cluster := make([]byte, length[0])
		if _, err := io.ReadFull(c.Conn, cluster); err != nil {
			return 0, err
		}
		if string(cluster) != c.stream.cluster {
			c.stream.refused(c.RemoteAddr(), string(cluster))
			return 0, io.EOF
		}
		c.checked = true
	}
	return c.Conn.Read(b)
}

// refused logs a refused connection, at most one in a refusalPeriod, because the dialing node repeats it.
func (s *clusterStream) refused(from net.Addr, cluster string) {
	now, last := time.Now().UnixNano(), s.warned.Load()
	if last == 0 || now-last >= int64(refusalPeriod) {
		if s.warned.CompareAndSwap(last, now) {
			s.log.Error("a coordinator of another cluster is refused; stop it and empty its data folder, or this node's", "remote", from.String(),
				"its_cluster", cluster, "cluster", s.cluster)
		}
	}
}
