package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestStatus_TableAndJSON_MatchGolden(t *testing.T) {
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
		require.NoError(t, OutputFlags{c.output}.Print(&out, f, f.table))
		goldenFile(t, c.file, out.String())
	}
	var out bytes.Buffer
	f := fleetOf(&rollcallv1.GetStatusResponse{}, "")
	require.NoError(t, OutputFlags{"json"}.Print(&out, f, f.table))
	goldenFile(t, "status-empty.json", out.String())
}

func TestEther_Wei_IsFormatted(t *testing.T) {
	t.Parallel()
	for wei, want := range map[string]string{
		"0": "0", "1": "0", "1000000000000": "0.000001", "1500000000000000000": "1.5", "12000000000000000000": "12", "1999999999999999999": "1.999999",
	} {
		n, _ := new(big.Int).SetString(wei, 10)
		require.Equal(t, want, ether(n))
	}
	require.Empty(t, ether(nil))
	require.Equal(t, []string{"", "0 ether", "1 wei", "0.000001 ether"}, []string{
		withUnit(nil), withUnit(big.NewInt(0)), withUnit(big.NewInt(1)), withUnit(big.NewInt(1e12)),
	})
}

func TestAge_Durations_AreShortened(t *testing.T) {
	t.Parallel()
	for ago, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m", 47*time.Hour + time.Minute: "47h", 49 * time.Hour: "2d",
	} {
		require.Equal(t, want, age(time.Now().Add(-ago)))
	}
}

func TestReadDefinitions_StandardInput_IsParsed(t *testing.T) {
	t.Parallel()
	services, err := readDefinitions("-", strings.NewReader(`{"services": [{"id": "x", "kind": "relayer", "worker_ref": {"url": "http://h"}}]}`))
	require.NoError(t, err)
	require.Len(t, services, 1)
	_, err = readDefinitions("-", strings.NewReader("id: x"))
	require.ErrorContains(t, err, "standard input: invalid services in services[0].kind")
}

// An unknown outcome has an exit code of its own, and it wins over other failures.
func TestActionResults_UnknownOutcome_DecidesTheExitCode(t *testing.T) {
	t.Parallel()
	done, not := resultOf("a", "is done", nil), resultOf("b", "", relayer.ErrNotFound)
	lost := resultOf("c", "", fmt.Errorf("cancel: %w", io.ErrUnexpectedEOF))
	refused := resultOf("d", "", fmt.Errorf("cancel: %w", &pgconn.PgError{Severity: "ERROR", Code: "55P03", Message: "lock timeout"}))
	require.Equal(t, []admin.Outcome{admin.Done, admin.NotDone, admin.Unknown, admin.NotDone},
		[]admin.Outcome{done.Outcome, not.Outcome, lost.Outcome, refused.Outcome})
	for _, c := range []struct {
		results []ActionResult
		code    int
		text    string
	}{
		{[]ActionResult{not, done}, ExitNotDone, "rollcall tx cancel: not done: b: not found"},
		{[]ActionResult{not, lost, done}, ExitUnknown, "rollcall tx cancel: may be done or not: c: cancel: unexpected EOF; not done: b: not found\nLook before you repeat it: \"rollcall tx get ID\"."},
		{[]ActionResult{resultOf("b", "", WithFix(relayer.ErrNotFound, "Look elsewhere."))}, ExitNotDone, "rollcall tx cancel: not done: b: not found\nLook elsewhere."},
	} {
		text, code := explain(t.Context(), nodeOf(t, "tx", "cancel"), failure(c.results, "rollcall tx get ID"))
		require.Equal(t, c.text, text)
		require.Equal(t, c.code, code)
	}
	require.NoError(t, failure([]ActionResult{done}, ""))
}

// An interrupted search for the leader is no sign of wrong addresses.
func TestExplain_Interrupted_NamesNoOtherRemedy(t *testing.T) {
	t.Parallel()
	node := nodeOf(t, "tx", "cancel")
	text, code := explain(t.Context(), node, gateway.ErrNoLeader)
	require.Equal(t, ExitNotDone, code)
	require.Contains(t, text, "not done: no coordinator leads\nCheck --coordinators")
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	text, code = explain(interrupted, node, gateway.ErrNoLeader)
	require.Equal(t, ExitNotDone, code)
	require.Equal(t, "rollcall tx cancel: not done: interrupted: no coordinator leads", text)
	text, code = explain(interrupted, node, &gateway.UnknownOutcomeError{Cause: "the connection broke"})
	require.Equal(t, ExitUnknown, code)
	require.Contains(t, text, "may be done or not: interrupted: the connection broke\nLook before you repeat it")
}

func TestQuoted_SingleQuote_IsEscaped(t *testing.T) {
	t.Parallel()
	require.Equal(t, `'it'\''s'`, quoted("it's"))
}

// nodeOf returns a command of the command line.
func nodeOf(t *testing.T, path ...string) *kong.Node {
	t.Helper()
	var commands struct {
		Tx TxCmd `cmd:""`
	}
	p, err := config.New(&commands, config.Options{Name: "rollcall", Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer)})
	require.NoError(t, err)
	node := p.Kong.Model.Node
	for _, name := range path {
		i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		node = node.Children[i]
	}
	return node
}

// goldenFile compares output with a file in testdata. UPDATE_GOLDEN=1 rewrites the file.
func goldenFile(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
