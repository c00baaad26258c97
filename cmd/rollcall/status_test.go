package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestStatusOutput(t *testing.T) {
	t.Parallel()
	at := timestamppb.New(time.Date(2026, 11, 20, 9, 0, 0, 123456789, time.UTC))
	resp := &rollcallv1.GetStatusResponse{
		Cluster: "c1", Epoch: 7, Leader: "coordinator-2", Director: rollcallv1.DirectorState_DIRECTOR_STATE_STALLED,
		Stalls:   []*rollcallv1.Stall{{Kind: "signer", Needed: 2, Available: 1}},
		Mirror:   &rollcallv1.MirrorStatus{Connected: true, Seq: 42, LastWrite: at, Held: 1, Error: "slow\x1b[31m"},
		Interval: durationpb.New(10 * time.Second),
		Notes:    []string{"coordinator-3 was started with RELAYER_COUNT=5, the leader with 3"},
		Services: []*rollcallv1.ServiceStatus{
			{
				Id: "oz-relayer-0", Kind: "relayer", Url: "http://oz-relayer-0:3000", Verdict: rollcallv1.Verdict_VERDICT_UP,
				Active: true, LastCheck: at, Latency: durationpb.New(1234 * time.Microsecond),
			},
			{
				Id: "oz-relayer-1", Kind: "relayer", Url: "http://oz-relayer-1:3000", Verdict: rollcallv1.Verdict_VERDICT_DOWN,
				LastCheck: at, Latency: durationpb.New(500 * time.Millisecond), Failures: 3, Reason: "no answer within 500ms",
			},
			{Id: "signer-1", Kind: "signer", Url: "tcp://signer:1", Verdict: rollcallv1.Verdict_VERDICT_UNKNOWN},
		},
	}
	for _, c := range []struct{ kind, output, file string }{
		{"", "table", "status.txt"},
		{"", "json", "status.json"},
		{"signer", "table", "status-kind.txt"},
	} {
		var out bytes.Buffer
		f := fleetOf(resp, c.kind)
		require.NoError(t, outputFlags{c.output}.print(&out, f, f.table))
		golden(t, c.file, out.String())
	}
	var out bytes.Buffer
	f := fleetOf(&rollcallv1.GetStatusResponse{}, "")
	require.NoError(t, outputFlags{"json"}.print(&out, f, f.table))
	golden(t, "status-empty.json", out.String())
}

// The status shows the results of a real coordinator's checks, and the mirror that it wrote to Redis.
func TestStatusAndMirror(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	redis := []string{"--redis-url", "redis://" + c.redis.Addr()}
	relayer := freeAddress(t)
	serveWell(t, relayer)
	succeed(t, c.remote("services", "register", "oz-relayer-0", "--url", "http://"+relayer)...)
	succeed(t, c.remote("services", "register", "oz-relayer-1", "--url", "http://"+freeAddress(t))...)
	require.Eventually(t, func() bool {
		members, _ := c.redis.SMembers("relayer:active")
		return len(members) == 1 && members[0] == "oz-relayer-0"
	}, 20*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		r := rollcall(t, c.remote("status")...)
		return r.code == 0 && bytes.Contains([]byte(r.stdout), []byte("unhealthy"))
	}, 20*time.Second, 50*time.Millisecond)
	out := succeed(t, c.remote("status")...)
	require.Regexp(t, `director  running, checks every 1s`, out)
	require.Regexp(t, `relayer   1 of 2 active`, out)
	require.Regexp(t, `oz-relayer-0 +relayer +healthy +yes`, out)
	require.Regexp(t, `oz-relayer-1 +relayer +unhealthy +no`, out)
	code, body := get("http://" + c.http[0] + "/status")
	require.Equal(t, 200, code)
	require.Equal(t, "degraded", body["status"])

	out = succeed(t, append([]string{"mirror", "show"}, redis...)...)
	require.Contains(t, out, "leader   coordinator-1, epoch ")
	require.Contains(t, out, "active   relayer: oz-relayer-0")
	require.Contains(t, succeed(t, append([]string{"mirror", "show", "-o", "json"}, redis...)...), `"relayer": [`+"\n"+`      "oz-relayer-0"`)
	require.Contains(t, succeed(t, append(c.remote("mirror", "take-over"), redis...)...), " already")
}

// A Redis that another cluster has written to is refused, until the operator says otherwise.
func TestMirrorTakeOver(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	redis := []string{"--redis-url", "redis://" + c.redis.Addr()}
	client, err := mirror.NewClient(mirror.Options{URL: redis[1]})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, mirror.TakeOver(t.Context(), client, "", "another"))

	require.Eventually(t, func() bool {
		return bytes.Contains([]byte(succeed(t, c.remote("status")...)), []byte("another"))
	}, 20*time.Second, 50*time.Millisecond, "status says whose it is")
	require.Contains(t, succeed(t, append(c.remote("mirror", "take-over"), redis...)...), "it belonged to cluster another and now does to cluster ")
	require.Eventually(t, func() bool {
		return !bytes.Contains([]byte(succeed(t, c.remote("status")...)), []byte("another"))
	}, 20*time.Second, 50*time.Millisecond)
	require.Contains(t, succeed(t, append([]string{"mirror", "take-over", "--cluster", "third"}, redis...)...), "cluster third")

	r := rollcall(t, "mirror", "show", "--redis-host", "127.0.0.1", "--redis-port", "1", "--timeout", "2s")
	require.Equal(t, exitNotDone, r.code)
	require.Contains(t, r.stderr, "redis at redis://127.0.0.1:1: ")
	require.Contains(t, r.stderr, "Check REDIS_URL")
}
