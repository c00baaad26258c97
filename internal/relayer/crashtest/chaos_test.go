package crashtest

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// plan lists the faults of a scene and their times.
type plan struct {
	length      time.Duration
	killEvery   time.Duration // kills of a process; 0: never
	freezeEvery time.Duration // freezes of another process; 0: never
	freezeFor   time.Duration
	shiftEvery  time.Duration // changes of the nodes' faults; 0: never
	restarts    int           // of Postgres, alternately killed and stopped
	isolations  int           // how often the process that follows the chain loses its nodes
	isolateFor  time.Duration // at least; ends when another process follows
	dearTimes   int           // how often the chain's price exceeds the relayers' cap
	dearFor     time.Duration // at least
	dearUntil   func() bool   // the price stays until it holds; nil: no longer than dearFor
	withdrawn   int           // number of hits, the first ones, that are all canceled or expire
}

// event is an event of a plan.
type event struct {
	at time.Duration
	do func()
}

// chaos executes a plan on a scene.
type chaos struct {
	plan
	random   *rand.Rand
	fleet    fleet
	node     *testchain.Node
	proxies  [][endpoints]*proxy.Proxy // of each process
	postgres *testpostgres.Server
	db       *pgxpool.Pool
	fixed    [endpoints][]proxy.Rule // rules that are never lifted

	windows [endpoints]atomic.Pointer[window]
	dear    atomic.Bool
	work    sync.WaitGroup // isolations

	mu         sync.Mutex
	shiftsLeft [endpoints]int // until a window closes
	isolated   *member
	down       int // the endpoint that is down; -1: none
	done       map[string]int

	ended map[string]int // transactions by their last status
}

// run executes the plan and returns when it is over and every process runs again. Call it on the test's own goroutine.
func (c *chaos) run(ctx context.Context) {
	c.done, c.down = map[string]int{}, -1
	for e := range endpoints {
		set := slices.Concat(c.fixed[e], dearFees(&c.dear))
		if c.shiftEvery > 0 {
			set = append(set, rules(&c.windows[e])...)
		}
		for _, own := range c.proxies {
			own[e].SetRules(set...)
		}
	}
	began := time.Now()
	for _, e := range c.events(ctx) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(e.at))):
			e.do()
		}
	}
	c.work.Wait()
	c.calm()
}

// calm ends all faults.
func (c *chaos) calm() {
	for _, own := range c.proxies {
		for e, p := range own {
			p.SetDown(false)
			p.SetLag(0)
			p.SetRules(c.fixed[e]...)
			p.Switch(true)
		}
	}
	if c.dear.Load() {
		c.endDear()
	}
	for _, m := range c.fleet {
		if m.isFrozen() {
			m.thaw()
		}
	}
}

// events returns the events of the plan, in order.
func (c *chaos) events(ctx context.Context) []event {
	var all []event
	add := func(at time.Duration, do func()) { all = append(all, event{at, do}) }
	busy := map[*member]time.Duration{} // frozen or stopped until then
	free := func(at time.Duration) *member {
		for _, i := range c.random.Perm(len(c.fleet)) {
			if m := c.fleet[i]; busy[m] <= at {
				return m
			}
		}
		return nil
	}
	kill, freeze := c.jitter(c.killEvery), c.jitter(c.freezeEvery)/4
	for at := time.Duration(0); at < c.length; at += 100 * time.Millisecond {
		if c.freezeEvery > 0 && at >= freeze {
			freeze = at + c.jitter(c.freezeEvery)
			if m := free(at); m != nil && at+c.freezeFor <= c.length {
				busy[m] = at + c.freezeFor
				c.addPair(add, m, at, at+c.freezeFor, func() { c.count("SIGSTOP"); m.freeze() }, m.thaw)
			}
		}
		if c.killEvery > 0 && at >= kill {
			kill = at + c.jitter(c.killEvery)
			if m := free(at); m != nil {
				down := time.Duration(c.random.IntN(1000)) * time.Millisecond
				busy[m] = at + down + 300*time.Millisecond
				c.addPair(add, m, at, at+down, func() { c.count("kill -9"); m.kill() }, m.start)
			}
		}
	}
	for i := range c.restarts {
		at := c.length * time.Duration(i+1) / time.Duration(c.restarts+1)
		add(at, func() {
			if i%2 == 0 {
				c.count("postgres kill -9")
				c.postgres.Kill()
			} else {
				c.count("postgres stop")
				c.postgres.Stop()
			}
		})
		add(at+time.Duration(500+c.random.IntN(1500))*time.Millisecond, func() { c.postgres.Restart() })
	}
	for i := range c.dearTimes {
		at := c.length * time.Duration(10*i+4) / time.Duration(10*c.dearTimes)
		add(at, c.beginDear)
		add(at+c.dearFor, func() { c.awaitDear(ctx); c.endDear() })
	}
	for i := range c.isolations {
		at := c.length * time.Duration(2*i+1) / time.Duration(2*c.isolations)
		add(at, func() { c.work.Go(func() { c.isolateFollower(ctx) }) })
	}
	if c.shiftEvery > 0 {
		for n := 0; time.Duration(n)*c.shiftEvery < c.length; n++ {
			next := c.drawShift(n)
			add(time.Duration(n)*c.shiftEvery, func() { c.shift(next) })
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return int(a.at - b.at) })
	return all
}

