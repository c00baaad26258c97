package watch

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
)

var (
	seeds = flag.Uint64("watch.seeds", 0, "how many histories TestMatrix makes for each delivery (40, with -short 8)")
	first = flag.Uint64("watch.seed", 0, "the first one's seed")
)

const receiptsMethod = "eth_getBlockReceipts"

// evils are faults of one endpoint, by name. Each returns what ends it, apart from rules.
var evils = func() map[string]func(w *world, i int) (end func()) {
	all := map[string]func(w *world, i int) func(){}
	rules := func(name string, rules ...proxy.Rule) {
		all[name] = func(w *world, i int) func() {
			w.proxies[i].SetRules(rules...)
			return func() {}
		}
	}
	logs := func(f proxy.Fault, p float64) proxy.Rule {
		return proxy.Rule{Methods: []string{logsMethod}, Fault: f, Probability: p}
	}
	for name, lie := range lies {
		rules("logs "+name, logs(lie.Fault, 1))
		rules("logs sometimes "+name, logs(lie.Fault, .4))
	}
	receipts := func(f proxy.Fault) proxy.Rule { return proxy.Rule{Methods: []string{receiptsMethod}, Fault: f} }
	rules("logs empty, receipts without logs", logs(lies["empty"].Fault, 1), receipts(proxy.AlterList(func(list []map[string]any) []map[string]any {
		for _, r := range list {
			r["logs"] = []any{}
		}
		return list
	})))
	rules("logs capped, receipts of another block", logs(lies["silently capped"].Fault, 1), receipts(proxy.Fault{Kind: proxy.Change, Alter: func(raw json.RawMessage) json.RawMessage {
		var list []struct{ BlockHash string }
		if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
			return raw
		}
		return json.RawMessage(strings.ReplaceAll(string(raw), list[0].BlockHash, common.Hash{9}.Hex()))
	}}))
	rules("logs empty, no receipts by block", logs(lies["empty"].Fault, 1), receipts(proxy.Fault{Kind: proxy.Refuse, Code: -32601, Message: "the method does not exist"}))
	rules("cut", proxy.Rule{Fault: proxy.Fault{Kind: proxy.Cut}, Probability: .4})
	rules("lost", proxy.Rule{Fault: proxy.Fault{Kind: proxy.Lose}, Probability: .4})
	rules("slow", proxy.Rule{Fault: proxy.Fault{Kind: proxy.Delay, Delay: 20 * time.Millisecond}})
	rules("garbled", proxy.Rule{Fault: proxy.Fault{Kind: proxy.Garble}, Probability: .4})
	rules("unavailable", proxy.Rule{Fault: proxy.Fault{Kind: proxy.Status}})
	rules("silent WebSocket", proxy.Rule{Methods: []string{"eth_subscription"}, Fault: proxy.Fault{Kind: proxy.Omit}})
	rules("headers missing", proxy.Rule{Methods: []string{"eth_getBlockByHash"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}})
	all["tag missing"] = func(w *world, i int) func() {
		w.proxies[i].SetRules(proxy.Rule{Methods: []string{"eth_getBlockByNumber"}, When: proxy.Asks(w.finality.Tag), Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}})
		return func() {}
	}
	all["tag stalls"] = func(w *world, i int) func() {
		at := w.final.Number
		w.proxies[i].SetRules(proxy.Retag(w.finality.Tag, func() uint64 { return at }))
		return func() {}
	}
	all["tag lies"] = func(w *world, i int) func() {
		w.proxies[i].SetRules(proxy.Retag(w.finality.Tag, func() uint64 { return w.nodes[i].Head().Number }))
		return func() {}
	}
	all["stale"] = func(w *world, i int) func() {
		w.stale = i
		return func() { w.stale = -1; w.show() }
	}
	all["away"] = func(w *world, i int) func() {
		w.proxies[i].SetDown(true)
		return func() { w.proxies[i].SetDown(false) }
	}
	elsewhere := func(id uint64) func(w *world, i int) func() {
		return func(w *world, i int) func() {
			chain := scripted.New(id)
			at := chain.Genesis()
			for at.Number < w.head.Number+2 {
				at = chain.Mine(at, w.create(worldFactory))
			}
			other := scripted.Serve(w.t, chain)
			other.SetHead(at)
			other.SetFinal(at.At(w.final.Number))
			w.proxies[i].SetNode(other.URL(), other.WSURL())
			return func() { w.proxies[i].SetNode(w.nodes[i].URL(), w.nodes[i].WSURL()) }
		}
	}
	all["another chain"] = elsewhere(worldChain + 1)
	all["another chain of the same id"] = elsewhere(worldChain)
	return all
}()

