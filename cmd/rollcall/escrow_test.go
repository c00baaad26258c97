package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/instance"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// patience limits what a healthy machine does in some seconds.
const patience = 2 * time.Minute

// escrowNet is a chain with a factory behind two endpoints, a topic, and an empty database.
type escrowNet struct {
	t       *testing.T
	chain   *testchain.Chain
	nodes   []*proxy.Proxy
	factory common.Address
	topic   *pstest.Server
	url     string
	db      *pgxpool.Pool
	escrows map[common.Address]string // the types of the messages of each
	backend contract.Backend          // of transactions
	ws      bool                      // instances use WebSockets
}

func newEscrowNet(t *testing.T) *escrowNet {
	t.Helper()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{BlockTime: 100 * time.Millisecond})
	return newEscrowNetOn(t, chain, chain.Client(), pstest.NewServer())
}

func newEscrowNetOn(t *testing.T, chain *testchain.Chain, backend contract.Backend, topic *pstest.Server) *escrowNet {
	t.Helper()
	database := testpostgres.New(t)
	n := &escrowNet{t: t, chain: chain, backend: backend, topic: topic, url: database.URL(), db: database.Pool(t), escrows: map[common.Address]string{}}
	t.Cleanup(func() { require.NoError(t, n.topic.Close()) })
	var err error
	n.factory, err = escrowchain.DeployFactory(t.Context(), n.backend, n.chain.Accounts[0].Key)
	require.NoError(t, err)
	for range 2 {
		n.node()
	}
	return n
}

// node adds an endpoint of the chain.
func (n *escrowNet) node(rules ...proxy.Rule) {
	n.t.Helper()
	p, err := proxy.Open(proxy.Config{HTTP: n.chain.URL(), WS: n.chain.WSURL()})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, p.Close()) })
	p.SetRules(rules...)
	n.nodes = append(n.nodes, p)
}

// otherChain is a rule of an endpoint that has another chain.
func otherChain() proxy.Rule {
	return proxy.Rule{Name: "other chain", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{
		Kind: proxy.Change, Alter: func(json.RawMessage) json.RawMessage { return json.RawMessage(`"0x1269"`) },
	}}
}

// settings returns the variables of an instance.
func (n *escrowNet) settings(id string) []string {
	var urls []string
	for _, p := range n.nodes {
		if n.ws {
			urls = append(urls, p.WSURL())
		} else {
			urls = append(urls, p.URL())
		}
	}
	return []string{
		"CHAIN_ID=1337", "RPC_URL=" + strings.Join(urls, ","), "FACTORY_ADDRESS=" + n.factory.Hex(), "START_BLOCK=1", "INSTANCE_ID=" + id,
		"DATABASE_URL=" + n.url, "ESCROW_FINALITY=2", "PUBSUB_PROJECT_ID=rollcall", "PUBSUB_EMULATOR_HOST=" + n.topic.Addr,
	}
}

// flags returns the same as a command line.
func (n *escrowNet) flags(id string, more ...string) []string {
	args := []string{"escrow"}
	for _, s := range n.settings(id) {
		name, value, _ := strings.Cut(s, "=")
		args = append(args, "--"+strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "ESCROW_"), "_", "-"))+"="+value)
	}
	return append(args, more...)
}

// escrowInstance is an instance in this process.
type escrowInstance struct {
	*background
	http string
}

func (n *escrowNet) start(id string, more ...string) *escrowInstance {
	n.t.Helper()
	i := &escrowInstance{http: freeAddress(n.t)}
	i.background = start(n.t, append(n.flags(id, "--listen", i.http), more...)...)
	return i
}

// await returns when the instance has started.
func (i *escrowInstance) await(t *testing.T) *escrowInstance {
	t.Helper()
	i.background.await(t, "http://"+i.http+"/health")
	return i
}

// escrowStatus returns the status of an instance; the zero value if it does not answer.
func escrowStatus(address string) (s instance.Status) {
	res, err := client.Get("http://" + address + "/status")
	if err != nil {
		return s
	}
	defer res.Body.Close()
	_ = json.NewDecoder(res.Body).Decode(&s)
	return s
}