// addPair adds an event of a process and the one that reverts it. Both are skipped while the process is isolated,
// because then the isolation makes another process follow.
func (c *chaos) addPair(add func(time.Duration, func()), m *member, at, until time.Duration, do, undo func()) {
	done := false
	add(at, func() {
		c.mu.Lock()
		done = c.isolated != m
		c.mu.Unlock()
		if done {
			do()
		}
	})
	add(until, func() {
		if done {
			undo()
		}
	})
}

// shift is the state of the endpoints for a time. All processes have the same faults at an endpoint.
type shift struct {
	well    int // the endpoint without temporary faults; beyond the last: none
	special string
	which   int // the endpoint that has it
	lag     uint64
	window  window
	shifts  int // how long the window is open; 0: there is no window
}

// refusedFor is for how many shifts an endpoint refuses a method. It reports false counts for one shift only: the
// relayers accept counts on which all answering endpoints agree for several rounds, and the other endpoint may be
// down.
const refusedFor = 3

// drawShift returns the n-th shift. The first ones include each special case once.
func (c *chaos) drawShift(n int) shift {
	specials := []string{"node down", "node lags"}
	for _, f := range methodFaults {
		specials = append(specials, f.name)
	}
	s := shift{well: c.random.IntN(2 * endpoints), which: c.random.IntN(endpoints), lag: uint64(1 + c.random.IntN(2))}
	at, method := c.random.IntN(len(specials)+len(specials)/3), c.random.Int() // one in four has none
	if n < len(specials) {
		at, method = n, 0
	}
	if at >= len(specials) {
		return s
	}
	s.special = specials[at]
	if at >= 2 {
		f := methodFaults[at-2]
		s.window, s.shifts = window{f.name, f.methods[method%len(f.methods)]}, 1
		if f.fault.Kind == proxy.Refuse {
			s.shifts = refusedFor
		}
	}
	return s
}

// shift changes the faults of the endpoints. Most of the time one of them has none, and not always the same.
func (c *chaos) shift(s shift) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = -1
	lag := uint64(0)
	switch s.special {
	case "":
	case "node down":
		c.down = s.which
	case "node lags":
		lag = s.lag
	}
	if s.special != "" {
		c.done[s.special]++
	}
	for e := range c.windows {
		switch c.shiftsLeft[e]--; {
		case s.shifts > 0 && e == s.which:
			c.windows[e].Store(&s.window)
			c.shiftsLeft[e] = s.shifts
		case c.shiftsLeft[e] <= 0:
			c.windows[e].Store(nil)
		}
	}
	for _, own := range c.proxies {
		for e, p := range own {
			special := s.special != "" && e == s.which
			p.Switch(e != s.well || special || c.windows[e].Load() != nil)
			p.SetLag(0)
			if special {
				p.SetLag(lag)
			}
		}
	}
	c.connect()
}

