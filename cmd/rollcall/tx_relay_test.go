package main

import (
	"bufio"
	"io"
	"math/big"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// relayed is the store of a relay path, as an operator finds it.
type relayed struct {
	*store.Store
	t   *testing.T
	db  *pgxpool.Pool
	url []string
}

func newRelayed(t *testing.T) *relayed {
	t.Helper()
	t.Parallel()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations()))
	r := &relayed{t: t, db: db.Pool(t), url: []string{"--database-url", db.URL()}}
	r.Store = store.New(r.db, store.Config{Enqueue: queue.EnqueueSQL})
	return r
}

// accept stores a transaction.
func (r *relayed) accept() uuid.UUID {
	r.t.Helper()
	tx := &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct,
		Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(7), GasLimit: 100_000, Speed: dispatch.Average},
	}
	accepted, err := r.Accept(r.t.Context(), []*dispatch.Transaction{tx})
	require.NoError(r.t, err)
	require.NoError(r.t, accepted[0].Err)
	return tx.ID
}

// parked stores a transaction that is unknown.
func (r *relayed) parked() uuid.UUID {
	r.t.Helper()
	id, holder := r.accept(), uuid.New()
	_, err := r.Begin(r.t.Context(), []store.Start{{ID: id, Holder: holder, Lease: time.Minute, Route: dispatch.Route{Relayer: "oz-relayer-0", URL: "http://oz", RelayerID: "r"}}})
	require.NoError(r.t, err)
	done, err := r.Park(r.t.Context(), id, holder, "the relayer does not show it")
	require.NoError(r.t, err)
	require.True(r.t, done)
	// Another call with the same effect may only begin when this one is resolved.
	_, err = r.db.Exec(r.t.Context(), `DELETE FROM relay_unresolved_calls`)
	require.NoError(r.t, err)
	return id
}

func (r *relayed) status(id uuid.UUID) dispatch.Status {
	r.t.Helper()
	tx, err := r.ByID(r.t.Context(), id)
	require.NoError(r.t, err)
	return tx.Status
}

func (r *relayed) args(args ...string) []string { return append(args, r.url...) }

