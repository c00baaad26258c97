package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

// servicesOf returns the lines of an exported file without header and checksum, which differ from run to run.
func servicesOf(file string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(file, "\n"), "\n")
	return strings.Join(lines[1:len(lines)-1], "")
}

// exportedFile returns an exported file of services without gateways.
func exportedFile(services ...string) string {
	body := fmt.Sprintf(`{"rollcall":"services","version":1,"cluster":"c","epoch":1,"index":1,"exported":"2026-11-23T17:00:00Z","owners":0,"services":%d}`+"\n", len(services))
	body += strings.Join(append(services, ""), "\n")
	sum := sha256.Sum256([]byte(body))
	return body + `{"sha256":"` + hex.EncodeToString(sum[:]) + `"}` + "\n"
}

func TestServicesExport_Imported_HasTheServices(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	do := func(args ...string) string { return succeed(t, c.remote(args...)...) }
	do("services", "register", "a", "--url", "http://127.0.0.1:1", "--label", "zone=a")
	do("services", "register", "b", "--url", "http://127.0.0.1:2")
	c.registerAsGateway(t, "edge", "g", "http://127.0.0.1:3")
	file := filepath.Join(t.TempDir(), "services.jsonl")
	require.Regexp(t, `services.jsonl: 3 services, from cluster [a-z0-9]{26}, epoch \d+, index \d+\n`, do("services", "export", file))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, `^\{"owner":"gateway/edge","incarnation":\d+\}
\{"id":"a","kind":"relayer","url":"http://127.0.0.1:1","labels":\{"zone":"a"\},"owner":"operator"\}
\{"id":"b","kind":"relayer","url":"http://127.0.0.1:2","owner":"operator"\}
\{"id":"g","kind":"relayer","url":"http://127.0.0.1:3","owner":"gateway/edge"\}
$`, servicesOf(string(content)))
	require.Equal(t, servicesOf(string(content)), servicesOf(do("services", "export", "-")))

	do("services", "register", "b", "--url", "http://127.0.0.1:9")
	do("services", "register", "g", "--url", "http://127.0.0.1:3", "--force")
	do("services", "register", "x", "--url", "http://127.0.0.1:4")
	do("services", "deregister", "a")
	changed := do("services", "export", "-")

	difference := "- x relayer http://127.0.0.1:4 (operator)\n" +
		"~ b relayer http://127.0.0.1:2 (operator), was http://127.0.0.1:9\n" +
		"~ g relayer http://127.0.0.1:3 (gateway/edge), was owned by operator\n" +
		"+ a relayer http://127.0.0.1:1 (operator)\n" +
		"1 to add, 2 to change, 1 to remove, 0 unchanged\n"
	require.Equal(t, difference, do("services", "import", "--dry-run", file))
	dry := do("services", "import", "--dry-run", "-o", "json", file)
	for _, part := range []string{`"imported": false`, `"unchanged": 0`, `"added": [`, `"before": {`} {
		require.Contains(t, dry, part)
	}
	require.Equal(t, servicesOf(changed), servicesOf(do("services", "export", "-")), "a dry run changes nothing")

	answer := func(text string) (string, error) {
		var out bytes.Buffer
		cmd := cli.ServicesImportCmd{File: file}
		cmd.Coordinators, cmd.Timeout = c.addresses, time.Minute
		err := cmd.Run(t.Context(), &cli.Console{Stdin: strings.NewReader(text), Stdout: &out, Stderr: &out})
		return out.String(), err
	}
	_, err = answer("no\n")
	require.EqualError(t, err, "it was not confirmed")
	require.Equal(t, servicesOf(changed), servicesOf(do("services", "export", "-")))
	out, err := answer("yes\n")
	require.NoError(t, err)
	require.Contains(t, out, difference+"Replace the directory? Type yes: imported 3 services: registered 3, unchanged 0, removed 1; epoch ")
	require.Equal(t, servicesOf(string(content)), servicesOf(do("services", "export", "-")))

	require.Contains(t, do("services", "import", "--yes", file), "imported 3 services: registered 0, unchanged 3, removed 0; epoch ", "a repeat is harmless")
	require.Contains(t, do("services", "import", "--yes", "-o", "json", file), `"imported": true`)

	other := startCluster(t, 1)
	require.Regexp(t, `^the file is of cluster \w+, this is cluster \w+\n\+ a `, succeed(t, other.remote("services", "import", "--dry-run", file)...))
	require.Contains(t, succeed(t, other.remote("services", "import", "--yes", file)...), "imported 3 services: registered 3, unchanged 0, removed 0")
	require.Equal(t, servicesOf(string(content)), servicesOf(succeed(t, other.remote("services", "export", "-")...)))
}

// A file that cannot be imported is refused before a coordinator is called.
func TestServicesImport_RefusedFile(t *testing.T) {
	t.Parallel()
	a := `{"id":"a","kind":"relayer","url":"http://a","owner":"operator"}`
	good := exportedFile(a)
	for name, tt := range map[string]struct{ content, want string }{
		"cut":     {good[:len(good)-30], "line 3: the file ends where the checksum must follow\nThe file is cut: copy it again from its source, or export again.\n"},
		"altered": {strings.Replace(good, "http://a", "http://x", 1), "The file was altered after its export: export again, and change services with \"rollcall services register\".\n"},
		"newer":   {strings.Replace(good, `"version":1`, `"version":2`, 1), "line 1: the file has version 2 of the format, and this rollcall reads version 1\nUse the version of rollcall that wrote the file, or a later one.\n"},
		"foreign": {"services:\n", "line 1: is not the header of exported services\nGive a file that \"rollcall services export\" wrote.\n"},
		"empty":   {exportedFile(), "has no services, and an import of it would remove every service\nIf that is meant, use \"rollcall services deregister\".\n"},
	} {
		r := rollcall(t, "services", "import", "--yes", writeFile(t, "x.jsonl", tt.content), "--coordinators", "127.0.0.1:1")
		require.Equal(t, cli.ExitNotDone, r.code, name)
		require.Contains(t, r.stderr, "rollcall services import: not done: ", name)
		require.Contains(t, r.stderr, "x.jsonl", name)
		require.Contains(t, r.stderr, tt.want, name)
	}
	r := rollcall(t, "services", "import", "--yes", "testdata/none.jsonl", "--coordinators", "127.0.0.1:1")
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, "open testdata/none.jsonl: no such file or directory")
}
