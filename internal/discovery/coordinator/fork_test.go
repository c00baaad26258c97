package coordinator_test

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// restoreWith begins a restore on the leader. It cuts the leader and the follower off once the follower holds fewer
// than three services.
func (c *simCluster) restoreWith(leader, follower string, snapshot []byte, foreign bool) (restored <-chan error) {
	c.net.SetLatency(5 * time.Millisecond)
	done := make(chan error, 1)
	go func() {
		_, err := c.restore(leader, snapshot, foreign)
		done <- err
	}()
	c.waitUntil("restored on the leader", func() bool { return len(c.ids(leader)) < 3 })
	for id := range c.nodes {
		if id != leader && id != follower {
			c.net.Cut(leader, id)
			c.net.Cut(follower, id)
		}
	}
	return done
}

// interruptedRestore returns a cluster of five whose leader restored a snapshot with one follower only and is gone.
// The other members have elected a leader and continued. The follower is still cut off. With learner, it is a sixth
// member without a vote. With more, it also has the entry above the snapshot.
func interruptedRestore(t *testing.T, learner, foreign, more bool) (c *simCluster, former, follower string) {
	c = newStoredCluster(t, 5)
	c.register("a")
	former, _ = c.leader()
	if follower = c.follower(); learner {
		follower = "c6"
		c.start(follower, nil)
		c.await("added", func() bool {
			_, err := c.admin(former).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: follower, Address: follower + ":7400", NonVoter: true})
			return err == nil
		})
	}
	snapshot := c.takeSnapshot(former)
	if foreign {
		snapshot = longer(t) // with an index far above that of the cluster's own log
	}
	c.register("b", "c")
	for id := range c.nodes {
		c.await("all on "+id, func() bool { return slices.Equal(c.ids(id), []string{"a", "b", "c"}) })
	}
	restored := c.restoreWith(former, follower, snapshot, foreign)
	c.waitUntil("restored on the follower", func() bool { return len(c.ids(follower)) < 3 })
	if !more {
		c.net.Cut(former, follower)
	}
	require.Error(t, <-restored)
	require.ErrorContains(t, <-c.nodes[former].done, "not known to be committed")
	delete(c.nodes, former)
	c.register("d")
	return c, former, follower
}

// A follower with a snapshot that the next leaders do not have must end and rejoin, instead of applying their entries
// to it.
func TestFollowerForgetsARestoreThatCameUndone(t *testing.T) {
	for name, tc := range map[string]struct{ restarts, learner, foreign, more bool }{
		"voter":                {},
		"with an entry above":  {more: true},
		"restarted before":     {restarts: true},
		"without a vote":       {learner: true},
		"from a longer log":    {foreign: true},
		"longer and restarted": {foreign: true, restarts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, former, follower := interruptedRestore(t, tc.learner, tc.foreign, tc.more)
				if tc.restarts {
					c.stop(follower)
					c.start(follower, nil)
					c.waitUntil("it has what it installed", func() bool { return c.nodes[follower].Directory().State().Cluster() != "" })
				}
				c.net.Heal()
				select {
				case err := <-c.nodes[follower].done:
					require.ErrorContains(t, err, "came undone")
				case <-time.After(30 * time.Second):
					require.FailNow(t, "it goes on", "with %v", c.ids(follower))
				}
				delete(c.nodes, follower)

				c.start(follower, nil)
				c.start(former, nil)
				suffrage := rollcallv1.Suffrage_SUFFRAGE_VOTER
				if tc.learner {
					suffrage = rollcallv1.Suffrage_SUFFRAGE_NON_VOTER
				}
				c.await("the former leader votes", func() bool { return c.suffrage(former) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
				c.register("e")
				for id := range c.nodes {
					c.await("the same on "+id, func() bool { return slices.Equal(c.ids(id), []string{"a", "b", "c", "d", "e"}) })
				}
				pass(10 * time.Second)
				require.Equal(t, suffrage, c.suffrage(follower))
			})
		})
	}
}

// heldSnapshots waits before it stores a snapshot, if slow is set.
type heldSnapshots struct {
	raft.SnapshotStore
	slow, waits atomic.Bool
	may         chan struct{}
}

func (s *heldSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, cIndex, trans)
	return &heldSink{sink, s}, err
}

type heldSink struct {
	raft.SnapshotSink
	store *heldSnapshots
}

func (s *heldSink) Close() error {
	if s.store.slow.Load() {
		s.store.waits.Store(true)
		<-s.store.may
	}
	return s.SnapshotSink.Close()
}

// The next leader's first entry arrives while the follower still installs the snapshot that it contradicts.
func TestRestoreComesUndoneWhileItIsInstalled(t *testing.T) {
	for _, takes := range []time.Duration{100 * time.Millisecond, 900 * time.Millisecond, 3 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				stores := make(map[string]*heldSnapshots)
				c := newSimCluster(t, 5, func(cfg *coordinator.Config) {
					cfg.DataDir = filepath.Join(dir, cfg.ID)
					require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
					stores[cfg.ID] = &heldSnapshots{SnapshotStore: cfg.Stores.Snapshots, may: make(chan struct{})}
					cfg.Stores.Snapshots = stores[cfg.ID]
				})
				c.register("a")
				former, _ := c.leader()
				follower := c.follower()
				snapshot := c.takeSnapshot(former)
				c.register("b", "c")
				for id := range c.nodes {
					c.await("all on "+id, func() bool { return slices.Equal(c.ids(id), []string{"a", "b", "c"}) })
				}
				slow := stores[follower]
				slow.slow.Store(true)
				restored := c.restoreWith(former, follower, snapshot, false)
				c.waitUntil("installing", slow.waits.Load)
				c.net.Cut(former, follower)
				require.Error(t, <-restored)
				require.ErrorContains(t, <-c.nodes[former].done, "not known to be committed")
				delete(c.nodes, former)
				c.await("another leads", func() bool { return c.write("d") == nil })
				c.net.Reset(follower) // messages in flight are lost
				c.net.Heal()
				pass(takes)
				close(slow.may)
				select {
				case err := <-c.nodes[follower].done:
					require.ErrorContains(t, err, "came undone")
				case <-time.After(30 * time.Second):
					require.FailNow(t, "it goes on", "with %v", c.ids(follower))
				}
				delete(c.nodes, follower)
			})
		})
	}
}
