package queuetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// patience limits waits for events that a healthy backend causes within seconds.
const patience = 3 * time.Minute

// Open opens the queue of a URL, with the database that has the table relay_queue.
type Open func(db *pgxpool.Pool, url string, cfg queue.Config) (queue.Queue, error)

// Backend is an empty queue for one test.
type Backend struct {
	// DatabaseURL is the URL of a database with the table relay_queue.
	DatabaseURL string
	// URL is passed to Open.
	URL string
	// Stop ends the backend's server, and Start starts it again. They are nil if the server is shared with other tests.
	Stop, Start func()
}

// Suite runs the tests on a backend.
type Suite struct {
	Open Open
	// New returns an empty queue. own asks for a server that the test may stop.
	New func(t testing.TB, own bool) Backend
}

// The environment of a child process.
const (
	childMode     = "QUEUETEST_MODE"
	childURL      = "QUEUETEST_URL"
	childDatabase = "QUEUETEST_DATABASE"
	childID       = "QUEUETEST_ID"
)

// Main runs a child of the suite and exits, if this process is one. TestMain calls it first.
func Main(open Open) {
	if mode := os.Getenv(childMode); mode != "" {
		fmt.Println(child(open, mode)) //nolint:forbidigo // the parent reads it
		os.Exit(1)
	}
}

// child receives a message and hangs, or commits an entry and kills itself.
func child(open Open, mode string) error {
	ctx := context.Background()
	db, err := postgres.Open(ctx, postgres.Config{URL: os.Getenv(childDatabase), MaxConns: 4})
	if err != nil {
		return err
	}
	if mode == "enqueue" {
		id, err := uuid.Parse(os.Getenv(childID))
		if err != nil {
			return err
		}
		if err := Enqueue(ctx, db, id); err != nil {
			return err
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		os.Exit(1)
	}()
	q, err := open(db, os.Getenv(childURL), queue.Config{Visibility: shortVisibility})
	if err != nil {
		return err
	}
	return q.Receive(ctx, 4, func(_ context.Context, m queue.Message) queue.Verdict {
		fmt.Println("received", m.ID) //nolint:forbidigo // the parent waits for it
		select {}
	})
}

// shortVisibility is for tests that wait for its end.
const shortVisibility = 2 * time.Second

// env is an empty queue and its helpers.
type env struct {
	t testing.TB
	Suite
	Backend
	db *pgxpool.Pool
}

func (s Suite) env(t *testing.T, own bool) *env {
	t.Helper()
	t.Parallel()
	b := s.New(t, own)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: b.DatabaseURL, MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return &env{t, s, b, db}
}

// open opens the queue as another process would.
func (e *env) open(cfg queue.Config) queue.Queue {
	e.t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(testWriter{e.t}, nil))
	q, err := e.Open(e.db, e.URL, cfg)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, q.Close()) })
	return q
}

// produce runs the producer of a queue until the test ends or stop is called.
func (e *env) produce(q queue.Queue) (stop func()) { return e.background(q.Run) }

func (e *env) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(e.t, err)
		case <-time.After(patience):
			e.t.Error("it did not stop")
		}
	})
	e.t.Cleanup(stop)
	return stop
}

// receive runs Receive until the test ends or stop is called.
func (e *env) receive(q queue.Queue, n int, handle queue.Handler) (stop func()) {
	return e.background(func(ctx context.Context) error { return q.Receive(ctx, n, handle) })
}

// start opens a queue and runs its producer and a receiver.
func (e *env) start(cfg queue.Config, n int, handle queue.Handler) queue.Queue {
	e.t.Helper()
	q := e.open(cfg)
	e.produce(q)
	e.receive(q, n, handle)
	return q
}

// enqueue commits entries.
func (e *env) enqueue(ids ...uuid.UUID) {
	e.t.Helper()
	require.NoError(e.t, postgres.Retry(e.t.Context(), func(ctx context.Context) error { return Enqueue(ctx, e.db, ids...) }))
}

// child starts this binary as a child.
func (e *env) child(mode string, id uuid.UUID) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+mode, childURL+"="+e.URL, childDatabase+"="+e.DatabaseURL, childID+"="+id.String())
	return cmd
}

// receivingChild starts a child that receives, and returns the function that kills it when it holds a message.
func (e *env) receivingChild() (kill func()) {
	e.t.Helper()
	cmd := e.child("receive", uuid.Nil)
	in, err := cmd.StdinPipe() // the child ends with this process
	require.NoError(e.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(e.t, err)
	require.NoError(e.t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // by the signal
		_ = in.Close()
	})
	e.t.Cleanup(kill)
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	var lines []string
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		lines = append(lines, scanner.Text())
		if strings.HasPrefix(scanner.Text(), "received ") {
			return kill
		}
	}
	require.FailNow(e.t, "the child received nothing", "%q", lines)
	return nil
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

// log records deliveries.
type log struct {
	mu         sync.Mutex
	deliveries map[uuid.UUID][]delivery
	changed    chan struct{} // closed and replaced with each delivery
}

type delivery struct {
	queue.Message
	at time.Time
}

func newLog() *log {
	return &log{deliveries: map[uuid.UUID][]delivery{}, changed: make(chan struct{})}
}

// add records a delivery and returns how many its message has.
func (l *log) add(m queue.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries[m.ID] = append(l.deliveries[m.ID], delivery{m, time.Now()})
	close(l.changed)
	l.changed = make(chan struct{})
	return len(l.deliveries[m.ID])
}

// of returns the deliveries of a message.
func (l *log) of(id uuid.UUID) []delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]delivery(nil), l.deliveries[id]...)
}

// await waits until each message has at least n deliveries.
func (l *log) await(t testing.TB, n int, ids ...uuid.UUID) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		missing := 0
		for _, id := range ids {
			if len(l.deliveries[id]) < n {
				missing++
			}
		}
		changed := l.changed
		l.mu.Unlock()
		if missing == 0 {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(t, "not delivered", "%d of %d messages lack %d deliveries", missing, len(ids), n)
		}
	}
}

// done records each message and ends it.
func (l *log) done(_ context.Context, m queue.Message) queue.Verdict {
	l.add(m)
	return queue.Done()
}

// eventually waits for a condition that offers no signal.
func eventually(t testing.TB, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, patience, 20*time.Millisecond, message)
}

// testWriter writes log lines to the test's log until the test ends.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		for lines := bufio.NewScanner(strings.NewReader(string(p))); lines.Scan(); {
			w.t.Log(lines.Text())
		}
	}
	return len(p), nil
}
