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
)

// watcher records everything that happens in Redis: each command, from MONITOR, and the active set, from a reader that
// polls every 10 ms.
type watcher struct {
	cluster *cluster
	cancel  context.CancelFunc
	streams sync.WaitGroup

	mu       sync.Mutex
	seen     sync.Cond // signaled with each command
	ended    error     // set when a stream ended
	commands []command
	guarded  []string
	missing  []string // ids that left while guarded
	polls    int      // since the guard was set
	writes   int      // since the guard was set
	marks    int
}

// command is one line of MONITOR.
type command struct {
	// from is the client's IP address. A script's calls have the address of the client that started the script.
	from string
	args []string
}

func (c command) String() string { return strings.Join(c.args, " ") }

// reading are the read-only commands. Every other command counts as a write.
var reading = []string{
	"AUTH", "CLIENT", "COMMAND", "ECHO", "EVAL", "EVALSHA", "EXISTS", "GET", "HELLO", "HGET", "HGETALL", "HMGET", "INFO",
	"MONITOR", "PING", "PUBSUB", "SCARD", "SCRIPT", "SELECT", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SUBSCRIBE", "TIME", "TTL", "TYPE",
}

func (c command) writes() bool { return !slices.Contains(reading, strings.ToUpper(c.args[0])) }

// removes reports whether the command may remove id from the active set. An unknown command may.
func (c command) removes(id string) bool {
	switch name := strings.ToUpper(c.args[0]); {
	case name == "SADD", name == "PUBLISH", !c.writes():
		return false
	case name == "SREM" && len(c.args) > 2 && c.args[1] == activeKey:
		return slices.Contains(c.args[2:], id)
	case slices.Contains([]string{"DEL", "HDEL", "HSET", "SREM"}, name): // only the named keys
		return slices.Contains(c.args[1:], activeKey)
	default:
		return true
	}
}

// claims returns the epoch that the command writes into relayer:meta; 0 if it writes none.
func (c command) claims() uint64 {
	i := slices.Index(c.args, "epoch")
	if !strings.EqualFold(c.args[0], "HSET") || len(c.args) < 2 || c.args[1] != metaKey || i < 0 || i+1 == len(c.args) {
		return 0
	}
	epoch, err := strconv.ParseUint(c.args[i+1], 10, 64)
	if err != nil {
		return 0
	}
	return epoch
}

// watch starts a watcher and returns once it receives commands.
func watch(ctx context.Context, c *cluster) (*watcher, error) {
	id, err := c.container(ctx, "redis")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cluster: c, cancel: cancel}
	w.seen.L = &w.mu
	err = w.stream(ctx, w.command(), "exec", id, "redis-cli", "MONITOR")
	if err == nil {
		err = w.stream(ctx, w.poll, "exec", id, "redis-cli", "--csv", "-r", "-1", "-i", "0.01", "SMEMBERS", activeKey)
	}
	if err == nil {
		// MONITOR may not be active yet: a marker that comes before it is not recorded, and another one is sent.
		_, err = w.mark(ctx)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// stream calls line with each line that a docker command prints, until close.
func (w *watcher) stream(ctx context.Context, line func(string), args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w.streams.Go(func() {
		lines := bufio.NewReader(out)
		var err error
		for err == nil {
			var text string
			if text, err = lines.ReadString('\n'); err == nil {
				line(strings.TrimSuffix(text, "\n"))
			}
		}
		err = errors.Join(err, cmd.Wait())
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = fmt.Errorf("docker %s: %w", strings.Join(args, " "), err)
		w.seen.Broadcast()
	})
	return nil
}

// close stops watching. It may be called again, and on a nil watcher.
func (w *watcher) close() {
	if w == nil {
		return
	}
	w.cancel()
	w.streams.Wait()
}

// command returns the handler for the lines of MONITOR.
func (w *watcher) command() func(string) {
	var client string // of the running script
	return func(line string) {
		c, ok := parseMonitor(line)
		if !ok {
			return
		}
		if c.from == "lua" {
			c.from = client
		} else {
			client = c.from
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.commands = append(w.commands, c)
		if c.writes() {
			w.writes++
		}
		for _, id := range w.guarded {
			if c.removes(id) {
				w.missing = append(w.missing, fmt.Sprintf("%s removed %s: %s", c.from, id, c))
			}
		}
		w.seen.Broadcast()
	}
}

// parseMonitor parses a line like: 1700000000.123456 [0 172.18.0.3:41234] "evalsha" "…"
func parseMonitor(line string) (command, bool) {
	_, line, ok := strings.Cut(line, " [")
	if !ok {
		return command{}, false
	}
	where, line, ok := strings.Cut(line, "] ")
	if !ok {
		return command{}, false
	}
	_, from, _ := strings.Cut(where, " ")
	if i := strings.LastIndex(from, ":"); i >= 0 {
		from = from[:i]
	}
	c := command{from: from}
	for line != "" {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return command{}, false
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			return command{}, false
		}
		c.args = append(c.args, arg)
		line = strings.TrimPrefix(line[len(quoted):], " ")
	}
	return c, len(c.args) > 0
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

// mark returns how many commands were recorded, including all that came before it.
func (w *watcher) mark(ctx context.Context) (int, error) {
	for ctx.Err() == nil {
		w.mu.Lock()
		w.marks++
		from, marker := len(w.commands), fmt.Sprintf("drill-%d", w.marks)
		w.mu.Unlock()
		if _, err := w.cluster.redis(ctx, "ECHO", marker); err != nil {
			return 0, err
		}
		if at, err := w.find(marker, from); err != nil || at >= 0 {
			return at, err
		}
	}
	return 0, context.Cause(ctx)
}

// find waits at most two seconds for a marker, and returns its position, or -1.
func (w *watcher) find(marker string, from int) (int, error) {
	late := false
	timer := time.AfterFunc(2*time.Second, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		late = true
		w.seen.Broadcast()
	})
	defer timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for ; from < len(w.commands); from++ {
			if slices.Contains(w.commands[from].args, marker) {
				return from, nil
			}
		}
		if w.ended != nil || late {
			return -1, w.ended
		}
		w.seen.Wait()
	}
}

// guard starts recording each of ids that leaves the active set or that the reader misses.
func (w *watcher) guard(ctx context.Context, ids []string) error {
	if _, err := w.mark(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guarded, w.missing, w.polls, w.writes = ids, nil, 0, 0
	return nil
}

// release ends the guard and returns the missing ids, the number of polls, and the number of commands that wrote.
func (w *watcher) release(ctx context.Context) (missing []string, polls, writes int, err error) {
	if _, err := w.mark(ctx); err != nil {
		return nil, 0, 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	missing, polls, writes = w.missing, w.polls, w.writes
	w.guarded, w.missing = nil, nil
	return missing, polls, writes, nil
}

// writesFrom returns the commands from one address, including those of scripts, that changed anything after epoch was
// claimed. It stops where the same address claims a higher epoch, again.
func (w *watcher) writesFrom(ctx context.Context, address string, epoch uint64) (writes []command, again uint64, err error) {
	if _, err := w.mark(ctx); err != nil {
		return nil, 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	claim := slices.IndexFunc(w.commands, func(c command) bool { return c.claims() == epoch })
	if claim < 0 {
		return nil, 0, fmt.Errorf("the claim of epoch %d was not seen", epoch)
	}
	for _, c := range w.commands[claim:] {
		if c.from != address || !c.writes() {
			continue
		}
		if again = c.claims(); again > epoch {
			return writes, again, nil
		}
		writes = append(writes, c)
	}
	return writes, 0, nil
}
