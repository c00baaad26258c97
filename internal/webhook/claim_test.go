package webhook

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

const shortLease = 10*time.Second + 500*time.Millisecond // above the attempts' timeout

// claimer returns a Deliverer that is not running.
func claimer(t testing.TB, db *testDB, change func(*Config)) *Deliverer {
	t.Helper()
	cfg := settings(Target{Name: "here", URL: "http://127.0.0.1:1", SigningKeys: []string{secret}})
	if change != nil {
		change(&cfg)
	}
	return newDeliverer(t, db, cfg)
}

func claimAll(t testing.TB, d *Deliverer, settled ...deliveryResult) []*claim {
	t.Helper()
	claims, _, _, err := d.syncBatch(t.Context(), settled, []demand{{target: "here", n: 100}})
	require.NoError(t, err)
	return claims
}

// expire ends all claims and backoffs.
func expire(t testing.TB, db *testDB) {
	t.Helper()
	_, err := db.Exec(t.Context(), "UPDATE deliveries SET next_at = now() - interval '1 s', claimed_until = '-infinity' WHERE state = 'due'")
	require.NoError(t, err)
}

func TestClaim_TakesLowestDueRevisionOnce(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		a, b := claimer(t, db, nil), claimer(t, db, nil)
		id := newTx(t)
		for revision := 1; revision <= 3; revision++ {
			change(t, db, id, revision, "here", "elsewhere")
		}
		claims := claimAll(t, a)
		require.Len(t, claims, 1)
		require.Equal(t, 1, claims[0].revision)
		require.Equal(t, 1, claims[0].number)
		require.Empty(t, claimAll(t, b))

		// The result and the next claim share a turn.
		claims = claimAll(t, a, deliveryResult{claim: claims[0], verdict: delivered})
		require.Len(t, claims, 1)
		require.Equal(t, 2, claims[0].revision)

		// A delivery in backoff still blocks the next revision.
		require.Empty(t, claimAll(t, a, deliveryResult{claim: claims[0], verdict: failed, delay: time.Hour, reason: "no"}))
		list, err := a.List(t.Context(), Filter{Target: "here", Transaction: id})
		require.NoError(t, err)
		require.Equal(t, "no", list[1].LastError)
		expire(t, db)
		claims = claimAll(t, b)
		require.Len(t, claims, 1)
		require.Equal(t, 2, claims[0].revision)
		require.Equal(t, 2, claims[0].number)
	})
}

func TestSettle_ClaimExpired_RecordsSuccessOnly(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		for name, test := range map[string]struct {
			second *verdict // of the later claimant; nil: still delivering
			late   verdict
			want   State
			error  string
		}{
			"late failure, second at it":     {nil, failed, Due, ""},
			"late return, second at it":      {nil, returned, Due, ""},
			"late success, second at it":     {nil, delivered, Delivered, ""},
			"late failure, second delivered": {new(delivered), failed, Delivered, ""},
			"late success, second failed":    {new(failed), delivered, Delivered, ""},
			"late failure, second failed":    {new(failed), failed, Due, "second"},
			"late success, second dead":      {new(permanent), delivered, Delivered, ""},
			"late failure, second dead":      {new(permanent), failed, DeadLetter, "second"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := o.database(t)
				a, b := claimer(t, db, nil), claimer(t, db, nil)
				id := newTx(t)
				change(t, db, id, 1, "here")
				mine := claimAll(t, a)
				expire(t, db)
				theirs := claimAll(t, b)
				require.Len(t, theirs, 1)
				if test.second != nil {
					claimAll(t, b, deliveryResult{claim: theirs[0], verdict: *test.second, delay: time.Hour, reason: "second"})
				}
				_, _, _, err := a.syncBatch(t.Context(), []deliveryResult{{claim: mine[0], verdict: test.late, reason: "late"}}, nil)
				require.NoError(t, err)
				d := only(t, db, id, 1)
				require.Equal(t, test.want, d.State)
				require.Equal(t, test.error, d.LastError)
				require.Equal(t, 2, d.Attempts)
				if test.want == Due {
					require.True(t, d.NextAt.After(time.Now()))
				}
			})
		}
	})
}

