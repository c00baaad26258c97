package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// The check that a healthy relayer is never missing.

// watchSet checks that ids never leave the set: from the commands that Redis executed, and by polling with redis-cli
// like a consumer. The watch is active when it returns. stop ends it and fails the test if an id was ever missing, or
// if the watch recorded nothing.
func (c *cluster) watchSet(ids ...string) (stop func()) {
	c.t.Helper()
	return c.watch(ids, true)
}

// watchReturningSet is watchSet for a set that has just been lost: it must return, and then stay.
func (c *cluster) watchReturningSet(ids ...string) (stop func()) {
	c.t.Helper()
	return c.watch(ids, false)
}

func (c *cluster) watch(ids []string, whole bool) (stop func()) {
	c.t.Helper()
	require.NotEmpty(c.t, ids)
	monitor := c.redis.Monitor()
	p := c.pollSet(ids, whole)
	c.t.Cleanup(p.end)
	eventually(c.t, patience, func() bool { polls, _, err := p.seen(); return polls > 0 || err != nil }, "a first poll")
	return func() {
		c.t.Helper()
		// All events until now are in the second poll from here, because one may be in flight. A leader refreshes the
		// mirror each second. A watch without such a refresh proves nothing.
		before, _, _ := p.seen()
		eventually(c.t, patience, func() bool {
			polls, complete, err := p.seen()
			return err != nil || polls >= before+2 && complete > 0 && slices.ContainsFunc(monitor.Commands(), func(cmd testredis.Command) bool { return cmd.Script })
		}, "a complete poll, and a script that ran")
		p.end()
		polls, complete, err := p.seen()
		require.NoError(c.t, err)
		commands := monitor.Commands()
		for _, cmd := range commands {
			require.True(c.t, keepsSet(cmd.Args, ids), "a command may have taken a healthy relayer out: %q", cmd.Args)
		}
		c.t.Logf("%d healthy: %d polls, %d of them complete, %d commands", len(ids), polls, complete, len(commands))
	}
}

// poller is a redis-cli that prints the set repeatedly.
type poller struct {
	cmd  *exec.Cmd
	done chan struct{}
	once sync.Once

	mu              sync.Mutex
	ending          bool
	polls, complete int
	err             error // the first problem
}

func (c *cluster) pollSet(ids []string, whole bool) *poller {
	c.t.Helper()
	// Printing and parsing a large set takes time.
	pause := max(5*time.Millisecond, time.Duration(len(ids))*10*time.Microsecond)
	host, port, ok := strings.Cut(c.redis.Addr(), ":")
	require.True(c.t, ok)
	p := &poller{done: make(chan struct{})}
	p.cmd = exec.Command("redis-cli", "-h", host, "-p", port, "--csv", "-r", "-1", "-i", fmt.Sprint(pause.Seconds()), "SMEMBERS", activeKey)
	p.cmd.SysProcAttr = dieWithParent()
	r, w, err := os.Pipe()
	require.NoError(c.t, err)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	require.NoError(c.t, p.cmd.Start())
	require.NoError(c.t, w.Close())
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = fmt.Sprintf("%q", id)
	}
	go func() {
		defer close(p.done)
		defer r.Close()
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				p.note(func() {
					if !p.ending && p.err == nil {
						p.err = fmt.Errorf("redis-cli ended: %w; it said %q", err, line)
					}
				})
				return
			}
			present := make(map[string]bool)
			for id := range strings.SplitSeq(strings.TrimSpace(line), ",") {
				present[id] = true
			}
			missing := slices.ContainsFunc(quoted, func(id string) bool { return !present[id] })
			p.note(func() {
				p.polls++
				switch {
				case !missing:
					p.complete++
				case p.err == nil && (whole || p.complete > 0):
					p.err = fmt.Errorf("a healthy relayer was missing: the set was %q, it should have held %v", line, ids)
				}
			})
		}
	}()
	return p
}