// settle creates escrows, and releases every second one.
func (n *escrowNet) settle(count int) {
	n.t.Helper()
	send := func(from int, to common.Address, data []byte) common.Address {
		receipt, err := contract.Send(n.t.Context(), n.backend, n.chain.Accounts[from].Key,
			contract.Transaction{To: &to, Value: new(big.Int), Data: data, Gas: 2_000_000})
		require.NoError(n.t, err)
		created, _ := escrowchain.Created(receipt)
		return created
	}
	for i := range count {
		escrow := send(0, n.factory, escrowchain.Create(escrowchain.Terms{
			Payee: n.chain.Accounts[1].Address, Arbiter: n.chain.Accounts[2].Address, ReleaseDelay: 60, ApprovalsRequired: 2,
		}))
		n.escrows[escrow] = "EscrowCreated EscrowDeployed Approved"
		send(0, escrow, escrowchain.Approve())
		if i%2 == 0 {
			send(1, escrow, escrowchain.Approve())
			n.escrows[escrow] += " Approved EscrowReleased"
		}
	}
}

// messages returns the messages of the topic by escrow, in the order of their sequences, without repetitions.
func (n *escrowNet) messages() map[common.Address][]events.Message {
	n.t.Helper()
	all := map[common.Address][]events.Message{}
	for _, raw := range n.topic.Messages() {
		m := receive(n.t, all, raw.Data)
		require.Equal(n.t, m.Attributes(), raw.Attributes)
		require.Equal(n.t, m.OrderingKey(), raw.OrderingKey)
	}
	return all
}

// receive adds a message to those of its escrow. It must be the next one, or a repetition.
func receive(t *testing.T, all map[common.Address][]events.Message, raw []byte) (m events.Message) {
	t.Helper()
	require.NoError(t, json.Unmarshal(raw, &m))
	known := all[m.Escrow]
	if m.Sequence <= int64(len(known)) {
		require.Equal(t, known[m.Sequence-1], m, "a repetition is identical")
		return m
	}
	require.Equal(t, int64(len(known)+1), m.Sequence)
	all[m.Escrow] = append(known, m)
	return m
}

// awaitSettled returns when the topic has the messages of all escrows.
func (n *escrowNet) awaitSettled() {
	n.t.Helper()
	n.awaitMessages(n.messages, events.Final)
}

// awaitMessages returns when the messages are those of the events of all escrows, once for each status in its order.
func (n *escrowNet) awaitMessages(messages func() map[common.Address][]events.Message, statuses ...events.Status) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		all := messages()
		for escrow, types := range n.escrows {
			var want, got []string
			for _, status := range statuses {
				for one := range strings.FieldsSeq(types) {
					want = append(want, one+" "+string(status))
				}
			}
			for _, m := range all[escrow] {
				got = append(got, m.Type+" "+string(m.Status))
			}
			if !slices.Equal(want, got) {
				return false
			}
		}
		return len(all) == len(n.escrows)
	}, patience, 20*time.Millisecond)
}

// E2: escrows are created and settled: the topic gets their events. The process ends on request, hands over, and leaves no row.
func TestEscrow_EscrowsSettle_EventsArrive(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(2)
	i := n.start("one").await(t)
	n.settle(2)
	n.awaitSettled()
	var s instance.Status
	require.Eventually(t, func() bool {
		s = escrowStatus(i.http)
		return s.Escrows == 4 && s.Leading && s.Cursor != nil && len(s.Instances) == 1 && s.Instances[0].Leading
	}, patience, 50*time.Millisecond, "%+v", &s)
	require.Equal(t, "healthy", s.Health.Status)
	require.Equal(t, "one", s.Instances[0].ID)
	require.Equal(t, instance.Settings{ChainID: 1337, Delivery: "finalized", Finality: "2"}, s.Settings)
	_, metrics := fetch(t, "http://"+i.http+"/metrics")
	for _, want := range []string{
		"relayer_is_leader 1", `relayer_last_heartbeat_age{instance="one"} `, "total_active_instances 1", "total_escrows_registered 4", "relayer_escrows_monitored 2",
		"relayer_events_published 16", "leader_election_count 1", "event_deduplication_hits 0", "relayer_blocks_processed ", "rollcall_escrow_lag_blocks ",
		"rollcall_escrow_lag_seconds ", "rollcall_escrow_halted 0", "rollcall_escrow_parked 0", `rollcall_escrow_oldest_unpublished_seconds{partition="0"} `,
		`rollcall_rpc_requests_total{endpoint=`, "rollcall_escrow_unconfirmed_total 0",
	} {
		require.Contains(t, metrics, "\n"+want)
	}
	began := time.Now()
	require.Zero(t, i.stop(), "%s", &i.log)
	require.Less(t, time.Since(began), 25*time.Second, "five times the limit")
	var watcher string
	var rows int
	require.NoError(t, n.db.QueryRow(t.Context(), `SELECT watcher, (SELECT count(*) FROM relayer_instances) FROM escrow_chains`).Scan(&watcher, &rows))
	require.Empty(t, watcher)
	require.Zero(t, rows)
}

