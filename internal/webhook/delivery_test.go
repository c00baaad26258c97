package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

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
				var last atomic.Value
				r := newReceiver(t, func(w http.ResponseWriter, r request) {
					if failed.Add(1) <= 2 {
						w.(*statusWriter).status = 0
						test.fail(w)
						return
					}
					last.Store(r.ID)
				})
				id := newTx(t)
				change(t, db, id, 1, "here")
				cfg := settings(r.target("here"))
				// Backoffs longer than half a second, so that attempts have different timestamps.
				cfg.tuning.backoff = 600 * time.Millisecond
				cfg.MaxBackoff = time.Second
				seen := make(chan string, 8)
				cfg.tuning.sentAfter = func(c *claim) {
					if c.number > 1 {
						seen <- only(t, db, id, 1).LastError
					}
				}
				run(t, db, cfg)
				got, _ := r.wait("the third attempt", func(got, _ []request) bool { return len(got) >= 3 && last.Load() != nil })
				require.Contains(t, <-seen, test.want)
				for _, next := range got[1:] {
					require.Equal(t, got[0].ID, next.ID)
					require.Equal(t, got[0].header.Get(signature.HeaderID), next.header.Get(signature.HeaderID))
					require.True(t, next.Timestamp.After(got[0].Timestamp))
					require.NotEqual(t, got[0].header.Get(signature.HeaderOpenZeppelin), next.header.Get(signature.HeaderOpenZeppelin))
				}
				require.NotEqual(t, got[0].header.Get(signature.HeaderSignature), got[2].header.Get(signature.HeaderSignature))
				eventually(t, "it is noted", func() bool { return only(t, db, id, 1).State == Delivered })
				d := only(t, db, id, 1)
				require.Equal(t, 3, d.Attempts)
				require.Empty(t, d.LastError)
				require.False(t, d.DeliveredAt.IsZero())
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
		var received atomic.Int32
		alone := false // guarded by d.mu
		r := newReceiver(t, func(w http.ResponseWriter, _ request) {
			if received.Add(1) > lost {
				return
			}
			w.(*statusWriter).status = 0
			d.mu.Lock()
			q := d.queues[0]
			if alone && q.inFlight > 1 {
				t.Errorf("%d deliveries at once to a target that is down", q.inFlight)
			}
			alone = alone || q.down() && q.inFlight == 1 // the attempts from before have ended
			d.mu.Unlock()
			hangUp(w)
		})
		cfg := settings(r.target("here"))
		// Longer than the test may take: failed deliveries must not wait for it once the target is back.
		cfg.tuning.backoff, cfg.MaxBackoff = time.Hour, time.Hour
		// Less than the number of transactions, so that some are tried first when the target is back.
		cfg.Concurrency = 10
		d, _ = run(t, db, cfg)
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
		d.mu.Lock()
		defer d.mu.Unlock()
		require.True(t, alone, "once the target is down it gets one delivery at a time")
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
			counts, err := deliverers[0].Counts(t.Context())
			return err == nil && len(counts) == 0
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
		cfg := settings(r.target("here"))
		cfg.Concurrency = 1
		cfg.tuning.drainTimeout = time.Minute
		d := newDeliverer(t, db, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		r.wait("the first", func(got, _ []request) bool { return len(got) == 1 })
		change(t, db, waiting, 1, "here")
		d.Notify()
		eventually(t, "the second is claimed", func() bool { return only(t, db, waiting, 1).Attempts == 1 })
		cancel()
		eventually(t, "it begins nothing more", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.stopping
		})
		close(release)
		require.NoError(t, <-done)
		require.Equal(t, Delivered, only(t, db, begun, 1).State)
		given := only(t, db, waiting, 1)
		require.Equal(t, Due, given.State)
		require.Zero(t, given.Attempts)
		require.Less(t, time.Until(given.NextAt.Time), 5*time.Second, "not at the end of a lease")
	})
}

func TestDeliverer_Stops_ReleasesItsClaims(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		release := make(chan struct{})
		r := newReceiver(t, func(http.ResponseWriter, request) { <-release })
		t.Cleanup(func() { close(release) })
		begun, waiting := newTx(t), newTx(t)
		change(t, db, begun, 1, "here")
		cfg := settings(r.target("here"))
		cfg.Concurrency = 1
		cfg.tuning.drainTimeout = 10 * time.Millisecond
		d, stop := run(t, db, cfg)
		r.wait("the first", func(got, _ []request) bool { return len(got) == 1 })
		change(t, db, waiting, 1, "here")
		d.Notify()
		eventually(t, "the second is claimed", func() bool { return only(t, db, waiting, 1).Attempts == 1 })
		stop()
		for _, id := range []uuid.UUID{begun, waiting} {
			given := only(t, db, id, 1)
			require.Equal(t, Due, given.State)
			require.Zero(t, given.Attempts)
			require.Empty(t, given.LastError)
		}
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
		list, err := db.outbox().List(t.Context(), Filter{Target: "closed"})
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
