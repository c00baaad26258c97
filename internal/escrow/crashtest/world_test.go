package crashtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	"github.com/rollcall-dev/rollcall/internal/testutil/tcpproxy"
)

// patience limits waits for operations that take a loaded machine a few seconds at most.
const patience = 2 * time.Minute

// world is a chain with a factory, a topic and a database, and instances of the monitor.
type world struct {
	t       *testing.T
	node    *testchain.Node
	factory common.Address
	topic   *topic
	url     string // of the database
	db      *pgxpool.Pool
	members []*member
	strikes []strike
	limits  limits
}

// member is one place among the instances, with one process at a time.
type member struct {
	w        *world
	name     string
	nodes    []*proxy.Proxy
	topic    *endpoint
	database *tcpproxy.Proxy
	env      []string
	process  *testproc.Process
}

// setup starts a world without instances, in parallel with other tests.
func setup(t *testing.T) *world {
	t.Helper()
	w := prepare(t)
	w.use(testpostgres.New(t))
	return w
}

// prepare starts all but the database and the instances, in parallel with other tests.
func prepare(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	// The kernel kills the children of a thread when the thread ends. Threads on which package pgserver ran a server may end.
	// This goroutine is the only one on its thread.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	w := &world{t: t, node: testchain.Geth(t, testchain.GethOptions{Accounts: payers}), topic: newTopic(t), limits: patient}
	var err error
	w.factory, err = escrowchain.DeployFactory(t.Context(), w.node.Client(), w.node.Accounts[0].Key)
	require.NoError(t, err)
	return w
}

// use takes a database.
func (w *world) use(database interface {
	URL() string
	Pool(testing.TB) *pgxpool.Pool
}) {
	w.url, w.db = database.URL(), database.Pool(w.t)
}

// start starts a new instance. env overrides the defaults.
func (w *world) start(name string, env ...string) *member {
	w.t.Helper()
	m := &member{w: w, name: name, topic: w.topic.endpoint(w.t, name)}
	var urls []string
	for range 2 {
		p, err := proxy.Open(proxy.Config{HTTP: w.node.URL()})
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, p.Close()) })
		m.nodes, urls = append(m.nodes, p), append(urls, p.URL())
	}
	var database string
	m.database, database = tcpproxy.Open(w.t, w.url)
	m.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.t.TempDir(), "ESCROW_LISTEN=127.0.0.1:0", "INSTANCE_ID=" + name,
		"CHAIN_ID=1337", "RPC_URL=" + strings.Join(urls, ","), "FACTORY_ADDRESS=" + w.factory.Hex(), "START_BLOCK=1", "ESCROW_FINALITY=2",
		"DATABASE_URL=" + database, "PUBSUB_PROJECT_ID=rollcall", "PUBSUB_EMULATOR_HOST=" + m.topic.addr,
	}, env...)
	w.t.Cleanup(func() {
		if m.process == nil {
			return
		}
		m.process.Kill()
		if w.t.Failed() {
			w.t.Logf("%s: %v", m.name, m.process.Running())
		}
	})
	m.restart()
	w.members = append(w.members, m)
	return m
}

// three starts three instances, and returns when one of them has stored a block.
func (w *world) three(env ...string) {
	w.t.Helper()
	for i := range 3 {
		w.start(fmt.Sprint("escrow-", i), env...)
	}
	w.leader()
	w.watchCursor()
}

// restart starts the next process of a place.
func (m *member) restart() {
	m.w.t.Helper()
	cmd := exec.Command(product, "escrow")
	cmd.Env = m.env
	var err error
	m.process, err = testproc.Start(cmd, func(line string) bool {
		var entry struct{ Msg string }
		return json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "escrow started"
	})
	require.NoError(m.w.t, err)
}

// stop ends the process like a supervisor.
func (m *member) stop() {
	m.w.t.Helper()
	require.NoError(m.w.t, m.process.Stop(syscall.SIGTERM))
	require.ErrorContains(m.w.t, m.process.Running(), "exit status 0")
}

// runs checks that the process has not ended.
func (m *member) runs() {
	m.w.t.Helper()
	require.NoError(m.w.t, m.process.Running())
}

// chain is the row of the chain.
type chain struct {
	Epoch, Cursor, Repeated int64
	Holder                  string // the instance with the lease; "" if it is free
}

func (w *world) chain() (c chain) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT epoch, coalesce(cursor_number, 0), repeated,
		CASE WHEN watcher_until > now() THEN split_part(watcher, '/', 1) ELSE '' END FROM escrow_chains`).Scan(&c.Epoch, &c.Cursor, &c.Repeated, &c.Holder))
	return c
}

// await polls a condition of the processes, which offer no signal.
func (w *world) await(condition func() bool, what string, args ...any) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; !condition(); <-tick.C {
		if time.Now().After(deadline) {
			require.FailNow(w.t, fmt.Sprintf(what, args...), "not within %v", patience)
		}
	}
}

// leader returns the instance that has the lease and has stored a block.
func (w *world) leader() (found *member) {
	w.t.Helper()
	w.await(func() bool {
		c := w.chain()
		for _, m := range w.members {
			if m.name == c.Holder && c.Cursor > 0 {
				found = m
			}
		}
		return found != nil
	}, "no instance reads the chain")
	return found
}

// followers returns the instances without the lease.
func (w *world) followers() (list []*member) {
	leader := w.leader()
	for _, m := range w.members {
		if m != leader {
			list = append(list, m)
		}
	}
	return list
}

// watchCursor records each step that goes back, for check.
func (w *world) watchCursor() {
	w.t.Helper()
	for _, sql := range []string{
		`CREATE TABLE steps_back (old bigint, new bigint)`,
		`CREATE FUNCTION record_step_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO steps_back VALUES (OLD.cursor_number, NEW.cursor_number); RETURN NEW; END $$`,
		`CREATE TRIGGER steps_back AFTER UPDATE ON escrow_chains FOR EACH ROW WHEN (NEW.cursor_number < OLD.cursor_number)
			EXECUTE FUNCTION record_step_back()`,
	} {
		_, err := w.db.Exec(w.t.Context(), sql)
		require.NoError(w.t, err)
	}
}