// E2: several instances start at once on an empty database, and the one that reads the chain is killed.
func TestEscrow_LeaderKilled_AnotherTakesOver(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(2)
	processes := map[string]*exec.Cmd{} // by address
	for i := range 3 {
		address := freeAddress(t)
		cmd, out := program(t, append(n.settings(fmt.Sprint("escrow-", i)), "ESCROW_LISTEN="+address), "escrow")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("%s:\n%s", address, out)
			}
		})
		processes[address] = cmd
	}
	leader := func() (found string) {
		require.Eventually(t, func() bool {
			found = ""
			for address := range processes {
				if s := escrowStatus(address); s.Leading {
					found = address
				}
			}
			return found != ""
		}, patience, 50*time.Millisecond)
		return found
	}
	first := leader()
	require.NoError(t, processes[first].Process.Kill())
	delete(processes, first)
	n.settle(2)
	leader() // another one
	n.awaitSettled()
}

// E16: a second process under one id replaces the first, which hands over and ends without an error.
func TestEscrow_SecondProcessUnderOneID_OlderEnds(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	older := n.start("same").await(t)
	require.Eventually(t, func() bool { return escrowStatus(older.http).Leading }, patience, 20*time.Millisecond)
	later := n.start("same").await(t)
	select {
	case <-older.done:
	case <-time.After(patience):
		t.Fatal("the older one has not ended")
	}
	require.Zero(t, older.code)
	require.Equal(t, 1, strings.Count(older.log.String(), errReplaced.Error()), "%s", &older.log)
	n.settle(1)
	n.awaitSettled()
	require.True(t, escrowStatus(later.http).Leading)
	require.Zero(t, later.stop())
}

// fails returns the log of an instance that must end with an error.
func (n *escrowNet) fails(more ...string) string {
	n.t.Helper()
	r := rollcall(n.t, n.flags("one", append([]string{"--listen", "127.0.0.1:0"}, more...)...)...)
	require.Equal(n.t, cli.ExitNotDone, r.code, r.stderr)
	return r.stderr
}

func TestEscrow_WrongChainEverywhere_Fails(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	began := time.Now()
	require.Contains(t, n.fails("--chain-id", "5"), "chain id is 1337, not 5")
	require.Less(t, time.Since(began), patience)
	n.start("one").await(t).stop()
	for _, p := range n.nodes {
		p.SetRules(otherChain())
	}
	require.Contains(t, n.fails(), "chain id is 4713, not 1337", "also where the chain was read before")
}

func TestEscrow_WrongChainAtOneEndpoint_ExcludesIt(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.node(otherChain())
	i := n.start("one").await(t)
	n.settle(1)
	n.awaitSettled()
	_, metrics := fetch(t, "http://"+i.http+"/metrics")
	require.Regexp(t, `rollcall_rpc_endpoint_excluded\{endpoint="`+strings.TrimPrefix(n.nodes[2].URL(), "http://")+`"\} 1`, metrics)
	require.Zero(t, i.stop())
}

// E5: a start with other settings than the stored ones is refused, with both values.
func TestEscrow_DifferentSettings_AreRefusedWithBothValues(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.start("one").await(t).stop()
	log := n.fails("--start-block", "7")
	require.Contains(t, log, "START_BLOCK is 7, and the database has 1")
	other := common.Address{1} // added to the one that is stored
	log = n.fails("--factory-address", other.Hex())
	require.Contains(t, strings.ToLower(log), strings.ToLower("FACTORY_ADDRESS is "+other.Hex()+","+n.factory.Hex()+", and the database has "+n.factory.Hex()+" from"))
	log = n.fails("--events", eventFile(t, oneEvent))
	for _, value := range []string{"factory Made(address indexed child) escrow=child", "and the database has ", "Approved(address indexed approver)"} {
		require.Contains(t, log, value)
	}
	require.Contains(t, log, "ESCROW_EVENTS is ")
}

// URLs of one host do not confirm each other: the instance reports that it has a single node.
func TestEscrow_TwoURLsOfOneHost_AreOneNode(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(1)
	n.nodes = n.nodes[:1]
	i := n.start("one", "--rpc-url", n.nodes[0].WSURL()).await(t)
	n.awaitSettled()
	require.True(t, escrowStatus(i.http).Alone)
	_, metrics := fetch(t, "http://"+i.http+"/metrics")
	require.Contains(t, metrics, "\nrollcall_escrow_single_node 1\n")
	require.Zero(t, i.stop())
	require.Contains(t, i.log.String(), "URLs of one host count as one node")
	require.Contains(t, i.log.String(), "one node is configured")
}

