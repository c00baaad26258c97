package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// setting configures a scene.
type setting struct {
	keys, relayers int
	inFlight       int
	confirmations  int
	geth           []string // command line arguments
	postgres       map[string]string
	env            []string                // of all relayers, after the common ones
	rules          [endpoints][]proxy.Rule // of each endpoint, for the whole scene
	single         bool                    // relayers use the first endpoint only
}

// endpoints is how many endpoints each relayer has. All of them lead to one node.
const endpoints = 2

// scene is a pool of relayers on a chain, with proxies in between.
type scene struct {
	t        testing.TB
	random   *rand.Rand
	rules    [endpoints][]proxy.Rule
	node     *testchain.Node
	counter  common.Address
	proxies  []*proxy.Proxy // one for each relayer's endpoint, in the order of the relayers
	postgres *testpostgres.Server
	keys     []signertest.Key
	fleet    fleet
	reports  *reportLog    // of all clients, and of the relayers' webhooks
	sent     *atomic.Int64 // transactions that the proxies received, including repeated ones
}

// open starts all parts, and returns when all relayers are healthy.
func open(t testing.TB, s setting) *scene {
	t.Helper()
	sc := prepare(t, s)
	sc.muster()
	return sc
}

// prepare starts all parts but the relayers.
func prepare(t testing.TB, s setting) *scene {
	t.Helper()
	// The kernel kills the children of a thread when the thread ends. Threads on which package pgserver ran a server
	// may end. This goroutine is the only one on its thread.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	t.Logf("seed %d", *seed)
	sc := &scene{t: t, rules: s.rules, random: rand.New(rand.NewPCG(*seed, 1)), sent: new(atomic.Int64), reports: newReportLog()}
	sc.node = testchain.Geth(t, testchain.GethOptions{Accounts: 1, Args: s.geth})
	sc.counter = sc.node.Counter()
	sc.keys = signertest.Keys(t, t.Name(), s.keys)
	addresses := make([]common.Address, len(sc.keys))
	for i, k := range sc.keys {
		addresses[i] = k.Address
	}
	sc.node.Fund(testchain.Ether(1000), addresses...)
	for i := range endpoints * s.relayers {
		p, err := proxy.Open(proxy.Config{HTTP: sc.node.URL(), WS: sc.node.WSURL(), Seed: *seed + uint64(i)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		p.SetRules(sc.fixed(i % endpoints)...)
		sc.proxies = append(sc.proxies, p)
	}
	sc.postgres = testpostgres.Own(t, s.postgres)
	sc.recruit(s)
	return sc
}

// muster starts the relayers.
func (sc *scene) muster() {
	sc.t.Helper()
	for _, m := range sc.fleet {
		m.start()
	}
	sc.fleet.ready(sc.t)
}

// fixed returns the rules of an endpoint that are never lifted.
func (sc *scene) fixed(endpoint int) []proxy.Rule {
	return append([]proxy.Rule{sc.listen()}, sc.rules[endpoint]...)
}

// listen returns a rule that counts sent transactions, and never strikes.
func (sc *scene) listen() proxy.Rule {
	return proxy.Rule{Name: "listen", Methods: []string{"eth_sendRawTransaction"}, Permanent: true, Fault: proxy.Fault{Kind: proxy.Refuse},
		When: func(proxy.Call) bool { sc.sent.Add(1); return false }}
}

// recruit makes the relayers. They differ in the operator's options: the order of the nodes, how new blocks are
// detected, and which nodes receive transactions.
func (sc *scene) recruit(s setting) {
	hex := make([]string, len(sc.keys))
	for i, k := range sc.keys {
		hex[i] = k.Hex()
	}
	keys, err := json.Marshal(hex)
	require.NoError(sc.t, err)
	webhooks := sc.reports.receive(sc.t)
	for i := range s.relayers {
		own := sc.endpoints(i)
		first, second := own[i%2], own[1-i%2]
		urls := []string{first.URL(), second.URL()}
		if s.single {
			urls = urls[:1]
		}
		env := []string{
			"RELAYER_PRIVATE_KEYS_JSON=" + string(keys), "RELAYER_API_KEYS=torture:" + apiKey, "RELAYER_POOL_ID=" + poolID,
			"DATABASE_URL=" + sc.postgres.URL(), fmt.Sprintf("RELAYER_CHAIN_ID=%d", testchain.ChainID),
			"RELAYER_RPC_URLS=" + strings.Join(urls, ","), "RELAYER_RPC_TIMEOUT=2s", "RELAYER_POLL_INTERVAL=200ms",
			fmt.Sprintf("RELAYER_MAX_PENDING_PER_KEY=%d", s.inFlight), "RELAYER_RATE_LIMIT=0", fmt.Sprintf("RELAYER_CONFIRMATIONS=%d", s.confirmations),
			fmt.Sprintf("RELAYER_BROADCAST_ALL=%t", i%2 == 1),
		}
		if i%3 != 2 {
			env = append(env, "RELAYER_SUBSCRIBE_URL="+first.WSURL())
		}
		env = append(env, webhooks...)
		sc.fleet = append(sc.fleet, newMember(sc.t, fmt.Sprintf("relayer-%d", i+1), append(env, s.env...)))
	}
}

// endpoints returns the proxies of a relayer.
func (sc *scene) endpoints(relayer int) [endpoints]*proxy.Proxy {
	return [endpoints]*proxy.Proxy(sc.proxies[endpoints*relayer:])
}

// load returns n hits of clients whose answers are recorded.
func (sc *scene) load(n int) *load {
	sc.t.Helper()
	l := newLoad(sc.t, sc.fleet, sc.counter, n, sc.random)
	l.reports = sc.reports
	return l
}

func (sc *scene) truth() *truth {
	return &truth{t: sc.t, db: sc.postgres.Pool(sc.t), chain: sc.node.Client(), counter: sc.counter}
}

// storm posts n hits during a plan, waits for all to be mined, and checks the claim. It returns the chaos for further
// checks.
func (sc *scene) storm(n, clients int, p plan, settle time.Duration) *chaos {
	t := sc.t
	t.Helper()
	l := sc.load(n)
	l.clients, l.pace = clients, p.length/time.Duration(n)
	v := sc.truth()
	c := &chaos{plan: p, random: sc.random, fleet: sc.fleet, node: sc.node, postgres: sc.postgres, db: v.db}
	for e := range c.fixed {
		c.fixed[e] = sc.fixed(e)
	}
	for i := range sc.fleet {
		c.proxies = append(c.proxies, sc.endpoints(i))
	}
	if p.dearTimes > 0 {
		l.withdraw(sc.random, p.withdrawn)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.summary(), l.summary(), sc.fleet.usage())
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), p.length+settle)
	defer cancel()
	clientRandom := rand.New(rand.NewPCG(*seed, 2))
	posted := make(chan struct{})
	began := time.Now()
	polling, endPolling := context.WithCancel(t.Context())
	defer endPolling()
	var polls sync.WaitGroup
	for i := range pollers {
		random := rand.New(rand.NewPCG(*seed, uint64(3+i)))
		polls.Go(func() { l.poll(polling, random) })
	}
	go func() { defer close(posted); l.run(ctx, clientRandom) }()
	c.run(ctx)
	<-posted
	accepted := time.Since(began)
	require.NoError(t, ctx.Err(), "not everything was accepted: %s", l.summary())
	v.settled(settle)
	took := time.Since(began)
	v.delivered(patience)
	endPolling()
	polls.Wait()
	stored := v.executed(l.hits)
	used := v.keys(false)
	v.records()
	ends := v.outcomes()
	require.Empty(t, sc.reports.contradictions(ends, time.Time{}), "reports that the chain, the store or later reports contradict")
	c.ended = map[string]int{}
	for _, end := range ends {
		c.ended[string(end.status)]++
	}
	sc.fleet.stop()
	t.Logf("%s\n%s\n%s\n%d hits posted, %d accepted in %v, all final after %v (%s): %.0f a second; nonces used %d; %s, sent %d times\n%s", c.summary(), l.summary(), sc.reports.summary(),
		n, stored, accepted.Round(time.Second), took.Round(time.Second), counts(c.ended), float64(stored)/took.Seconds(), used, v.extras(), sc.sent.Load(), sc.fleet.usage())
	return c
}

