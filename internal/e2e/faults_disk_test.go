package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Full disks, damaged files and lost folders end or rebuild only the affected node.

// requireLastWords requires that exactly one line of a process's output is the error that ends it. It names the file,
// the problem and the remedy; all output is log lines.
func requireLastWords(t *testing.T, p *process, file, problem, remedy string) {
	t.Helper()
	require.Equal(t, 1, p.exit(patience))
	lines := p.logged("coordinator failed")
	require.Len(t, lines, 1)
	message, ok := lines[0]["err"].(string)
	require.True(t, ok)
	require.True(t, strings.HasPrefix(message, file+": "), message)
	require.Contains(t, message, problem)
	require.Contains(t, message, remedy)
	require.NotContains(t, message, "\n")
	for _, line := range p.output() {
		require.True(t, json.Valid([]byte(line)), "not a line of the log: %q", line)
		if !strings.Contains(line, "coordinator failed") {
			require.NotContains(t, line, file, "one line is about the file")
		}
	}
	require.Contains(t, p.tail(1)[0], "coordinator failed")
}

func TestDisk_Full_EndsOneNode(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"leader", "follower"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			const id, size = "coordinator-1", 2 << 20
			small, problem := t.TempDir(), "no space left on device"
			opts := options{nodeEnv: map[string]map[string]string{id: {"ROLLCALL_DATA_DIR": small}}}
			if !mountSmall(t, small, size) { // without the permission, a size limit has nearly the same effect
				opts.fileLimit, problem = map[string]int{id: size}, "file too large"
			}
			c := startCluster(t, opts)
			relayers, ids := fleet(t, 2)
			c.register(relayers...)
			c.awaitActive(patience, ids...)
			full := c.nodes[id]
			lead := id
			if role == "follower" {
				lead = "coordinator-2"
			}
			c.transfer(lead)
			_, epoch := c.leader()
			stop := c.watchSet(ids...)

			var written []string
			for i := 0; full.running() && i < 500; i++ {
				written = append(written, c.registerBulk(i)...)
			}
			requireLastWords(t, full.process, filepath.Join(small, "raft", "raft.db"), problem, "make room on its disk and start again")
			if role == "leader" {
				_, epoch = c.leaderAfter(epoch)
			}
			written = append(written, c.registerBulk(1000)...)
			_, now := c.leader()
			require.GreaterOrEqual(t, now, epoch)
			c.awaitActive(patience, ids...)
			stop()
			require.Subset(t, c.directory(), written, "nothing acknowledged is lost")

			// With free space on its disk it continues with its data.
			c.opts.nodeEnv, c.opts.fileLimit = nil, nil
			require.NoError(t, os.CopyFS(full.data, os.DirFS(small)))
			c.start(id)
			c.awaitReady(full)
			require.Empty(t, full.logged("cluster exists, joining it with an empty disk"))
		})
	}
}

// registerBulk writes a few ids with much data, at the current leader, and returns the acknowledged ones.
func (c *cluster) registerBulk(n int) (ids []string) {
	req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
	for i := range 8 {
		s := service(fmt.Sprintf("bulk-%d-%d", n, i), "http://127.0.0.1:1")
		s.Kind = "bulk"
		s.WorkerRef.Labels = make(map[string]string)
		for l := range 32 {
			s.WorkerRef.Labels[fmt.Sprint("label-", l)] = strings.Repeat("x", rollcallv1.MaxLabelValueBytes)
		}
		req.Services = append(req.Services, s)
		ids = append(ids, s.Id)
	}
	c.write(req)
	return ids
}

// write repeats a registration until it is acknowledged.
func (c *cluster) write(req *rollcallv1.RegisterServicesRequest) {
	c.t.Helper()
	eventually(c.t, patience, func() bool {
		leader, _ := c.leader()
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		defer cancel()
		_, err := leader.discovery().RegisterServices(ctx, req)
		return err == nil
	}, "a registration")
}

// A node with a damaged store reports that and ends; the others continue. Without its folder it rejoins, first as a
// non-voter, and then as a voter.
func TestDisk_DamagedStore_NodeEndsAndRejoinsEmpty(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{env: slowRelayers})
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	c.registerBulk(0)
	stop := c.watchSet(ids...)
	torn := c.follower()
	torn.kill()
	db := filepath.Join(torn.data, "raft", "raft.db")
	info, err := os.Stat(db)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(db, info.Size()/2))

	c.start(torn.id)
	requireLastWords(t, torn.process, db, "", "move the data folder away and start again")
	c.registerBulk(1)

	require.NoError(t, os.RemoveAll(torn.data))
	c.start(torn.id)
	eventually(t, patience, func() bool { return len(torn.logged("caught up, voting")) > 0 }, "its vote")
	require.Len(t, torn.logged("cluster exists, joining it with an empty disk"), 1)
	require.Len(t, torn.logged("admitted as a non-voter; copying the log"), 1)
	require.Empty(t, torn.logged("cluster bootstrapped"))
	for _, m := range c.members().Members {
		require.True(t, m.Voter, "%+v", m)
	}

	// The quorum now needs this node.
	leader, epoch := c.leader()
	if leader == torn {
		leader = c.follower()
	}
	leader.kill()
	if leader != torn {
		_, _ = c.leaderAfter(epoch - 1)
	}
	c.registerBulk(2)
	require.Len(t, c.directory(), len(ids)+3*8)
	c.awaitActive(patience, ids...)
	stop()
}

// While all coordinators are stopped, the set stays and its age is visible. Started from their disks, they continue.
func TestDisk_AllCoordinatorsRestart_Continue(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{env: slowRelayers})
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	c.registerBulk(0)
	_, epoch := c.leader()
	was := c.directory()
	stop := c.watchSet(ids...)
	for _, n := range c.nodes {
		n.kill()
	}
	before := c.meta()
	now, err := c.redis.Client().Time(t.Context()).Result()
	require.NoError(t, err)
	eventually(t, patience, func() bool {
		later, err := c.redis.Client().Time(t.Context()).Result()
		return err == nil && later.Sub(now) > 2*time.Second
	}, "two heartbeats' time")
	require.Equal(t, before, c.meta(), "updated_at shows the age")
	require.Equal(t, ids, c.active())

	for _, id := range c.ids {
		c.start(id)
	}
	_, after := c.leaderAfter(epoch)
	c.awaitEpochInRedis(after)
	require.Equal(t, was, c.directory())
	c.awaitWrites(2)
	stop()
	require.Equal(t, before["cluster"], c.meta()["cluster"])
}

// memberList holds the fields of "rollcall cluster status -o json" that the tests read.
type memberList struct {
	Leader  string `json:"leader"`
	Members []struct {
		ID        string `json:"id"`
		Voter     bool   `json:"voter"`
		Reachable bool   `json:"reachable"`
	} `json:"members"`
}

func (c *cluster) members() (list memberList) {
	c.t.Helper()
	require.NoError(c.t, json.Unmarshal([]byte(c.mustCLI("cluster", "status", "-o", "json")), &list))
	return list
}