// providers are limits that all endpoints may have.
var providers = func() map[string][]proxy.Rule {
	refuse := func(code int, message string, when func(proxy.Call) bool) proxy.Rule {
		return proxy.Rule{Methods: []string{logsMethod}, When: when, Fault: proxy.Fault{Kind: proxy.Refuse, Code: code, Message: message}}
	}
	addresses := func(c proxy.Call) int {
		var params []struct{ Address []string }
		if json.Unmarshal(c.Params, &params) != nil || len(params) == 0 {
			return 0
		}
		return len(params[0].Address)
	}
	noTopics := refuse(-32602, "Please specify an address in your request or, to remove restrictions, order a dedicated full node", func(c proxy.Call) bool { return addresses(c) == 0 })
	return map[string][]proxy.Rule{
		"blocks":        {refuse(-32600, "eth_getLogs is limited to a 3 block range", func(c proxy.Call) bool { return c.Blocks() > 3 })},
		"results":       {refuse(-32005, "query returned more than 10000 results", func(c proxy.Call) bool { return c.Blocks() > 2 })},
		"each block":    {refuse(-32005, "query returned more than 10000 results", func(proxy.Call) bool { return true })},
		"no topics":     {noTopics},
		"two contracts": {noTopics, refuse(-32602, "exceed max addresses or topics per search position", func(c proxy.Call) bool { return addresses(c) > 2 })},
		"calls":         {{When: proxy.Beyond(60), Fault: proxy.Fault{Kind: proxy.Status, Code: 429, RetryAfter: 1}}},
	}
}()

// run makes a history of blocks, forks, faults and deaths, and requires the truth at its end.
func (w *world) run(steps int) {
	w.t.Helper()
	names := slices.Sorted(maps.Keys(evils))
	end := func() {}
	heal := func() {
		for _, p := range w.proxies {
			p.SetRules()
		}
		end()
		end = func() {}
	}
	for range 1 + w.dice.IntN(3) {
		w.start()
	}
	// Two endpoints that give the same false list of one block would be believed, so one is faulty until all is stored.
	faulty := w.dice.IntN(len(w.proxies))
	for range steps {
		switch w.dice.IntN(12) {
		case 0, 1, 2, 3:
			w.mine(1 + w.dice.IntN(3))
		case 4:
			w.fork(1+w.dice.Uint64N(5), w.dice.IntN(7))
		case 5: // three reorganizations at once
			for range 3 {
				w.fork(1+w.dice.Uint64N(4), 1+w.dice.IntN(5))
			}
		case 6:
			w.finalize(w.dice.Uint64N(8))
		case 7, 8:
			heal()
			name := names[w.dice.IntN(len(names))]
			w.t.Logf("at block %d: endpoint %d: %s", w.head.Number, faulty, name)
			end = evils[name](w, faulty)
		case 9:
			heal()
			limits := slices.Sorted(maps.Keys(providers))
			name := limits[w.dice.IntN(len(limits))]
			some := w.proxies[:len(w.proxies)-w.dice.IntN(2)]
			w.t.Logf("at block %d: %d endpoints limit: %s", w.head.Number, len(some), name)
			for _, p := range some {
				p.SetRules(providers[name]...)
			}
		case 10: // a death, a pause, or a database that is away for a moment
			p := w.processes[w.dice.IntN(len(w.processes))]
			switch w.dice.IntN(3) {
			case 0:
				p.stop()
				w.start()
				w.expire()
			case 1:
				w.expire()
			case 2:
				p.cut()
			}
		case 11: // all are down while the chain goes on
			for _, p := range w.processes {
				p.stop()
			}
			w.mine(w.dice.IntN(3))
			w.fork(1+w.dice.Uint64N(5), w.dice.IntN(7))
			w.start()
		}
		w.pass()
		if w.dice.IntN(6) == 0 {
			heal()
			w.mine(1)
			w.awaitAll()
			w.requireTruth(w.upto())
			faulty = w.dice.IntN(len(w.proxies))
		}
	}
	heal()
	for w.head.Number < w.final.Number+2 || len(w.pool) > 0 {
		w.mine(1)
	}
	w.mine(6) // more than a shorter branch may lack
	w.finalize(3)
	w.awaitAll()
	w.requireTruth(w.upto())
}

// upto returns the block up to which events are reported.
func (w *world) upto() *scripted.Block {
	if w.delivery == Finalized {
		return w.final
	}
	return w.head
}

// pass lets some time pass, most often not enough for the processes to read all.
func (w *world) pass() {
	timer := time.NewTimer(time.Duration(w.dice.IntN(40)) * time.Millisecond)
	defer timer.Stop()
	<-timer.C
}

// E4, E8 and E9: whatever one endpoint and the processes do, the messages that stand are the events of the chain.
func TestMatrix_Seeds_MessagesAreTheChains(t *testing.T) {
	t.Parallel()
	n := *seeds
	if n == 0 {
		if n = 40; testing.Short() {
			n = 8
		}
	}
	for seed := *first; seed < *first+n; seed++ {
		for _, delivery := range []Delivery{Finalized, Instant} {
			t.Run(fmt.Sprint(delivery, seed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, seed, 2+int(seed%2))
				w.delivery, w.ws = delivery, seed%4 < 2
				if seed%3 == 0 {
					w.finality = evm.Finality{Tag: "safe"}
				}
				if seed%5 == 2 {
					w.listBytes = 2_000 // a few events
				}
				w.run(25)
			})
		}
	}
}
