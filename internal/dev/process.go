package dev

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// process is a running child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed

	killed bool // on the user's word; guarded by the supervisor's mu
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// launcher starts children, all from one thread: Linux kills a child when the thread that made it ends, which
// ties their lives to the supervisor's.
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

// close ends the thread, and on Linux what children are left.
func (l *launcher) close() { close(l.jobs) }

// start runs the program with variables beside those of this process.
func (l *launcher) start(executable string, args, variables []string, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(executable, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), variables...)
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	l.jobs <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ours are the variables that could lead a child elsewhere than its flags say, or that speak of other relayers
// than ours. The rest, such as HEALTH_CHECK_FALL, is for trying out.
func ours(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	switch name {
	case "ROLLCALL_CONFIG", "HEALTH_CHECK_PATH", "HEALTH_CHECK_EXPECTED_CODES":
		return true
	}
	return strings.HasPrefix(name, "ROLLCALL_TLS_") || strings.HasPrefix(name, "REDIS_") || strings.HasPrefix(name, "HEALTH_CHECK_AUTH_")
}

// kill ends the process as a crash would, and waits for the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it fails only for one that has ended
	<-p.done
}

// stop asks the process to end, and kills it after the limit. It reports whether it ended by itself.
func (p *process) stop(limit time.Duration) bool {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		p.kill()
		return false
	}
}

// lastLine is the end of a log, to say why a process ended.
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
	return string(lines[len(lines)-1])
}

// await calls check until it succeeds, the process ends, or ctx does.
func (p *process) await(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
