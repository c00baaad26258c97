package instance_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/instance"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// patience limits what a healthy machine does in a second.
const patience = 2 * time.Minute

// rig is a database with a registered chain.
type rig struct {
	t     *testing.T
	db    *pgxpool.Pool
	store *store.Store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, db: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)}
	var err error
	r.store, err = store.New(r.db, store.Config{ChainID: 1337, Events: events.BuiltIn(), Targets: []string{"topic"}})
	require.NoError(t, err)
	require.NoError(t, r.store.Register(t.Context(), store.Settings{Factories: []common.Address{{1}}, StartBlock: 1}))
	return r
}

// process is a Monitor that runs until the test ends.
type process struct {
	*instance.Monitor
	reg      *prometheus.Registry
	replaced atomic.Int32
	log      lockedBuffer
	cancel   context.CancelFunc
	done     chan struct{}
	err      error // of Run, once done is closed
}

// stop ends Run and returns its result.
func (p *process) stop() error {
	p.cancel()
	<-p.done
	return p.err
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (r *rig) start(id, run string, change ...func(*instance.Config)) *process {
	r.t.Helper()
	p := &process{reg: prometheus.NewRegistry()}
	cfg := instance.Config{
		Store: r.store, Self: store.Instance{ID: id, Run: run, Version: "v1", Host: "here", PID: 7}, Leading: func() bool { return id == "leader" },
		Newest: func() uint64 { return 0 }, Replaced: func() { p.replaced.Add(1) }, Interval: 5 * time.Millisecond, Registerer: p.reg, Logger: slog.New(slog.NewTextHandler(&p.log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	p.Monitor = instance.New(cfg)
	require.False(r.t, p.Health().Ready)
	require.NoError(r.t, p.Join(r.t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = p.Run(ctx)
	}()
	r.t.Cleanup(func() { _ = p.stop() })
	return p
}

// await returns once the process reports a status.
func (r *rig) await(p *process, want func(instance.Status) bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return want(p.Status()) }, patience, time.Millisecond, "%s", &p.log)
}

// gauges returns the values of a metric by the value of its label.
func (p *process) gauges(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := p.reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			label := ""
			for _, l := range m.GetLabel() {
				label = l.GetValue()
			}
			values[label] = m.GetGauge().GetValue()
		}
	}
	return values
}

func (r *rig) ids() (ids string) {
	r.t.Helper()
	require.NoError(r.t, r.db.QueryRow(r.t.Context(), `SELECT coalesce(string_agg(instance_id || '/' || run, ' ' ORDER BY instance_id), '') FROM relayer_instances`).Scan(&ids))
	return ids
}

// Every instance reports all of them, and removes those that are gone for an hour.
func TestRun_TwoInstances_EachReportsBoth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, age := range map[string]string{"long gone": "2 hours", "gone": "10 minutes"} {
		require.NoError(t, r.store.Join(t.Context(), store.Instance{ID: id, Run: "0", Leader: true}))
		_, err := r.db.Exec(t.Context(), `UPDATE relayer_instances SET heartbeat_at = now() - $2::interval WHERE instance_id = $1`, id, age)
		require.NoError(t, err)
	}
	leader := r.start("leader", "1")
	follower := r.start("follower", "2", func(c *instance.Config) { c.Self.Total, c.Self.Number = 3, 2 })
	for _, p := range []*process{leader, follower} {
		r.await(p, func(s instance.Status) bool {
			return s.Health.Ready && len(s.Instances) == 3 && s.Instances[2].Leading && !s.Instances[1].Leading
		})
		s := p.Status()
		require.Equal(t, []string{"follower", "gone", "leader"}, []string{s.Instances[0].ID, s.Instances[1].ID, s.Instances[2].ID})
		require.Equal(t, &instance.Partition{Number: 2, Total: 3}, s.Instances[0].Partition)
		require.Nil(t, s.Instances[2].Partition)
		require.True(t, s.Health.Ready)
		ages := p.gauges(t, "relayer_last_heartbeat_age")
		require.Len(t, ages, 3)
		require.InDelta(t, 600, ages["gone"], 120)
		require.Equal(t, map[string]float64{"": 2}, p.gauges(t, "total_active_instances"))
	}
	require.NoError(t, leader.stop())
	require.NoError(t, follower.stop())
	require.Equal(t, "gone/0", r.ids())
}