// Faults of processes, nodes and database: each accepted transaction is mined exactly once.
func TestCrash_AcceptedTransactionsAreMinedExactlyOnce(t *testing.T) {
	sc := open(t, setting{keys: 4, relayers: 3, inFlight: 64, confirmations: 3, geth: pool(100_000), env: priced(), rules: dearGas})
	c := sc.storm(500, 16, plan{
		length: 24 * time.Second, killEvery: 3 * time.Second,
		freezeEvery: 16 * time.Second, freezeFor: 16 * time.Second, // longer than lease and timeouts
		shiftEvery: time.Second, restarts: 2,
		isolations: 1, isolateFor: 8 * time.Second, // longer than the lease
		dearTimes: 1, dearFor: 6 * time.Second,
	}, 60*time.Second)
	c.complete(t, planWithoutReceipts.Name) // blocks have too few transactions for that
}

// The chain's price exceeds the relayers' cap. Transactions that are canceled or expire meanwhile become final at once,
// by no-ops above the cap, and are not executed. All others are executed when the price falls.
func TestPriceCap_ChainDear_WithdrawnAreFinalAtOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 2, relayers: 2, inFlight: 100, confirmations: 2, geth: pool(1000), env: priced(), rules: dearGas,
	})
	v := sc.truth()
	ended := func(intent relayer.Intent) int { return v.noopsAbove(priceCap, intent) }
	// The price stays until no-ops of both kinds are mined. A transaction that is not withdrawn blocks later nonces of its
	// key meanwhile, so those that are posted first in the dear time are all withdrawn.
	both := func() bool { return ended(relayer.IntentCancel) > 0 && ended(relayer.IntentExpire) > 0 }
	sc.storm(250, 16, plan{length: 12 * time.Second, dearTimes: 1, dearFor: 6 * time.Second, dearUntil: both, withdrawn: 150}, 2*patience)
	for _, intent := range []relayer.Intent{relayer.IntentCancel, relayer.IntentExpire} {
		require.NotZero(t, ended(intent), "no no-op of intent %s offered more than the cap", intent)
	}
}

// No endpoint offers receipts by block, and blocks have more transactions than are first read one by one.
func TestNoBlockReceipts_FullBlocks_EachIsExecutedOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 4, relayers: 2, inFlight: 100, confirmations: 2, geth: pool(1000),
		rules: [endpoints][]proxy.Rule{{planWithoutReceipts}, {planWithoutReceipts}},
	})
	c := sc.storm(300, 32, plan{length: time.Second}, 2*patience)
	require.NotZero(t, c.struck()[planWithoutReceipts.Name], "receipts were not read by block")
}

// priced returns the settings of relayers on a chain whose price rises.
func priced() []string { return []string{fmt.Sprintf("RELAYER_GAS_PRICE_CAP=%d", priceCap)} }

// pool returns geth's arguments for slots in its pool, for an account and for all together.
func pool(n int) []string {
	account, all := fmt.Sprint(n), fmt.Sprint(2*n)
	return []string{
		"--dev.gaslimit", "1000000000", "--txpool.accountslots", account, "--txpool.globalslots", all,
		"--txpool.accountqueue", account, "--txpool.globalqueue", all,
	}
}
