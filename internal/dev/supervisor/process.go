package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// process is one run of a member.
type process interface {
	pid() int
	done() <-chan struct{} // closed when the process has ended
	err() error            // how it ended, once done is closed
	kill()                 // ends it like a crash, and waits for the end
	// stop asks the process to end, and kills it after the limit. It reports whether the process ended by itself.
	stop(limit time.Duration) bool
}

// run is a process with its state in the supervisor.
type run struct {
	process
	killed bool        // by a user's command; guarded by the supervisor's mu
	served atomic.Bool // its check succeeded
}

func (r *run) running() bool {
	select {
	case <-r.done():
		return false
	default:
		return true
	}
}

// await calls check until it succeeds, the process ends, or ctx ends.
func (r *run) await(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			r.served.Store(true)
			return nil
		}
		select {
		case <-r.done():
			return fmt.Errorf("it ended: %w", r.err())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// child is a process that the launcher started.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{}
	how   error // the exit error, once ended is closed
}

func (c *child) pid() int              { return c.cmd.Process.Pid }
func (c *child) done() <-chan struct{} { return c.ended }
func (c *child) err() error            { return c.how }

// launcher starts children, all from one thread. Linux kills a child when the thread that started it ends. So the
// children end with the supervisor.
type launcher struct {
	jobs chan func()
}

func newLauncher() *launcher {
	l := &launcher{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here, after close and the last child
		for job := range l.jobs {
			job()
		}
	}()
	return l
}

// close ends the thread, and on Linux the remaining children.
func (l *launcher) close() { close(l.jobs) }

// start runs the program with variables in addition to those of this process.
func (l *launcher) start(executable string, args, variables []string, logPath string) (process, error) {
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(executable, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(slices.DeleteFunc(os.Environ(), strippedEnv), variables...)
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	l.jobs <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, ended: make(chan struct{})}
	go func() {
		c.how = cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// strippedEnv are the variables that could lead a child elsewhere than its flags say, that speak of other relayers than ours,
// or that hold other relayers' secrets. The rest, such as HEALTH_CHECK_FALL, is for trying out.
func strippedEnv(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	switch name {
	case "ROLLCALL_CONFIG", "HEALTH_CHECK_PATH", "HEALTH_CHECK_EXPECTED_CODES", "RELAYER_ALLOWED_ADDRESSES", "RELAYER_SUBSCRIBE_URL":
		return true
	}
	return slices.ContainsFunc([]string{
		"ROLLCALL_TLS_", "REDIS_", "HEALTH_CHECK_AUTH_", "PG", "DATABASE_URL", "RELAYER_DATABASE_URL", "RELAYER_API_KEYS", "RELAYER_RPC_URL",
		"RELAYER_PRIVATE_KEY", "RELAYER_KEYSTORE_", "RELAYER_TOPUP_",
	}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it fails only if the process has ended
	<-c.ended
}

func (c *child) stop(limit time.Duration) bool {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
		return true
	case <-time.After(limit):
		c.kill()
		return false
	}
}

// lastLine returns the last line of a log, to report why a process ended.
func lastLine(logPath string) string {
	f, err := os.Open(logPath)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-4096), io.SeekStart)
	}
	tail, _ := io.ReadAll(f)
	lines := bytes.Split(bytes.TrimSpace(tail), []byte("\n"))
	return plainLine(lines[len(lines)-1])
}

// plainLine returns a JSON log line as "message: error", and any other line unchanged.
func plainLine(line []byte) string {
	var entry struct{ Msg, Err string }
	if json.Unmarshal(line, &entry) != nil || entry.Msg == "" {
		return string(line)
	}
	if entry.Err == "" {
		return entry.Msg
	}
	return entry.Msg + ": " + entry.Err
}
