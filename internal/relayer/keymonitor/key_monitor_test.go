package keymonitor_test

import (
	"context"
	"errors"
	"log/slog"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

var errSigner = errors.New("the signer is away")

const patience = 2 * time.Minute

// milli returns n thousandths of an ether.
func milli(n int64) *big.Int { return new(big.Int).Div(testchain.Ether(n), big.NewInt(1000)) }

// fixture is a chain, a database and keys, for any number of relayers.
type fixture struct {
	t     *testing.T
	chain *testchain.Chain
	db    *testpostgres.DB
	pool  *pgxpool.Pool // of db
	ring  *signer.Ring
	keys  []common.Address
}

// setup funds each key with this many thousandths of an ether.
func setup(t *testing.T, funds ...int64) *fixture {
	t.Helper()
	f := &fixture{
		t: t, chain: testchain.Simulated(t, testchain.SimulatedOptions{}), ring: signertest.Ring(t, t.Name(), len(funds)),
		db: testpostgres.New(t, testpostgres.Migrated(store.Migrations())),
	}
	f.keys, f.pool = f.ring.Addresses(), f.db.Pool(t)
	for i, n := range funds {
		if n > 0 {
			f.chain.Fund(milli(n), f.keys[i])
		}
	}
	return f
}

func (f *fixture) options() relayertest.Options {
	return relayertest.Options{
		DatabaseURL: f.db.URL(), RPC: []string{f.chain.URL()}, Ring: f.ring, Targets: []string{"here"}, KeyMonitor: func(*keymonitor.Config) {},
	}
}

// key waits until a key's stored state meets a condition.
func (f *fixture) key(r *relayertest.Relayer, address common.Address, what string, is func(*relayer.Key) bool) *relayer.Key {
	f.t.Helper()
	var last *relayer.Key
	require.Eventually(f.t, func() bool {
		keys, err := r.Store.Keys(f.t.Context())
		for _, k := range keys {
			if k.Address == address {
				last = k
			}
		}
		return err == nil && last != nil && is(last)
	}, patience, 10*time.Millisecond, "%s: %+v", what, &last)
	return last
}

// owns waits until a balance is stored, and a balance check has ended since.
func (f *fixture) owns(r *relayertest.Relayer, address common.Address, wei *big.Int) {
	f.t.Helper()
	f.key(r, address, "its balance is known", func(k *relayer.Key) bool { return k.Balance != nil && k.Balance.Cmp(wei) == 0 })
	f.looks(3)
}

// looks waits for n balance checks from now on.
func (f *fixture) looks(n int) {
	f.t.Helper()
	read := func() (at time.Time) {
		require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `SELECT max(balance_at) FROM relayer_keys`).Scan(&at))
		return at
	}
	for range n {
		before := read()
		require.Eventually(f.t, func() bool { return read().After(before) }, patience, 5*time.Millisecond)
	}
}

// events returns the announcements of a key, in order.
func (f *fixture) events(address common.Address) (events []string) {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `SELECT event->>'payload_type' || ' ' || revision || ' '
			|| coalesce(event->>'disable_reason', '') || ' ' || (event->'relayer'->>'system_disabled')
		FROM (SELECT revision, convert_from(payload, 'UTF8')::jsonb AS event FROM relayer_webhooks) AS webhooks
		WHERE lower(event->'relayer'->>'id') = lower($1) ORDER BY revision`, address.Hex())
	require.NoError(f.t, err)
	events, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return events
}

func send(t testing.TB, r *relayertest.Relayer, relayerID string, to common.Address, wei *big.Int) (*relayer.Transaction, error) {
	t.Helper()
	return r.Submit(t.Context(), relayer.Submission{RelayerID: relayerID, Caller: "test", Request: relayer.Request{
		To: &to, Value: wei, GasLimit: 21_000, Speed: relayer.Fast,
	}})
}

