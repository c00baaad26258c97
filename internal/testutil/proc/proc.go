package proc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Patience limits operations that take a healthy server milliseconds.
const Patience = 2 * time.Minute

// FreePort returns a port outside the range of outgoing connections, so that none of these takes it while its server is
// down. Another process may still take it before it is used.
func FreePort() (port int, err error) {
	for range 100 {
		port = 10_000 + rand.IntN(5_000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// Pause waits a moment between two checks of a process that offers no signal.
func Pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// Process is one run of a server. Its methods are for one goroutine.
type Process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when it reports that it is ready
	ended chan struct{} // closed when it has ended

	mu     sync.Mutex
	output []string // its last lines of output, or the first ones of a panic
}

// keptLines is how many lines of output a Process keeps.
const keptLines = 40

// Start starts a server, merges its two outputs, and returns when isReady returns true for a line. An error contains
// the last lines; the process has ended then.
func Start(cmd *exec.Cmd, isReady func(line string) bool) (*Process, error) {
	p := &Process{cmd: cmd, ready: make(chan struct{}), ended: make(chan struct{})}
	cmd.SysProcAttr = dieWithParent()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.watch(out, isReady)
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case <-p.ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("it ended:\n%s", p.Tail())
	case <-timeout.C:
		p.Kill()
		return nil, fmt.Errorf("it was not ready in %v:\n%s", Patience, p.Tail())
	}
}

// watch reads the process's output until it ends.
func (p *Process) watch(out io.Reader, isReady func(string) bool) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	var ready, panicked bool
	for lines.Scan() {
		p.mu.Lock()
		if !panicked {
			panicked = strings.HasPrefix(lines.Text(), "panic: ") || strings.HasPrefix(lines.Text(), "fatal error: ")
			if panicked { // the stacks of all goroutines follow, and the first one is the cause
				p.output = nil
			}
		}
		if p.output = append(p.output, lines.Text()); len(p.output) > keptLines && panicked {
			p.output = p.output[:keptLines]
		}
		p.output = p.output[max(0, len(p.output)-keptLines):]
		p.mu.Unlock()
		if !ready && isReady(lines.Text()) {
			ready = true
			close(p.ready)
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line too long to be scanned must not block the process
	_ = p.cmd.Wait()                // only the end matters
}

// Tail returns the last lines of its output, or the first ones of a panic.
func (p *Process) Tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.output, "\n")
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running returns nil while the process runs, and afterwards an error with its last lines of output.
func (p *Process) Running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended (%s):\n%s", p.cmd, p.cmd.ProcessState, p.Tail())
	default:
		return nil
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Freeze stops the process until it gets a SIGCONT.
func (p *Process) Freeze() error { return Freeze(p.cmd.Process) }

// Stop sends a signal that ends the process, and waits. A process that does not end in time is killed, which is an
// error.
func (p *Process) Stop(sig os.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timeout.C:
		p.Kill()
		return fmt.Errorf("it did not end in %v:\n%s", Patience, p.Tail())
	}
}

// Kill ends the process at once, also a frozen one, and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}
