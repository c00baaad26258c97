package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

const active, worker = "relayer:active", "worker:active"

// settle waits until everything due within d has happened.
func settle(d time.Duration) {
	pass(d)
	synctest.Wait()
}

// pass advances the bubble's clock.
func pass(d time.Duration) { <-time.After(d) }

func TestNew_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := mirror.New(mirror.Config{Lease: -1, Audit: -1})
	for _, complaint := range []string{"no client", "no cluster id", "no node id", "epoch 0", "confirm", "lease is negative", "audit is negative"} {
		require.ErrorContains(t, err, complaint)
	}
	_, err = mirror.New(mirror.Config{
		Store: mirrortest.NewMemory(), Cluster: "c", Node: "n", Confirm: always, Epoch: 1 << 53,
	})
	require.ErrorContains(t, err, "2^53")
}

func TestWriter_Started_ClaimsFirstAndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		store.SAdd(active, "oz-relayer-0", "ghost")
		w := start(t, mirror.Config{Store: store, Epoch: 7, Interval: 5 * time.Second})
		begun := time.Now()
		<-w.FirstClaim()
		synctest.Wait()
		require.Zero(t, time.Since(begun))
		log := store.Log()
		require.Equal(t, mirror.OpClaim, log[0].Op)
		require.Equal(t, mirror.Token{Epoch: 7, Seq: 0}, log[0].Token)
		require.Equal(t, 5*time.Second, log[0].Interval)

		// The directory has not been received yet: all listed members count, and stay.
		settle(time.Minute)
		require.Equal(t, []string{"ghost", "oz-relayer-0"}, store.Members(active))
		require.True(t, w.Active("oz-relayer-0"))
		report := w.Status()
		require.True(t, report.Connected)
		require.True(t, report.Claimed)
		require.NoError(t, report.Err)
		require.Equal(t, 2, w.ActiveOf("relayer"))
		require.NoError(t, w.stop())
	})
}

func TestWriter_NewLeader_InheritsHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		first := start(t, mirror.Config{Store: store, Epoch: 1})
		first.Update(slices.Concat(entries(mirror.Healthy, "oz-relayer-0", "oz-relayer-1", "leaves"), entries(mirror.Unhealthy, "oz-relayer-2", "left"),
			[]*mirror.Entry{{ID: "w", Kind: "worker", URL: "tcp://w:1", Status: mirror.Healthy}}), nil)
		settle(time.Second)
		require.NoError(t, first.stop())
		store.SAdd(active, "older-version")
		require.Equal(t, "healthy", store.Hash("relayer:status:0")["status"])
		require.Equal(t, "unhealthy", store.Hash("relayer:status:svc:left")["status"])
		before := len(store.Log())

		// In the meantime "leaves" and "left" were deregistered, like the only worker; "new" was added.
		second := start(t, mirror.Config{Store: store, Epoch: 2})
		second.Update(entries(mirror.Unknown, "oz-relayer-0", "oz-relayer-1", "oz-relayer-2", "new"), nil)
		settle(time.Second)
		require.Equal(t, []string{"oz-relayer-0", "oz-relayer-1"}, store.Members(active))
		require.Empty(t, store.Members(worker), "kinds that only an earlier leader knew are cleaned")
		require.Equal(t, "healthy", store.Hash("relayer:status:0")["status"], "the last result is kept until there is a new one")
		require.Equal(t, "1", store.Hash("relayer:status:0")["epoch"])
		require.Equal(t, "unknown", store.Hash("relayer:status:svc:new")["status"])
		for _, gone := range []string{"leaves", "left", "older-version", "w"} {
			require.Empty(t, store.Hash("relayer:status:svc:"+gone))
		}
		require.Equal(t, []string{"new", "oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}, store.Members("relayer:services"))
		changes := 0
		for _, a := range store.Log()[before:] {
			if a.Op == mirror.OpChange {
				changes++
				require.Subset(t, a.After["relayer"], []string{"oz-relayer-0", "oz-relayer-1"})
			}
		}
		require.Equal(t, 1, changes, "all leftovers leave in one script")

		second.Update(slices.Concat(entries(mirror.Healthy, "oz-relayer-1", "oz-relayer-2"), entries(mirror.Unhealthy, "oz-relayer-0")), nil)
		settle(0)
		require.Equal(t, []string{"oz-relayer-1", "oz-relayer-2"}, store.Members(active))
		require.Equal(t, "2", store.Hash("relayer:status:0")["epoch"])
		require.Equal(t, "unhealthy", store.Hash("relayer:status:0")["status"])
	})
}

