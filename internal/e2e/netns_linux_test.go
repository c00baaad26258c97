package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// Partitions of real hosts: each coordinator has its own network namespace, with one link to its peers and another one
// to Redis and the relayers.

// TestPartitions_InNamespaces runs the tests of partitions in a process with its own network and its own list of
// namespaces. So this machine's configuration, including its firewall, has no influence. Nothing is left behind,
// however the process ends.
func TestPartitions_InNamespaces(t *testing.T) {
	if os.Getenv(insideNamespaces) != "" {
		prepareNamespaces(t)
		t.Run("leader", partitionLeader)
		t.Run("one way", partitionOneWay)
		t.Run("follower", partitionFollower)
		return
	}
	t.Parallel()
	attr, err := namespaces()
	if err != nil {
		// A developer's machine may forbid it. In CI the test must run.
		require.NotEqual(t, "true", os.Getenv("CI"), "network namespaces: %v", err)
		t.Logf("not tested, this user may make no network namespaces: %v", err)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), insideNamespaces+"="+binary)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"leader", "one_way", "follower"} {
		require.Contains(t, string(out), "--- PASS: "+t.Name()+"/"+name)
	}
	t.Logf("%s", out)
}

// namespaces returns the attributes that start a process in its own network, as root, or as a user that is root only
// there; or why neither is possible.
func namespaces() (*syscall.SysProcAttr, error) {
	var errs []error
	for _, attr := range []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS},
		{
			Cloneflags:  syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	} {
		attr.Pdeathsig = syscall.SIGKILL
		script := "mount --make-rprivate / && mount -t tmpfs none /run && ip netns add probe && ip link add bridge0 type bridge && ip link add veth0 type veth peer name veth1 netns probe"
		probe := exec.Command("sh", "-c", script)
		probe.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		probe.SysProcAttr = attr
		out, err := probe.CombinedOutput()
		if err == nil {
			return attr, nil
		}
		errs = append(errs, fmt.Errorf("%w: %s", err, out))
	}
	return nil, errors.Join(errs...)
}

// ip runs the ip command.
func ip(t testing.TB, line string, args ...any) {
	t.Helper()
	cmd := exec.Command("ip", strings.Fields(fmt.Sprintf(line, args...))...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "ip %s: %s", strings.Join(cmd.Args[1:], " "), out)
}

