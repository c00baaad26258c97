package main

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

func TestHealthcheck_StatusCode_DecidesTheExitCode(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/well" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	succeed(t, "healthcheck", server.URL+"/well")
	r := rollcall(t, "healthcheck", server.URL+"/ill")
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "answers 503 Service Unavailable")
	r = rollcall(t, "healthcheck", "http://"+freeAddress(t))
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "connection refused")
	require.Equal(t, cli.ExitUsage, rollcall(t, "healthcheck", "http://[").code)
}

func TestVersion_TextAndJSON_NameTheGoVersion(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^rollcall \S+ go1\.\d+`, succeed(t, "version"))
	require.Equal(t, succeed(t, "version"), succeed(t, "--version"))
	require.Regexp(t, `"version": "\S+ go1\.\d+`, succeed(t, "version", "-o", "json"))
}

func TestHelp_ProgramAndCommand_ListCommands(t *testing.T) {
	t.Parallel()
	require.Contains(t, succeed(t, "--help"), "Run a coordinator")
	require.Contains(t, succeed(t, "cluster", "--help"), "transfer")
}

func TestTLSInit_Names_WritesCertificates(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	out := succeed(t, "tls", "init", "--dir", dir, "--coordinator", "a,b", "--gateway", "edge", "--operator", "me", "--host", "a.example", "--days", "3")
	for _, name := range []string{"ca", "a", "b", "edge", "me"} {
		require.Contains(t, out, filepath.Join(dir, name+".crt"))
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key"))
	require.NoError(t, err)
	require.Contains(t, cert.Leaf.DNSNames, "coordinator.rollcall.internal")
	require.Contains(t, cert.Leaf.DNSNames, "a.example")
	again := rollcall(t, "tls", "init", "--dir", dir, "--coordinator", "a,b")
	require.Equal(t, cli.ExitNotDone, again.code)
	require.Contains(t, again.stderr, "already exists\nReplace certificates that are there with --force")
	require.Less(t, cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore).Hours(), 4*24.0)
	for name, role := range map[string]string{"edge": "gateway", "me": "operator"} {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		require.NoError(t, err)
		require.Contains(t, cert.Leaf.DNSNames, role+".rollcall.internal")
	}

	before, err := os.ReadFile(filepath.Join(dir, "a.crt"))
	require.NoError(t, err)
	r := rollcall(t, "tls", "init", "--dir", dir, "--coordinator", "a", "--gateway", "edge", "--operator", "me")
	require.Equal(t, cli.ExitNotDone, r.code, "what is there is not replaced")
	succeed(t, "tls", "init", "--dir", dir, "--coordinator", "a", "--gateway", "edge", "--operator", "me", "--force")
	after, err := os.ReadFile(filepath.Join(dir, "a.crt"))
	require.NoError(t, err)
	require.NotEqual(t, before, after)
}

// A cluster under TLS serves callers that have an operator's certificate, and no others.
func TestOperator_TLS_NeedsCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	succeed(t, "tls", "init", "--dir", dir)
	cert := func(name string) []string {
		return []string{"--tls-cert", filepath.Join(dir, name+".crt"), "--tls-key", filepath.Join(dir, name+".key"), "--tls-ca", filepath.Join(dir, "ca.crt")}
	}
	c := startCluster(t, 1, cert("coordinator-1")...)
	require.Contains(t, succeed(t, append(c.remote("cluster", "status"), cert("operator")...)...), "leader")
	require.Contains(t, succeed(t, append(c.remote("services", "list"), cert("gateway")...)...), "0 services")
	r := rollcall(t, append(c.remote("cluster", "status"), cert("gateway")...)...)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "Use a certificate with the role operator")
	r = rollcall(t, c.remote("services", "list", "--timeout", "300ms")...)
	require.Equal(t, cli.ExitNotDone, r.code)
	r = rollcall(t, append(c.remote("cluster", "status"), "--tls-cert", "none", "--tls-key", "none", "--tls-ca", "none")...)
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, "no such file or directory")
}

// The shells run the real program with the line typed so far in the environment.
func TestCompletion_EveryShell_CompletesCommands(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code := succeed(t, "completion", shell)
		require.Contains(t, code, "rollcall")
		out, err := exec.Command(shell, "-n", "-c", code).CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
	}
	require.Equal(t, cli.ExitUsage, rollcall(t, "completion", "tcsh").code)
	self, err := os.Executable()
	require.NoError(t, err)
	env := []string{"ROLLCALL_TEST_MAIN=1", "GORACE=atexit_sleep_ms=0"} // or each run would end with a second's sleep
	for line, want := range map[string][]string{
		"rollcall cl":                {"cluster"},
		"rollcall cluster tr":        {"transfer"},
		"rollcall services list --k": {"--kind"},
		"rollcall completion b":      {"bash"},
		"rollcall keys re":           {"resume", "resync"},
		"rollcall tx cancel --wa":    {"--wait"},
	} {
		cmd := exec.Command(self)
		cmd.Env = append(append(os.Environ(), env...), "COMP_LINE="+line)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.ElementsMatch(t, want, strings.Fields(string(out)), line)
	}

	// Sourced, each runs what it was told to, wherever the program is.
	odd := filepath.Join(t.TempDir(), "it's here", "rollcall")
	require.NoError(t, os.Mkdir(filepath.Dir(odd), 0o700))
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(odd, program, 0o700))
	for shell, script := range map[string]string{
		"bash": `source <("$ODD" completion bash) && eval "set -- $(complete -p rollcall)" && export COMP_LINE="rollcall cluster tr" && eval "${@: -2:1} rollcall tr cluster"`,
		// zsh completes at a terminal only. The Enter after Tab runs what stands there then.
		"zsh": `zmodload zsh/zpty; zpty -b z zsh -f -i
			zpty -w z 'unsetopt zle_bracketed_paste; source <("$ODD" completion zsh); rollcall() { print -r -- "<$*>"; }; print re""ady'; zpty -r z out '*ready*' || exit
			zpty -w z $'rollcall cluster tr\t'; zpty -r z out '*<*>*' || exit; print -r -- "${${out#*<cluster }%%>*}"`,
		"fish": `command $ODD completion fish | source; complete -C "rollcall cluster tr"`,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, shell, "-c", script)
		cmd.Env = append(slices.Clip(env), "ODD="+odd, "HOME="+t.TempDir(), "PATH="+os.Getenv("PATH"), "TERM=dumb")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
		require.Equal(t, "transfer", strings.TrimSpace(string(out)), shell)
	}
}
