package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/keyring/keyringtest"
	"github.com/rollcall-dev/rollcall/internal/testchain"
	"github.com/rollcall-dev/rollcall/internal/testchain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

// setting says what a scene is made of.
type setting struct {
	keys, relayers int
	inFlight       int
	confirmations  int
	geth           []string // arguments
	postgres       map[string]string
	env            []string // of all relayers, after the usual
}

// scene is a pool of relayers on a chain, with proxies between.
type scene struct {
	t        testing.TB
	random   *rand.Rand
	node     *testchain.Node
	counter  common.Address
	proxies  []*proxy.Proxy
	postgres *testpostgres.Server
	keys     []keyringtest.Key
	fleet    fleet
	sent     *atomic.Int64 // transactions that the proxies were asked to pass on, those sent again among them
}

// open starts everything, and returns when all relayers are healthy.
func open(t testing.TB, s setting) *scene {
	t.Helper()
	sc := prepare(t, s)
	sc.muster()
	return sc
}

// prepare starts everything but the relayers.
func prepare(t testing.TB, s setting) *scene {
	t.Helper()
	// The kernel kills what a thread started when the thread ends, as threads do on which package pgserver ran a server. On
	// this one nobody else runs.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	t.Logf("seed %d", *seed)
	sc := &scene{t: t, random: rand.New(rand.NewPCG(*seed, 1)), sent: new(atomic.Int64)} //nolint:gosec // repeatable
	sc.node = testchain.Geth(t, testchain.GethOptions{Accounts: 1, Args: s.geth})
	sc.counter = sc.node.Counter()
	sc.keys = keyringtest.Keys(t, t.Name(), s.keys)
	addresses := make([]common.Address, len(sc.keys))
	for i, k := range sc.keys {
		addresses[i] = k.Address
	}
	sc.node.Fund(testchain.Ether(1000), addresses...)
	for i := range 2 {
		p, err := proxy.Open(proxy.Config{HTTP: sc.node.URL(), WS: sc.node.WSURL(), Seed: *seed + uint64(i)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		p.SetRules(sc.listen())
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

// listen is a rule that counts what is sent, and never strikes.
func (sc *scene) listen() proxy.Rule {
	return proxy.Rule{Name: "listen", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse},
		When: func(proxy.Call) bool { sc.sent.Add(1); return false }}
}

// recruit makes the relayers. They differ in what an operator may choose: which node first, how new blocks are learnt,
// where transactions are sent to.
func (sc *scene) recruit(s setting) {
	hex := make([]string, len(sc.keys))
	for i, k := range sc.keys {
		hex[i] = k.Hex()
	}
	keys, err := json.Marshal(hex)
	require.NoError(sc.t, err)
	for i := range s.relayers {
		urls := []string{sc.proxies[i%2].URL(), sc.proxies[1-i%2].URL()}
		env := []string{
			"RELAYER_PRIVATE_KEYS_JSON=" + string(keys), "RELAYER_API_KEYS=torture:" + apiKey, "RELAYER_POOL_ID=" + poolID,
			"DATABASE_URL=" + sc.postgres.URL(), fmt.Sprintf("RELAYER_CHAIN_ID=%d", testchain.ChainID),
			"RELAYER_RPC_URLS=" + strings.Join(urls, ","), "RELAYER_RPC_TIMEOUT=2s", "RELAYER_POLL_INTERVAL=200ms",
			fmt.Sprintf("RELAYER_IN_FLIGHT=%d", s.inFlight), "RELAYER_RATE_LIMIT=0", fmt.Sprintf("RELAYER_CONFIRMATIONS=%d", s.confirmations),
			fmt.Sprintf("RELAYER_BROADCAST_ALL=%t", i%2 == 1),
		}
		if i%3 != 2 {
			env = append(env, "RELAYER_SUBSCRIBE_URL="+sc.proxies[i%2].WSURL())
		}
		sc.fleet = append(sc.fleet, newMember(sc.t, fmt.Sprintf("relayer-%d", i+1), append(env, s.env...)))
	}
}

func (sc *scene) truth() *truth {
	return &truth{t: sc.t, db: sc.postgres.Pool(sc.t), chain: sc.node.Client(), counter: sc.counter}
}

// storm posts n hits while a plan is carried out, waits for all to be mined, and proves the claim. It returns the chaos for
// further questions.
func (sc *scene) storm(n, clients int, p plan, settle time.Duration) *chaos {
	t := sc.t
	t.Helper()
	l := newLoad(t, sc.fleet, sc.counter, n, sc.random)
	l.clients, l.pace = clients, p.length/time.Duration(n)
	c := &chaos{plan: p, random: sc.random, fleet: sc.fleet, proxies: sc.proxies, postgres: sc.postgres, listen: sc.listen()}
	defer func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.summary(), l.summary(), sc.fleet.usage())
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), p.length+settle)
	defer cancel()
	clientRandom := rand.New(rand.NewPCG(*seed, 2)) //nolint:gosec // repeatable
	posted := make(chan struct{})
	began := time.Now()
	go func() { defer close(posted); l.run(ctx, clientRandom) }()
	c.run(ctx)
	<-posted
	accepted := time.Since(began)
	require.NoError(t, ctx.Err(), "not everything was accepted: %s", l.summary())
	v := sc.truth()
	v.settled(settle)
	took := time.Since(began)
	stored := v.executed(l.hits)
	used := v.keys(false)
	v.records()
	sc.fleet.stop()
	t.Logf("%s\n%s\n%d hits posted, %d accepted in %v, all final after %v: %.0f a second; nonces used %d; %s, sent %d times\n%s", c.summary(), l.summary(),
		n, stored, accepted.Round(time.Second), took.Round(time.Second), float64(stored)/took.Seconds(), used, v.extras(), sc.sent.Load(), sc.fleet.usage())
	return c
}

// Whatever is done to processes, nodes and database, what was accepted is mined exactly once.
func TestWhatWasAcceptedIsMinedExactlyOnce(t *testing.T) {
	sc := open(t, setting{keys: 4, relayers: 3, inFlight: 64, confirmations: 3, geth: pool(100_000)})
	c := sc.storm(500, 16, plan{
		length: 24 * time.Second, killEvery: 3 * time.Second,
		freezeEvery: 16 * time.Second, freezeFor: 16 * time.Second, // longer than the term, any patience and the statement timeout
		shiftEvery: time.Second, restarts: 2,
	}, 60*time.Second)
	struck := c.struck()
	for _, f := range faults {
		require.NotZero(t, struck[f.name], "%s did not strike: %v", f.name, struck)
	}
	for _, name := range []string{"kill -9", "SIGSTOP", "postgres kill -9", "postgres stop", "node down", "node lags"} {
		require.NotZero(t, c.done[name], "%s did not happen: %v", name, c.done)
	}
}

// pool are geth's arguments for places in its pool, for an account and for all together.
func pool(n int) []string {
	account, all := fmt.Sprint(n), fmt.Sprint(2*n)
	return []string{
		"--dev.gaslimit", "1000000000", "--txpool.accountslots", account, "--txpool.globalslots", all,
		"--txpool.accountqueue", account, "--txpool.globalqueue", all,
	}
}
