package service_test

import (
	"context"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
)

// connect opens a database session separate from the relayer's.
func (f *fixture) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}

// hooked are nodes that call a hook before each send.
type hooked struct {
	sender.Chain
	before atomic.Pointer[func()]
}

func (h *hooked) Send(ctx context.Context, txs []evm.Raw) []evm.Result {
	h.call()
	return h.Chain.Send(ctx, txs)
}

func (h *hooked) SendToAll(ctx context.Context, txs []evm.Raw) []evm.Result {
	h.call()
	return h.Chain.SendToAll(ctx, txs)
}

func (h *hooked) call() {
	if before := h.before.Load(); before != nil {
		(*before)()
	}
}

// A cancellation of everything that fails after its first part is partly done, and must not be reported as "nothing was
// stored".
func TestCancelPending_FailsAfterFirstPart_IsUnknown(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t, func(c *service.Config) { c.Cap = 1 })
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 40 {
				s := f.submission()
				s.Request.GasLimit = 21_000
				if _, err := r.Submit(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	db := f.connect(t)
	_, err := db.Exec(t.Context(), `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF (SELECT count(*) FROM relayer_txs WHERE intent = ''cancel'') >= 500 THEN RAISE EXCEPTION ''full''; END IF; RETURN NEW; END';
		CREATE TRIGGER fail BEFORE UPDATE ON relayer_txs FOR EACH ROW WHEN (NEW.intent = 'cancel') EXECUTE FUNCTION fail()`)
	require.NoError(t, err)
	_, err = r.CancelPending(t.Context(), relayertest.PoolID, "test")
	require.ErrorContains(t, err, "full")
	require.ErrorIs(t, err, relayer.ErrUnknown)
	_, err = r.CancelPending(t.Context(), relayertest.PoolID, "test")
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	require.NotErrorIs(t, err, relayer.ErrUnknown, "nothing was done this time")
}

func TestCancelPending_StatementWithoutResponse_IsUnknown(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
	err := f.unanswered(t, func(ctx context.Context) error {
		_, err := r.CancelPending(ctx, relayertest.PoolID, "test")
		return err
	})
	require.ErrorIs(t, err, relayer.ErrUnknown)
}

// unanswered calls cancel, whose statement waits for a lock, and ends its context then.
func (f *fixture) unanswered(t *testing.T, cancel func(context.Context) error) error {
	t.Helper()
	holder, watcher := f.connect(t), f.connect(t)
	_, err := holder.Exec(t.Context(), "BEGIN; SELECT FROM relayer_txs FOR UPDATE")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	result := make(chan error, 1)
	go func() { result <- cancel(ctx) }()
	require.Eventually(t, func() bool {
		var n int
		err := watcher.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%SET intent = %' AND pid <> pg_backend_pid()`).Scan(&n)
		return err == nil && n > 0
	}, 2*time.Minute, 10*time.Millisecond)
	end()
	return <-result
}

func TestReplace_ReadsFailAfterwards_IsReportedAsStored(t *testing.T) {
	f := setup(t, 1)
	nodes := new(hooked)
	f.options.Sender = func(c *sender.Config) { nodes.Chain, c.Chain = c.Chain, nodes }
	r := f.start(t)
	s := f.submission()
	tx := r.Reaches(t, r.Send(t, *s.Request.To, 1, nil), relayer.Broadcasted)
	ctx, cancel := context.WithCancel(t.Context())
	nodes.before.Store(new(func() { cancel() }))
	s.Request.Value = big.NewInt(7)
	now, err := r.Replace(ctx, relayertest.PoolID, tx.ID, "test", s.Request)
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	require.Equal(t, int64(7), now.Value.Int64())
	stored, err := r.Transaction(t.Context(), relayertest.PoolID, tx.ID)
	require.NoError(t, err)
	require.Equal(t, int64(7), stored.Value.Int64())
}

func TestUpdate_ReadsFailAfterwards_IsReportedAsStored(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	holder, reader, watcher := f.connect(t), f.connect(t), f.connect(t)
	waiting := func(locks string) {
		require.Eventually(t, func() bool {
			var n int
			err := watcher.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE NOT l.granted AND a.datname = current_database() AND a.query LIKE `+locks).Scan(&n)
			return err == nil && n == 1
		}, 2*time.Minute, 10*time.Millisecond)
	}
	// The change waits for its row; later reads wait for the whole table.
	_, err := holder.Exec(t.Context(), "BEGIN; SELECT FROM relayer_keys FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var updated, locked sync.WaitGroup
	updated.Go(func() {
		patch := relayer.Patch{Paused: new(true)}
		patch.MinBalance.Set, patch.MinBalance.Value = true, big.NewInt(5)
		now, err := r.Update(ctx, relayertest.PoolID, "test", patch)
		if err != nil || !now.Paused || now.MinBalance.Int64() != 5 {
			t.Errorf("%+v, %v", now, err)
		}
	})
	waiting(`'%min_balance_own = coalesce%'`)
	locked.Go(func() {
		if _, err := reader.Exec(t.Context(), "BEGIN; LOCK TABLE relayer_keys IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Error(err)
		}
	})
	waiting(`'%ACCESS EXCLUSIVE%'`)
	_, err = holder.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	locked.Wait() // the change is committed, and reads are blocked
	updated.Wait()
	_, err = reader.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	key, err := r.Relayer(t.Context(), relayertest.PoolID)
	require.NoError(t, err)
	require.True(t, key.Paused)
	require.Equal(t, int64(5), key.MinBalance.Int64())
}
