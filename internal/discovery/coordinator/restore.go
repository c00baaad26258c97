package coordinator

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// maxSnapshot is the maximum size of a snapshot to restore: ten times a directory of a million services.
const maxSnapshot = 2 << 30

// RestoreConfig names the stopped node whose state Restore replaces. All fields but Logger are required.
type RestoreConfig struct {
	// ID is the node's id, one of Peers.
	ID string
	// DataDir is the node's data folder; created if missing.
	DataDir string
	// Peers is the cluster, as in Config.
	Peers  []Peer
	Logger *slog.Logger // discards by default
}

// Restored describes a restored state.
type Restored struct {
	Cluster  string `json:"cluster"`
	Services int    `json:"services"`
	// Epoch is that of the restored state. The first leader opens the next one.
	Epoch uint64 `json:"epoch"`
	// Former is the folder that holds the node's former state; empty if there was none.
	Former string `json:"former"`
	// Others are the ids of the peers, which must start with empty data folders.
	Others []string `json:"others"`
}

// Restore makes a snapshot the state of a stopped node. The node then starts as the only voter of a new log. Its peers
// must start with empty data folders; it admits them, and they vote once they have caught up.
//
// The cluster keeps its name. Its epoch and its log's index continue from the present time in milliseconds, or from the
// snapshot's own if they are higher. They exceed all that the former log and earlier restores reached, if no clock was set
// back. Redis readers, gateways and watches therefore accept the restored cluster as the newer one. The new log has an
// identity of its own, so nodes that hold the former log cannot take part in it.
//
// Restore verifies the whole snapshot before it changes anything. An interrupted Restore leaves the former state, or the
// restored one, or a folder that no node starts with; a repeat finishes in every case. It returns an error that wraps
// raftstore.ErrLocked if the node runs, and a *fsm.DecodeError for a snapshot that cannot be read.
func Restore(ctx context.Context, cfg RestoreConfig, snapshot io.Reader) (Restored, error) {
	if !slices.ContainsFunc(cfg.Peers, func(p Peer) bool { return p.ID == cfg.ID }) {
		return Restored{}, fmt.Errorf("this node, %q, is not among the peers", cfg.ID)
	}
	content, err := io.ReadAll(io.LimitReader(snapshot, maxSnapshot+1))
	if err != nil {
		return Restored{}, fmt.Errorf("read snapshot: %w", err)
	}
	if len(content) > maxSnapshot {
		return Restored{}, fmt.Errorf("the snapshot is larger than %d bytes", int64(maxSnapshot))
	}
	info, err := fsm.CopySnapshot(io.Discard, bytes.NewReader(content), 0, "")
	if err != nil {
		return Restored{}, err
	}
	if ctx.Err() != nil {
		return Restored{}, context.Cause(ctx)
	}
	now := time.Now()
	millis := uint64(now.UnixMilli())
	epoch, index := max(info.Epoch, millis), max(info.Index, millis)
	identity := fmt.Sprintf("%s/restored-%s-%s", info.Cluster, now.UTC().Format("20060102T150405.000Z"), strings.ToLower(rand.Text()[:6]))
	if info.Cluster == "" || len(identity) > maxIdentity {
		return Restored{}, fmt.Errorf("the snapshot names the cluster %q, which is no valid name", info.Cluster)
	}

	r := Restored{Cluster: info.Cluster, Services: info.Services, Epoch: epoch}
	var servers raft.Configuration
	for _, p := range cfg.Peers {
		server := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)}
		if p.ID != cfg.ID {
			server.Suffrage = raft.Nonvoter
			r.Others = append(r.Others, p.ID)
		}
		servers.Servers = append(servers.Servers, server)
	}
	r.Former, err = replaceState(cfg, func(s *raftstore.Stores) error {
		return fillRestored(s, identity, servers, index, func(w io.Writer) error {
			_, err := fsm.CopySnapshot(w, bytes.NewReader(content), epoch, cfg.ID)
			return err
		})
	})
	return r, err
}

// replaceState replaces the state in the data folder. A store that fails blocks its goroutine for ever, so that one is
// abandoned; the caller's process is about to end.
func replaceState(cfg RestoreConfig, fill func(*raftstore.Stores) error) (former string, err error) {
	failed := make(chan error, 1)
	replaced := make(chan error, 1)
	go func() {
		var err error
		former, err = raftstore.Replace(raftstore.Config{Dir: cfg.DataDir, Logger: cfg.Logger, Fatal: func(err error) { failed <- err }}, fill)
		replaced <- err
	}()
	select {
	case err = <-replaced:
	case err = <-failed:
	}
	if err != nil && !errors.Is(err, raftstore.ErrLocked) {
		return "", fmt.Errorf("%w; the restore is not complete: repeat it before this node starts", err)
	}
	return former, err
}

// restoredTerm is the term of a restored state. Terms of the former log are irrelevant, because no node compares them
// with those of the new one.
const restoredTerm = 1

// fillRestored writes a state that consists of one snapshot.
func fillRestored(s *raftstore.Stores, identity string, servers raft.Configuration, index uint64, write func(io.Writer) error) error {
	_, transport := raft.NewInmemTransport("") // encodes the addresses for versions of Raft below 1
	sink, err := s.Snapshots().Create(raft.SnapshotVersionMax, index, restoredTerm, servers, index, transport)
	if err != nil {
		return fmt.Errorf("create snapshot: %w", err)
	}
	if err := write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("store snapshot: %w", err)
	}
	if err := s.Stable().SetUint64(keyCurrentTerm, restoredTerm); err != nil {
		return fmt.Errorf("store the term: %w", err)
	}
	if err := raftstore.Set(s.Stable(), raftstore.KeyCluster, identity); err != nil {
		return fmt.Errorf("store the cluster's identity: %w", err)
	}
	return nil
}