func TestWriter_StatusHash_HasTheCheckResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		w := start(t, mirror.Config{Store: store, Epoch: 4})
		at := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", 3600))
		w.Update([]*mirror.Entry{{
			ID: "oz-relayer-12", Kind: "relayer", URL: "http://x:1", Status: mirror.Unhealthy,
			LastCheck: at, Latency: 1600 * time.Microsecond, Failures: 3, Reason: "status 503",
		}}, nil)
		settle(time.Second)
		require.Equal(t, map[string]string{
			"id": "oz-relayer-12", "kind": "relayer", "url": "http://x:1", "status": "unhealthy",
			"lastCheck": "2026-01-02T02:04:05.678Z", "latencyMs": "2", "failures": "3", "reason": "status 503", "epoch": "4",
		}, store.Hash("relayer:status:12"))
	})
}

func TestKeys_WithPrefix_HaveTheirNames(t *testing.T) {
	t.Parallel()
	k := mirror.Keys{Prefix: "{p}:"}
	require.Equal(t, "{p}:relayer:active", k.Active("relayer"))
	require.Equal(t, "{p}:escrow:active", k.Active("escrow"))
	require.Equal(t, "{p}:relayer:meta", k.Meta())
	require.Equal(t, "{p}:relayer:events", k.Events())
	for id, key := range map[string]string{
		"oz-relayer-0": "0", "oz-relayer-10": "10", "oz-relayer-007": "svc:oz-relayer-007", "oz-relayer-00": "svc:oz-relayer-00",
		"oz-relayer-": "svc:oz-relayer-", "oz-relayer-1a": "svc:oz-relayer-1a", "edge": "svc:edge",
	} {
		require.Equal(t, "{p}:relayer:status:"+key, k.Status(id))
	}
}

func TestWriter_StatusChanges_MembershipFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		w := start(t, mirror.Config{Store: store})
		put := func(e mirror.Entry) {
			e.ID = "a"
			if e.Kind == "" {
				e.Kind = "relayer"
			}
			w.Update([]*mirror.Entry{&e}, nil)
			synctest.Wait()
		}
		listed := func(want ...string) {
			t.Helper()
			require.ElementsMatch(t, want, store.Members(active))
		}
		w.Update(nil, nil)
		put(mirror.Entry{URL: "u", Status: mirror.Unknown})
		listed()
		put(mirror.Entry{URL: "u", Status: mirror.Unhealthy, Hold: true})
		listed() // there was nothing to hold
		put(mirror.Entry{URL: "u", Status: mirror.Healthy})
		listed("a")
		put(mirror.Entry{URL: "v", Status: mirror.Unknown})
		listed("a")
		put(mirror.Entry{URL: "v", Status: mirror.Unhealthy, Hold: true})
		listed("a")
		put(mirror.Entry{URL: "v", Status: mirror.Unhealthy, Reason: "down"})
		listed()
		put(mirror.Entry{URL: "v", Status: mirror.Unknown})
		listed()
		put(mirror.Entry{URL: "v", Status: mirror.Healthy})
		listed("a")
		put(mirror.Entry{Kind: "worker", URL: "v", Status: mirror.Healthy})
		listed()
		require.Equal(t, []string{"a"}, store.Members(worker))
		require.Equal(t, "relayer,worker", store.Hash("relayer:meta")["kinds"])
		w.Update(nil, []string{"a", "never-heard-of"})
		settle(time.Second)
		require.Empty(t, store.Members(worker))
		require.Empty(t, store.Hash("relayer:status:svc:a"))
		require.Empty(t, store.Members("relayer:services"))

		var events []string
		for _, e := range store.Events() {
			events = append(events, fmt.Sprintf("%s %s %s %s", e.Type, e.ID, e.URL, e.Reason))
		}
		require.Equal(t, []string{
			"leader node-1  ", "added a u ", "removed a v down", "added a v ",
			"removed a v ", "added a v ", "removed a v deregistered",
		}, events)
	})
}

