package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// watcher records everything that happens in Redis: each command, from MONITOR, and the active set, from a reader that
// polls every 10 ms.
type watcher struct {
	d       *drill
	cancel  context.CancelFunc
	streams sync.WaitGroup
	marks   int

	mu       sync.Mutex
	ended    error // set when a stream ended
	commands []command
	guarded  []string
	missing  []string // ids that left while guarded
	polls    int      // since the guard was set
	writes   int      // since the guard was set
}

type command testredis.Command

func (c command) String() string { return strings.Join(c.Args, " ") }

// reading are the read-only commands. Every other command counts as a write.
var reading = []string{
	"AUTH", "CLIENT", "COMMAND", "ECHO", "EVAL", "EVALSHA", "EXISTS", "GET", "HELLO", "HGET", "HGETALL", "HMGET", "INFO",
	"MONITOR", "PING", "PUBSUB", "SCARD", "SCRIPT", "SELECT", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SUBSCRIBE", "TIME", "TTL", "TYPE",
}

func (c command) writes() bool { return !slices.Contains(reading, c.Args[0]) }

// removes reports whether the command may remove id from the active set. An unknown command may.
func (c command) removes(id string) bool {
	switch name := c.Args[0]; {
	case name == "SADD", name == "PUBLISH", !c.writes():
		return false
	case name == "SREM" && len(c.Args) > 2 && c.Args[1] == activeKey:
		return slices.Contains(c.Args[2:], id)
	case slices.Contains([]string{"DEL", "HDEL", "HSET", "SREM"}, name): // only the named keys
		return slices.Contains(c.Args[1:], activeKey)
	default:
		return true
	}
}

// claims returns the epoch that the command writes into relayer:meta; 0 if it writes none.
func (c command) claims() uint64 {
	i := slices.Index(c.Args, "epoch")
	if c.Args[0] != "HSET" || len(c.Args) < 2 || c.Args[1] != metaKey || i < 0 || i+1 == len(c.Args) {
		return 0
	}
	epoch, _ := strconv.ParseUint(c.Args[i+1], 10, 64) // 0 with an error
	return epoch
}

// watch starts a watcher and returns once it receives commands.
func (d *drill) watch() {
	id, err := d.container("redis")
	d.check(err)
	ctx, cancel := context.WithCancel(d.ctx)
	d.watcher = &watcher{d: d, cancel: cancel}
	d.watcher.stream(ctx, d.watcher.command(), "exec", id, "redis-cli", "MONITOR")
	d.watcher.stream(ctx, d.watcher.poll, "exec", id, "redis-cli", "--csv", "-r", "-1", "-i", "0.01", "SMEMBERS", activeKey)
	d.watcher.mark()
}

// stream calls line with each line that a docker command prints, until close.
func (w *watcher) stream(ctx context.Context, line func(string), args ...string) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	out, err := cmd.StdoutPipe()
	w.d.check(errors.Join(err, cmd.Start()))
	w.streams.Go(func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			line(lines.Text())
		}
		err := errors.Join(lines.Err(), cmd.Wait())
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = fmt.Errorf("docker %s ended: %w", strings.Join(args, " "), err)
	})
}

// close stops watching. It may be called again, and on a nil watcher.
func (w *watcher) close() {
	if w != nil {
		w.cancel()
		w.streams.Wait()
	}
}

// command returns the handler for the lines of MONITOR.
func (w *watcher) command() func(string) {
	var client string // of the running script
	return func(line string) {
		parsed, err := testredis.ParseCommand(line)
		if err != nil {
			return // the OK that precedes the commands
		}
		c := command(parsed)
		if c.Script {
			c.From = client
		}
		client = c.From
		w.mu.Lock()
		defer w.mu.Unlock()
		w.commands = append(w.commands, c)
		if c.writes() {
			w.writes++
		}
		for _, id := range w.guarded {
			if c.removes(id) {
				w.missing = append(w.missing, fmt.Sprintf("%s removed %s: %s", c.From, id, c))
			}
		}
	}
}

// poll handles a line of the polling reader: "oz-relayer-0","oz-relayer-1"
func (w *watcher) poll(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.polls++
	for _, id := range w.guarded {
		if !strings.Contains(line, strconv.Quote(id)) {
			w.missing = append(w.missing, fmt.Sprintf("a reader missed %s: %s", id, line))
		}
	}
}

// mark returns when all earlier commands are recorded. MONITOR may not be active at first: a marker that comes before it
// is not recorded, and another one is sent.
func (w *watcher) mark() {
	recorded := func(marker string) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.d.check(w.ended)
		return slices.ContainsFunc(w.commands, func(c command) bool { return slices.Contains(c.Args, marker) })
	}
	for {
		w.marks++
		marker := fmt.Sprintf("drill-%d", w.marks)
		_, err := w.d.redis("ECHO", marker)
		w.d.check(err)
		for sent := time.Now(); time.Since(sent) < 2*time.Second; w.d.pause(10 * time.Millisecond) {
			if recorded(marker) {
				return
			}
		}
	}
}

// guarded runs act while every given id must stay in the active set, and prints a row with the ids that left.
func (d *drill) guarded(step string, ids []string, act func()) {
	start, w := time.Now(), d.watcher
	w.mark()
	w.mu.Lock()
	w.guarded, w.missing, w.polls, w.writes = ids, nil, 0, 0
	w.mu.Unlock()
	act()
	w.mark()
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := fmt.Sprintf("none in %d polls and %d writes", w.polls, w.writes)
	if len(w.missing) > 0 {
		seen = strings.Join(w.missing, "; ")
	}
	// A guard that saw no poll and no command proves nothing.
	d.row(step, "no healthy relayer ever missing", seen, time.Since(start), len(w.missing) == 0 && w.polls > 0 && w.writes > 0)
	w.guarded = nil
}

// silent prints a row of the commands with which a deposed leader changed Redis after another's claim. If it may lead
// again, it writes from its own next claim on.
func (d *drill) silent(step, deposed string, claim meta, start time.Time, mayLead bool) {
	address := d.address(deposed, mirrorOf(deposed))
	d.watcher.mark()
	d.watcher.mu.Lock()
	defer d.watcher.mu.Unlock()
	commands := d.watcher.commands
	first := slices.IndexFunc(commands, func(c command) bool { return c.claims() == claim.Epoch })
	if first < 0 {
		d.check(fmt.Errorf("the claim of epoch %d was not seen", claim.Epoch))
	}
	var writes []command
	var again uint64
	for _, c := range commands[first:] {
		if c.From != address || !c.writes() {
			continue
		}
		if again = c.claims(); again > claim.Epoch {
			break
		}
		again, writes = 0, append(writes, c)
	}
	seen := "wrote nothing"
	if len(writes) > 0 {
		seen = fmt.Sprintf("%d writes, first: %s", len(writes), writes[0])
	}
	if again > 0 {
		seen += fmt.Sprintf(" before it led again, epoch %d", again)
	}
	d.row(step, "writes nothing", seen, time.Since(start), len(writes) == 0 && (again == 0 || mayLead))
}