func TestKey_LowBalance_DisabledUntilAFifthAboveMinimum(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000, 900)
	poor := f.keys[1]
	o := f.options()
	o.Pool = func(c *service.Config) { c.MinBalance = milli(1000) }
	o.Registry = prometheus.NewRegistry()
	r := relayertest.Start(t, o)
	low := f.key(r, poor, "is disabled", func(k *relayer.Key) bool { return !k.Enabled })
	require.Equal(t, "low balance", low.DisabledReason)
	require.Equal(t, milli(900), low.Balance)
	require.Contains(t, r.Health().Reason+f.health(r), "is disabled: low balance")
	for range 4 {
		tx, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
		require.NoError(t, err)
		require.Equal(t, f.keys[0], tx.From)
	}
	_, err := send(t, r, poor.Hex(), f.chain.Accounts[0].Address, big.NewInt(1))
	require.ErrorIs(t, err, relayer.ErrDisabled)
	require.ErrorContains(t, err, "low balance")

	// An operator's pause is independent of the system's state.
	_, err = r.Store.ChangeKey(t.Context(), poor, store.KeyChange{Paused: new(true)})
	require.NoError(t, err)

	f.chain.Fund(milli(250), poor) // 1.15 ether: above the limit, and not by a fifth
	f.owns(r, poor, milli(1150))
	require.False(t, f.key(r, poor, "there", func(*relayer.Key) bool { return true }).Enabled)
	f.chain.Fund(milli(50), poor)
	back := f.key(r, poor, "is enabled", func(k *relayer.Key) bool { return k.Enabled })
	require.Empty(t, back.DisabledReason)
	require.True(t, back.Paused)
	require.Equal(t, []string{"relayer_disabled 1 low balance true", "relayer_enabled 2  false"}, f.events(poor))
	require.Empty(t, f.events(f.keys[0]))
	requireMetric(t, o.Registry, "rollcall_relayer_key_state_changes_total", map[string]string{"to": "disabled"}, 1)
	requireMetric(t, o.Registry, "rollcall_relayer_key_state_changes_total", map[string]string{"to": "enabled"}, 1)
}

// health waits for a health check that is newer than now.
func (f *fixture) health(r *relayertest.Relayer) string {
	f.t.Helper()
	now := time.Now()
	require.Eventually(f.t, func() bool { return r.Health().At.After(now) }, patience, 10*time.Millisecond)
	return r.Health().Reason
}

// refusing is a chain whose nodes reject what they receive while outcome is set.
type refusing struct {
	sender.Chain
	outcome atomic.Int64
	refused atomic.Int64
}

func (c *refusing) Send(ctx context.Context, raws []evm.Raw) []evm.Result {
	return c.send(ctx, raws, c.Chain.Send)
}

func (c *refusing) SendToAll(ctx context.Context, raws []evm.Raw) []evm.Result {
	return c.send(ctx, raws, c.Chain.SendToAll)
}

func (c *refusing) send(ctx context.Context, raws []evm.Raw, send func(context.Context, []evm.Raw) []evm.Result) []evm.Result {
	if o := evm.Outcome(c.outcome.Load()); o != evm.Accepted {
		c.refused.Add(int64(len(raws)))
		results := make([]evm.Result, len(raws))
		for i := range results {
			results[i] = evm.Result{Outcome: o}
		}
		return results
	}
	return send(ctx, raws)
}

func TestKey_RepeatedRefusals_DisabledAndProbed(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	key := f.keys[0]
	nodes := new(refusing)
	nodes.outcome.Store(int64(evm.Accepted))
	o := f.options()
	o.Sender = func(c *sender.Config) { nodes.Chain, c.Chain = c.Chain, nodes }
	o.KeyMonitor = func(c *keymonitor.Config) { c.Refusals, c.Cooldown = 3, 100*time.Millisecond }
	r := relayertest.Start(t, o)
	// A node's own failures do not count against the key.
	nodes.outcome.Store(int64(evm.PoolFull))
	first, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return nodes.refused.Load() >= 6 }, patience, 10*time.Millisecond)
	f.looks(2)
	require.True(t, f.key(r, key, "there", func(*relayer.Key) bool { return true }).Enabled)

	nodes.outcome.Store(int64(evm.InsufficientFunds))
	out := f.key(r, key, "is disabled", func(k *relayer.Key) bool { return !k.Enabled })
	require.Equal(t, "repeated errors: insufficient funds", out.DisabledReason)
	require.Equal(t, "insufficient funds", out.LastError)
	require.False(t, out.DisabledUntil.IsZero())
	_, err = send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	// While nodes reject its pending transactions the key stays disabled, and is checked at growing intervals.
	f.key(r, key, "was probed", func(k *relayer.Key) bool {
		return !k.Enabled && k.Checks >= 2 && k.DisabledUntil.After(out.DisabledUntil)
	})
	nodes.outcome.Store(int64(evm.Accepted))
	f.key(r, key, "is enabled", func(k *relayer.Key) bool { return k.Enabled })
	f.chain.Commit()
	r.Reaches(t, first, relayer.Mined)
	require.Equal(t, []string{"relayer_disabled 1 repeated errors: insufficient funds true", "relayer_enabled 2  false"}, f.events(key))
}

