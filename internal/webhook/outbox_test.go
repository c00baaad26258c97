package webhook

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
)

func TestList_EachDeliveryOnce_OldestFirst(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		box := db.letters(t)
		ids := make([]uuid.UUID, 7)
		for i := range ids {
			ids[i] = newTx(t)
			change(t, db, ids[i], 1, "here", "there")
		}
		write(t, db, "UPDATE deliveries SET created_at = '2026-01-01' WHERE revision = 1") // those of one claim have one time
		write(t, db, "UPDATE deliveries SET state = 'dead', settled_at = now(), reason = 'no' WHERE lane = $1 AND about = $2", db.lane("there"), ids[3])

		var got []deadletter.Letter
		seen := map[string]bool{}
		for page := []deadletter.Letter(nil); ; {
			f := deadletter.Filter{Limit: 4}
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
			filter deadletter.Filter
			want   int
		}{
			"target":              {deadletter.Filter{To: "here"}, 7},
			"state":               {deadletter.Filter{State: outbox.Dead}, 1},
			"transaction":         {deadletter.Filter{Transaction: ids[3]}, 2},
			"target and state":    {deadletter.Filter{To: "here", State: outbox.Dead}, 0},
			"ids":                 {deadletter.Filter{IDs: []string{got[0].ID, got[5].ID, uuid.NewString()}}, 2},
			"another transaction": {deadletter.Filter{Transaction: uuid.New()}, 0},
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
		box := db.letters(t)
		due, delivered, dead := newTx(t), newTx(t), newTx(t)
		for _, id := range []uuid.UUID{due, delivered, dead} {
			change(t, db, id, 1, "here", "there")
		}
		reset := func() {
			write(t, db, "UPDATE deliveries SET state = 'waiting', attempts = 3, due_at = now() + interval '1 h', settled_at = now()")
			write(t, db, "UPDATE deliveries SET state = 'done' WHERE about = $1", delivered)
			write(t, db, "UPDATE deliveries SET state = 'dead' WHERE about = $1", dead)
		}
		all, err := box.List(t.Context(), deadletter.Filter{To: "here"})
		require.NoError(t, err)
		var ids []string
		for _, d := range all {
			ids = append(ids, d.ID)
		}
		for name, test := range map[string]struct {
			filter deadletter.Filter
			want   int
		}{
			"everything":           {deadletter.Filter{}, 2},
			"one target":           {deadletter.Filter{To: "here"}, 1},
			"delivered, not named": {deadletter.Filter{State: outbox.Done}, 0},
			"by id":                {deadletter.Filter{IDs: ids}, 2}, // a due delivery may be in flight
			"by id and dead":       {deadletter.Filter{IDs: ids, State: outbox.Dead}, 1},
			"by transaction":       {deadletter.Filter{Transaction: dead}, 2},
			"of a due transaction": {deadletter.Filter{Transaction: due}, 0},
			"of a delivered one":   {deadletter.Filter{Transaction: delivered}, 0},
			"of an unknown one":    {deadletter.Filter{Transaction: uuid.New()}, 0},
			"of an unknown target": {deadletter.Filter{To: "elsewhere"}, 0},
			"since the first":      {deadletter.Filter{Since: all[0].CreatedAt.Time}, 2},
			"until the first":      {deadletter.Filter{Until: all[0].CreatedAt.Time}, 0},
			"within an hour":       {deadletter.Filter{To: "there", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, 1},
			"of later changes":     {deadletter.Filter{Since: time.Now().Add(time.Hour)}, 0},
			"unknown id":           {deadletter.Filter{IDs: []string{uuid.NewString()}}, 0},
		} {
			t.Run(name, func(t *testing.T) {
				reset()
				n, err := box.Replay(t.Context(), test.filter)
				require.NoError(t, err)
				require.Equal(t, test.want, n)
				fresh, err := box.List(t.Context(), deadletter.Filter{State: outbox.Waiting})
				require.NoError(t, err)
				replayed := 0
				for _, d := range fresh {
					if !d.DueAt.After(time.Now()) {
						replayed++
					}
				}
				require.Equal(t, test.want, replayed)
			})
		}
	})
}

func TestRun_ReportsCountsPurgesAndEndsOrphans(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		r := newReceiver(t, nil)
		old, orphan, young := newTx(t), newTx(t), newTx(t)
		change(t, db, old, 1, "here")
		write(t, db, "UPDATE deliveries SET state = 'done', created_at = now() - interval '4 days', settled_at = now() - interval '4 days'")
		change(t, db, orphan, 1, "former")
		write(t, db, "UPDATE deliveries SET created_at = now() - interval '25 h', due_at = now() - interval '25 h' WHERE about = $1", orphan)
		change(t, db, young, 1, "former")
		cfg := settings(r.target("here"))
		reg := prometheus.NewRegistry()
		cfg.Metrics = NewMetrics(reg)
		run(t, db, cfg)
		eventually(t, "the orphan becomes a dead letter", func() bool { return only(t, db, orphan, 1).State == outbox.Dead })
		require.Equal(t, outbox.Waiting, only(t, db, young, 1).State)
		eventually(t, "the old one is purged", func() bool {
			list, err := db.letters(t).List(t.Context(), deadletter.Filter{Transaction: old})
			return err == nil && len(list) == 0
		})
		eventually(t, "it shows", func() bool {
			return value(t, reg, "rollcall_webhook_due", "former") == 1 && value(t, reg, "rollcall_webhook_dead_letters", "former") == 1
		})
	})
}

// value returns a gauge or a counter of a target; -1 if there is none.
func value(t testing.TB, reg *prometheus.Registry, name, target string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == target {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
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
		write(t, db, "UPDATE deliveries SET state = 'done', settled_at = now() WHERE lane = $1", db.lane("here"))
		write(t, db, "UPDATE deliveries SET state = 'dead', settled_at = now() WHERE lane = $1", db.lane("there"))
		for revision := range 3 {
			change(t, db, fresh, revision+1, "here")
		}
		change(t, db, gone, 1, "former")
		cfg := settings(r.target("here"))
		cfg.Retention = KeepNone
		run(t, db, cfg)
		for i, got := range r.waitTaken(3) {
			require.Equal(t, fresh.String(), got.Payload.ID)
			require.Equal(t, i+1, got.Payload.Revision)
		}
		eventually(t, "only what is not delivered is left", func() bool {
			list, err := db.letters(t).List(t.Context(), deadletter.Filter{})
			return err == nil && len(list) == 2 && list[0].State == outbox.Dead && list[1].State == outbox.Waiting
		})
	})
}
