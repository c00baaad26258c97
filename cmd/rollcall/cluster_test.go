package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/cli"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// registerAsGateway registers a service as a gateway would.
func (c *cluster) registerAsGateway(t *testing.T, owner, id, url string) {
	t.Helper()
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: c.addresses})
	require.NoError(t, err)
	defer client.Close()
	now := uint64(time.Now().UnixNano())
	_, err = client.Register(t.Context(), &rollcallv1.RegisterServicesRequest{
		Writer: &rollcallv1.Writer{
			Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: owner},
			Incarnation: now, Seq: 1,
		},
		Services: []*rollcallv1.Service{{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: url}}},
	})
	require.NoError(t, err)
}

func TestClusterStatus_TableAndJSON_MatchGolden(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	golden(t, "cluster-status.txt", squeeze(succeed(t, c.remote("cluster", "status")...)))
	golden(t, "cluster-status.json", succeed(t, c.remote("cluster", "status", "-o", "json")...))
}

// squeeze makes columns independent of the width of what golden takes out.
func squeeze(table string) string {
	var lines []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) == 9 && fields[0] != "ID" {
			fields[4], fields[5], fields[7], fields[8] = "N", "N", "VERSION", "GO"
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestCluster_TransferAddAndRemove_ChangeMembership(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, "--raft-timing", "wan") // a leader that a busy machine does not depose
	leader := c.leader(t)

	next := "coordinator-1"
	if leader == next {
		next = "coordinator-2"
	}
	require.Contains(t, succeed(t, c.remote("cluster", "transfer", next)...), next+" leads, epoch ")
	require.Contains(t, succeed(t, c.remote("cluster", "transfer", next)...), next+" leads already")
	require.Equal(t, next, c.leader(t))
	require.Contains(t, succeed(t, c.remote("cluster", "transfer")...), " leads, epoch ")
	r := rollcall(t, c.remote("cluster", "transfer", "absent")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, `rollcall cluster transfer: not done: "absent" is not a voter`)

	fourth, fourthHTTP := freeAddress(t), freeAddress(t)
	r = rollcall(t, c.remote("cluster", "add", "coordinator-4", fourth)...)
	require.Equal(t, cli.ExitNotDone, r.code, "no coordinator answers there yet")
	require.Contains(t, r.stderr, "no coordinator \"coordinator-4\" answers at "+fourth)
	var peers []string
	for i, address := range c.addresses {
		peers = append(peers, "coordinator-"+strconv.Itoa(i+1)+"="+address)
	}
	b := start(t, "coordinator", "--node-id", "coordinator-4", "--peers", strings.Join(peers, ","), "--advertise", fourth,
		"--listen", fourth, "--http-listen", fourthHTTP, "--data-dir", t.TempDir(), "--raft-timing", "wan", "--redis-url", c.redis.URL(), "--relayer-count", "0")
	var last result
	require.Eventually(t, func() bool {
		last = rollcall(t, c.remote("cluster", "add", "coordinator-4", fourth, "--non-voter")...)
		return last.code == 0
	}, 5*time.Minute, 50*time.Millisecond, "%+v %s", &last, &b.log)
	b.await(t, "http://"+fourthHTTP+"/readyz")
	require.Regexp(t, `coordinator-4 +\S+ +non-voter +ok`, succeed(t, c.remote("cluster", "status")...))
	require.Contains(t, succeed(t, c.remote("cluster", "add", "coordinator-4", fourth)...), "it votes as soon as it has caught up")
	require.Eventually(t, func() bool {
		voter, _ := regexp.MatchString(`coordinator-4 +\S+ +(voter|leader) +ok`, rollcall(t, c.remote("cluster", "status")...).stdout)
		return voter
	}, 5*time.Minute, 50*time.Millisecond)
	require.Contains(t, succeed(t, c.remote("cluster", "remove", "coordinator-4")...), "coordinator-4 is removed; stop its process now")
	require.NotContains(t, succeed(t, c.remote("cluster", "status")...), "coordinator-4")
	r = rollcall(t, c.remote("cluster", "remove", "coordinator-4")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, `"coordinator-4" is not a member`)
	b.stop()

	// Without a quorum the table still shows, and the exit code reports that there is no leader.
	c.nodes[0].stop()
	c.nodes[1].stop()
	require.Eventually(t, func() bool {
		r = rollcall(t, c.remote("cluster", "status")...)
		return r.code == cli.ExitNotDone
	}, 5*time.Minute, 50*time.Millisecond)
	require.Regexp(t, `coordinator-1 +\S+ +voter +does not answer`, r.stdout)
	require.Regexp(t, `coordinator-3 +\S+ +voter +ok`, r.stdout)
	require.Contains(t, r.stderr, "no coordinator leads")
	require.Contains(t, succeed(t, c.remote("services", "list", "--stale")...), "0 services", "a copy can be read without a leader")
}

func (c *cluster) leader(t *testing.T) string {
	t.Helper()
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: c.addresses})
	require.NoError(t, err)
	defer client.Close()
	l, err := client.Leader(t.Context())
	require.NoError(t, err)
	return l.Node
}

