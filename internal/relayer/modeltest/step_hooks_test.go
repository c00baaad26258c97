package modeltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// step is something that a process does to the world outside.
type step string

// The steps that are no statements; for those see wire.
const (
	stepQuiet step = "" // what has no name: only death and frost hold it up
	stepLook  step = "look at the chain"
	stepSign  step = "sign"
	stepSend  step = "send"
)

// kind of fault.
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

// faults decides what strikes where; they are shared by all processes of a history.
type faults struct {
	log *history

	mu    sync.Mutex
	off   bool
	count map[step]int
	plan  func(s step, nth int) kind
	// struck counts.
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

// freezeDuration is how long a process stands still: longer than terms, idle transactions, and whatever others wait for.
const freezeDuration = 500 * time.Millisecond

// lateness is how long a request that the process has given up is on its way: longer than it takes to ask on another
// connection, and shorter than a transaction may sit idle.
const lateness = 110 * time.Millisecond

// mortal is a process as its gates see it.
type mortal struct {
	name   string
	faults *faults
	kill   context.CancelCauseFunc // ends its goroutines, which no longer have an effect

	mu    sync.Mutex
	dead  bool
	thaw  chan struct{} // nil unless frozen
	conns map[net.Conn]struct{}
}

// await returns when the process is not frozen, and whether it is alive.
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
		_ = c.Close() // as the kernel does; there is nobody left to tell
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

// before is called when a step is about to happen. It must not if that fails; k strikes after it.
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

// after is called when a step has happened. The process does not hear of it if that fails.
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

// TraceAcquireStart has the intake of a dead process end: nothing else would tell it to stop looking for what became of
// its commit.
func (m *mortal) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if m.isDead() && ctx.Value(intakeOf) == m {
		runtime.Goexit()
	}
	return ctx
}

// TraceAcquireEnd does nothing.
func (m *mortal) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

type contextKey struct{}

// intakeOf marks what a pool's goroutines do. They may end at any point: nobody waits for them but who asked them.
var intakeOf contextKey

// history is what happened, in order.
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

// TraceQueryStart does nothing; pgx finds the other two through these.
func (m *mortal) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing.
func (m *mortal) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