func TestRetryFor_Over_DeadLetterAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		d := claimer(t, db, func(c *Config) { c.RetryFor, c.MaxBackoff = time.Hour, time.Hour })
		id := newTx(t)
		change(t, db, id, 1, "here")
		change(t, db, id, 2, "here")
		first := claimAll(t, d)
		// The last attempt is at the end of the hour, not after it.
		claimAll(t, d, deliveryResult{claim: first[0], verdict: failed, delay: 3 * time.Hour, reason: "no"})
		require.WithinDuration(t, time.Now().Add(time.Hour), only(t, db, id, 1).NextAt.Time, time.Minute)

		expire(t, db)
		second := claimAll(t, d)
		_, err := db.Exec(t.Context(), "UPDATE deliveries SET retry_until = now() - interval '1 s' WHERE revision = 1")
		require.NoError(t, err)
		claims, gaveUp, _, err := d.syncBatch(t.Context(), []deliveryResult{{claim: second[0], verdict: failed, delay: time.Second, reason: "never"}},
			[]demand{{target: "here", n: 10}})
		require.NoError(t, err)
		require.Equal(t, []deadLetter{{id: second[0].delivery, target: "here", subject: id, reason: "never"}}, gaveUp)
		require.Len(t, claims, 1)
		require.Equal(t, 2, claims[0].revision)
		require.Equal(t, DeadLetter, only(t, db, id, 1).State)

		n, err := d.Replay(t.Context(), Filter{State: DeadLetter})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		again := claimAll(t, d)
		require.Len(t, again, 1)
		require.Equal(t, first[0].delivery, again[0].delivery)
		require.Equal(t, 1, again[0].number)
		// A replayed delivery has the full retry window again.
		claimAll(t, d, deliveryResult{claim: again[0], verdict: failed, delay: time.Second, reason: "no"})
		require.Equal(t, Due, only(t, db, id, 1).State)
	})
}

// The retry window begins with the first attempt. A delivery that was claimed ahead, for a target that is down, keeps
// all of it.
func TestClaim_Returned_IsDueAtOnceWithoutAttempt(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		d := claimer(t, db, nil)
		id := newTx(t)
		change(t, db, id, 1, "here")
		until := func() (at *time.Time) {
			require.NoError(t, db.QueryRow(t.Context(), "SELECT retry_until FROM deliveries WHERE subject = $1", id).Scan(&at))
			return at
		}
		claims := claimAll(t, d)
		_, _, _, err := d.syncBatch(t.Context(), []deliveryResult{{claim: claims[0], verdict: returned}}, nil)
		require.NoError(t, err)
		require.Nil(t, until())
		claims = claimAll(t, d)
		require.Len(t, claims, 1)
		require.Equal(t, 1, claims[0].number)

		// After an attempt the retry window runs.
		_, _, _, err = d.syncBatch(t.Context(), []deliveryResult{{claim: claims[0], verdict: failed, reason: "no"}}, nil)
		require.NoError(t, err)
		first := until()
		require.NotNil(t, first)
		expire(t, db)
		claims = claimAll(t, d)
		require.Equal(t, 2, claims[0].number)
		_, _, _, err = d.syncBatch(t.Context(), []deliveryResult{{claim: claims[0], verdict: returned}}, nil)
		require.NoError(t, err)
		require.Equal(t, first, until())
	})
}

func TestClaim_ExpiresBeforeTimeout_IsReturned(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		r := newReceiver(t, nil)
		d := newDeliverer(t, db, settings(r.target("here")))
		change(t, db, newTx(t), 1, "here")
		claims := claimAll(t, d)
		c := claims[0]
		c.until = time.Now().Add(d.cfg.Timeout - time.Millisecond)
		d.mu.Lock()
		d.queues[0].queue = claims
		d.start(t.Context(), d.queues[0])
		require.Equal(t, []deliveryResult{{claim: c, verdict: returned}}, d.settled)
		require.Zero(t, d.queues[0].inFlight)
		d.mu.Unlock()
		d.sending.Wait()
		got, _ := r.wait("", func(_, _ []request) bool { return true })
		require.Empty(t, got)
	})
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

// A turn that claims waits for the disk, because the change must be stored there before its webhook is sent. A turn
// that only stores results does not wait.
func TestTurn_WaitsForTheDisk_WhereItClaims(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		// A deferred trigger runs at the commit, and records the setting that the commit uses.
		_, err := db.Exec(t.Context(), `CREATE TABLE commits (setting text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO commits VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON deliveries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
		require.NoError(t, err)
		commit := func() (setting string) {
			require.NoError(t, db.QueryRow(t.Context(), `DELETE FROM commits RETURNING setting`).Scan(&setting))
			return setting
		}
		d := claimer(t, db, nil)
		change(t, db, newTx(t), 1, "here")
		claims := claimAll(t, d)
		require.Len(t, claims, 1)
		require.Equal(t, "on", commit())
		_, _, _, err = d.syncBatch(t.Context(), []deliveryResult{{claim: claims[0], verdict: delivered}}, nil)
		require.NoError(t, err)
		require.Equal(t, "off", commit())
	})
}
