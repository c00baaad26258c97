package pgserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// process is one run of the server, as its postmaster.
type process struct {
	cmd   *exec.Cmd
	done  chan struct{} // closed when the process has ended
	log   string
	since int64 // offset in the log where this run begins
}

// start starts a run. Linux kills a child when the thread that started it ends, so one thread starts it and waits for
// it.
func start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: cmd, done: make(chan struct{}), log: log}
	if p.since, err = out.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The kernel kills the server when the thread that started it ends. The thread is unlocked afterwards, so that
		// it stays: it may have started other processes before, which would be killed with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // only the end matters
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// output returns the log of this run, at most its last 8 KiB.
func (p *process) output() string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	from := p.since
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		from = max(from, end-8<<10)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return ""
	}
	text, _ := io.ReadAll(f) // as much as can be read
	return strings.TrimSpace(string(text))
}

// signal signals the postmaster and, if all, each of its backends, which have their own process groups.
func (p *process) signal(sig syscall.Signal, all bool) error {
	if !p.running() {
		return ErrStopped
	}
	postmaster := p.cmd.Process.Pid
	if !all {
		return p.cmd.Process.Signal(sig)
	}
	if sig == syscall.SIGCONT {
		// The postmaster resumes last, because it would treat a frozen backend as hanging.
		backends, err := children(postmaster)
		for _, pid := range backends {
			err = errors.Join(err, tell(pid, sig))
		}
		return errors.Join(err, p.cmd.Process.Signal(sig))
	}
	// A frozen postmaster starts no backends while they are listed.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	backends, err := children(postmaster)
	if sig != syscall.SIGSTOP {
		err = errors.Join(err, p.cmd.Process.Signal(sig))
	}
	for _, pid := range backends {
		err = errors.Join(err, tell(pid, sig))
	}
	return err
}

// tell signals a process that may have ended.
func tell(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%v to %d: %w", sig, pid, err)
	}
	return nil
}

// children returns the children of a process, from /proc or, if that is missing, from ps.
func children(parent int) (pids []int, err error) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // only a malformed pattern is an error
	if len(stats) == 0 {
		return childrenByPS(parent)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		// 123 (a name, perhaps with spaces and brackets) S 122 …
		rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(rest) < 2 || rest[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func childrenByPS(parent int) (pids []int, err error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(f[0])
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// holder returns the pid in a postmaster.pid if its process is a server in that folder, and otherwise 0. After a kill
// the file stays, and another process may have its pid.
func holder(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, pidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return 0, nil // PostgreSQL reports that itself
	}
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return 0, nil
	}
	// A server's working directory is its data folder. Without that information the process name decides.
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err == nil {
		folder, err := filepath.EvalSymlinks(data)
		if err != nil || at != folder {
			return 0, err
		}
		return pid, nil
	}
	if _, proc := os.Stat("/proc/self"); proc == nil && errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it has ended, and its parent has not waited for it
	}
	name, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err == nil && slices.Contains([]string{"postgres", "postmaster"}, filepath.Base(strings.TrimSpace(string(name)))) {
		return pid, nil
	}
	return 0, nil
}