// A node refuses the sends of a key in words that no client is known for. The key's balance, which fell since it was last
// read, explains them: the key is disabled, and the other one sends what comes after.
func TestKey_RefusedInUnknownWords_DisabledForLackOfFunds(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000, 10_000)
	poor := f.keys[0]
	node, err := proxy.Open(proxy.Config{HTTP: f.chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	o := f.options()
	o.RPC = []string{node.URL()}
	o.KeyMonitor = func(c *keymonitor.Config) { c.Interval, c.Refusals, c.Cooldown = time.Hour, 3, time.Hour }
	r := relayertest.Start(t, o)
	f.key(r, poor, "its balance is known", func(k *relayer.Key) bool { return k.Balance != nil })
	node.SetRules(
		proxy.Rule{
			Name: "words", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: "the purse is empty"},
			When: proxy.Sends(func(tx *types.Transaction) bool {
				from, err := types.Sender(types.LatestSignerForChainID(tx.ChainId()), tx)
				return err == nil && from == poor
			}),
		},
		proxy.Rule{Name: "balance", Methods: []string{"eth_getBalance"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x1"`}},
	)
	_, err = send(t, r, poor.Hex(), f.chain.Accounts[0].Address, big.NewInt(1))
	require.NoError(t, err)
	out := f.key(r, poor, "is disabled", func(k *relayer.Key) bool { return !k.Enabled })
	require.Equal(t, "repeated errors: insufficient funds", out.DisabledReason)
	for range 4 {
		tx, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
		require.NoError(t, err)
		require.Equal(t, f.keys[1], tx.From)
	}
}

func TestAllocate_KeyCannotPay_GetsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000, 1000)
	r := relayertest.Start(t, f.options())
	f.owns(r, f.keys[1], milli(1000))
	to := testchain.NewAccount(t).Address
	for range 4 {
		tx, err := send(t, r, relayertest.PoolID, to, testchain.Ether(2))
		require.NoError(t, err)
		require.Equal(t, f.keys[0], tx.From, "the other one has fewer pending, and too little")
	}
	// No key has the value, or the requested one does not.
	for target, value := range map[string]*big.Int{relayertest.PoolID: testchain.Ether(11), f.keys[1].Hex(): testchain.Ether(2)} {
		_, err := send(t, r, target, to, value)
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "value", invalid.Field)
	}
	// The key has the value, and lacks ether for the gas.
	_, err := send(t, r, f.keys[1].Hex(), to, testchain.Ether(1))
	var funds *relayer.FundsError
	require.ErrorAs(t, err, &funds)
	require.Positive(t, funds.Need.Cmp(testchain.Ether(1)))
	// A key has the value, and has committed it: the transaction is queued.
	waits, err := send(t, r, relayertest.PoolID, to, testchain.Ether(2))
	require.NoError(t, err)
	require.Nil(t, waits.Nonce)
	small, err := send(t, r, f.keys[1].Hex(), to, milli(1))
	require.NoError(t, err)
	require.NotNil(t, small.Nonce, "a transaction queued for another key blocks no other")
	for range 3 {
		f.chain.Commit()
		f.looks(2)
	}
	f.chain.Fund(testchain.Ether(1), f.keys[0])
	require.Equal(t, f.keys[0], r.Reaches(t, waits, relayer.Broadcasted).From)
	f.chain.Commit()
	r.Reaches(t, waits, relayer.Mined)
}