func TestWriter_ManyUpdates_MakeFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		w := start(t, mirror.Config{Store: store})
		ids := numbered(1200)
		w.Update(entries(mirror.Healthy, ids...), nil)
		settle(2 * time.Second)
		require.Equal(t, ids, store.Members(active))
		count := func() map[mirror.Op]int {
			n := map[mirror.Op]int{}
			for _, a := range store.Log() {
				n[a.Op]++
				require.LessOrEqual(t, len(a.Status), 500)
			}
			return n
		}
		before := count()
		require.Equal(t, 1, before[mirror.OpChange], "one script lists all")
		for range 100 { // each service's check, ten times a second, for ten seconds
			w.Update(entries(mirror.Healthy, ids...), nil)
			settle(100 * time.Millisecond)
		}
		after := count()
		require.Equal(t, before[mirror.OpChange], after[mirror.OpChange])
		// 20 flushes of three scripts each, and one at the edge.
		require.InDelta(t, 60, after[mirror.OpStatus]-before[mirror.OpStatus], 3)

		// A change of the set must not wait for them.
		w.Update(slices.Concat(entries(mirror.Healthy, ids...), entries(mirror.Unhealthy, ids[7])), nil)
		synctest.Wait()
		require.NotContains(t, store.Members(active), ids[7])
	})
}

func TestHeartbeat_NoChanges_KeepsUpdatedAtCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		store.SetSkew(-3 * time.Hour) // Redis's clock is used
		q := &quorum{leader: 1}
		w := start(t, mirror.Config{Store: store, Confirm: q.confirms(1)})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(10 * time.Minute)
		last := store.Log()[len(store.Log())-1]
		require.Equal(t, mirror.OpHeartbeat, last.Op)
		require.WithinDuration(t, time.Now().Add(-3*time.Hour), last.At, time.Second)
		require.Equal(t, timefmt.Format(last.At), store.Hash("relayer:meta")["updated_at"])
		require.InDelta(t, 600, len(store.Log()), 5)
		require.InDelta(t, 600, q.count(), 5, "each rests on its own confirmation")
		require.Equal(t, last.Token.Seq, w.Status().Seq)
	})
}

// away makes every operation fail as if there were no listener.
func away(context.Context, mirror.Op, func()) error { return errAway }

func TestWriter_RedisIsAway_ReportsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		var book logbook
		reg := prometheus.NewRegistry()
		store.SetHook(away)
		w := start(t, mirror.Config{Store: store, Logger: book.logger(), Metrics: mirror.NewMetrics(reg)})
		<-w.FirstClaim()
		w.Update(entries(mirror.Healthy, "a", "b"), nil)
		settle(time.Minute)
		report := w.Status()
		require.False(t, report.Connected)
		require.False(t, report.Claimed)
		require.ErrorIs(t, report.Err, errAway)

		lines := book.with(`level=ERROR msg="Redis connection failed"`)
		require.Equal(t, len(lines), len(book.with("level=ERROR")))
		require.Less(t, len(lines), 30, "it is logged as often as it is tried")
		pauses := regexp.MustCompile(`err="[^"]*connection refused" attempt=(\d+) retry_in=(\S+)$`)
		var first, last time.Duration
		for i, line := range lines {
			m := pauses.FindStringSubmatch(line)
			require.NotNil(t, m, line)
			require.Equal(t, fmt.Sprint(i+1), m[1])
			var err error
			last, err = time.ParseDuration(m[2])
			require.NoError(t, err)
			require.LessOrEqual(t, last, 5*time.Second)
			if i == 0 {
				first = last
			}
		}
		require.Less(t, first, 100*time.Millisecond)
		require.Greater(t, last, 2*time.Second)

		w.Update(entries(mirror.Unhealthy, "b"), nil)
		w.Update(entries(mirror.Healthy, "c"), []string{"a"})
		store.SetHook(nil)
		settle(600 * time.Millisecond)
		require.Equal(t, []string{"c"}, store.Members(active), "its return is noticed long before the next try is due")
		require.True(t, w.Status().Connected)
		require.NoError(t, w.Status().Err)
		require.Len(t, book.with("redis connection restored"), 1)
		require.EqualValues(t, 1, metric(t, reg, "rollcall_mirror_connected", ""))
		require.NoError(t, w.stop())
		require.EqualValues(t, 0, metric(t, reg, "rollcall_mirror_connected", ""))
	})
}

// metric returns the value of a gauge, or of the counter with the label value.
func metric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() // one of them is absent
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// A server that returns an error must be retried more often, because a retry costs it nothing.
func TestWriter_RedisRefuses_RetriesMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		var book logbook
		readonly := &mirror.ReplyError{Err: errors.New("READONLY You can't write against a read only replica.")}
		store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
			if op == mirror.OpRead {
				do()
				return nil
			}
			return readonly
		})
		w := start(t, mirror.Config{Store: store, Logger: book.logger()})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(time.Minute)
		require.ErrorIs(t, w.Status().Err, readonly)
		require.False(t, w.Status().Connected)
		require.Empty(t, book.with("Redis connection failed"))
		require.NotEmpty(t, book.with(`level=ERROR msg="redis refused the mirror"`))
		store.SetHook(nil)
		settle(1300 * time.Millisecond)
		require.Equal(t, []string{"a"}, store.Members(active))
	})
}

