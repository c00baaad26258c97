package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
)

// patience and tick are the timeout and the poll interval for external processes.
const (
	patience = 2 * time.Minute
	tick     = 5 * time.Millisecond
)

var errAway = errors.New("connection refused")

// quorum simulates the other coordinators with their current leader.
type quorum struct {
	mu     sync.Mutex
	leader uint64 // epoch
	asked  int
}

var errNotLeading = errors.New("another term has begun")

func (q *quorum) lead(epoch uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leader = epoch
}

func (q *quorum) confirms(epoch uint64) func(context.Context) error {
	return func(ctx context.Context) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.asked++
		if q.leader != epoch {
			return errNotLeading
		}
		return ctx.Err()
	}
}

func (q *quorum) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.asked
}

// always is a quorum that confirms everything.
func always(context.Context) error { return nil }

// running is a Writer whose Run is active.
type running struct {
	*mirror.Writer
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a Writer until the test ends, with defaults for the missing fields of cfg.
func start(t *testing.T, cfg mirror.Config) *running {
	t.Helper()
	if cfg.Cluster == "" {
		cfg.Cluster = "c"
	}
	if cfg.Epoch == 0 {
		cfg.Epoch = 1
	}
	if cfg.Node == "" {
		cfg.Node = fmt.Sprintf("node-%d", cfg.Epoch)
	}
	if cfg.Confirm == nil {
		cfg.Confirm = always
	}
	w, err := mirror.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{Writer: w, t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = w.Run(ctx)
	}()
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// stop ends Run and returns its result.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// wait waits until Run has ended by itself.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		r.t.Fatal("Run did not end")
		return nil
	}
}

// entries returns relayers with one status.
func entries(status mirror.Status, ids ...string) []*mirror.Entry {
	out := make([]*mirror.Entry, len(ids))
	for i, id := range ids {
		out[i] = &mirror.Entry{ID: id, Kind: "relayer", URL: "http://" + id, Status: status}
	}
	return out
}

func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("oz-relayer-%d", i)
	}
	slices.Sort(ids)
	return ids
}

// described returns the events as "type id".
func described(events []mirrortest.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.Type+" "+e.ID)
	}
	return out
}

// logbook collects log records as "LEVEL message key=value…".
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSpace(string(p)))
	return len(p), nil
}

// with returns the lines that contain s.
func (l *logbook) with(s string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, line := range l.lines {
		if strings.Contains(line, s) {
			out = append(out, line)
		}
	}
	return out
}
