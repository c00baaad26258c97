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

func TestBodyIsTheTransactionAsItWasExactToTheLastDigit(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	id := newTx(t)
	_, err := db.Exec(t.Context(), `
		WITH changed AS (
			INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, relayer_address, nonce, tx_hash, status,
				status_reason, revision, attempts, to_address, value_wei, data, gas_limit, speed, max_fee, max_priority, trader,
				created_at, sent_at, confirmed_at)
			VALUES ($1, $2, $3, 'pool-1', 'alice', 'transaction', '0x00000000000000000000000000000000000000bb',
				9223372036854775807, '0x' || repeat('c', 64), 'reverted', 'Łódź 東京 "é" </script> & 🦊', 7, 2,
				'0x00000000000000000000000000000000000000aa', 2::numeric ^ 256 - 1, '\xdeadbeef', 9007199254740993, 'fast',
				115792089237316195423570985008687907853269984665640564039457584007913129639935, 1000000007, '東京',
				'2026-11-22 10:00:00.123456+00', '2026-11-22 12:00:01+02', NULL) RETURNING *)
		INSERT INTO relayer_deliveries (id, chain_id, pool_id, target, subject, revision, status, status_reason, tx_attempts, relayer_address,
			nonce, tx_hash, sent_at)
		SELECT '0199f000-0000-4000-8000-000000000001', c.chain_id, c.pool_id, 'here', c.id, c.revision, c.status, c.status_reason, c.attempts,
			decode(substr(c.relayer_address, 3), 'hex'), c.nonce, decode(substr(c.tx_hash, 3), 'hex'), c.sent_at
		FROM changed c`, id, testChain, testPool)
	require.NoError(t, err)
	// Later changes are not part of this delivery.
	_, err = db.Exec(t.Context(), "UPDATE relayer_txs SET status = 'confirmed', status_reason = '', nonce = 1, tx_hash = NULL, confirmed_at = now()")
	require.NoError(t, err)
	begin := time.Now().Truncate(time.Microsecond)
	run(t, db, settings(r.target("here")))
	got := r.waitTaken(1)[0]

	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"rollcall"}, "Accept-Encoding": nil,
		"Content-Length": {fmt.Sprint(len(got.body))}, "Webhook-Id": {"0199f000-0000-4000-8000-000000000001"},
		"Webhook-Timestamp": got.header["Webhook-Timestamp"], "Webhook-Signature": got.header["Webhook-Signature"],
		"X-Signature": got.header["X-Signature"],
	}, withNil(got.header, "Accept-Encoding"))
	at := got.Timestamp
	require.WithinRange(t, at, begin, time.Now())
	require.Equal(t, fmt.Sprint(at.Unix()), got.header.Get(signature.HeaderTimestamp))
	require.JSONEq(t, `{
		"id": "0199f000-0000-4000-8000-000000000001", "event": "transaction_update", "timestamp": "`+at.Format("2006-01-02T15:04:05.000000Z")+`",
		"payload": {
			"payload_type": "transaction", "id": "`+id.String()+`", "hash": "0x`+strings.Repeat("c", 64)+`", "status": "failed",
			"status_reason": "Łódź 東京 \"é\" </script> & 🦊", "created_at": "2026-11-22T10:00:00.123456Z",
			"sent_at": "2026-11-22T10:00:01.000000Z", "confirmed_at": null, "gas_price": null, "gas_limit": 9007199254740993,
			"nonce": 9223372036854775807, "value": "0x`+strings.Repeat("f", 64)+`",
			"from": "0x00000000000000000000000000000000000000bb", "to": "0x00000000000000000000000000000000000000AA",
			"relayer_id": "pool-1", "data": "0xdeadbeef",
			"max_fee_per_gas": "115792089237316195423570985008687907853269984665640564039457584007913129639935",
			"max_priority_fee_per_gas": "1000000007", "signature": null, "speed": "fast", "is_canceled": false, "revision": 7,
			"metadata": {"trader": "東京"}
		}}`, string(got.body))
	// JSONEq reads numbers as floats.
	require.Contains(t, string(got.body), `"gas_limit":9007199254740993,`)
	require.Contains(t, string(got.body), `"nonce":9223372036854775807,`)
	require.Contains(t, string(got.body), `</script> & 🦊`)

	for _, dialect := range []signature.Dialect{signature.StandardWebhooks, signature.OpenZeppelin} {
		key, err := signature.NewKey(secret)
		require.NoError(t, err)
		v, err := signature.Verify([]signature.Key{key}, got.header, got.body, time.Now(), 0)
		require.NoError(t, err)
		require.Equal(t, dialect, v.Dialect)
		got.header.Del(signature.HeaderSignature)
	}
}