// The lag grows with what the process has looked for, although no process reads the chain.
func TestRun_WithoutReader_ReportsLag(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var newest atomic.Uint64
	p := r.start("one", "1", func(c *instance.Config) { c.Newest = newest.Load })
	for _, lag := range []uint64{0, 7, 150} { // the start block is 1, and nothing is stored
		newest.Store(lag)
		r.await(p, func(s instance.Status) bool { return s.Health.Ready && s.LagBlocks == lag })
		require.Eventually(t, func() bool { return p.gauges(t, "rollcall_escrow_lag_blocks")[""] == float64(lag) }, patience, time.Millisecond)
	}
}

// E16: a process whose loop hangs writes no heartbeat until it turns again.
func TestRun_LoopHangs_WritesNoHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var turned atomic.Int64
	turn := func() { turned.Store(time.Now().UnixNano()) }
	p := r.start("one", "1", func(c *instance.Config) {
		c.Hang = 100 * time.Millisecond
		c.Turned = map[string]func() time.Time{"watcher": func() time.Time {
			if turned.Load() == 0 {
				return time.Time{}
			}
			return time.Unix(0, turned.Load())
		}}
	})
	r.await(p, func(s instance.Status) bool { return len(s.Instances) == 1 && s.Instances[0].HeartbeatAge > .5 })
	require.Contains(t, p.log.String(), "loop=watcher")
	require.True(t, p.Health().Ready, "it reaches the database")
	require.Eventually(t, func() bool { turn(); return p.Status().Instances[0].HeartbeatAge < .1 }, patience, time.Millisecond)
	require.Contains(t, p.log.String(), "heartbeats are written again")
}

// E16: a process is replaced, also if its loops hang: it reports that once, and leaves the row of the later one.
func TestRun_Replaced_ReportsOnceAndLeavesTheRow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, hang := range map[string]time.Duration{"turning": time.Hour, "hanging": time.Nanosecond} {
		p := r.start(name, "1", func(c *instance.Config) {
			c.Hang, c.Turned = hang, map[string]func() time.Time{"watcher": func() time.Time { return time.Now().Add(-time.Minute) }}
		})
		r.await(p, func(s instance.Status) bool { return len(s.Instances) > 0 })
		require.Zero(t, p.replaced.Load())
		require.NoError(t, r.store.Join(t.Context(), store.Instance{ID: name, Run: "2"}))
		require.Eventually(t, func() bool { return p.replaced.Load() > 0 }, patience, time.Millisecond)
		require.NoError(t, p.stop())
		require.EqualValues(t, 1, p.replaced.Load())
	}
	require.Equal(t, "hanging/2 turning/2", r.ids())
}

// A row that was removed while the process was paused is written again.
func TestRun_RowRemoved_WritesItAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("one", "1")
	r.await(p, func(s instance.Status) bool { return len(s.Instances) == 1 })
	_, err := r.db.Exec(t.Context(), `DELETE FROM relayer_instances`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.ids() == "one/1" }, patience, time.Millisecond)
	require.Zero(t, p.replaced.Load())
}

// E15: a process ends if its database stays away, and not before.
func TestRun_DatabaseAway_FailsAfterTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("one", "1", func(c *instance.Config) { c.Lost = time.Hour })
	r.await(p, func(s instance.Status) bool { return s.Health.Ready })
	_, err := r.db.Exec(t.Context(), `ALTER TABLE relayer_instances RENAME TO away`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !p.Health().Ready }, patience, time.Millisecond)
	require.Equal(t, "database: answers with an error", p.Health().Reason)
	_, err = r.db.Exec(t.Context(), `ALTER TABLE away RENAME TO relayer_instances`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Health().Ready }, patience, time.Millisecond)
	require.NoError(t, p.stop())
	p = r.start("one", "2", func(c *instance.Config) { c.Lost = time.Nanosecond })
	r.await(p, func(s instance.Status) bool { return s.Health.Ready })
	r.db.Close()
	select {
	case <-p.done:
		require.ErrorContains(t, p.err, "the database has not answered for 1ns")
	case <-time.After(patience):
		t.Fatal("it has not ended")
	}
}