// E5: nothing wrong is stored at the first start, which the next one would have to repeat.
func TestEscrow_FactoryWithoutCode_FailsAndStoresNothing(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	require.Contains(t, n.fails("--factory-address", common.Address{1}.Hex()), "the factory has no code: "+common.Address{1}.Hex()+" at 127.0.0.1:")
	require.Zero(t, n.start("one").await(t).stop())
}

func TestEscrow_StartBlockAfterHead_WaitsAndReports(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	i := n.start("one", "--start-block", "1000000")
	require.Eventually(t, func() bool {
		code, body := get("http://" + i.http + "/health")
		reason, _ := body["reason"].(string)
		return code == http.StatusServiceUnavailable && strings.HasPrefix(reason, "starting: chain: the start block 1000000 is after the newest block ")
	}, patience, 10*time.Millisecond)
	code, body := get("http://" + i.http + "/status")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "one", body["instance"])
	require.Zero(t, i.stop())
}

// E11: a process that starts on a halted chain reports it, and publishes nothing, although messages wait.
func TestEscrow_StartsOnHaltedChain_PublishesNothing(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(1)
	// The numbers are those of stored messages and of claims. On a halted chain no message is stored.
	numbers := func() (latest int64) {
		require.NoError(t, n.db.QueryRow(t.Context(), `SELECT last_value FROM escrow_outbox_numbers`).Scan(&latest))
		return latest
	}
	first := n.start("one", "--pubsub-emulator-host", silent(t)).await(t)
	require.Eventually(t, n.claimed, patience, 20*time.Millisecond)
	require.Zero(t, first.stop())
	_, err := n.db.Exec(t.Context(), `UPDATE escrow_chains SET halted = 'block 5 was final as 0x1 and is 0x2'`)
	require.NoError(t, err)
	before := numbers()
	i := n.start("two").await(t)
	require.Eventually(t, func() bool { return escrowStatus(i.http).Leading && numbers() > before }, patience, 20*time.Millisecond, "it has claimed one")
	s := escrowStatus(i.http)
	require.Equal(t, "block 5 was final as 0x1 and is 0x2", s.Halted)
	require.Equal(t, "degraded", s.Health.Status)
	require.Equal(t, "chain: halted", s.Health.Reason)
	_, metrics := fetch(t, "http://"+i.http+"/metrics")
	require.Contains(t, metrics, "rollcall_escrow_halted 1")
	require.Contains(t, metrics, `rollcall_escrow_halt{cause="block 5 was final as 0x1 and is 0x2"} 1`)
	require.Zero(t, i.stop()) // its claims have ended
	require.Empty(t, n.topic.Messages())
	_, err = n.db.Exec(t.Context(), `UPDATE escrow_chains SET halted = ''`)
	require.NoError(t, err)
	n.start("three").await(t)
	n.awaitSettled()
}

// claimed reports whether a process has claimed a message.
func (n *escrowNet) claimed() (found bool) {
	n.t.Helper()
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), `SELECT EXISTS (SELECT FROM escrow_outbox WHERE claimed_until > now())`).Scan(&found))
	return found
}

// silent returns an address that accepts connections and answers nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.Addr().String()
}

// Two instances publish a static partition each.
func TestEscrow_StaticPartitions_ShareTheEscrows(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(3)
	var instances [2]*escrowInstance
	for i := range instances {
		instances[i] = n.start(fmt.Sprint("escrow-", i), "--partition-number", fmt.Sprint(i), "--total-partitions", "2").await(t)
	}
	n.awaitSettled()
	var want [2]int
	for escrow, messages := range n.messages() {
		want[events.Partition(escrow)%2] += len(messages)
	}
	for i, at := range instances {
		require.Eventually(t, func() bool {
			_, metrics := fetch(t, "http://"+at.http+"/metrics")
			return strings.Contains(metrics, fmt.Sprintf("\nrelayer_events_published %d\n", want[i]))
		}, patience, 20*time.Millisecond)
	}
}

// The topic answers nothing, and a request is in flight: the process hands over and ends in time.
func TestEscrow_TopicHangs_StopsInTime(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(1)
	i := n.start("one", "--pubsub-emulator-host", silent(t)).await(t)
	require.Eventually(t, n.claimed, patience, time.Millisecond)
	began := time.Now()
	require.Zero(t, i.stop(), "%s", &i.log)
	require.Less(t, time.Since(began), 9*time.Second, "the request would end by itself after ten")
	require.False(t, n.claimed())
	n.start("two").await(t)
	n.awaitSettled()
}

func TestEscrowHelp_ExitsWithZero(t *testing.T) {
	t.Parallel()
	require.Contains(t, succeed(t, "escrow", "--help"), "escrow run")
	require.Contains(t, succeed(t, "escrow", "run", "--help"), "--start-block")
}
