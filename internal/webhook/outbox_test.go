package webhook

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func write(t testing.TB, db *testDB, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func TestList_EachDeliveryOnce_OldestFirst(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		box := db.outbox()
		ids := make([]uuid.UUID, 7)
		for i := range ids {
			ids[i] = newTx(t)
			change(t, db, ids[i], 1, "here", "there")
		}
		write(t, db, "UPDATE deliveries SET created_at = '2026-01-01' WHERE revision = 1") // those of one claim have one time
		write(t, db, "UPDATE deliveries SET state = 'dead_letter', last_error = 'no' WHERE target = 'there' AND subject = $1", ids[3])

		var got []Delivery
		seen := map[uuid.UUID]bool{}
		for page := []Delivery(nil); ; {
			f := Filter{Limit: 4}
			if len(page) > 0 {
				f.After = &page[len(page)-1]
			}
			var err error
			page, err = box.List(t.Context(), f)
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			for _, d := range page {
				require.False(t, seen[d.ID])
				seen[d.ID] = true
			}
			got = append(got, page...)
		}
		require.Len(t, got, 14)

		for name, test := range map[string]struct {
			filter Filter
			want   int
		}{
			"target":              {Filter{Target: "here"}, 7},
			"state":               {Filter{State: DeadLetter}, 1},
			"transaction":         {Filter{Transaction: ids[3]}, 2},
			"target and state":    {Filter{Target: "here", State: DeadLetter}, 0},
			"ids":                 {Filter{IDs: []uuid.UUID{got[0].ID, got[5].ID, uuid.New()}}, 2},
			"another transaction": {Filter{Transaction: uuid.New()}, 0},
		} {
			t.Run(name, func(t *testing.T) {
				list, err := box.List(t.Context(), test.filter)
				require.NoError(t, err)
				require.Len(t, list, test.want)
			})
		}
	})
}

func TestReplay_DeadLettersAndNamedDeliveries(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		box := db.outbox()
		due, delivered, dead := newTx(t), newTx(t), newTx(t)
		for _, id := range []uuid.UUID{due, delivered, dead} {
			change(t, db, id, 1, "here", "there")
		}
		reset := func() {
			write(t, db, "UPDATE deliveries SET state = 'due', attempts = 3, next_at = now() + interval '1 h', claimant = gen_random_uuid()")
			write(t, db, "UPDATE deliveries SET state = 'delivered', delivered_at = now() WHERE subject = $1", delivered)
			write(t, db, "UPDATE deliveries SET state = 'dead_letter' WHERE subject = $1", dead)
		}
		all, err := box.List(t.Context(), Filter{Target: "here"})
		require.NoError(t, err)
		var ids []uuid.UUID
		for _, d := range all {
			ids = append(ids, d.ID)
		}
		for name, test := range map[string]struct {
			filter Filter
			want   int
		}{
			"everything":           {Filter{}, 2},
			"one target":           {Filter{Target: "here"}, 1},
			"delivered, not named": {Filter{State: Delivered}, 0},
			"by id":                {Filter{IDs: ids}, 2}, // a due delivery may be in flight
			"by id and dead":       {Filter{IDs: ids, State: DeadLetter}, 1},
			"by transaction":       {Filter{Transaction: dead}, 2},
			"of a due transaction": {Filter{Transaction: due}, 0},
			"of an unknown target": {Filter{Target: "elsewhere"}, 0},
			"since the first":      {Filter{Since: all[0].CreatedAt.Time}, 2},
			"until the first":      {Filter{Until: all[0].CreatedAt.Time}, 0},
			"within an hour":       {Filter{Target: "there", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, 1},
			"of later changes":     {Filter{Since: time.Now().Add(time.Hour)}, 0},
			"unknown id":           {Filter{IDs: []uuid.UUID{uuid.New()}}, 0},
		} {
			t.Run(name, func(t *testing.T) {
				reset()
				n, err := box.Replay(t.Context(), test.filter)
				require.NoError(t, err)
				require.Equal(t, test.want, n)
				fresh, err := box.List(t.Context(), Filter{State: Due})
				require.NoError(t, err)
				replayed := 0
				for _, d := range fresh {
					if d.Attempts == 0 {
						replayed++
						require.True(t, d.DeliveredAt.IsZero())
						require.False(t, d.NextAt.After(time.Now()))
					}
				}
				require.Equal(t, test.want, replayed)
			})
		}
	})
}

func TestReplay_MoreThanOneChunk_ReplaysAll(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		db.insert(t, "target, subject, revision, payload, state", `'here', md5(n::text)::uuid, 1, '{}', 'dead_letter' FROM generate_series(1, 2500) n`)
		n, err := db.outbox().Replay(t.Context(), Filter{})
		require.NoError(t, err)
		require.Equal(t, 2500, n)
	})
}