func TestTxResolve_Unknown_FollowsTheDecision(t *testing.T) {
	r := newRelayed(t)
	retried, failed, found := r.parked(), r.parked(), r.parked()

	shown := rollcall(t, r.args("tx", "resolve", retried.String())...)
	require.Zero(t, shown.code)
	for _, part := range []string{retried.String(), "oz-relayer-0", "http://oz", "the relayer does not show it", "7 wei to 0x01"} {
		require.Contains(t, shown.stdout, part)
	}
	require.Contains(t, shown.stderr, "--relayer-tx ID, --executed HASH, --retry or --failed")
	require.Equal(t, dispatch.Unknown, r.status(retried))

	res := rollcall(t, r.args("tx", "resolve", retried.String(), "--retry")...)
	require.Equal(t, cli.ExitNotDone, res.code, "the operator has not confirmed it")
	require.Equal(t, dispatch.Unknown, r.status(retried))

	_, err := r.db.Exec(t.Context(), `UPDATE relay_queue SET state = 'dead', settled_at = now(), reason = 'poison' WHERE id = $1`, retried.String())
	require.NoError(t, err)
	require.Contains(t, succeed(t, r.args("tx", "resolve", retried.String(), "--retry", "--yes")...), "queued again")
	require.Equal(t, dispatch.Queued, r.status(retried))
	var entry string
	require.NoError(t, r.db.QueryRow(t.Context(), `SELECT state FROM relay_queue WHERE id = $1`, retried.String()).Scan(&entry))
	require.Equal(t, "waiting", entry, "also if its entry was given up")
	succeed(t, r.args("tx", "resolve", failed.String(), "--failed", "--yes")...)
	require.Equal(t, dispatch.Failed, r.status(failed))
	succeed(t, r.args("tx", "resolve", found.String(), "--relayer-tx", "r-1", "--yes")...)
	tx, err := r.ByID(t.Context(), found)
	require.NoError(t, err)
	require.Equal(t, []string{"submitted", "r-1", "oz-relayer-0"}, []string{string(tx.Status), tx.RelayerTx, tx.Relayer})

	for _, decision := range [][]string{{"--relayer-tx", "r-2"}, {"--failed"}, {"--retry"}} {
		res = rollcall(t, r.args(append([]string{"tx", "resolve", found.String(), "--yes"}, decision...)...)...)
		if decision[0] == "--failed" {
			require.Zero(t, res.code, "it is not final: %s", res.stderr)
			continue
		}
		require.Equal(t, cli.ExitNotDone, res.code)
	}
	require.Contains(t, res.stderr, "is failed, which is final")
	submitting := r.accept()
	_, err = r.Begin(t.Context(), []store.Start{{ID: submitting, Holder: uuid.New(), Route: dispatch.Route{Relayer: "oz-relayer-1", Scope: "gone"}, Lease: time.Minute}})
	require.NoError(t, err)
	res = rollcall(t, r.args("tx", "resolve", submitting.String(), "--failed", "--yes")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stdout+res.stderr, "a consumer submits it now")
	require.Equal(t, dispatch.Submitting, r.status(submitting))
	_, err = r.db.Exec(t.Context(), `UPDATE relay_transactions SET held_until = now() - interval '3 min', updated_at = now() - interval '3 min' WHERE id = $1`, submitting)
	require.NoError(t, err)
	succeed(t, r.args("tx", "resolve", submitting.String(), "--retry", "--yes")...)
	require.Equal(t, dispatch.Queued, r.status(submitting))
	queued := r.accept()
	for _, decision := range [][]string{{"--retry"}, {"--relayer-tx", "r-1"}} {
		res = rollcall(t, r.args(append([]string{"tx", "resolve", queued.String(), "--yes"}, decision...)...)...)
		require.Equal(t, cli.ExitNotDone, res.code)
		require.Contains(t, res.stderr, "is queued")
	}
	succeed(t, r.args("tx", "resolve", queued.String(), "--failed", "--yes")...)
	require.Equal(t, dispatch.Failed, r.status(queued))
	res = rollcall(t, r.args("tx", "resolve", uuid.NewString())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "transaction not found")
	executed, hash := r.parked(), "0x"+strings.Repeat("ab", 32)
	res = rollcall(t, r.args("tx", "resolve", executed.String(), "--executed", "0x12", "--yes")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "64 hex digits")
	succeed(t, r.args("tx", "resolve", executed.String(), "--executed", hash, "--yes")...)
	tx, err = r.ByID(t.Context(), executed)
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, tx.Status)
	require.Equal(t, hash, tx.Hash.Hex())
	for _, decision := range [][]string{{"--failed", "--retry"}, {"--executed", ""}, {"--relayer-tx", ""}, {"--yes"}} { // a script's variable may be empty
		res = rollcall(t, r.args(append([]string{"tx", "resolve", r.parked().String()}, decision...)...)...)
		require.Equal(t, cli.ExitUsage, res.code, decision)
	}
}

// An operator may think longer than the command's time limit: that limits the work alone.
func TestTxResolve_ConfirmedLate_IsDone(t *testing.T) {
	r := newRelayed(t)
	id := r.parked()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, r.args("tx", "resolve", id.String(), "--failed", "--timeout", "5s")...)
	cmd.Env = append(os.Environ(), "ROLLCALL_TEST_MAIN=1")
	keyboard, err := cmd.StdinPipe()
	require.NoError(t, err)
	screen, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	words := bufio.NewScanner(screen)
	words.Split(bufio.ScanWords)
	for words.Scan() && words.Text() != "yes:" {
	}
	select {
	case <-t.Context().Done():
	case <-time.After(5500 * time.Millisecond): // longer than the limit
	}
	_, err = keyboard.Write([]byte("yes\n"))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, screen)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Equal(t, dispatch.Failed, r.status(id))
}

func TestTxRelay_ListsAndShows(t *testing.T) {
	r := newRelayed(t)
	queued, unknown := r.accept(), r.parked()
	type list struct {
		Transactions []struct {
			ID      uuid.UUID `json:"id"`
			Status  string    `json:"status"`
			Value   string    `json:"value"`
			Changes []struct {
				Status string `json:"status"`
			} `json:"changes"`
		} `json:"transactions"`
	}
	all := read[list](t, r.args("tx", "relay")...)
	require.Len(t, all.Transactions, 2)
	require.Equal(t, unknown, all.Transactions[0].ID, "the newest first")
	only := read[list](t, r.args("tx", "relay", "--status", "queued")...)
	require.Len(t, only.Transactions, 1)
	require.Equal(t, queued, only.Transactions[0].ID)
	one := read[list](t, r.args("tx", "relay", unknown.String())...).Transactions[0]
	require.Equal(t, "7", one.Value)
	require.Len(t, one.Changes, 3)
	require.Equal(t, "unknown", one.Changes[2].Status)
	res := rollcall(t, r.args("tx", "relay", "--status", "done")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "allowed: queued, submitting, unknown")
}
