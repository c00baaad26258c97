package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// trial is one measurement, with the processes and files that end with it. It is the testing.TB of the packages in
// internal/testutil: they start their servers in it, and an error ends it as it ends a test. A method of testing.TB that
// is not defined here panics.
type trial struct {
	testing.TB
	*suite
	ctx  context.Context
	ends []func() // in reverse order
	err  error
}

// try runs a trial, and ends everything that was started in it.
func (s *suite) try(ctx context.Context, do func(*trial)) error {
	t := &trial{suite: s, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.end()
		do(t)
	}()
	<-done
	return errors.Join(t.err, ctx.Err())
}

func (t *trial) end() {
	if last := len(t.ends) - 1; last >= 0 {
		f := t.ends[last]
		t.ends = t.ends[:last]
		defer t.end() // also if f fails
		f()
	}
}

func (t *trial) Helper()          {}
func (t *trial) Cleanup(f func()) { t.ends = append(t.ends, f) }

// Logf reports a problem that ends nothing.
func (t *trial) Logf(format string, args ...any) { progress(format, args...) }

// Fatalf ends the trial with an error.
func (t *trial) Fatalf(format string, args ...any) {
	t.err = errors.Join(t.err, fmt.Errorf(format, args...))
	runtime.Goexit()
}

// Fatal ends the trial with an error.
func (t *trial) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

// check ends the trial if there is an error.
func (t *trial) check(err error) {
	if err == nil {
		err = t.ctx.Err()
	}
	if err != nil {
		t.Fatalf("%w", err)
	}
}

// TempDir returns a new folder, which is removed with the trial.
func (t *trial) TempDir() string {
	dir, err := os.MkdirTemp(t.dir, "")
	t.check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// pause waits for a time.
func (t *trial) pause(d time.Duration) {
	pause(t.ctx, d)
	t.check(nil)
}

// start starts a program in a folder, and returns when a line of its output contains a text.
func (t *trial) start(dir string, env []string, ready, program string, args ...string) *proc.Process {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	p, err := proc.Start(cmd, func(line string) bool { return strings.Contains(line, ready) })
	if err != nil {
		t.Fatalf("start %s %s: %w", filepath.Base(program), strings.Join(args, " "), err)
	}
	t.Cleanup(p.Kill)
	return p
}

// addresses returns addresses without a listener.
func (t *trial) addresses(n int) []string {
	addrs := make([]string, n)
	for i := range addrs {
		port, err := proc.FreePort()
		t.check(err)
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs
}

// get returns the answer to an HTTP GET.
func (t *trial) get(url string) []byte {
	body, err := httpGet(t.ctx, url)
	t.check(err)
	return body
}

// step measures one contender.
type step func(*trial)

// inRounds runs each step once a round, in reversed order every other round, so that no contender is always first.
func (t *trial) inRounds(steps ...step) {
	for round := range t.rounds {
		progress("round %d of %d", round+1, t.rounds)
		turn := slices.Clone(steps)
		if round%2 == 1 {
			slices.Reverse(turn)
		}
		for _, step := range turn {
			err := t.try(t.ctx, step)
			for tries := 1; err != nil && tries < 3 && t.ctx.Err() == nil; tries++ {
				// An election, of a peer even, spoils one measurement, not the rest.
				progress("again: %v", err)
				t.repeated++
				err = t.try(t.ctx, step)
			}
			t.check(err)
		}
	}
}

// contender returns a step that samples operations a second.
func contender(row string, measure func(*trial) result) step {
	return func(t *trial) { t.sample(row, measure(t).PerSecond, "/s") }
}

// fastest tries each contender once, and returns the one with the most operations a second. The short form tries none,
// because its figures are compared with nothing.
func fastest[C any](t *trial, contenders []C, measure func(C) result) (best C) {
	if t.short {
		return contenders[len(contenders)/2]
	}
	most := 0.0
	for _, c := range contenders {
		res := measure(c)
		progress("tried %v: %s/s", c, number(res.PerSecond))
		if res.PerSecond > most {
			best, most = c, res.PerSecond
		}
	}
	return best
}

// run makes a load.
func (t *trial) run(l load, do call) result {
	res, err := l.run(t.ctx, do)
	t.check(err)
	return res
}

// until calls ready every few milliseconds until it returns nil.
func (t *trial) until(limit time.Duration, ready func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	var last error
	for ; ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
		attempt, done := context.WithTimeout(ctx, time.Second)
		last = ready(attempt)
		done()
		if last == nil {
			return
		}
	}
	t.Fatalf("not ready in %s: %w", limit, last)
}
