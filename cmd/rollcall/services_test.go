package main

import (
	"bufio"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
)

func TestServices_RegisterListAndDeregister(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	do := func(args ...string) string { return succeed(t, c.remote(args...)...) }

	require.Contains(t, do("services", "register", "edge-1", "--url", "http://127.0.0.1:1", "--node", "host-1", "--label", "zone=a", "--label", "tier=b"),
		"registered 1, unchanged 0, epoch ")
	require.Contains(t, do("services", "register", "edge-1", "--url", "http://127.0.0.1:1", "--node", "host-1", "--label", "zone=a", "--label", "tier=b"),
		"registered 0, unchanged 1, epoch ")
	do("services", "register", "signer-1", "--kind", "signer", "--url", "tcp://127.0.0.1:2")

	golden(t, "services-list.txt", do("services", "list"))
	golden(t, "services-list.json", do("services", "list", "-o", "json"))
	golden(t, "services-list-kind.txt", do("services", "list", "--kind", "signer"))
	golden(t, "services-get.txt", do("services", "get", "signer-1", "edge-1"))
	require.Contains(t, do("services", "list", "--stale"), "2 services")

	r := rollcall(t, c.remote("services", "get", "signer-1", "absent")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stdout, "signer-1")
	require.Equal(t, "rollcall services get: not in the directory: absent\n", r.stderr)
	r = rollcall(t, c.remote("services", "get", "absent")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Empty(t, r.stdout)
	require.Contains(t, rollcall(t, c.remote("services", "get", "absent", "-o", "json")...).stdout, `"services": []`)

	require.Contains(t, do("services", "deregister", "edge-1", "absent", "no-one"), "removed 1, not in the directory: absent, no-one; epoch ")
	out := do("services", "deregister", "absent", "-o", "json")
	require.Contains(t, out, `"removed": 0`)
	require.Regexp(t, `"absent": \[\s+"absent"\s+\]`, out)
	require.NotContains(t, do("services", "list"), "edge-1")
}

func TestServicesRegister_File_RegistersItsServices(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	file := filepath.Join("testdata", "definitions.yaml")
	require.Contains(t, succeed(t, c.remote("services", "register", "-f", file)...), "registered 2, unchanged 0")
	require.Contains(t, succeed(t, c.remote("services", "list")...), "2 services")
	json := writeFile(t, "x.json", `[{"id": "x", "kind": "relayer", "worker_ref": {"url": "http://h"}}]`)
	require.Contains(t, succeed(t, c.remote("services", "register", "-f", json)...), "registered 1, unchanged 0")
	for content, want := range map[string]string{
		"":                               "x.yaml: empty document",
		"id: x\nkynd: relayer\n":         "x.yaml: malformed YAML: unknown field kynd in line 2",
		"id: X\nkind: relayer\n":         `"X" is not a DNS label`,
		strings.Repeat("#", 4<<20) + "#": "x.yaml: document of 4194305 bytes; split it",
	} {
		r := rollcall(t, c.remote("services", "register", "-f", writeFile(t, "x.yaml", content))...)
		require.Equal(t, cli.ExitUsage, r.code)
		require.Contains(t, r.stderr, want)
	}
}

// The command reports wrong input before it sends anything.
func TestServices_WrongInput_IsUsageError(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--url: is missing; give an id with --url, or --file":              {"services", "register", "x"},
		"--file: contradicts an id or --url":                               {"services", "register", "x", "-f", "y"},
		`"X" is not a DNS label`:                                           {"services", "register", "X", "--url", "http://h"},
		`--url: "ftp://h" has the scheme "ftp"`:                            {"services", "register", "x", "--url", "ftp://h"},
		"open testdata/none.yaml: no such file or directory":               {"services", "register", "-f", "testdata/none.yaml"},
		`--coordinators: "nowhere" is not host:port; give addresses`:       {"services", "list", "--coordinators", "nowhere"},
		`--output: "xml" is not one of table, json`:                        {"services", "list", "-o", "xml"},
		"--tls-ca: is missing; give certificate, key and CA, or none":      {"services", "list", "--tls-cert", "x", "--tls-key", "y"},
		`expected "<id> ..."`:                                              {"services", "get"},
		`expected one of "list", "get", "register", "deregister", "watch"`: {"services"},
	} {
		r := rollcall(t, args...)
		require.Equal(t, cli.ExitUsage, r.code, args)
		require.Contains(t, r.stderr, want, args)
		require.Contains(t, r.stderr, `--help" for its flags.`)
		require.Empty(t, r.stdout)
	}
}