// A mined and paid transaction is no longer committed: past spending does not block a key that sends continuously.
func TestCommitted_PaidTransaction_IsReleased(t *testing.T) {
	t.Parallel()
	f := setup(t, 1000)
	r := relayertest.Start(t, f.options())
	f.owns(r, f.keys[0], milli(1000))
	to := testchain.NewAccount(t).Address
	for range 6 { // each may cost far more than it does
		tx, err := r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
			To: &to, Value: milli(1), GasLimit: 10_000_000, MaxFee: big.NewInt(60_000_000_000), MaxPriorityFee: big.NewInt(1_000_000_000), Speed: relayer.Fast,
		}})
		require.NoError(t, err)
		require.NotNil(t, tx.Nonce)
		r.Reaches(t, tx, relayer.Broadcasted)
		f.chain.Commit()
		r.Reaches(t, tx, relayer.Mined)
		f.looks(3)
	}
}

// remoteSigner makes the first key that of a signer that can fail.
func (f *fixture) remoteSigner() *signertest.Fake {
	f.t.Helper()
	local, _ := f.ring.Signer(f.keys[0])
	remote := signertest.NewFake(local)
	var err error
	f.ring, err = signer.New(remote)
	require.NoError(f.t, err)
	return remote
}

// A key is disabled while its signer fails, so that no new transaction waits for it.
func TestKey_SignerFails_IsDisabled(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	remote := f.remoteSigner()
	o := f.options()
	o.KeyMonitor = func(c *keymonitor.Config) { c.Refusals, c.Cooldown = 3, time.Second }
	r := relayertest.Start(t, o)
	remote.Fail(errSigner)
	tx, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
	require.NoError(t, err)
	out := f.key(r, f.keys[0], "is disabled", func(k *relayer.Key) bool { return !k.Enabled })
	require.Equal(t, "repeated errors: its signer fails", out.DisabledReason)
	f.key(r, f.keys[0], "stays so after another round", func(k *relayer.Key) bool { return !k.Enabled && k.Checks > 1 })
	remote.Before(nil)
	r.Reaches(t, tx, relayer.Broadcasted)
	f.key(r, f.keys[0], "is enabled", func(k *relayer.Key) bool { return k.Enabled })
}

// The database rejects that a key is disabled. The monitor must write it once the database takes it, without another failure.
func TestKey_DisablingFails_IsRepeated(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	remote := f.remoteSigner()
	logged := &warning{message: "key could not be disabled", seen: make(chan struct{})}
	o := f.options()
	o.KeyMonitor = func(c *keymonitor.Config) {
		c.Refusals, c.Cooldown = 3, time.Second
		c.Log = slog.New(logged)
	}
	r := relayertest.Start(t, o)
	_, err := f.pool.Exec(t.Context(), `CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF NEW.enabled THEN RETURN NEW; END IF; RAISE 'rejected'; END $$;
		CREATE TRIGGER reject BEFORE UPDATE ON relayer_keys FOR EACH ROW EXECUTE FUNCTION reject()`)
	require.NoError(t, err)
	remote.Fail(errSigner)
	tx, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
	require.NoError(t, err)
	<-logged.seen
	remote.Before(nil)
	r.Reaches(t, tx, relayer.Broadcasted)
	require.Empty(t, f.events(f.keys[0]))
	_, err = f.pool.Exec(t.Context(), `DROP TRIGGER reject ON relayer_keys`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(f.events(f.keys[0])) > 0 }, patience, 10*time.Millisecond)
	require.Equal(t, "relayer_disabled 1 repeated errors: its signer fails true", f.events(f.keys[0])[0])
}

// warning closes seen at the first log line with a message.
type warning struct {
	message string
	seen    chan struct{}
	once    sync.Once
}

func (*warning) Enabled(context.Context, slog.Level) bool { return true }
func (w *warning) WithAttrs([]slog.Attr) slog.Handler     { return w }
func (w *warning) WithGroup(string) slog.Handler          { return w }
func (w *warning) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.message {
		w.once.Do(func() { close(w.seen) })
	}
	return nil
}

func TestTransaction_ShowsItsCost(t *testing.T) {
	t.Parallel()
	f := setup(t, 1000)
	o := f.options()
	o.Registry = prometheus.NewRegistry()
	relayertest.Start(t, o)
	require.Eventually(t, func() bool {
		cost, ok := metric(t, o.Registry, "rollcall_relayer_transaction_cost_ether", map[string]string{})
		return ok && cost > 0 && cost < 0.01 // 100 gwei
	}, patience, 10*time.Millisecond)
}
