package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

func TestDeliverer_AttemptFails_RetriesWithSameIDAndNewTime(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		for name, test := range map[string]struct {
			fail func(w http.ResponseWriter)
			want string
		}{
			"500":              {func(w http.ResponseWriter) { w.WriteHeader(500) }, "answered 500 Internal Server Error"},
			"404":              {func(w http.ResponseWriter) { w.WriteHeader(404) }, "answered 404 Not Found"},
			"410":              {func(w http.ResponseWriter) { w.WriteHeader(410) }, "answered 410 Gone"},
			"304":              {func(w http.ResponseWriter) { w.WriteHeader(304) }, "answered 304: redirects are not followed"},
			"hangs up":         {hangUp, "EOF"},
			"header too large": {func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 2*maxHeader)); w.WriteHeader(200) }, "server response headers exceeded"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := o.database(t)
				var failed atomic.Int32
				id := newTx(t)
				seen := make(chan string, 8)
				r := newReceiver(t, func(w http.ResponseWriter, _ request) {
					n := failed.Add(1)
					if n > 1 {
						seen <- only(t, db, id, 1).Reason
					}
					if n <= 2 {
						w.(*statusWriter).status = 0
						test.fail(w)
					}
				})
				change(t, db, id, 1, "here")
				cfg := settings(r.target("here"))
				// Backoffs longer than half a second, so that attempts have different timestamps.
				cfg.tuning.backoff = 600 * time.Millisecond
				cfg.MaxBackoff = time.Second
				run(t, db, cfg)
				got, _ := r.wait("the third attempt", func(got, _ []request) bool { return len(got) >= 3 })
				require.Contains(t, <-seen, test.want)
				for _, next := range got[1:] {
					require.Equal(t, got[0].ID, next.ID)
					require.Equal(t, got[0].header.Get(signature.HeaderID), next.header.Get(signature.HeaderID))
					require.True(t, next.Timestamp.After(got[0].Timestamp))
					require.NotEqual(t, got[0].header.Get(signature.HeaderOpenZeppelin), next.header.Get(signature.HeaderOpenZeppelin))
				}
				require.NotEqual(t, got[0].header.Get(signature.HeaderSignature), got[2].header.Get(signature.HeaderSignature))
				eventually(t, "it is noted", func() bool { return only(t, db, id, 1).State == outbox.Done })
				d := only(t, db, id, 1)
				require.Equal(t, 3, d.Attempts)
				require.Empty(t, d.Reason)
				require.False(t, d.SettledAt.IsZero())
			})
		}
	})
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

func TestDeliverer_ResponseTooLate_Retries(t *testing.T) {
	t.Parallel()
	db := database(t)
	release := make(chan struct{})
	var n atomic.Int32
	r := newReceiver(t, func(http.ResponseWriter, request) {
		if n.Add(1) == 1 {
			<-release // answers 200 after the client is gone
		}
	})
	change(t, db, newTx(t), 1, "here")
	cfg := settings(r.target("here"))
	cfg.Timeout = 100 * time.Millisecond
	run(t, db, cfg)
	r.waitTaken(1)
	close(release)
	taken := r.waitTaken(2)
	require.Equal(t, taken[0].ID, taken[1].ID)
}

func TestDeliverer_TargetIsBack_DeliversInOrderAtOnce(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		const lost = 20 // some of the 40 transactions are not tried before the target is back
		var d *Deliverer
		var received, inFlight atomic.Int32
		var alone atomic.Bool
		r := newReceiver(t, func(w http.ResponseWriter, _ request) {
			now := inFlight.Add(1)
			end := sync.OnceFunc(func() { inFlight.Add(-1) })
			defer end()
			if received.Add(1) > lost {
				return
			}
			w.(*statusWriter).status = 0
			target := d.targets[db.lane("here")]
			target.mu.Lock()
			down := target.downLocked()
			target.mu.Unlock()
			if alone.Load() && now > 1 {
				t.Errorf("%d deliveries at once to a target that is down", now)
			}
			if down && now == 1 { // the attempts from before have ended
				alone.Store(true)
			}
			end()
			hangUp(w)
		})
		cfg := settings(r.target("here"))
		// Longer than the test may take: failed deliveries must not wait for it once the target is back.
		cfg.tuning.backoff, cfg.MaxBackoff = time.Hour, time.Hour
		// Less than the number of transactions, so that some are tried first when the target is back.
		cfg.Concurrency = 10
		d = newDeliverer(t, db, cfg)
		start(t, d)
		var ids []uuid.UUID
		for range 40 {
			ids = append(ids, newTx(t))
		}
		for revision := 1; revision <= 3; revision++ {
			for _, id := range ids {
				change(t, db, id, revision, "here")
			}
			d.Notify()
		}
		inOrder(t, r.waitTaken(120), ids, 3)
		require.True(t, alone.Load(), "once the target is down it gets one delivery at a time")
	})
}

