package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

const (
	bareReadRow   = "bare loop: events queried by topic and copied"
	documentsRow  = "documents' way: events of 10 blocks queried for 1,000 escrows at a time, each looked for and inserted"
	backfillRow   = "escrow: events stored in a backfill"
	drainRow      = "escrow: messages accepted by the topic from a backlog"
	backfillMBRow = "escrow: memory in a backfill, at most"
	sustainedRow  = "escrow: messages accepted by the topic while 6,000 events a second are mined"
	rewriteRow    = "block to message after a reorganization, p50"
	outageRow     = "calls to nodes a second while all nodes fail"
	openRow       = "escrow: events mined and not accepted by the topic meanwhile, at most in the second half"
)

const (
	// sustainedRate is the number of events a second of which the topic must get most in time: a fifth more than the target.
	sustainedRate = 6_000
	// sustainedTarget is the number of messages a second that the topic must accept.
	sustainedTarget = 5_000
	// tagBlocks is how many blocks make the tag finalized of geth's development chain move.
	tagBlocks = 32
	// nextFinal is a setting: a block is final with the next one.
	nextFinal = "ESCROW_FINALITY=1"
	// rewritten is how many blocks a reorganization removes.
	rewritten = 3
	// instances is how many share a chain while calls to nodes are counted.
	instances = 3
)

// escrow measures escrow monitors with their Postgres, a topic and a node.
func escrow(t *trial) {
	c := t.startFactoryChain()
	c.createAll(t, t.backfill)
	last := c.head(t)
	for range tagBlocks + 1 { // the blocks before are final
		c.create(t, 1)
	}
	// Once, because it takes as long as many rounds of the others.
	t.check(t.try(t.ctx, func(t *trial) {
		p := c.startPeer(t)
		p.measure(documentsRow, last, documentBlocks, p.documents())
	}))
	t.inRounds(
		func(t *trial) {
			p := c.startPeer(t)
			p.measure(bareReadRow, last, bareBlocks, p.bare)
		},
		func(t *trial) { c.newMonitors(t, c.first, c.nodes(), nextFinal).backfill(last) })
	t.report(backfillRow, "/s").valueAtLeast(10_000)
	stored := median(t.samples[backfillRow])
	t.report(bareReadRow, "/s")
	t.add(backfillRow+", beside the bare loop", stored, "/s").beside(bareReadRow, median(t.samples[bareReadRow])).atLeast(0.5)
	t.report(documentsRow, "/s")
	t.add(backfillRow+", beside the documents' way", stored, "/s").beside(documentsRow, median(t.samples[documentsRow])).atLeast(10)
	for _, process := range backfillProcesses {
		t.report(eventCost(process), "µs")
	}
	t.report(backfillMBRow, "MB").valueAtMost(250)
	t.report(drainRow, "/s")

	for _, n := range t.escrows {
		for _, delivery := range []string{"finalized", "instant"} {
			for _, transport := range []string{"HTTP", "WebSocket"} {
				t.check(t.try(t.ctx, func(t *trial) { c.watched(t, n, delivery, transport) }))
			}
		}
	}
	t.check(t.try(t.ctx, c.sustained))
}

// backfillProcesses are those whose processor time a backfill measures.
var backfillProcesses = []string{"instance", "Postgres", "geth", "topic"}

func eventCost(process string) string {
	return "escrow: events stored and accepted by the topic: processor time each, " + process
}

// monitors are instances of one chain, their Postgres and their topic.
type monitors struct {
	t     *trial
	chain *factoryChain
	topic *topic
	db    *pgserver.Server
	conn  *pgx.Conn
	env   []string
	all   []*proc.Process
}

// newMonitors returns monitors of the chain from a block on, without an instance. settings are further ones.
func (c *factoryChain) newMonitors(t *trial, start uint64, nodes []string, settings ...string) *monitors {
	m := &monitors{t: t, chain: c, topic: t.startTopic(), db: t.startPostgres()}
	url := t.freshDatabase(m.db, "escrow")
	m.conn = t.connect(url)
	m.env = append(settings,
		fmt.Sprint("CHAIN_ID=", chain.ChainID), "RPC_URL="+strings.Join(nodes, ","), "FACTORY_ADDRESS="+c.factory.Hex(),
		fmt.Sprint("START_BLOCK=", start), "DATABASE_URL="+url,
		"PUBSUB_PROJECT_ID="+topicProject, "PUBSUB_TOPIC_ID="+topicID, "PUBSUB_EMULATOR_HOST="+m.topic.emulator)
	return m
}

