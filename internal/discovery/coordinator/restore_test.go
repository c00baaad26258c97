package coordinator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// newStoredCluster returns a simulated cluster with the product's stores, in folders.
func newStoredCluster(t *testing.T, size int) *simCluster {
	dir := t.TempDir()
	return newSimCluster(t, size, func(cfg *coordinator.Config) {
		cfg.DataDir, cfg.Stores, cfg.Advertise = filepath.Join(dir, cfg.ID), nil, cfg.ID+":7400"
		require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	})
}

// ids lists the ids in a node's replica.
func (c *simCluster) ids(id string) (ids []string) {
	for e := range c.nodes[id].Directory().State().All() {
		ids = append(ids, e.ID)
	}
	return ids
}

// The leader has restored a snapshot and is cut off before any other node has it. The others must continue without it,
// and the leader must discard it.
func TestInterruptedRestoreIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newStoredCluster(t, 3)
		c.register("a")
		former, _ := c.leader()
		snapshot := c.takeSnapshot(former)
		c.register("b", "c")
		c.net.SetLatency(5 * time.Millisecond)

		restored := make(chan error, 1)
		go func() {
			_, err := c.restore(former, snapshot, false)
			restored <- err
		}()
		c.waitUntil("restored on the leader", func() bool { return len(c.ids(former)) == 1 })
		for _, p := range c.peers {
			if p.ID != former {
				c.net.Cut(former, p.ID)
			}
		}
		require.Error(t, <-restored)
		require.ErrorContains(t, <-c.nodes[former].done, "not known to be committed")
		delete(c.nodes, former)
		c.register("d")
		for id := range c.nodes {
			c.await("nothing restored on "+id, func() bool { return slices.Equal(c.ids(id), []string{"a", "b", "c", "d"}) })
		}

		c.net.Heal()
		c.start(former, nil)
		c.await("it votes", func() bool { return c.suffrage(former) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		c.register("e")
		for id := range c.nodes {
			c.await("the same on "+id, func() bool { return slices.Equal(c.ids(id), []string{"a", "b", "c", "d", "e"}) })
		}
		aside, err := filepath.Glob(filepath.Join(c.folder(former), "raft-undone-*", "snapshots", "*"))
		require.NoError(t, err)
		require.NotEmpty(t, aside, "its former state is kept")
		require.NoFileExists(t, filepath.Join(c.folder(former), "restoring"))
	})
}

// fill registers so many services that Raft waits for a slow follower while it installs them.
func (c *simCluster) fill() {
	leader, _ := c.leader()
	for i := range 40 {
		var services []*rollcallv1.Service
		for j := range 100 {
			s := service(fmt.Sprintf("s-%d-%d", i, j))
			s.WorkerRef.Labels = labels(5, 200)
			services = append(services, s)
		}
		_, err := c.client(leader).RegisterServices(c.t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: services})
		require.NoError(c.t, err)
	}
}

// newSlowCluster returns a cluster of three whose followers can be made slow to install a snapshot.
func newSlowCluster(t *testing.T) (c *simCluster, slow func(takes time.Duration)) {
	stores := make(map[string]*slowSnapshots)
	dir := t.TempDir()
	c = newSimCluster(t, 3, func(cfg *coordinator.Config) {
		cfg.DataDir = filepath.Join(dir, cfg.ID)
		require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
		if cfg.Stores == nil {
			return
		}
		if _, ok := cfg.Stores.Snapshots.(*slowSnapshots); !ok {
			stores[cfg.ID] = &slowSnapshots{SnapshotStore: cfg.Stores.Snapshots}
			cfg.Stores.Snapshots = stores[cfg.ID]
		}
	})
	return c, func(takes time.Duration) {
		leader, _ := c.leader()
		for id, s := range stores {
			if id != leader {
				s.takes = takes
			}
		}
	}
}

// A restored snapshot must not be served before it is committed.
func TestUncommittedRestoreIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, slow := newSlowCluster(t)
		c.fill()
		leader, epoch := c.leader()
		snapshot := c.takeSnapshot(leader)
		c.register("later")
		slow(8 * time.Second)
		restored := make(chan error, 1)
		go func() {
			_, err := c.restore(leader, snapshot, false)
			restored <- err
		}()
		c.waitUntil("restored on the leader", func() bool { return c.nodes[leader].Directory().State().Len() == 4000 })
		try := func(call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return call(ctx)
		}
		for seconds := 0; ; seconds++ {
			listed := try(func(ctx context.Context) error {
				_, err := c.client(leader).ListServices(ctx, &rollcallv1.ListServicesRequest{PageSize: 1})
				return err
			})
			registered := try(func(ctx context.Context) error {
				_, err := c.client(leader).RegisterServices(ctx, &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service("s-0-0")}})
				return err
			})
			watched := try(func(ctx context.Context) error {
				watch, err := c.client(leader).WatchServices(ctx, &rollcallv1.WatchServicesRequest{})
				if err == nil {
					_, err = watch.Recv()
				}
				return err
			})
			pass(time.Second)
			select {
			case err := <-restored:
				require.NoError(t, err)
				require.Greater(t, seconds, 2)
				now, then := c.leader()
				require.Equal(t, leader, now)
				require.Greater(t, then, epoch)
				return
			default:
			}
			for what, err := range map[string]error{"list": listed, "register": registered, "watch": watched} {
				require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", what, err)
			}
		}
	})
}

// A snapshot of another cluster changes the leader's cluster name first. The followers must continue, even if one
// starts during the restore.
func TestFollowersStayDuringASlowForeignRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := newSimCluster(t, 1, nil)
		far.fill()
		from, _ := far.leader()
		snapshot := far.takeSnapshot(from)
		name := far.nodes[from].Directory().State().Cluster()

		c, slow := newSlowCluster(t)
		for i := range 100 { // so that the log's index is above the snapshot's
			c.register(fmt.Sprintf("a-%d", i))
		}
		pass(10 * time.Second) // the former name is stored
		leader, _ := c.leader()
		late := c.follower()
		stores := c.nodes[late].stores
		c.stop(late)
		slow(14 * time.Second)
		restored := make(chan error, 1)
		go func() {
			_, err := c.restore(leader, snapshot, true)
			restored <- err
		}()
		c.waitUntil("restored on the leader", func() bool { return c.nodes[leader].Directory().State().Cluster() == name })
		c.start(late, stores)
		require.NoError(t, <-restored)
		for id := range c.nodes {
			c.await("restored on "+id, func() bool { return c.nodes[id].Directory().State().Cluster() == name })
		}
	})
}