// inOrder requires that each revision of each transaction was accepted once, and after the lower ones.
func inOrder(t testing.TB, taken []request, ids []uuid.UUID, revisions int) {
	t.Helper()
	seen := map[string]int{}
	for _, r := range taken {
		require.Equal(t, seen[r.Payload.ID]+1, r.Payload.Revision, "transaction %s", r.Payload.ID)
		seen[r.Payload.ID] = r.Payload.Revision
	}
	require.Len(t, seen, len(ids))
	for _, id := range ids {
		require.Equal(t, revisions, seen[id.String()])
	}
}

func TestDeliverer_SeveralProcessesAndFailures_KeepOrder(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		var n atomic.Int32
		r := newReceiver(t, func(w http.ResponseWriter, _ request) {
			switch n.Add(1) % 7 {
			case 2:
				w.WriteHeader(503)
			case 4:
				w.(*statusWriter).status = 0
				hangUp(w)
			}
		})
		const processes, revisions = 4, 8
		var deliverers []*Deliverer
		for range processes {
			d, _ := run(t, db, settings(r.target("here")))
			deliverers = append(deliverers, d)
		}
		var ids []uuid.UUID
		for range 40 {
			ids = append(ids, newTx(t))
		}
		var writers sync.WaitGroup
		for part := range 4 {
			writers.Go(func() {
				for revision := 1; revision <= revisions; revision++ {
					for i := part; i < len(ids); i += 4 {
						if err := tryChange(t.Context(), db, ids[i], revision, "here"); err != nil {
							t.Error(err)
						}
					}
					deliverers[part].Notify()
				}
			})
		}
		writers.Wait()
		inOrder(t, r.waitTaken(len(ids)*revisions), ids, revisions)
		eventually(t, "nothing is due", func() bool {
			due, err := db.letters(t).List(t.Context(), deadletter.Filter{State: outbox.Waiting})
			return err == nil && len(due) == 0
		})
		_, taken := r.wait("nothing comes twice", func(_, taken []request) bool { return true })
		require.Len(t, taken, len(ids)*revisions)
	})
}

func TestDeliverer_OneTargetIsSlow_OthersGoOn(t *testing.T) {
	t.Parallel()
	db := database(t)
	release := make(chan struct{})
	var slowNow, slowMost atomic.Int32
	slow := newReceiver(t, func(http.ResponseWriter, request) {
		slowMost.Store(max(slowMost.Load(), slowNow.Add(1)))
		<-release
		slowNow.Add(-1)
	})
	fast := newReceiver(t, nil)
	cfg := settings(slow.target("slow"), fast.target("fast"))
	cfg.Concurrency = 8
	cfg.Timeout = time.Minute // an attempt that ends would make room for another
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	run(t, db, cfg)
	for range 100 {
		change(t, db, newTx(t), 1, "slow", "fast")
	}
	fast.waitTaken(100)
	got, _ := slow.wait("its share", func(got, _ []request) bool { return len(got) >= 4 })
	require.Len(t, got, 4)
	letGo()
	slow.waitTaken(100)
	require.LessOrEqual(t, slowMost.Load(), int32(4))
}

func TestDeliverer_Redirect_IsNotFollowed(t *testing.T) {
	t.Parallel()
	db := database(t)
	inner := newReceiver(t, nil)
	var n atomic.Int32
	r := newReceiver(t, func(w http.ResponseWriter, _ request) {
		if n.Add(1) == 1 {
			w.Header().Set("Location", inner.server.URL)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
	})
	change(t, db, newTx(t), 1, "here")
	run(t, db, settings(r.target("here")))
	r.waitTaken(1)
	got, _ := inner.wait("", func(_, _ []request) bool { return true })
	require.Empty(t, got)
}

func TestDeliverer_Stop_FinishesRunningRequest(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		release := make(chan struct{})
		r := newReceiver(t, func(http.ResponseWriter, request) { <-release })
		begun, waiting := newTx(t), newTx(t)
		change(t, db, begun, 1, "here")
		change(t, db, waiting, 1, "here")
		cfg := settings(r.target("here"))
		cfg.Concurrency = 1
		cfg.DrainTimeout = time.Minute
		d := newDeliverer(t, db, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		got, _ := r.wait("the first", func(got, _ []request) bool { return len(got) == 1 })
		cancel()
		close(release)
		require.NoError(t, <-done)
		all, _ := r.wait("", func(_, _ []request) bool { return true })
		require.Len(t, all, 1, "it begins nothing more")
		for _, id := range []uuid.UUID{begun, waiting} {
			d := only(t, db, id, 1)
			require.Equal(t, id.String() == got[0].Payload.ID, d.State == outbox.Done)
			require.Equal(t, d.State == outbox.Done, d.Attempts == 1)
		}
	})
}

