package crashtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
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

// patience limits waits for operations that take a loaded machine a few seconds at most.
const patience = 2 * time.Minute

// member is one place in a fleet of relayers, with one process at a time.
type member struct {
	t    testing.TB
	name string
	env  []string
	log  io.Writer

	mu       sync.Mutex
	run      *run
	frozen   bool
	peak     int64         // resident bytes, the maximum of any process
	cpu      time.Duration // of all processes that have ended
	warnings map[string]int
}

// run is one process.
type run struct {
	cmd    *exec.Cmd
	killed bool          // by the test
	done   chan struct{} // closed when it has ended
	url    string        // of its API; "" before it listens
	last   []string      // its last lines of output
}

// newMember returns a member without a process. Its processes end with the test.
func newMember(t testing.TB, name string, env []string) *member {
	t.Helper()
	dir := *logs
	if dir == "" {
		dir = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	file, err := os.Create(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+name+".log"))
	require.NoError(t, err)
	m := &member{t: t, name: name, log: file, warnings: map[string]int{}}
	m.env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "RELAYER_LISTEN=127.0.0.1:0"}, env...)
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("%s wrote last:\n%s", name, strings.Join(m.tail(), "\n"))
		}
		_ = file.Close()
	})
	return m
}

// start starts a process, which is ready once url returns its address.
func (m *member) start() {
	r, w, err := os.Pipe()
	if err != nil {
		m.t.Error(err)
		return
	}
	p := &run{cmd: exec.Command(*product, "relayer"), done: make(chan struct{})}
	p.cmd.Env, p.cmd.SysProcAttr, p.cmd.Stdout, p.cmd.Stderr = m.env, dieWithParent(), w, w
	err = p.cmd.Start()
	_ = w.Close()
	if err != nil {
		m.t.Errorf("start %s: %v", m.name, err)
		_ = r.Close()
		return
	}
	m.mu.Lock()
	m.run, m.frozen = p, false
	m.mu.Unlock()
	go m.watch(p, r)
}

// watch reads the output of a process until it ends.
func (m *member) watch(p *run, r io.ReadCloser) {
	defer close(p.done)
	defer r.Close()
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			m.logged(p, line)
		}
		if err != nil {
			break
		}
	}
	_ = p.cmd.Wait() // ProcessState holds the result
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cpu += p.cmd.ProcessState.SystemTime() + p.cmd.ProcessState.UserTime()
	p.url = ""
	if !p.killed && p.cmd.ProcessState.ExitCode() != 0 {
		m.t.Errorf("%s ended by itself, with %v:\n%s", m.name, p.cmd.ProcessState, strings.Join(p.last, ""))
	}
}

func (m *member) logged(p *run, line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = io.WriteString(m.log, line)
	p.last = append(p.last, line)
	p.last = p.last[max(0, len(p.last)-30):]
	var entry struct{ Level, Msg, HTTP string }
	if json.Unmarshal([]byte(line), &entry) != nil {
		if strings.HasPrefix(line, "WARNING: DATA RACE") || strings.HasPrefix(line, "panic: ") {
			m.t.Errorf("%s: %s", m.name, line)
		}
		return
	}
	if entry.Msg == "relayer started" {
		p.url = "http://" + entry.HTTP
	}
	if entry.Level != "INFO" && entry.Level != "DEBUG" {
		m.warnings[entry.Msg]++
	}
}

// url returns the URL of its API; "" while there is none.
func (m *member) url() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return ""
	}
	return m.run.url
}

// pid returns the pid of its process; 0 while there is none.
func (m *member) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return 0
	}
	return m.run.cmd.Process.Pid
}

func (m *member) tail() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return nil
	}
	return m.run.last
}

// kill ends its process like a crash, and waits for the end.
func (m *member) kill() {
	m.mu.Lock()
	p := m.run
	if p != nil {
		p.killed = true
		m.weigh(p)
	}
	m.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// weigh records the maximum memory of a process. It is called with the lock held, before the process ends. The kernel's
// value after the end includes the time before exec, when the process was as large as the test.
func (m *member) weigh(p *run) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return // it has ended, or this is not Linux
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			m.peak = max(m.peak, kib<<10)
		}
	}
}

// stop ends its process like a supervisor, and fails the test unless it exits cleanly.
func (m *member) stop() {
	m.t.Helper()
	m.mu.Lock()
	p := m.run
	m.weigh(p)
	m.mu.Unlock()
	m.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		require.FailNow(m.t, m.name+" does not end")
	}
}

func (m *member) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = true
	if err := testproc.Freeze(m.run.cmd.Process); err != nil {
		m.t.Errorf("freeze %s: %v", m.name, err)
	}
}

func (m *member) thaw() { m.signal(syscall.SIGCONT) }

func (m *member) signal(s syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = false
	if err := m.run.cmd.Process.Signal(s); err != nil {
		m.t.Errorf("%v to %s: %v", s, m.name, err)
	}
}

func (m *member) isFrozen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.frozen
}

// fleet is several relayers of one pool.
type fleet []*member

// ready waits until all are healthy.
func (f fleet) ready(t testing.TB) {
	t.Helper()
	for _, m := range f {
		eventually(t, patience, func() bool { return m.url() != "" && healthy(t, m.url()) }, "%s did not become healthy", m.name)
	}
}

// stop stops all members.
func (f fleet) stop() {
	for _, m := range f {
		m.stop()
	}
}

// any returns the URL of a random listening process; "" if there is none.
func (f fleet) any(random *rand.Rand) string {
	for _, i := range random.Perm(len(f)) {
		if url := f[i].url(); url != "" {
			return url
		}
	}
	return ""
}

// usage returns the resource use of the processes; it is complete when they have ended.
func (f fleet) usage() string {
	var out []string
	warnings := map[string]int{}
	for _, m := range f {
		m.mu.Lock()
		out = append(out, fmt.Sprintf("%s %d MiB %.1f s", m.name, m.peak>>20, m.cpu.Seconds()))
		for msg, n := range m.warnings {
			warnings[msg] += n
		}
		m.mu.Unlock()
	}
	return "peak memory and CPU: " + strings.Join(out, ", ") + "\nwarnings and errors: " + counts(warnings)
}

// counts formats counts in one line, sorted by name.
func counts[N int | uint64](m map[string]N) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}

// eventually polls a condition on processes, which offer no signal.
func eventually(t testing.TB, within time.Duration, condition func() bool, what string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(within)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		if condition() {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, fmt.Sprintf(what, args...), "not within %v", within)
		}
	}
}