// An entry that a gateway owns is refused to the operator, who is told whose it is and how to take it.
func TestServicesDeregister_OwnedByGateway_NeedsForce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	c.registerAsGateway(t, "edge", "oz-relayer-1", "http://127.0.0.1:1")

	r := rollcall(t, c.remote("services", "deregister", "oz-relayer-1")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "rollcall services deregister: not done: ")
	require.Contains(t, r.stderr, "gateway/edge")
	require.Contains(t, r.stderr, "--force")
	r = rollcall(t, c.remote("services", "register", "oz-relayer-1", "--url", "http://127.0.0.1:2")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "gateway/edge")

	succeed(t, c.remote("services", "register", "oz-relayer-1", "--url", "http://127.0.0.1:2", "--force")...)
	require.Regexp(t, `oz-relayer-1 .*127.0.0.1:2 .*operator`, succeed(t, c.remote("services", "get", "oz-relayer-1")...))
	c.registerAsGateway(t, "edge", "oz-relayer-2", "http://127.0.0.1:1")
	require.Contains(t, succeed(t, c.remote("services", "deregister", "--force", "oz-relayer-2")...), "removed 1")
}

func TestServicesList_NoCoordinatorAnswers(t *testing.T) {
	t.Parallel()
	r := rollcall(t, "services", "list", "--coordinators", freeAddress(t), "--timeout", "3s")
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "rollcall services list: ")
	require.Contains(t, r.stderr, "no coordinator leads")
	require.Contains(t, r.stderr, "connection refused")
	require.Contains(t, r.stderr, "Check --coordinators (ROLLCALL_COORDINATORS)")
}

func TestServicesWatch_Changes_AreWritten(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	do := func(args ...string) { succeed(t, c.remote(args...)...) }
	do("services", "register", "a", "--url", "http://127.0.0.1:1")

	people := start(t, c.remote("services", "watch")...)
	scripts := start(t, c.remote("services", "watch", "-o", "json")...)
	signers := start(t, c.remote("services", "watch", "--kind", "signer")...)
	for _, b := range []*background{people, signers} {
		require.Eventually(t, func() bool { return strings.Contains(b.out.String(), "watching") }, 2*time.Minute, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return strings.Contains(scripts.out.String(), "ready") }, 2*time.Minute, 10*time.Millisecond)

	do("services", "register", "b", "--url", "http://127.0.0.1:2")
	do("services", "register", "a", "--url", "http://127.0.0.1:3")
	do("services", "register", "s", "--kind", "signer", "--url", "tcp://127.0.0.1:4")
	do("services", "deregister", "b")
	for _, b := range []*background{people, scripts} {
		require.Eventually(t, func() bool {
			return strings.Contains(b.out.String(), "removed") || strings.Contains(b.out.String(), "- b")
		}, 2*time.Minute, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return strings.Contains(signers.out.String(), "+ s") }, 2*time.Minute, 10*time.Millisecond)
	require.Zero(t, people.stop(), "interrupting is how a watch ends")
	require.Zero(t, signers.stop())
	require.Zero(t, scripts.stop())
	require.Equal(t, "  a relayer http://127.0.0.1:1 (operator)\nwatching for changes\n"+
		"+ b relayer http://127.0.0.1:2 (operator)\n"+
		"~ a relayer http://127.0.0.1:3 (operator), was http://127.0.0.1:1\n"+
		"+ s signer tcp://127.0.0.1:4 (operator)\n"+
		"- b relayer http://127.0.0.1:2 (operator)\n", people.out.String())
	require.Equal(t, "watching for changes\n+ s signer tcp://127.0.0.1:4 (operator)\n", signers.out.String())

	var events []admin.Event
	lines := bufio.NewScanner(strings.NewReader(scripts.out.String()))
	for lines.Scan() {
		var e admin.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		events = append(events, e)
	}
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Event)
	}
	require.Equal(t, []string{"service", "ready", "added", "changed", "added", "removed"}, kinds)
	require.Equal(t, "http://127.0.0.1:1", events[3].Before.URL)

	// The token of the first change brings back all after it, and nothing before.
	resumed := start(t, c.remote("services", "watch", "--resume", events[2].Token)...)
	require.Eventually(t, func() bool { return strings.Contains(resumed.out.String(), "- b") }, 2*time.Minute, 10*time.Millisecond)
	require.Zero(t, resumed.stop())
	require.True(t, strings.HasPrefix(resumed.out.String(), "~ a"), resumed.out.String())

	r := rollcall(t, c.remote("services", "watch", "--resume", "elsewhere/1")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.NotEmpty(t, r.stderr)
}