func TestDeliverer_Stops_ReleasesItsClaims(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		release := make(chan struct{})
		r := newReceiver(t, func(http.ResponseWriter, request) { <-release })
		t.Cleanup(func() { close(release) })
		begun := newTx(t)
		change(t, db, begun, 1, "here")
		cfg := settings(r.target("here"))
		cfg.DrainTimeout = 10 * time.Millisecond
		_, stop := run(t, db, cfg)
		r.wait("the first", func(got, _ []request) bool { return len(got) == 1 })
		require.Equal(t, 1, only(t, db, begun, 1).Attempts)
		stop()
		given := only(t, db, begun, 1)
		require.Equal(t, outbox.Waiting, given.State)
		require.Zero(t, given.Attempts)
		require.Empty(t, given.Reason)
		require.Less(t, time.Until(given.DueAt.Time), 5*time.Second, "not at the end of a lease")
	})
}

// A delivery that failed for a day is a dead letter. Later revisions follow without it. Replayed, it has a day again.
func TestRetryFor_Over_DeadLetterAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		var repaired atomic.Bool
		r := newReceiver(t, func(w http.ResponseWriter, got request) {
			if got.Payload.Revision == 1 && !repaired.Load() {
				w.WriteHeader(500)
			}
		})
		id := newTx(t)
		change(t, db, id, 1, "here")
		change(t, db, id, 2, "here")
		cfg := settings(r.target("here"))
		cfg.MaxBackoff = time.Second
		reg := prometheus.NewRegistry()
		cfg.Metrics = NewMetrics(reg)
		run(t, db, cfg)
		eventually(t, "the first has failed", func() bool { return only(t, db, id, 1).Reason != "" })
		write(t, db, "UPDATE deliveries SET failing_since = now() - interval '24 h' WHERE revision = 1")
		require.Equal(t, 2, r.waitTaken(1)[0].Payload.Revision)
		dead := only(t, db, id, 1)
		require.Equal(t, outbox.Dead, dead.State)
		require.Equal(t, "answered 500 Internal Server Error", dead.Reason)
		eventually(t, "it is counted", func() bool { return value(t, reg, "rollcall_webhook_dead_letters_total", "here") == 1 })

		n, err := db.letters(t).Replay(t.Context(), deadletter.Filter{Transaction: id})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		eventually(t, "it has failed again", func() bool {
			d := only(t, db, id, 1)
			return d.State == outbox.Waiting && d.Attempts > dead.Attempts
		})
		repaired.Store(true)
		again := r.waitTaken(2)[1]
		require.Equal(t, dead.ID, again.ID)
		require.Equal(t, 1, again.Payload.Revision)
	})
}

// The day of retries begins with the first failure. A delivery that was not tried, because its target is down, keeps all of it.
func TestTargetDown_DeliveriesNotTried_StayDue(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		down := newReceiver(t, func(w http.ResponseWriter, _ request) { w.WriteHeader(500) })
		cfg := settings(down.target("here"))
		cfg.Concurrency = downAfter
		cfg.tuning.pause, cfg.tuning.maxPause = time.Hour, time.Hour
		cfg.tuning.backoff, cfg.MaxBackoff = time.Hour, time.Hour
		var log journal
		cfg.Logger = log.logger()
		for range 10 {
			change(t, db, newTx(t), 1, "here")
		}
		write(t, db, "UPDATE deliveries SET created_at = now() - interval '2 days', due_at = now() - interval '2 days'")
		_, stop := run(t, db, cfg)
		eventually(t, "the target is down", func() bool { return strings.Contains(log.String(), "webhook target is down") })
		stop()
		list, err := db.letters(t).List(t.Context(), deadletter.Filter{})
		require.NoError(t, err)
		untried := 0
		for _, d := range list {
			require.Equal(t, outbox.Waiting, d.State)
			if d.Attempts == 0 {
				untried++
			}
		}
		require.Equal(t, 10-downAfter, untried)
		r := newReceiver(t, nil)
		run(t, db, settings(r.target("here")))
		r.waitTaken(untried)
	})
}