func withNil(h http.Header, name string) http.Header {
	h = h.Clone()
	h[name] = nil
	return h
}

func TestFailedAttemptsAreRepeatedWithTheSameIDAndTheirOwnTime(t *testing.T) {
	t.Parallel()
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
			db := database(t)
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
				if c.Number > 1 {
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
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

func TestAnAnswerThatComesTooLateCausesARepetition(t *testing.T) {
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

func TestATargetThatWasDownGetsEverythingInOrderWithoutDelay(t *testing.T) {
	t.Parallel()
	db := database(t)
	var up atomic.Bool
	r := newReceiver(t, func(w http.ResponseWriter, _ request) {
		if !up.Load() {
			w.(*statusWriter).status = 0
			hangUp(w)
		}
	})
	cfg := settings(r.target("here"))
	// Longer than the test may take: failed deliveries must not wait for it once the target is back.
	cfg.tuning.backoff, cfg.MaxBackoff = time.Hour, time.Hour
	// Less than the number of transactions, so that some are tried first when the target is back.
	cfg.Concurrency = 10
	d, _ := run(t, db, cfg)
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
	// Once the target is down it gets one delivery at a time.
	got, _ := r.wait("it is known to be down", func(got, _ []request) bool { return len(got) >= 10 })
	require.Less(t, len(got), 40+10)
	up.Store(true)
	inOrder(t, r.waitTaken(120), ids, 3)
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

func TestOrderIsKeptByManyProcessesWhateverFails(t *testing.T) {
	t.Parallel()
	db := database(t)
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
}

func TestASlowTargetKeepsNobodyWaiting(t *testing.T) {
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

func TestRedirectsAreNotFollowed(t *testing.T) {
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

func TestAnotherPoolsDeliveriesAreLeftAlone(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	foreign, own := newTx(t), newTx(t)
	change(t, db, foreign, 1, "here")
	_, err := db.Exec(t.Context(), "UPDATE relayer_deliveries SET pool_id = 'pool-2'")
	require.NoError(t, err)
	change(t, db, own, 1, "here")
	run(t, db, settings(r.target("here")))
	require.Equal(t, own.String(), r.waitTaken(1)[0].Payload.ID)
	eventually(t, "it is noted", func() bool { return only(t, db, own, 1).State == Delivered })
	var attempts int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT attempts FROM relayer_deliveries WHERE pool_id = 'pool-2'").Scan(&attempts))
	require.Zero(t, attempts)
}

func TestARequestThatRunsMayEndWhenTheProcessStops(t *testing.T) {
	t.Parallel()
	db := database(t)
	release := make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, request) { <-release })
	begun, waiting := newTx(t), newTx(t)
	change(t, db, begun, 1, "here")
	cfg := settings(r.target("here"))
	cfg.Concurrency = 1
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
	require.WithinDuration(t, time.Now(), given.NextAt.Time, 5*time.Second) // not at the end of a lease
}

func TestDeliverer_Stops_ReleasesItsClaims(t *testing.T) {
	t.Parallel()
	db := database(t)
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
}

func TestSecretsStayOutOfLogsErrorsAndTables(t *testing.T) {
	t.Parallel()
	db := database(t)
	var n atomic.Int32
	r := newReceiver(t, func(w http.ResponseWriter, got request) {
		if n.Add(1) < 8 {
			w.WriteHeader(500)
			_, _ = w.Write(got.body)
		}
	})
	down := newReceiver(t, nil)
	down.server.Close()
	var log journal
	cfg := settings(r.target("here"), down.target("closed"))
	cfg.Logger = log.logger()
	var reasons atomic.Value
	run(t, db, cfg)
	for range 4 {
		change(t, db, newTx(t), 1, "here", "closed")
	}
	r.waitTaken(4)
	eventually(t, "the other one has failed", func() bool {
		list, err := NewOutbox(db, testChain, testPool).List(t.Context(), Filter{Target: "closed"})
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
