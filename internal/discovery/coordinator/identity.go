package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Raft distinguishes logs by index and term alone, and two clusters of the same nodes soon agree in both. Raft then
// accepts the entries of one cluster for the other, and replicas diverge silently. This happens if two of three nodes
// lose their disks and found a new cluster while the third is away, and the third then returns. So each node stores
// the name of its cluster before it runs Raft, and checks that its leader has the same one.

// clusterFile names the cluster whose log a data folder holds. Raft's stores reveal the cluster only once there is a
// leader.
const clusterFile = "cluster"

// otherClusterError stops a node whose peers belong to another cluster.
type otherClusterError struct{ own, peer, theirs, folder string }

func (e *otherClusterError) Error() string {
	return fmt.Sprintf("the data folder %s holds cluster %s, but %s belongs to cluster %s, founded again or restored from another's snapshot meanwhile. "+
		"To join that one, empty the folder and start this node again, one node at a time; what only this node holds is lost then", e.folder, e.own, e.peer, e.theirs)
}

// checkPeers refuses to join peers of another cluster.
func (n *Node) checkPeers(ctx context.Context) error {
	if n.cfg.DataDir == "" {
		return nil
	}
	name, err := os.ReadFile(filepath.Join(n.cfg.DataDir, clusterFile))
	if err != nil || len(name) == 0 {
		return nil // without the name, the node checks the cluster once it follows a leader
	}
	for id, d := range n.peers.describe(ctx, without(n.configured(), n.cfg.ID), joinPeriod) {
		if d.Cluster != "" && d.Cluster != string(name) && d.Cluster != n.restoredCluster() {
			return &otherClusterError{own: string(name), peer: string(id), theirs: d.Cluster, folder: n.cfg.DataDir}
		}
	}
	return nil
}

// restoredCluster returns the cluster of the newest snapshot on disk, if it is readable. The node may have died right
// after it restored another cluster's snapshot, before it stored the new name.
func (n *Node) restoredCluster() string {
	snapshots, err := n.stores.Snapshots.List()
	if err != nil || len(snapshots) == 0 {
		return ""
	}
	_, content, err := n.stores.Snapshots.Open(snapshots[0].ID)
	if err != nil {
		return ""
	}
	defer content.Close() // only read
	info, err := fsm.CopySnapshot(io.Discard, content, 0, "")
	if err != nil {
		return ""
	}
	return info.Cluster
}

// noteCluster stores the name of the cluster, once it is known and whenever a restored snapshot changes it.
func (n *Node) noteCluster(noted string) string {
	name := n.machine.State().Cluster()
	if n.cfg.DataDir == "" || name == "" || name == noted {
		return noted
	}
	path := filepath.Join(n.cfg.DataDir, clusterFile)
	err := os.WriteFile(path+".new", []byte(name), 0o600)
	if err == nil {
		err = errors.Join(os.Rename(path+".new", path), syncDir(n.cfg.DataDir))
	}
	if err != nil {
		n.log.Warn("could not write cluster id", "err", err)
		return noted
	}
	return name
}

// forgetCluster removes the stored name, which is meaningless for a node without a log.
func (n *Node) forgetCluster() {
	if n.cfg.DataDir == "" {
		return
	}
	if err := os.Remove(filepath.Join(n.cfg.DataDir, clusterFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("cluster's former name not removed", "err", err)
	}
}

// followsAnother returns an error if the leader's last description names another cluster, although this node has
// applied everything that the leader had.
func (n *Node) followsAnother(leader raft.ServerID, d *rollcallv1.DescribeResponse) error {
	s := n.machine.State()
	if d == nil || !d.Leader || d.Cluster == "" || s.Cluster() == "" || d.Cluster == s.Cluster() || s.Index() < d.AppliedIndex {
		return nil
	}
	return &otherClusterError{own: s.Cluster(), peer: string(leader), theirs: d.Cluster, folder: n.cfg.DataDir}
}