func TestDeliverer_Secrets_AreNotLoggedOrStored(t *testing.T) {
	t.Parallel()
	db := database(t)
	var n atomic.Int32
	r := newReceiver(t, func(w http.ResponseWriter, got request) {
		if n.Add(1) < 8 {
			w.WriteHeader(500)
			_, _ = w.Write(got.body)
		}
	})
	down := Target{Name: "closed", URL: "http://127.0.0.1:1/hook/token-of-the-path", SigningKeys: []string{secret}} // no other server takes this port
	var log journal
	cfg := settings(r.target("here"), down)
	cfg.Logger = log.logger()
	var reasons atomic.Value
	run(t, db, cfg)
	for range 4 {
		change(t, db, newTx(t), 1, "here", "closed")
	}
	r.waitTaken(4)
	eventually(t, "the other one has failed", func() bool {
		list, err := db.letters(t).List(t.Context(), deadletter.Filter{To: "closed"})
		reasons.Store(fmt.Sprintf("%+v", list))
		return err == nil && strings.Contains(reasons.Load().(string), "connection refused")
	})
	eventually(t, "the log says so", func() bool { return strings.Contains(log.String(), "webhook target is down") })
	encoded, err := json.Marshal(cfg.Targets)
	require.NoError(t, err)
	for _, text := range []string{log.String(), reasons.Load().(string), fmt.Sprintf("%v %+v %#v %s %q", cfg, cfg, cfg.Targets, cfg.Targets, cfg.Targets), string(encoded)} {
		require.NotContains(t, text, "token-of-the-path")
		require.NotContains(t, text, secret)
	}
}

func TestDeliverer_PostgresRestarts_LosesNothing(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		server := testpostgres.Own(t)
		require.NoError(t, postgres.Migrate(t.Context(), server.URL(), o.Migrations))
		db := &testDB{server.Pool(t), o}
		r := newReceiver(t, nil)
		for range 2 {
			run(t, &testDB{server.Pool(t), o}, settings(r.target("here")))
		}
		const revisions = 20
		ids := make([]uuid.UUID, 10)
		for i := range ids {
			ids[i] = newTx(t)
		}
		write := make(chan struct{}, revisions) // the writer may be stuck
		written := make(chan error, 1)
		go func() {
			defer close(written)
			for revision := 1; revision <= revisions; revision++ {
				if _, ok := <-write; !ok {
					return
				}
				for _, id := range ids {
					if err := insist(t.Context(), db, id, revision); err != nil {
						written <- err
						return
					}
				}
			}
		}()
		t.Cleanup(func() { close(write) })
		step := func(n int) {
			for range n {
				write <- struct{}{}
			}
		}
		step(6)
		r.waitTaken(20)
		server.Stop()
		step(1)
		server.Restart()
		step(5)
		r.waitTaken(80)
		server.Kill()
		step(1)
		server.Restart()
		step(revisions - 13)
		require.NoError(t, <-written)

		// At least once, and never before a lower revision. A delivery repeated after a crash may carry an old revision.
		highest := map[string]int{}
		_, taken := r.wait("all revisions", func(_, taken []request) bool {
			seen := map[[2]any]bool{}
			for _, r := range taken {
				seen[[2]any{r.Payload.ID, r.Payload.Revision}] = true
			}
			return len(seen) == len(ids)*revisions
		})
		for _, r := range taken {
			require.LessOrEqual(t, r.Payload.Revision, highest[r.Payload.ID]+1)
			highest[r.Payload.ID] = max(highest[r.Payload.ID], r.Payload.Revision)
		}
	})
}

// insist writes a change until it is stored once, even if answers are lost.
func insist(ctx context.Context, db *testDB, id uuid.UUID, revision int) error {
	for {
		err := tryChange(ctx, db, id, revision, "here")
		if failed, ok := errors.AsType[*pgconn.PgError](err); err == nil || ok && failed.Code == "23505" { // it is stored already
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A change must be on the disk before its webhook is sent. The relayer's statements do not wait for that, so a claim does.
func TestRelayer_ClaimsWaitForTheDisk(t *testing.T) {
	t.Parallel()
	db := ownerNamed("relayer").database(t)
	// A deferred trigger runs at the commit, and records the setting that the commit uses.
	write(t, db, `CREATE TABLE commits (n serial, setting text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO commits (setting) VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON deliveries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
	r := newReceiver(t, nil)
	id := newTx(t)
	change(t, db, id, 1, "here")
	run(t, db, settings(r.target("here")))
	eventually(t, "it is noted", func() bool { return only(t, db, id, 1).State == outbox.Done })
	var setting string
	require.NoError(t, db.QueryRow(t.Context(), `SELECT setting FROM commits ORDER BY n LIMIT 1`).Scan(&setting))
	require.Equal(t, "on", setting)
}
