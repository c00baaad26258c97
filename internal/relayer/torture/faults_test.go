package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rollcall-dev/rollcall/internal/testchain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

// faults of a connection strike before, in and after the node's work.
var faults = []struct {
	name  string
	fault proxy.Fault
	send  float64 // probability for a transaction that is sent
	read  float64 // for everything else; 0: never
}{
	// Only what is sent: to a question, a refusal is an answer.
	{"refused", proxy.Fault{Kind: proxy.Refuse, Message: "internal error"}, 0.03, 0},
	{"pool full", proxy.Fault{Kind: proxy.Refuse, Message: "txpool is full"}, 0.03, 0},
	{"503", proxy.Fault{Kind: proxy.Status}, 0.03, 0.005},
	{"429", proxy.Fault{Kind: proxy.Status, Code: 429, RetryAfter: 1}, 0.01, 0.001},
	{"cut before", proxy.Fault{Kind: proxy.Cut}, 0.03, 0.005},
	{"cut after", proxy.Fault{Kind: proxy.Lose}, 0.03, 0.005},
	{"no answer", proxy.Fault{Kind: proxy.Hang}, 0.02, 0.002},
	{"late", proxy.Fault{Kind: proxy.Delay, Delay: 2500 * time.Millisecond}, 0.02, 0.002}, // later than callers wait
	{"slow", proxy.Fault{Kind: proxy.Delay, Delay: 300 * time.Millisecond}, 0.02, 0.01},
	{"left out", proxy.Fault{Kind: proxy.Omit}, 0.03, 0.003},
	{"no JSON", proxy.Fault{Kind: proxy.Garble}, 0.02, 0.003},
	{"half", proxy.Fault{Kind: proxy.Truncate}, 0.02, 0.003},
}

// reads are the questions that relayers ask.
var reads = []string{
	"eth_chainId", "eth_blockNumber", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionCount", "eth_getBlockReceipts",
	"eth_getTransactionReceipt", "eth_feeHistory", "eth_gasPrice", "eth_maxPriorityFeePerGas", "eth_estimateGas", "eth_getBalance",
}

// rules have each fault strike once and early, and then by chance.
func rules() (all []proxy.Rule) {
	for i, f := range faults {
		all = append(all, proxy.Rule{
			Name: f.name, Methods: []string{"eth_sendRawTransaction"}, When: proxy.At(uint64(3 * (i + 1))), Fault: f.fault,
		})
	}
	for _, f := range faults {
		all = append(all, proxy.Rule{
			Name: f.name, Methods: []string{"eth_sendRawTransaction"}, Probability: f.send, Fault: f.fault,
		})
		if f.read > 0 {
			all = append(all, proxy.Rule{Name: f.name + " (read)", Methods: reads, Probability: f.read, Fault: f.fault})
		}
	}
	return all
}

// plan says what is done to a scene, and when.
type plan struct {
	length      time.Duration
	killEvery   time.Duration // a process; 0: never
	freezeEvery time.Duration // another one; 0: never
	freezeFor   time.Duration
	shiftEvery  time.Duration // how often the nodes' faults change; 0: never
	restarts    int           // of Postgres, in turn killed and stopped
}

// event of a plan.
type event struct {
	at time.Duration
	do func()
}

// chaos does a plan to a scene.
type chaos struct {
	plan
	random   *rand.Rand
	fleet    fleet
	proxies  []*proxy.Proxy
	postgres *testpostgres.Server
	listen   proxy.Rule // stays when everything is well
	done     map[string]int
}

// run returns when everything is over, and everybody lives again. It belongs on the test's own goroutine.
func (c *chaos) run(ctx context.Context) {
	c.done = map[string]int{}
	if c.shiftEvery > 0 {
		for _, p := range c.proxies {
			p.SetRules(append([]proxy.Rule{c.listen}, rules()...)...)
		}
	}
	began := time.Now()
	for _, e := range c.events() {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(e.at))):
			e.do()
		}
	}
	c.calm()
}

// calm ends all faults.
func (c *chaos) calm() {
	for _, p := range c.proxies {
		p.SetDown(false)
		p.SetLag(0)
		p.SetRules(c.listen)
		p.Switch(true)
	}
	for _, m := range c.fleet {
		if m.isFrozen() {
			m.thaw()
		}
	}
}

// events of the plan, in their order.
func (c *chaos) events() []event {
	var all []event
	add := func(at time.Duration, do func()) { all = append(all, event{at, do}) }
	busy := map[*member]time.Duration{} // frozen or dead until then
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
				add(at, func() { c.count("SIGSTOP"); m.freeze() })
				add(at+c.freezeFor, m.thaw)
			}
		}
		if c.killEvery > 0 && at >= kill {
			kill = at + c.jitter(c.killEvery)
			if m := free(at); m != nil {
				down := time.Duration(c.random.IntN(1000)) * time.Millisecond
				busy[m] = at + down + 300*time.Millisecond
				add(at, func() { c.count("kill -9"); m.kill() })
				add(at+down, m.start)
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
	if c.shiftEvery > 0 {
		for at := time.Duration(0); at < c.length; at += c.shiftEvery {
			dice := [3]int{c.random.IntN(4), c.random.IntN(6), c.random.IntN(len(c.proxies))}
			if at < 2*c.shiftEvery {
				dice[1] = int(at / c.shiftEvery) // a node that is down, and then one that lags, once and early
			}
			lag := uint64(1 + c.random.IntN(2))
			add(at, func() { c.shift(dice[0], dice[1], dice[2], lag) })
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return int(a.at - b.at) })
	return all
}

// shift changes what is wrong with the nodes. Most of the time one of them does well, and not always the same.
func (c *chaos) shift(well, special, which int, lag uint64) {
	for i, p := range c.proxies {
		p.SetDown(false)
		p.SetLag(0)
		p.Switch(i != well) // beyond the last: none does well
	}
	p := c.proxies[which]
	switch special {
	case 0:
		c.count("node down")
		p.SetDown(true)
	case 1, 2:
		c.count("node lags")
		p.Switch(true)
		p.SetLag(lag)
	}
}

func (c *chaos) jitter(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	return d/2 + time.Duration(c.random.Int64N(int64(d)))
}

func (c *chaos) count(name string) { c.done[name]++ }

// struck is how often each fault of the nodes struck, reads and sends together.
func (c *chaos) struck() map[string]uint64 {
	all := map[string]uint64{}
	for _, p := range c.proxies {
		for name, n := range p.Injected() {
			if n > 0 {
				all[name] += n
			}
		}
	}
	return all
}

func (c *chaos) summary() string {
	return fmt.Sprintf("faults: %s; of the nodes: %s", counts(c.done), counts(c.struck()))
}