// idOfAge returns SQL for the id of a delivery that was created the interval ago.
func idOfAge(interval string) string {
	return `(lpad(to_hex((extract(epoch FROM now() - ` + interval + `) * 1000)::bigint), 12, '0') || '7' || right(md5(random()::text), 19))::uuid`
}

func TestPurge_DeletesOldDeliveredRows(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		box := db.outbox()
		db.insert(t, "id, target, subject, revision, payload, state, created_at",
			idOfAge("age * interval '1 h'")+`, 'here', md5(state || age || n)::uuid, 1, '{}', state, now() - age * interval '1 h'
			FROM generate_series(1, 1100) n, unnest(ARRAY['due', 'delivered', 'dead_letter']) state, unnest(ARRAY[1, 3]) age`)
		n, err := box.Purge(t.Context(), 2*time.Hour)
		require.NoError(t, err)
		require.Equal(t, 1100, n)
		var left int
		require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM deliveries").Scan(&left))
		require.Equal(t, 5*1100, left)
		require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM deliveries WHERE state = 'delivered' AND created_at < now() - interval '2 h'").Scan(&left))
		require.Zero(t, left)
	})
}

func TestRun_ReportsCountsPurgesAndEndsOrphans(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		r := newReceiver(t, nil)
		old, orphan, young := newTx(t), newTx(t), newTx(t)
		change(t, db, old, 1, "here")
		write(t, db, "UPDATE deliveries SET state = 'delivered', id = "+idOfAge("interval '4 days'"))
		change(t, db, orphan, 1, "former")
		write(t, db, "UPDATE deliveries SET next_at = now() - interval '25 h' WHERE target = 'former'")
		change(t, db, young, 1, "former")
		cfg := settings(r.target("here"))
		reg := prometheus.NewRegistry()
		cfg.Metrics = NewMetrics(reg)
		cfg.tuning.maintenanceInterval = 10 * time.Millisecond
		run(t, db, cfg)
		eventually(t, "the orphan becomes a dead letter", func() bool { return only(t, db, orphan, 1).State == DeadLetter })
		require.Equal(t, Due, only(t, db, young, 1).State)
		list, err := db.outbox().List(t.Context(), Filter{Transaction: old})
		require.NoError(t, err)
		require.Empty(t, list)
		eventually(t, "it shows", func() bool {
			return gauge(t, reg, "rollcall_webhook_due", "former") == 1 && gauge(t, reg, "rollcall_webhook_dead_letters", "former") == 1
		})
	})
}

// gauge returns a metric of a target; -1 if there is none.
func gauge(t testing.TB, reg *prometheus.Registry, name, target string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == target {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// With KeepNone all delivered rows are deleted: new ones, and those that an earlier configuration kept.
func TestRun_KeepNone_DeletesDelivered(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		r := newReceiver(t, nil)
		kept, fresh, gone := newTx(t), newTx(t), newTx(t)
		change(t, db, kept, 1, "here", "there")
		write(t, db, "UPDATE deliveries SET state = 'delivered', delivered_at = now() WHERE target = 'here'")
		write(t, db, "UPDATE deliveries SET state = 'dead_letter' WHERE target = 'there'")
		for revision := range 3 {
			change(t, db, fresh, revision+1, "here")
		}
		change(t, db, gone, 1, "former")
		cfg := settings(r.target("here"))
		cfg.Retention = KeepNone
		d, _ := run(t, db, cfg)
		for i, got := range r.waitTaken(3) {
			require.Equal(t, fresh.String(), got.Payload.ID)
			require.Equal(t, i+1, got.Payload.Revision)
		}
		eventually(t, "only what is not delivered is left", func() bool {
			list, err := d.List(t.Context(), Filter{})
			return err == nil && len(list) == 2 && list[0].State == DeadLetter && list[1].State == Due
		})
	})
}

func TestOrphans_OnlyTheyBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		id := newTx(t)
		change(t, db, id, 1, "here", "former")
		write(t, db, "UPDATE deliveries SET next_at = now() - interval '25 h'")
		box := db.outbox()
		n, err := box.deadLetterOrphans(t.Context(), []string{"here"}, 24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		list, err := box.List(t.Context(), Filter{State: DeadLetter})
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, "former", list[0].Target)
	})
}

func TestCounts_ReportTheOldest(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		change(t, db, newTx(t), 1, "here", "there")
		write(t, db, "UPDATE deliveries SET created_at = now() - interval '1 h' WHERE target = 'here'")
		change(t, db, newTx(t), 1, "here")
		write(t, db, "UPDATE deliveries SET state = 'dead_letter' WHERE target = 'there'")
		counts, err := db.outbox().Counts(t.Context())
		require.NoError(t, err)
		require.Len(t, counts, 2)
		require.InDelta(t, time.Hour, counts[0].OldestDue, float64(time.Minute))
		counts[0].OldestDue = 0
		require.Equal(t, []Count{{Target: "here", Due: 2}, {Target: "there", DeadLetters: 1}}, counts)
	})
}
