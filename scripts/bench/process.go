package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child whose output goes to a file next to its data.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
}

// start runs a program. It is killed when this program ends for any reason.
func start(name, dir string, env []string, program string, args ...string) (*process, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState holds the result
		close(p.done)
	}()
	return p, nil
}

// self runs a subcommand of this program.
func self(name, dir string, args ...string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(name, dir, nil, program, args...)
}

// selfJSON runs a subcommand of this program to its end, and parses its output.
func selfJSON[T any](ctx context.Context, dir, name string, env []string, args ...string) (out T, err error) {
	program, err := os.Executable()
	if err != nil {
		return out, err
	}
	p, err := start(name, dir, env, program, args...)
	if err != nil {
		return out, err
	}
	defer os.Remove(p.log)
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return out, ctx.Err()
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("%s: %s", p.name, bytes.TrimSpace(text))
	}
	return out, nil
}

// running returns an error if the process has ended unexpectedly.
func (p *process) running() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%s), see %s", p.name, p.cmd.ProcessState, p.log)
	default:
		return nil
	}
}

// kill sends SIGKILL and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended already
	<-p.done
}

// cpu returns the processor time so far, of user code and kernel together.
func (p *process) cpu() (time.Duration, error) {
	t, err := readTimes(p.cmd.Process.Pid)
	return t.used, err
}

// memory returns the resident set in bytes.
func (p *process) memory() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, errors.New("/proc: no VmRSS")
}

// freePorts returns ports without a listener. Another process may take one before it is used; the process that needed
// it then ends at once and logs that.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

func freeAddresses(n int) ([]string, error) {
	ports, err := freePorts(n)
	addrs := make([]string, len(ports))
	for i, port := range ports {
		addrs[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return addrs, err
}

// freshDir returns an empty folder for one cluster.
func (s *suite) freshDir(name string) (string, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(s.dir, name+"-")
}