// startInstance starts an instance like a user does. It does not wait for it.
func (m *monitors) startInstance() *proc.Process {
	listen := m.t.addresses(1)[0]
	p := m.t.start(m.t.TempDir(), slices.Concat(m.env, []string{"ESCROW_LISTEN=" + listen, "INSTANCE_ID=" + listen}), "", m.t.rollcall, "escrow")
	m.all = append(m.all, p)
	return p
}

// storedLimit is how long a backfill may take.
const storedLimit = 5 * time.Minute

// awaitNumber waits until a query returns a number or more. Tables need not exist at first.
func (m *monitors) awaitNumber(want uint64, query string) {
	for began := time.Now(); ; m.t.pause(10 * time.Millisecond) {
		var n uint64
		err := m.conn.QueryRow(m.t.ctx, query).Scan(&n)
		if err == nil && n >= want {
			return
		}
		for _, p := range m.all {
			m.t.check(p.Running())
		}
		if time.Since(began) > storedLimit {
			m.t.Fatalf("%q is %d and not %d after %s: %v", query, n, want, storedLimit, err)
		}
	}
}

// number returns the result of a query of the monitors' database.
func (m *monitors) number(query string) (n float64) {
	m.t.check(m.conn.QueryRow(m.t.ctx, query).Scan(&n))
	return n
}

// awaitStored waits until the events of a block are stored.
func (m *monitors) awaitStored(block uint64) {
	m.awaitNumber(block, "SELECT coalesce(max(cursor_number), 0) FROM escrow_chains")
}

// backfill measures an instance that finds the whole chain, from its start until the last block is stored, and then until all is published.
func (m *monitors) backfill(last uint64) {
	t := m.t
	var p *proc.Process
	var stored time.Time
	var before, after published
	began := time.Now()
	used := t.processorTime(map[string]processor{
		"instance": func() (time.Duration, error) {
			if p == nil {
				return 0, nil
			}
			return processorOf(p.PID())()
		},
		"Postgres": processorOf(m.db.PID()), "geth": processorOf(m.chain.node.PID()), "topic": processorOf(m.topic.process.PID()),
	}, func() {
		p = m.startInstance()
		m.awaitStored(last)
		stored = time.Now()
		t.sample(backfillMBRow, t.peak(p.PID())/1e6, "MB")
		before = m.topic.published(t)
		after = m.topic.await(t, t.backfill)
	})
	t.sample(backfillRow, float64(t.backfill)/stored.Sub(began).Seconds(), "/s")
	for _, process := range backfillProcesses {
		t.sample(eventCost(process), float64(used[process].Microseconds())/float64(t.backfill), "µs")
	}
	if n := m.number("SELECT count(*) FROM processed_events"); n < float64(t.backfill) {
		t.Fatalf("%.0f of %d events are stored", n, t.backfill)
	}
	if before.Messages > t.backfill*3/4 { // too few were left for a measurement
		before, stored = published{}, before.First
	}
	t.sample(drainRow, float64(after.Messages-before.Messages)/after.Last.Sub(stored).Seconds(), "/s")
	m.ordered(after)
}

// ordered ends the trial unless the topic has each message once, in the order of its escrow.
func (m *monitors) ordered(p published) {
	if p.Disordered > 0 {
		m.t.Fatalf("%d of %d messages did not follow the one before of their escrow", p.Disordered, p.Messages)
	}
}

// peak returns the largest resident memory that a process had, in bytes.
func (t *trial) peak(pid int) float64 {
	p, err := procfs.NewProc(pid)
	t.check(err)
	status, err := p.NewStatus()
	t.check(err)
	return float64(status.VmHWM)
}

// sustained measures how many messages the topic accepts while more events are mined, and whether a backlog grows. Each escrow
// has several events.
func (c *factoryChain) sustained(t *trial) {
	m := c.newMonitors(t, c.head(t), c.nodes(), nextFinal)
	m.startInstance()
	m.awaitNumber(1, "SELECT count(*) FROM relayer_instances")
	seconds := int(t.paced.Seconds())
	var open [2]float64 // events that are mined and not accepted, at most in each half
	began := time.Now()
	for second := range seconds {
		c.emit(t, 0, sustainedRate)
		half := &open[2*second/seconds]
		for next := began.Add(time.Duration(second+1) * time.Second); time.Now().Before(next); t.pause(100 * time.Millisecond) {
			*half = max(*half, float64((second+1)*sustainedRate-m.topic.published(t).Messages))
		}
	}
	c.sealed(t)
	c.create(t, 1) // the blocks before are final
	got := m.topic.await(t, seconds*sustainedRate)
	m.ordered(got)
	t.add(sustainedRow, float64(got.Messages)/got.Last.Sub(got.First).Seconds(), "/s").valueAtLeast(sustainedTarget)
	t.add(openRow, open[1], "").beside("in the first half", open[0]).atMost(1.5)
}

// callCount counts the calls to nodes.
type callCount struct{ calls, polls atomic.Int64 }