func TestClusterSnapshot_Restored_HasTheServices(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	succeed(t, c.remote("services", "register", "a", "--url", "http://127.0.0.1:1")...)
	file := filepath.Join(t.TempDir(), "directory.snap")
	require.Regexp(t, `directory.snap: \d+ bytes, from coordinator-1, epoch \d+`, succeed(t, c.remote("cluster", "snapshot", file)...))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(content), succeed(t, c.remote("cluster", "snapshot", "-")...))
	r := rollcall(t, c.remote("cluster", "snapshot", filepath.Join(t.TempDir(), "none", "x"))...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "no such file or directory")

	folder := filepath.Join(t.TempDir(), "data")
	restore := func(file string, more ...string) []string {
		return append([]string{"cluster", "restore", file, "--node-id", "coordinator-1", "--peers", "coordinator-1=" + c.addresses[0], "--data-dir", folder}, more...)
	}
	torn := writeFile(t, "torn.snap", string(content[:len(content)-1]))
	r = rollcall(t, restore(torn)...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "rollcall cluster restore: not done: directory snapshot cannot be read")
	require.Contains(t, r.stderr, "Nothing was changed.")
	require.NoDirExists(t, folder)
	r = rollcall(t, restore("testdata/none.snap")...)
	require.Equal(t, cli.ExitUsage, r.code)
	r = rollcall(t, "cluster", "restore", file)
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, "--peers")

	require.Zero(t, c.nodes[0].stop())
	output := succeed(t, restore(file)...)
	require.Contains(t, output, "restored 1 service of cluster ")
	require.Contains(t, output, "Start coordinator-1 now.\n")
	require.Contains(t, succeed(t, restore(file, "-o", "json")...), `"services": 1`)
	require.Contains(t, succeed(t, restore(file)...), "The former state is in "+folder)
	b := start(t, "coordinator", "--node-id", "coordinator-1", "--peers", "coordinator-1="+c.addresses[0], "--listen", c.addresses[0],
		"--http-listen", c.http[0], "--data-dir", folder, "--redis-url", c.redis.URL(), "--relayer-count", "0")
	b.await(t, "http://"+c.http[0]+"/readyz")
	require.Contains(t, succeed(t, c.remote("services", "list")...), "http://127.0.0.1:1")
	r = rollcall(t, restore(file)...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "Stop all coordinators before a restore. Nothing was changed.")
}

// A change that broke off on its way may be done or not, and the exit code says so.
func TestCluster_OutcomeUnknown_SetsTheExitCode(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	fake := &vanishing{address: listener.Addr().String(), server: s, over: make(chan struct{})}
	rollcallv1.RegisterDiscoveryServiceServer(s, fake)
	rollcallv1.RegisterClusterServiceServer(s, fake)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	t.Cleanup(func() { close(fake.over) })
	r := rollcall(t, "cluster", "remove", "x", "--coordinators", fake.address, "--timeout", "2s")
	require.Equal(t, cli.ExitUnknown, r.code, r.stderr)
	require.Contains(t, r.stderr, "rollcall cluster remove: may be done or not: ")
	require.Contains(t, r.stderr, "Look before you repeat it")

	r = rollcall(t, "services", "deregister", "x", "--coordinators", fake.address, "--timeout", "2s")
	require.Equal(t, cli.ExitUnknown, r.code, r.stderr)
	require.Contains(t, r.stderr, "rollcall services deregister: may be done or not: ")

	file := writeFile(t, "x.jsonl", exportedFile(`{"id":"a","kind":"relayer","url":"http://a","owner":"operator"}`))
	r = rollcall(t, "services", "import", "--yes", file, "--coordinators", fake.address, "--timeout", "2s")
	require.Equal(t, cli.ExitUnknown, r.code, r.stderr)
	require.Contains(t, r.stderr, "rollcall services import: may be done or not: ")
	require.Contains(t, r.stderr, `See whether it was done with "rollcall services import --dry-run `+file+`"; to repeat it is harmless.`)
}

// vanishing is a leader that takes a change and never answers.
type vanishing struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	rollcallv1.UnimplementedClusterServiceServer
	address string
	server  *grpc.Server
	over    chan struct{} // closed when the caller has stopped waiting: an answer at the deadline might still be in time
}

func (v *vanishing) Ping(context.Context, *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	return &rollcallv1.PingResponse{Cluster: "c", Epoch: 1, Node: "n", Leader: &rollcallv1.Leader{Node: "n", Address: v.address, ClientAddress: v.address}}, nil
}

func (v *vanishing) ListServices(context.Context, *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	return &rollcallv1.ListServicesResponse{Records: []*rollcallv1.ServiceRecord{{Service: &rollcallv1.Service{Id: "x", Kind: "relayer"}}}}, nil
}

func (v *vanishing) DeregisterServices(context.Context, *rollcallv1.DeregisterServicesRequest) (*rollcallv1.DeregisterServicesResponse, error) {
	<-v.over
	return nil, errors.New("too late")
}

func (v *vanishing) RemoveMember(context.Context, *rollcallv1.RemoveMemberRequest) (*rollcallv1.RemoveMemberResponse, error) {
	<-v.over
	return nil, errors.New("too late")
}

func (v *vanishing) TakeSnapshot(_ *rollcallv1.TakeSnapshotRequest, stream grpc.ServerStreamingServer[rollcallv1.TakeSnapshotResponse]) error {
	var b bytes.Buffer
	if err := fsm.New().State().WriteSnapshot(&b); err != nil {
		return err
	}
	return stream.Send(&rollcallv1.TakeSnapshotResponse{Chunk: b.Bytes()})
}

// ImportServices reads the whole file, and ends the process: an upload has no time limit.
func (v *vanishing) ImportServices(stream grpc.ClientStreamingServer[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]) error {
	for {
		if req, err := stream.Recv(); err != nil || req.End != nil {
			break
		}
	}
	go v.server.Stop()
	<-v.over
	return errors.New("too late")
}