// A write without an answer may have been applied, may not, or may be applied later. Readers must see each change
// once.
func TestWriter_OutcomeUnknown_ReadersSeeEachChangeOnce(t *testing.T) {
	for name, hook := range map[string]func(do func()) error{
		"NotDone": func(func()) error { return errAway },
		"Done":    func(do func()) error { do(); return errAway },
		"Twice":   func(do func()) error { do(); do(); return nil },
		"Later": func(do func()) error {
			time.AfterFunc(20*time.Millisecond, do)
			return errAway
		},
		"MuchLater": func(do func()) error {
			time.AfterFunc(time.Minute, do)
			return errAway
		},
	} {
		for _, op := range []mirror.Op{mirror.OpRead, mirror.OpClaim, mirror.OpChange, mirror.OpStatus, mirror.OpHeartbeat} {
			t.Run(name+"/"+string(op), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := mirrortest.NewMemory()
					armed := true
					store.SetHook(func(_ context.Context, o mirror.Op, do func()) error {
						if o == op && armed {
							armed = false
							return hook(do)
						}
						do()
						return nil
					})
					w := start(t, mirror.Config{Store: store})
					w.Update(entries(mirror.Healthy, "a", "b"), nil)
					settle(3 * time.Second)
					require.Equal(t, []string{"a", "b"}, store.Members(active))
					armed = true
					w.Update(entries(mirror.Unhealthy, "a"), nil)
					settle(3 * time.Second)
					require.Equal(t, []string{"b"}, store.Members(active))
					require.Equal(t, "unhealthy", store.Hash("relayer:status:svc:a")["status"])
					settle(3 * time.Minute)
					require.Equal(t, []string{"b"}, store.Members(active))
					want := []string{"leader node-1", "added a", "added b", "removed a"}
					if op == mirror.OpClaim && name != "NotDone" && name != "Twice" && name != "MuchLater" {
						want = append([]string{"leader node-1"}, want...) // the claim is repeated, and publishes the leader again
					}
					require.Equal(t, want, described(store.Events()))
				})
			})
		}
	}
}

func TestWriter_ChangeDuringWrite_IsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		w := start(t, mirror.Config{Store: store})
		w.Update(entries(mirror.Healthy, "a", "b"), nil)
		settle(time.Second)
		begun, resume := make(chan struct{}), make(chan struct{})
		store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
			if op == mirror.OpChange {
				store.SetHook(nil)
				close(begun)
				<-resume
			}
			do()
			return nil
		})
		w.Update(slices.Concat(entries(mirror.Unhealthy, "a"), entries(mirror.Healthy, "c", "d")), nil)
		<-begun
		w.Update(slices.Concat(entries(mirror.Healthy, "a"), entries(mirror.Unhealthy, "c")), []string{"d"})
		close(resume)
		settle(0)
		require.Equal(t, []string{"a", "b"}, store.Members(active))
		require.Equal(t, 2, w.ActiveOf("relayer"))
		settle(time.Second)
		require.Empty(t, store.Hash("relayer:status:svc:d"))
		require.Equal(t, []string{
			"leader node-1", "added a", "added b", "added c", "added d", "removed a", "added a", "removed c", "removed d",
		}, described(store.Events()))
	})
}

// A removal without an answer counts as done. If the service becomes unknown in the meantime, its absence must not be
// repaired.
func TestWriter_RemovalOfUnknownOutcome_IsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		w := start(t, mirror.Config{Store: store})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(time.Second)
		store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
			if op == mirror.OpChange {
				do()
			}
			return errAway
		})
		w.Update(entries(mirror.Unhealthy, "a"), nil)
		synctest.Wait()
		require.Empty(t, store.Members(active))
		require.False(t, w.Active("a"))
		w.Update([]*mirror.Entry{{ID: "a", Kind: "relayer", URL: "elsewhere", Status: mirror.Unknown}}, nil)
		store.SetHook(nil)
		settle(3 * time.Second)
		require.Empty(t, store.Members(active))
	})
}