// prepareNamespaces makes the two networks: that of the peers, and that of Redis with an address of the test.
func prepareNamespaces(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	require.NoError(t, syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	require.NoError(t, syscall.Mount("tmpfs", "/run", "tmpfs", 0, "")) // for the names of namespaces
	ip(t, "link set lo up")
	for _, network := range []string{"peers", "mirror"} {
		ip(t, "link add %s type bridge", network)
		ip(t, "link set %s up", network)
	}
	ip(t, "addr add %s/24 dev mirror", hostAddress)
}

// hostAddress is the address at which the coordinators reach Redis and the relayers.
const hostAddress = "10.77.2.254"

// host is a coordinator's host: the namespace n1, n2 or n3.
type host struct{ name, peers, mirror string }

func hostOf(i int) host {
	return host{fmt.Sprintf("n%d", i+1), fmt.Sprintf("10.77.1.%d", i+1), fmt.Sprintf("10.77.2.%d", i+1)}
}

// namespaced is a cluster of three hosts.
type namespaced struct {
	*cluster
	relayers []*relayer
	active   []string
}

// startNamespaced starts three hosts, a coordinator on each, and three relayers. All coordinators reach the relayers,
// whatever the state of the network between the peers.
func startNamespaced(t *testing.T) *namespaced {
	t.Helper()
	c := planCluster(t, options{
		redis:   testredis.Start(t, "--bind", "127.0.0.1", hostAddress, "--protected-mode", "no"),
		nodeEnv: make(map[string]map[string]string), program: make(map[string][]string),
	})
	_, port, _ := strings.Cut(c.redis.Addr(), ":")
	var peers []string
	for i, id := range c.ids {
		h := hostOf(i)
		ip(t, "netns add %s", h.name)
		t.Cleanup(func() {
			for _, network := range []string{"peers", "mirror"} { // the kernel removes a namespace and its links with a delay
				ip(t, "link del %s-%s", h.name, network)
			}
			ip(t, "netns del %s", h.name)
		})
		ip(t, "-n %s link set lo up", h.name)
		for network, address := range map[string]string{"peers": h.peers, "mirror": h.mirror} {
			ip(t, "link add %s-%s type veth peer name %s netns %s", h.name, network, network, h.name)
			ip(t, "link set %s-%s master %s up", h.name, network, network)
			ip(t, "-n %s addr add %s/24 dev %s", h.name, address, network)
			ip(t, "-n %s link set %s up", h.name, network)
		}
		peers = append(peers, fmt.Sprintf("%s=%s:7400", id, h.peers))
	}
	for i, id := range c.ids {
		h := hostOf(i)
		c.readdress(c.nodes[id], h.mirror+":7400", h.mirror+":3001") // the address for the test
		c.opts.program[id] = []string{"ip", "netns", "exec", h.name, binary, "coordinator"}
		c.opts.nodeEnv[id] = map[string]string{
			"ROLLCALL_PEERS": strings.Join(peers, ","), "ROLLCALL_LISTEN": ":7400", "ROLLCALL_ADVERTISE": h.peers + ":7400",
			"ROLLCALL_HTTP_LISTEN": ":3001", "REDIS_URL": "redis://" + hostAddress + ":" + port,
		}
	}
	n := &namespaced{cluster: c}
	for i := range 3 {
		r := tryRelayerAt(t, fmt.Sprintf("oz-relayer-%d", i), fmt.Sprintf("%s:%d", hostAddress, 3100+i))
		require.NotNil(t, r)
		n.relayers, n.active = append(n.relayers, r), append(n.active, r.id)
	}
	c.startAll()
	c.awaitVoters()
	c.register(n.relayers...)
	c.awaitActive(patience, n.active...)
	return n
}

func (c *namespaced) host(n *node) host { return hostOf(slices.Index(c.ids, n.id)) }

// unplug disconnects a coordinator from its peers; the link to Redis stays. plug connects it again.
func (c *namespaced) unplug(n *node) { ip(c.t, "link set %s-peers down", c.host(n).name) }
func (c *namespaced) plug(n *node)   { ip(c.t, "link set %s-peers up", c.host(n).name) }

// mute drops all packets from one coordinator to another, like a switch would: they go to an address without a
// listener. Packets in the other direction arrive.
func (c *namespaced) mute(from, to *node) {
	ip(c.t, "-n %s neigh replace %s lladdr 02:00:00:00:00:01 dev peers nud permanent", c.host(from).name, c.host(to).peers)
}

func (c *namespaced) unmute(from, to *node) {
	ip(c.t, "-n %s neigh del %s dev peers", c.host(from).name, c.host(to).peers)
}

// others returns all coordinators but one.
func (c *namespaced) others(than *node) (others []*node) {
	for _, id := range c.ids {
		if n := c.nodes[id]; n != than {
			others = append(others, n)
		}
	}
	return others
}

// reaches reports whether one host reaches another's cluster port.
func (c *namespaced) reaches(from, to *node) bool {
	address := "tcp://" + c.host(to).peers + ":7400"
	return exec.Command("ip", "netns", "exec", c.host(from).name, binary, "healthcheck", "--timeout", "300ms", address).Run() == nil
}

// requireSilent checks that a coordinator changed nothing in Redis after a later epoch was claimed.
func (c *namespaced) requireSilent(monitor *testredis.Monitor, n *node, epoch uint64) {
	c.t.Helper()
	commands := monitor.Commands()
	claimed := slices.IndexFunc(commands, func(cmd testredis.Command) bool {
		i := slices.Index(cmd.Args, "epoch")
		return cmd.Script && cmd.Args[0] == "HSET" && cmd.Args[1] == "relayer:meta" && i > 0 && cmd.Args[i+1] == fmt.Sprint(epoch)
	})
	require.GreaterOrEqual(c.t, claimed, 0, "the claim of epoch %d", epoch)
	wrote := make(map[string]int)
	for _, cmd := range commands[claimed:] {
		if cmd.Script && changesSomething(cmd) {
			wrote[cmd.From]++
		}
	}
	require.Zero(c.t, wrote[c.host(n).mirror], "what %s wrote after epoch %d was claimed: %v", n.id, epoch, commands[claimed:])
	require.NotEmpty(c.t, wrote, "the one that leads writes")
}

// follows waits until a coordinator follows another in an epoch of at least the given one, and is ready again.
func (c *namespaced) follows(n *node, epoch uint64) {
	c.t.Helper()
	eventually(c.t, patience, func() bool {
		p := n.ping(c.t)
		return p != nil && p.Epoch >= epoch && p.Leader != nil && p.Leader.Node != n.id
	}, "%s follows", n.id)
	c.awaitReady(n)
}

// newLeader waits for a leader of a higher epoch other than the given node.
func (c *namespaced) newLeader(than *node, old uint64) (leader *node, epoch uint64) {
	c.t.Helper()
	eventually(c.t, patience, func() bool { leader, epoch = c.leaderAfter(old); return leader != than }, "another leader")
	c.awaitEpochInRedis(epoch)
	return leader, epoch
}

// A leader that is cut off from its peers, but not from Redis and the relayers, is replaced and writes nothing more.
func partitionLeader(t *testing.T) {
	c := startNamespaced(t)
	stop, monitor := c.watchSet(c.active...), c.redis.Monitor()
	for range 2 {
		old, was := c.leader()
		for _, n := range c.others(old) {
			eventually(t, patience, func() bool { return c.reaches(old, n) }, "it is reached")
		}
		c.unplug(old)
		for _, n := range c.others(old) {
			require.False(t, c.reaches(old, n))
			require.False(t, c.reaches(n, old))
		}
		_, epoch := c.newLeader(old, was)
		eventually(t, patience, func() bool { return len(old.logged("leadership ended")) > 0 }, "it notices")
		c.registerBulk(int(epoch))
		c.awaitWrites(3)
		require.Equal(t, 200, old.get(t, "/healthz"), "it lives")
		c.requireSilent(monitor, old, epoch)

		c.plug(old)
		c.follows(old, epoch)
		c.awaitWrites(2)
		c.requireSilent(monitor, old, epoch)
	}
	stop()
	requireFenced(t, scriptCalls(t, monitor.Commands()))
}

// A leader whose messages are lost, while it receives its peers' messages, is replaced. So is one whose messages arrive
// and that receives nothing.
func partitionOneWay(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			c := startNamespaced(t)
			stop, monitor := c.watchSet(c.active...), c.redis.Monitor()
			old, was := c.leader()
			each := func(do func(from, to *node)) {
				for _, n := range c.others(old) {
					if deaf {
						do(n, old)
					} else {
						do(old, n)
					}
				}
			}
			each(c.mute)
			_, epoch := c.newLeader(old, was)
			c.registerBulk(0)
			c.awaitWrites(3)
			c.requireSilent(monitor, old, epoch)
			each(c.unmute)
			c.follows(old, epoch)
			c.awaitWrites(2)
			c.requireSilent(monitor, old, epoch)
			stop()
			requireFenced(t, scriptCalls(t, monitor.Commands()))
		})
	}
}

// The cutting off of a follower, and its return, do not disturb the cluster.
func partitionFollower(t *testing.T) {
	c := startNamespaced(t)
	stop, monitor := c.watchSet(c.active...), c.redis.Monitor()
	const rounds = 3
	unchanged := 0
	for round := range rounds {
		_, was := c.leader()
		lost := c.follower()
		c.unplug(lost)
		c.registerBulk(round)
		// It starts several elections meanwhile.
		sought := len(lost.logged("entering candidate state"))
		eventually(t, patience, func() bool { return len(lost.logged("entering candidate state")) >= sought+3 }, "elections of its own")
		c.registerBulk(100 + round)
		require.Nil(t, lost.ping(t).GetLeader(), "it knows no leader")
		c.plug(lost)
		c.follows(lost, was)
		if _, now := c.leader(); now == was {
			unchanged++
		}
	}
	// A busy machine may change its leader by itself, but not each time.
	require.NotZero(t, unchanged, "the leader stayed")
	t.Logf("the leader stayed in %d of %d rounds", unchanged, rounds)
	require.Len(t, c.directory(), len(c.active)+2*rounds*8)
	stop()
	requireFenced(t, scriptCalls(t, monitor.Commands()))
}