func (p *poller) note(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// seen returns the number of polls, the number of complete ones, and the first problem.
func (p *poller) seen() (polls, complete int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.polls, p.complete, p.err
}

// end ends the process. It may be called again.
func (p *poller) end() {
	p.once.Do(func() {
		p.note(func() { p.ending = true })
		_ = p.cmd.Process.Kill() // it may have ended by itself, which is recorded
		<-p.done
		_ = p.cmd.Wait() // killed
	})
}

// readingCommands are the commands that change nothing by themselves: a script's commands have their own lines.
var readingCommands = []string{
	"CLIENT", "COMMAND", "ECHO", "EVAL", "EVALSHA", "EXISTS", "GET", "HELLO", "HGET", "HGETALL", "HMGET", "INFO", "PING", "PUBLISH",
	"SCARD", "SCRIPT", "SELECT", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SSCAN", "SUBSCRIBE", "TIME", "TTL", "TYPE",
}

// keepsSet reports whether a command is known to leave each of the ids in the set, also for the rest of its script. An
// unknown command counts as removing them.
func keepsSet(args, ids []string) bool {
	name, rest := strings.ToUpper(args[0]), args[1:]
	switch {
	case slices.Contains(readingCommands, name), name == "SADD":
		return true
	case name == "SREM" && len(rest) > 0 && rest[0] == activeKey:
		return !slices.ContainsFunc(rest[1:], func(id string) bool { return slices.Contains(ids, id) })
	case slices.Contains([]string{"DEL", "HDEL", "HSET", "SET", "SREM"}, name): // only the named keys
		return !slices.Contains(rest, activeKey)
	default:
		return false
	}
}

func TestKeepsSet_KnownCommandsOnly(t *testing.T) {
	t.Parallel()
	for line, keeps := range map[string]bool{
		"SMEMBERS relayer:active":                     true,
		"evalsha 0123 1 relayer:active a":             true,
		"SADD relayer:active a b":                     true,
		"SSCAN relayer:active 0 COUNT 2000":           true,
		"SET relay:answer:a {} EX 60":                 true,
		"SET relayer:active a":                        false,
		"SREM relayer:active x":                       true,
		"SREM relayer:services a":                     true,
		"HSET relayer:meta epoch 3":                   true,
		"DEL relayer:status:0":                        true,
		"SREM relayer:active x a":                     false,
		"srem relayer:active a":                       false,
		"DEL relayer:active":                          false,
		"DEL relayer:status:0 relayer:active":         false,
		"UNLINK relayer:active":                       false,
		"UNLINK other":                                false,
		"RENAME relayer:active old":                   false,
		"RENAME other relayer:active":                 false,
		"RENAMENX other relayer:active":               false,
		"COPY other relayer:active REPLACE":           false,
		"MOVE relayer:active 1":                       false,
		"RESTORE relayer:active 0 x REPLACE":          false,
		"MIGRATE h 1 relayer:active 0 5":              false,
		"FLUSHALL":                                    false,
		"FLUSHDB ASYNC":                               false,
		"SWAPDB 0 1":                                  false,
		"SPOP relayer:active":                         false,
		"SMOVE relayer:active other a":                false,
		"SINTERSTORE relayer:active relayer:active b": false,
		"SUNIONSTORE relayer:active b":                false,
		"SDIFFSTORE relayer:active relayer:active b":  false,
		"SORT b STORE relayer:active":                 false,
		"EXPIRE relayer:active 1":                     false,
		"PEXPIREAT relayer:active 1":                  false,
		"GETDEL relayer:active":                       false,
		"SET relayer:active x":                        false,
		"BITOP AND relayer:active a b":                false,
		"FCALL f 1 relayer:active":                    false,
		"NOBODYKNOWS relayer:active":                  false,
	} {
		require.Equal(t, keeps, keepsSet(strings.Fields(line), []string{"a", "b"}), line)
	}
}

// failing is a testing.TB that records a failure.
type failing struct {
	testing.TB
	mu      sync.Mutex
	message string
}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.message += fmt.Sprintf(format, args...)
}

func (*failing) FailNow() { runtime.Goexit() }
func (*failing) Helper()  {}

// The watch fails if an id leaves the set.
func TestWatch_MemberLeaves_Fails(t *testing.T) {
	t.Parallel()
	const write = "redis.call('SADD', KEYS[1], 'a') "
	for name, tc := range map[string]struct {
		before []any  // a command before the watch
		script string // during the watch
		says   string // empty: no problem
	}{
		"nothing":            {nil, write, ""},
		"out and in at once": {nil, "redis.call('SREM', KEYS[1], 'a') " + write, `may have taken a healthy relayer out: ["SREM" "relayer:active" "a"]`},
		"renamed and back":   {nil, "redis.call('RENAME', KEYS[1], 'x') redis.call('RENAME', 'x', KEYS[1])", `["RENAME" "relayer:active" "x"]`},
		"out":                {nil, "redis.call('SREM', KEYS[1], 'a')", "a healthy relayer was missing"},
		"out by no command":  {[]any{"EXPIRE", activeKey, 1}, write, "a healthy relayer was missing"},
		"never in":           {[]any{"SREM", activeKey, "a"}, "redis.call('PING')", "a healthy relayer was missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &failing{TB: t}
			c := &cluster{t: f, redis: testredis.Start(t)}
			client := c.redis.Client()
			require.NoError(t, client.SAdd(t.Context(), activeKey, "a", "b").Err())
			if tc.before != nil {
				require.NoError(t, client.Do(t.Context(), tc.before...).Err())
			}
			var wg sync.WaitGroup
			wg.Go(func() { // which a failure ends
				stop := c.watchSet("a", "b")
				err := client.Eval(t.Context(), tc.script, []string{activeKey}).Err()
				assert.ErrorIs(t, err, redis.Nil) // it returns nothing
				if name == "out by no command" {
					eventually(t, patience, func() bool { return client.Exists(t.Context(), activeKey).Val() == 0 }, "it expires")
				}
				stop()
			})
			wg.Wait()
			if tc.says == "" {
				require.Empty(t, f.message)
			} else {
				require.Contains(t, f.message, tc.says)
			}
		})
	}
}
