package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// binary and devBinary are the paths of rollcall and rollcall-dev, built once by TestMain.
var binary, devBinary string

// insideNamespaces, if set, marks this binary's run in its own network; its value is the product's path.
const insideNamespaces = "E2E_INSIDE_NAMESPACES"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if binary = os.Getenv(insideNamespaces); binary != "" {
			return m.Run()
		}
		if addr := os.Getenv(relayerAt); addr != "" {
			return serveRelayer(addr)
		}
		dir, err := os.MkdirTemp("", "rollcall-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary, devBinary = filepath.Join(dir, "rollcall"), filepath.Join(dir, "rollcall-dev")
		if err := testproc.Build(dir, "rollcall", "rollcall-dev"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// patience limits waits for operations that take a loaded machine a few seconds at most.
const patience = 2 * time.Minute

// eventually polls a condition on processes, which offer no signal.
func eventually(t testing.TB, within time.Duration, condition func() bool, what string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(within)
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		if condition() {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, fmt.Sprintf(what, args...), "not within %v", within)
		}
	}
}

// process is one run of a program. It is killed when the test ends.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	lines []string // lines of stderr and stdout
}

// launch starts the product with arguments; env is added to an environment without the product's variables.
func launch(t testing.TB, name string, env []string, args ...string) *process {
	t.Helper()
	return launchProgram(t, name, env, binary, args...)
}

func launchProgram(t testing.TB, name string, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.cmd.SysProcAttr = dieWithParent()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	require.NoError(t, p.cmd.Start())
	require.NoError(t, w.Close())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer r.Close()
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			if line != "" {
				p.mu.Lock()
				p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
				p.mu.Unlock()
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = p.cmd.Wait() // ProcessState holds the result
		<-read
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s wrote last:\n%s", name, strings.Join(p.tail(25), "\n"))
		}
	})
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.t, err)
	}
}

// kill ends the process at once, like a crash, and waits for the end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stopSignal asks a process to end.
const stopSignal = syscall.SIGTERM

// pause freezes the process: its ports accept connections, and no request is answered.
func (p *process) pause() {
	p.t.Helper()
	if err := testproc.Freeze(p.cmd.Process); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.t, err)
	}
}

func (p *process) resume() { p.signal(syscall.SIGCONT) }

// stop asks the process to end, like a supervisor would, and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.exit(patience)
}

// exit waits for the process to end by itself, and returns its exit code; -1 for a signal.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		require.FailNow(p.t, p.name+" does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// output returns the process's output so far, by line.
func (p *process) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

func (p *process) tail(n int) []string {
	all := p.output()
	return all[max(0, len(all)-n):]
}

// logged returns the JSON log lines with a message.
func (p *process) logged(msg string) []map[string]any {
	var found []map[string]any
	for _, line := range p.output() {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == msg {
			found = append(found, entry)
		}
	}
	return found
}

// rollcall runs a command of the product to its end.
func rollcall(t testing.TB, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runProgram(t, env, binary, args...)
}

// runProgram runs a program to its end.
func runProgram(t testing.TB, env []string, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var out, err strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Run(); e != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, e, &exit)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

var (
	portMu   sync.Mutex
	portNext = portFirst + rand.IntN(portLast-portFirst)
)

// Ports below the kernel's range of ephemeral ports, and above those of package testproc, cmd/rollcall and rollcall-dev.
const portFirst, portLast = 30_000, 32_700

// freePort returns a port that no other test takes while its process is down. The next call returns its successor in
// the sequence.
func freePort(t testing.TB) int {
	t.Helper()
	portMu.Lock()
	defer portMu.Unlock()
	for range 1000 {
		if portNext++; portNext > portLast {
			portNext = portFirst
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", portNext))
		if err == nil {
			require.NoError(t, l.Close())
			return portNext
		}
	}
	require.FailNow(t, "no free port")
	return 0
}

func closeBody(c io.Closer) { _ = c.Close() }