// see counts a call, and selects none.
func (n *callCount) see(c proxy.Call) bool {
	n.calls.Add(1)
	switch c.Method {
	case "eth_blockNumber", "eth_chainId":
		n.polls.Add(1)
	case "eth_getBlockByNumber":
		if !bytes.HasPrefix(c.Params, []byte(`["0x`)) { // by tag
			n.polls.Add(1)
		}
	}
	return false
}

// deliveryCalls is how many calls of all instances a block may take, by delivery.
var deliveryCalls = map[string]float64{"finalized": 1, "instant": 3}

// transportPolls is how many of them may be polls.
var transportPolls = map[string]float64{"HTTP": 1.2, "WebSocket": 0}

// watched counts the calls of all instances for each block while a block with an event comes each second, and measures how soon the
// topic has its message, before and after a reorganization. Then it counts the calls while both nodes fail.
func (c *factoryChain) watched(t *trial, escrows int, delivery, transport string) {
	var count callCount
	nodes, proxies := make([]string, 2), make([]*proxy.Proxy, 2)
	for i := range nodes {
		p, err := proxy.Open(proxy.Config{HTTP: c.node.URL(), WS: c.node.WSURL()})
		t.check(err)
		t.Cleanup(func() { p.Close() })
		p.SetRules(proxy.Rule{Name: "count", When: count.see})
		proxies[i] = p
		if nodes[i] = p.URL(); transport == "WebSocket" {
			nodes[i] = p.WSURL()
		}
	}
	m := c.newMonitors(t, c.first+uint64(t.backfill-escrows)/perTransaction, nodes, "ESCROW_DELIVERY="+delivery)
	for range instances {
		m.startInstance()
	}
	m.awaitNumber(instances, "SELECT count(*) FROM relayer_instances")
	m.awaitNumber(uint64(escrows), "SELECT count(*) FROM escrow_accounts")
	m.topic.await(t, escrows)
	heads := c.subscribe(t)
	calls, polls := count.calls.Load(), count.polls.Load()
	blocks := int(t.calling.Seconds())
	c.createEachSecond(t, blocks)
	what := fmt.Sprintf("escrow: %d instances, %d escrows, %s, %s: ", instances, escrows, delivery, transport)
	perBlock := func(now, before int64) float64 { return float64(now-before) / float64(blocks) }
	healthy := perBlock(count.calls.Load(), calls)
	t.add(what+"calls to nodes for each block", healthy, "").valueAtMost(deliveryCalls[delivery])
	t.add(what+"polls for each block", perBlock(count.polls.Load(), polls), "").valueAtMost(transportPolls[transport])
	most := 0.0
	for _, p := range m.all {
		most = max(most, t.resident(p.PID()))
	}
	t.add(what+"memory of the largest", most/1e6, "MB").valueAtMost(150)
	if delivery == "instant" {
		before := m.delays(heads())
		for _, q := range []float64{0.5, 0.99} {
			r := t.add(fmt.Sprintf("%sblock to message, p%g", what, 100*q), ms(before.quantile(q)), "ms")
			if transport == "WebSocket" {
				r.valueAtMost(map[float64]float64{0.5: 50, 0.99: 500}[q])
			}
		}
		c.rewrite(t, rewritten)
		heads = c.subscribe(t)
		c.createEachSecond(t, int(t.paced.Seconds()))
		after := m.delays(heads())
		t.add(what+rewriteRow, ms(after.quantile(0.5)), "ms").beside("before it", ms(before.quantile(0.5))).atMost(2)
	}

	for _, p := range proxies {
		p.SetRules(proxy.Rule{Name: "count and fail", When: func(call proxy.Call) bool { count.see(call); return true }, Fault: proxy.Fault{Kind: proxy.Status, Code: 502}})
	}
	calls = count.calls.Load()
	t.pause(t.paced)
	t.add(what+outageRow, float64(count.calls.Load()-calls)/t.paced.Seconds(), "/s").beside("for each block before", healthy).atMost(20)
}

// delays returns the times from a block's announcement until the topic accepts its message.
func (m *monitors) delays(announced map[uint64]time.Time) latencies {
	t, took := m.t, newLatencies()
	// geth makes these final at once, so that their messages need not be pending first.
	maps.DeleteFunc(announced, func(number uint64, _ time.Time) bool { return number%tagBlocks == 0 })
	var pending map[uint64]time.Time
	t.until(minedLimit, func(context.Context) error {
		pending = m.topic.published(t).Pending
		for number := range announced {
			if _, ok := pending[number]; !ok {
				return fmt.Errorf("block %d has no message", number)
			}
		}
		return nil
	})
	for number, at := range announced {
		took.add(pending[number].Sub(at))
	}
	return took
}