// connect sets all endpoints up, except for one that is down, and those of an isolated process. c.mu is held.
func (c *chaos) connect() {
	for i, own := range c.proxies {
		for e, p := range own {
			p.SetDown(e == c.down || c.fleet[i] == c.isolated)
		}
	}
}

func (c *chaos) isolate(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isolated = m
	c.connect()
}

// isolateFollower cuts the process that follows the chain off all nodes, for a time and until another one follows.
func (c *chaos) isolateFollower(ctx context.Context) {
	var m *member
	if !c.await(ctx, func() bool { m = c.follower(ctx); return m != nil && m.url() != "" && !m.isFrozen() }) {
		return
	}
	c.count("follower without nodes")
	c.isolate(m)
	defer c.isolate(nil)
	over := time.After(c.isolateFor)
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c.await(waiting, func() bool { now := c.follower(ctx); return now != nil && now != m }) {
		c.count("another follows")
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// await polls a condition on processes, which offer no signal, and reports whether it became true.
func (c *chaos) await(ctx context.Context, condition func() bool) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// follower returns the process that follows the chain now; nil if there is none, or the database is unavailable.
func (c *chaos) follower(ctx context.Context) *member {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var name string // host-pid-random
	if c.db.QueryRow(ctx, `SELECT tracker FROM relayer_pools WHERE tracker_until > now()`).Scan(&name) != nil {
		return nil
	}
	parts := strings.Split(name, "-")
	for _, m := range c.fleet {
		if len(parts) >= 3 && parts[len(parts)-2] == strconv.Itoa(m.pid()) {
			return m
		}
	}
	return nil
}

// beginDear raises the miner's minimum price above the relayers' cap. The node drops cheaper transactions from its
// pool.
func (c *chaos) beginDear() {
	c.count("chain dear")
	c.dear.Store(true)
	c.node.SetGasPrice(big.NewInt(dearTip))
}

// awaitDear waits for dearUntil, or for the end of ctx.
func (c *chaos) awaitDear(ctx context.Context) {
	for c.dearUntil != nil && ctx.Err() == nil && !c.dearUntil() {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *chaos) endDear() {
	c.node.SetGasPrice(big.NewInt(1))
	c.dear.Store(false)
}

func (c *chaos) jitter(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	return d/2 + time.Duration(c.random.Int64N(int64(d)))
}

func (c *chaos) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[name]++
}

// complete fails the test unless each kind of fault struck, except mayMiss, and transactions ended in each way.
func (c *chaos) complete(t testing.TB, mayMiss ...string) {
	t.Helper()
	struck := c.struck()
	for _, f := range faults {
		require.NotZero(t, struck[f.name], "%s did not strike: %v", f.name, struck)
	}
	for _, f := range methodFaults {
		require.True(t, struck[f.name] > 0 || slices.Contains(mayMiss, f.name), "%s did not strike: %v", f.name, struck)
	}
	for _, name := range []string{intrinsicGas.Name, "dear"} {
		require.NotZero(t, struck[name], "%s did not strike: %v", name, struck)
	}
	for _, name := range []string{
		"kill -9", "SIGSTOP", "postgres kill -9", "postgres stop", "node down", "node lags", "chain dear", "follower without nodes", "another follows",
	} {
		require.NotZero(t, c.done[name], "%s did not happen: %v", name, c.done)
	}
	for _, status := range []relayer.APIStatus{relayer.APIConfirmed, relayer.APICanceled, relayer.APIExpired} {
		require.NotZero(t, c.ended[string(status)], "nothing is %s: %v", status, c.ended)
	}
}

// struck returns how often each fault of the nodes struck, reads and sends together.
func (c *chaos) struck() map[string]uint64 {
	all := map[string]uint64{}
	for _, own := range c.proxies {
		for _, p := range own {
			for name, n := range p.Injected() {
				if n > 0 {
					all[name] += n
				}
			}
		}
	}
	return all
}

func (c *chaos) summary() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("faults: %s; of the nodes: %s", counts(c.done), counts(c.struck()))
}