func TestWriter_RedisFlushed_WritesEverythingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		reg := prometheus.NewRegistry()
		metrics := mirror.NewMetrics(reg)
		w := start(t, mirror.Config{Store: store, Metrics: metrics})
		w.Update(slices.Concat(entries(mirror.Healthy, "a", "b"), entries(mirror.Unhealthy, "c")), nil)
		settle(2 * time.Second)
		w.Update(entries(mirror.Unknown, "b"), nil) // its URL changed; it is still listed
		settle(2 * time.Second)
		whole := store.Snapshot()

		store.Flush()
		settle(1100 * time.Millisecond)
		require.Equal(t, []string{"a", "b"}, store.Members(active), "an unknown service that was listed goes back too")
		settle(time.Second)
		require.Equal(t, "healthy", store.Hash("relayer:status:svc:a")["status"])
		require.Equal(t, []string{"a", "b", "c"}, store.Members("relayer:services"))

		// A lagging replica: c was up and a was not.
		stale := mirrortest.NewMemory()
		stale.Restore(whole)
		stale.SAdd(active, "c")
		stale.SRem(active, "a")
		store.Restore(stale.Snapshot())
		settle(1100 * time.Millisecond)
		require.Equal(t, []string{"a", "b"}, store.Members(active))

		// A copy from before this leader, with services that it has not checked.
		old := mirrortest.NewMemory()
		old.HSet("relayer:meta", "cluster", "c", "epoch", "0", "seq", "12", "leader", "x", "kinds", "relayer,worker")
		old.SAdd(active, "b", "x")
		old.SAdd(worker, "y")
		store.Restore(old.Snapshot())
		settle(1100 * time.Millisecond)
		require.Equal(t, []string{"a", "b"}, store.Members(active))
		require.Empty(t, store.Members(worker))
		require.EqualValues(t, 3, metric(t, reg, "rollcall_mirror_repairs_total", "rewrite"))
		require.EqualValues(t, 0, metric(t, reg, "rollcall_mirror_repairs_total", "drift"))
	})
}

// A listed service must stay listed until it has been checked, even if only the stale copy listed it.
func TestWriter_StaleCopyBeforeFirstCheck_RemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		store.SAdd(active, "a")
		w := start(t, mirror.Config{Store: store, Epoch: 2})
		settle(0)
		old := mirrortest.NewMemory()
		old.SAdd(active, "b")
		store.Restore(old.Snapshot())
		w.Update(entries(mirror.Unknown, "a", "b", "c"), nil)
		settle(2 * time.Second)
		require.Equal(t, []string{"a", "b"}, store.Members(active))
	})
}

func TestAudit_SetsChangedByOthers_AreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		reg := prometheus.NewRegistry()
		w := start(t, mirror.Config{Store: store, Metrics: mirror.NewMetrics(reg), Audit: 30 * time.Second})
		w.Update(slices.Concat(entries(mirror.Healthy, "a", "b"), entries(mirror.Unknown, "u")), nil)
		settle(time.Second)
		want := []string{"a", "b"}

		store.SRem(active, "a") // detected by the size
		settle(1100 * time.Millisecond)
		require.Equal(t, want, store.Members(active))
		store.SAdd(worker, "x") // of an unknown kind, which the writer must not change
		store.SAdd(active, "x")
		settle(1100 * time.Millisecond)
		require.Equal(t, want, store.Members(active))
		store.SRem(active, "a") // detected only by the audit
		store.SAdd(active, "x")
		settle(31 * time.Second)
		require.Equal(t, want, store.Members(active))
		store.Set(active, "oops")
		settle(1100 * time.Millisecond)
		require.Equal(t, want, store.Members(active))
		require.Equal(t, []string{"x"}, store.Members(worker))
		w.Update(nil, []string{"a", "b", "u"})
		settle(time.Second)
		store.Set(active, "oops")
		settle(2 * time.Second)
		view, err := store.Read(t.Context(), []string{"relayer"})
		require.NoError(t, err)
		require.Empty(t, view.Wrong, "also where there is nothing to list")

		require.EqualValues(t, 1+1+2+2, metric(t, reg, "rollcall_mirror_repairs_total", "drift"))
		require.EqualValues(t, 0, metric(t, reg, "rollcall_mirror_repairs_total", "rewrite"))
	})
}

// Each id must be only in its own kind's set, even if its kind changes.
func TestWriter_IDInTwoSets_StaysInItsKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		store.HSet("relayer:meta", "cluster", "c", "epoch", "1", "seq", "1", "leader", "x", "kinds", "relayer,worker")
		store.SAdd(active, "a")
		store.SAdd(worker, "a")
		w := start(t, mirror.Config{Store: store, Epoch: 2})
		w.Update(entries(mirror.Unknown, "a"), nil)
		settle(time.Second)
		require.Equal(t, []string{"a"}, store.Members(active))
		require.Empty(t, store.Members(worker))
		require.Equal(t, "relayer,worker", store.Hash("relayer:meta")["kinds"])
	})
}
