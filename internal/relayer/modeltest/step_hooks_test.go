package modeltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// step is an external effect of a process.
type step string

// The steps that are not statements; for statements see wire.
const (
	stepQuiet step = "" // an unnamed step: only death and freezing affect it
	stepLook  step = "look at the chain"
	stepSign  step = "sign"
	stepSend  step = "send"
)

// kind is the kind of a fault.
type kind int

const (
	none kind = iota
	failBefore
	failAfter
	dieBefore
	dieAfter
	freezeBefore
	freezeAfter
	late
)

var kinds = []kind{failBefore, failAfter, dieBefore, dieAfter, freezeBefore, freezeAfter, late}

func (k kind) String() string {
	return [...]string{"none", "fail before", "fail after", "die before", "die after", "freeze before", "freeze after", "late"}[k]
}

// faults decides which fault strikes where; all processes of a history share it.
type faults struct {
	log *history

	mu    sync.Mutex
	off   bool
	count map[step]int
	plan  func(s step, nth int) kind
	// struck counts the faults that struck.
	struck int
}

func (f *faults) at(m *mortal, s step) kind {
	if s == stepQuiet {
		return none
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return none
	}
	f.count[s]++
	k := f.plan(s, f.count[s])
	if k != none {
		f.struck++
		f.log.add("%s: %v %q (%d)", m.name, k, s, f.count[s])
	}
	return k
}

func (f *faults) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = true
}

var (
	errDead   = errors.New("the process is dead")
	errFailed = errors.New("a fault of the test struck")
	errLate   = errors.New("a request is late")
)

// freezeDuration is how long a process is frozen: longer than leases, idle transactions, and all waits of other
// processes.
const freezeDuration = 500 * time.Millisecond

// lateness is how long a late request is in flight after the process has given it up. It is longer than a request on
// another connection takes, and shorter than the timeout of idle transactions.
const lateness = 110 * time.Millisecond

// mortal is the state of a process for its gates.
type mortal struct {
	name   string
	faults *faults
	kill   context.CancelCauseFunc // ends its goroutines, which have no effect any more

	mu    sync.Mutex
	dead  bool
	thaw  chan struct{} // nil unless frozen
	conns map[net.Conn]struct{}
}

// await waits until the process is not frozen, and returns an error if it is dead.
func (m *mortal) await() error {
	for {
		m.mu.Lock()
		dead, thaw := m.dead, m.thaw
		m.mu.Unlock()
		if dead {
			return errDead
		}
		if thaw == nil {
			return nil
		}
		<-thaw
	}
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return
	}
	m.dead = true
	for c := range m.conns {
		_ = c.Close() // like the kernel; no process is left for the error
	}
	m.kill(errDead)
}

func (m *mortal) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead || m.thaw != nil {
		return
	}
	thaw := make(chan struct{})
	m.thaw = thaw
	time.AfterFunc(freezeDuration, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.thaw = nil
		close(thaw)
	})
}

func (m *mortal) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

func (m *mortal) isFrozen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.thaw != nil
}

// before is called before a step. If it returns an error, the step must not happen; k strikes after it.
func (m *mortal) before(s step) (k kind, err error) {
	if err := m.await(); err != nil {
		return none, err
	}
	switch k := m.faults.at(m, s); k {
	case failBefore:
		return none, fmt.Errorf("%w before %q", errFailed, s)
	case dieBefore:
		m.die()
	case freezeBefore:
		m.freeze()
	default:
		return k, m.await()
	}
	return none, m.await()
}

// after is called after a step. If it returns an error, the process does not receive the result.
func (m *mortal) after(s step, k kind) error {
	switch k {
	case failAfter:
		return fmt.Errorf("%w after %q", errFailed, s)
	case dieAfter:
		m.die()
	case freezeAfter:
		m.freeze()
	}
	return m.await()
}

// pass implements gate.
func (m *mortal) pass(s step, do func()) error {
	k, err := m.before(s)
	if err != nil {
		return err
	}
	if k == late {
		time.AfterFunc(lateness, do)
		return fmt.Errorf("%w: %q", errLate, s)
	}
	do()
	return m.after(s, k)
}

// TraceAcquireStart ends the intake of a dead process, which would otherwise keep reading the outcome of its commit.
func (m *mortal) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if m.isDead() && ctx.Value(intakeOf) == m {
		runtime.Goexit()
	}
	return ctx
}

// TraceAcquireEnd does nothing.
func (m *mortal) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

type contextKey struct{}

// intakeOf marks the work of a pool's goroutines. They may end at any point, because only their caller waits for them.
var intakeOf contextKey

// history is the list of events, in order.
type history struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (h *history) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf("%6.3f  ", time.Since(h.began).Seconds())+fmt.Sprintf(format, args...))
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}

// TraceQueryStart does nothing; pgx requires it to call the other two methods.
func (m *mortal) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing.
func (m *mortal) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