// Counts that fail or hang delay no heartbeat, and end no process.
func TestRun_CountsFail_HeartbeatsGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("one", "1", func(c *instance.Config) { c.Lost = time.Nanosecond })
	r.await(p, func(s instance.Status) bool { return s.Health.Status == "healthy" })
	heartbeat := func() (at time.Time) {
		require.NoError(t, r.db.QueryRow(t.Context(), `SELECT heartbeat_at FROM relayer_instances`).Scan(&at))
		return at
	}

	// They hang: three heartbeats are written while one count waits.
	tx, err := r.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE escrow_accounts`)
	require.NoError(t, err)
	var count string
	var beats []time.Time
	require.Eventually(t, func() bool {
		var waits string
		require.NoError(t, r.db.QueryRow(t.Context(), `SELECT coalesce(max(a.pid || ' ' || a.query_start), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND l.relation = 'escrow_accounts'::regclass`).Scan(&waits))
		if waits == "" || waits != count {
			count, beats = waits, nil
		}
		if at := heartbeat(); count != "" && !slices.Contains(beats, at) {
			beats = append(beats, at)
		}
		return len(beats) > 3
	}, patience, time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))

	// They fail.
	_, err = r.db.Exec(t.Context(), `ALTER TABLE escrow_parked RENAME TO away`)
	require.NoError(t, err)
	r.await(p, func(s instance.Status) bool { return s.Health.Reason == "counts: answers with an error" })
	at := heartbeat()
	require.Eventually(t, func() bool { return heartbeat().After(at) }, patience, time.Millisecond)
	require.True(t, p.Health().Ready)
	_, err = r.db.Exec(t.Context(), `ALTER TABLE away RENAME TO escrow_parked`)
	require.NoError(t, err)
	r.await(p, func(s instance.Status) bool { return s.Health.Status == "healthy" })
	require.NoError(t, p.stop())
}

func TestHealth_PartFails_IsDegraded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("one", "1", func(c *instance.Config) {
		c.Problems = map[string]func() error{"watcher": func() error { return errors.New("dial 10.0.0.1") }, "publisher": func() error { return nil }}
	})
	r.await(p, func(s instance.Status) bool { return s.Health.Ready })
	h := p.Health()
	require.Equal(t, "degraded", h.Status)
	require.Equal(t, "watcher: unavailable", h.Reason, "without what strangers must not read")
	require.NoError(t, r.store.Halt(t.Context(), "block 5 has changed"))
	r.await(p, func(s instance.Status) bool { return s.Halted == "block 5 has changed" })
	require.Equal(t, "chain: halted; watcher: unavailable", p.Health().Reason)
}

// Each instance reports the age of what waits in each static partition, of this chain alone.
func TestRun_MessagesWait_ReportsTheOldestByPartition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	box, err := outbox.New(r.db, store.Outbox)
	require.NoError(t, err)
	require.NoError(t, postgres.InTx(t.Context(), r.db, func(tx pgx.Tx) error {
		return box.Insert(t.Context(), tx,
			outbox.Entry{Lane: "1337/topic", Partition: 4}, outbox.Entry{Lane: "1337/topic", Partition: 7}, outbox.Entry{Lane: "1338/topic", Partition: 5})
	}))
	for partition, age := range map[int]string{4: "60 s", 7: "600 s", 5: "6000 s"} {
		_, err = r.db.Exec(t.Context(), `UPDATE escrow_outbox SET created_at = now() - $2::interval WHERE partition = $1`, partition, age)
		require.NoError(t, err)
	}
	p := r.start("one", "1", func(c *instance.Config) { c.Self.Total, c.Self.Number = 3, 0 })
	var ages map[string]float64
	require.Eventually(t, func() bool {
		ages = p.gauges(t, "rollcall_escrow_oldest_unpublished_seconds")
		return len(ages) == 3
	}, patience, time.Millisecond)
	require.InDelta(t, 0, ages["0"], 0)
	require.InDelta(t, 600, ages["1"], 120)
	require.InDelta(t, 0, ages["2"], 0, "of another chain")
}

// Each instance reports the dead letters of this chain, by target, until none is left.
func TestRun_DeadLetters_AreReportedByTarget(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	box, err := outbox.New(r.db, store.Outbox)
	require.NoError(t, err)
	require.NoError(t, postgres.InTx(t.Context(), r.db, func(tx pgx.Tx) error {
		return box.Insert(t.Context(), tx,
			outbox.Entry{Lane: "1337/webhook/old"}, outbox.Entry{Lane: "1337/webhook/old"}, outbox.Entry{Lane: "13371/topic"}, outbox.Entry{Lane: "1337/topic"})
	}))
	set := func(state string) {
		_, err := r.db.Exec(t.Context(), `UPDATE escrow_outbox SET state = $1, settled_at = now() WHERE lane <> '1337/topic'`, state)
		require.NoError(t, err)
	}
	p := r.start("one", "1")
	reported := func() map[string]float64 { return p.gauges(t, "rollcall_escrow_dead_letters") }
	set("dead")
	require.Eventually(t, func() bool {
		return maps.Equal(reported(), map[string]float64{"topic": 0, "webhook/old": 2})
	}, patience, time.Millisecond)
	set("done")
	require.Eventually(t, func() bool { return maps.Equal(reported(), map[string]float64{"topic": 0}) }, patience, time.Millisecond)
}
