package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/process"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// binary is the program of the roles, built once by TestMain.
var binary string

// TestMain is also the program: tests that need real processes start this binary with this variable set.
func TestMain(m *testing.M) {
	if os.Getenv("ROLLCALL_TEST_MAIN") != "" {
		main()
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "rollcall-dev-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "rollcall")
		build := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", binary, "../rollcall")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program of the roles: %v\n%s", err, out)
			return 1
		}
		// The clusters of tests are not among those of the user, whose ports rollcall-dev leaves alone. The compiler's cache is
		// below the same folder, so this comes after the build.
		if err := os.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// dev runs a command of rollcall-dev to its end.
func dev(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// succeed runs a command that must succeed, and returns its output.
func succeed(t *testing.T, args ...string) string {
	t.Helper()
	r := dev(t, args...)
	require.Zero(t, r.code, "%v: %s", args, r.stderr)
	require.Empty(t, r.stderr)
	return r.stdout
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}

// get returns the code of an answer, 0 without one, and its JSON.
func get(url string) (code int, body map[string]any) {
	res, err := client.Get(url)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	_ = json.NewDecoder(res.Body).Decode(&body)
	return res.StatusCode, body
}

func TestVersion_NamesTheProgram(t *testing.T) {
	t.Parallel()
	require.Equal(t, "rollcall-dev "+process.Version()+"\n", succeed(t, "--version"))
}

// A shell completes the names of the cluster's processes.
func TestCompletion_Kill_CompletesMembers(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "ROLLCALL_TEST_MAIN=1", "COMP_LINE=rollcall-dev kill oz-")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}, strings.Fields(string(out)))
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code := succeed(t, "completion", shell)
		require.Contains(t, code, "rollcall-dev")
		out, err := exec.Command(shell, "-n", "-c", code).CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
	}
}

// A second word after the program is a mistake that names the commands.
func TestRun_UnknownCommand_IsUsageError(t *testing.T) {
	t.Parallel()
	r := dev(t, "keys")
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, `"keys" is not a command of rollcall-dev; it has run, kill, start, api-key, secrets, chain`)
}

// The program of the roles is missing.
func TestRun_RollcallIsMissing_NamesTheFlag(t *testing.T) {
	t.Parallel()
	r := dev(t, "--data", t.TempDir(), "--rollcall", filepath.Join(t.TempDir(), "rollcall"))
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "build it with make build, or name it with --rollcall")
}

// A newcomer learns which package is missing.
func TestRun_RedisServerIsMissing_NamesTheRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r := dev(t, "--data", t.TempDir(), "--rollcall", binary)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "redis-server is not installed: ")
	require.Contains(t, r.stderr, "`apt-get install redis-server` on Debian and Ubuntu")
}

// freeAddress returns an address at which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testproc.FreePort()
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