// A usage error names the flag, the value and what is allowed. It reaches no cluster.
func TestUsageErrors_NameFlagValueAndChoice(t *testing.T) {
	t.Parallel()
	const schemes = "http://, https://, grpc://, grpcs:// or tcp://"
	for _, tt := range []struct {
		args []string
		want []string
		not  string
	}{
		{[]string{"services", "register"}, []string{"ID: is missing", "oz-relayer-1", "--url: is missing", "--file"}, ""},
		{[]string{"services", "register", "x", "--kind=", "--url", "http://h"}, []string{"--kind: is empty", `"relayer"`}, ""},
		{[]string{"services", "register", "x", "--kind", "A b", "--url", "http://h"}, []string{`--kind: "A b" is not a DNS label: only a-z, 0-9 and '-' are allowed`}, ""},
		{[]string{"services", "register", "X", "--url", "http://h"}, []string{`ID: "X" is not a DNS label`}, ""},
		{[]string{"services", "register", "x", "--url", "127.0.0.1:80"}, []string{`--url: "127.0.0.1:80" has no scheme`, schemes}, ""},
		{[]string{"services", "register", "x", "--url", "ftp://h"}, []string{`--url: "ftp://h" has the scheme "ftp"; known are http, https, grpc, grpcs, tcp`}, ""},
		{[]string{"services", "register", "x", "--url", "http://me:hunter2@h"}, []string{"--url: holds a user name or password"}, "hunter2"},
		{[]string{"services", "register", "x", "--url", "me:hunter2@h:%zz"}, []string{"--url: "}, "hunter2"},
		{[]string{"services", "register", "x", "--url", "http://h", "--label", "=v"}, []string{`--label: key "" is empty`}, ""},
		{[]string{"services", "list", "--kind", "Relayer"}, []string{`--kind: "Relayer" is not a DNS label`}, ""},
		{[]string{"services", "watch", "--kind", "Relayer"}, []string{`--kind: "Relayer" is not a DNS label`}, ""},
		{[]string{"services", "get", "x", "a b"}, []string{`ID: "a b" is not a DNS label`}, ""},
		{[]string{"services", "deregister", "a b"}, []string{`ID: "a b" is not a DNS label`}, ""},
		{[]string{"tx", "list", "--status", "done"}, []string{
			`--status: "done" is not a status; allowed: allocated, broadcasted, unknown, mined, confirmed, reverted, failed, replaced, dropped, canceled, expired, open`,
		}, ""},
		{[]string{"services", "bogus"}, []string{`"bogus" is not a command of rollcall services`, "; it has list, get, register, deregister, watch"}, ""},
		{[]string{"status", "x"}, []string{`"x" is more than rollcall status takes`}, ""},
	} {
		r := rollcall(t, tt.args...)
		require.Equal(t, cli.ExitUsage, r.code, "%v: %s", tt.args, r.stderr)
		for _, want := range tt.want {
			require.Contains(t, r.stderr, want, "%v", tt.args)
		}
		if tt.not != "" {
			require.NotContains(t, r.stderr, tt.not)
		}
		require.Empty(t, r.stdout)
	}
}
