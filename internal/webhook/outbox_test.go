package webhook

import (
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

func write(t testing.TB, db postgres.Beginner, sql string, args ...any) {
	t.Helper()
	require.NoError(t, postgres.InTx(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	}))
}

func TestListGivesEachDeliveryOnceOldestFirst(t *testing.T) {
	t.Parallel()
	db := database(t)
	o := NewOutbox(db, testChain, testPool)
	ids := make([]uuid.UUID, 7)
	for i := range ids {
		ids[i] = newTx(t)
		change(t, db, ids[i], 1, "here", "there")
	}
	write(t, db, "UPDATE relayer_deliveries SET created_at = '2026-01-01' WHERE revision = 1") // those of one claim have one time
	write(t, db, "UPDATE relayer_deliveries SET state = 'dead_letter', last_error = 'no' WHERE target = 'there' AND subject = $1", ids[3])

	var got []Delivery
	seen := map[uuid.UUID]bool{}
	for page := []Delivery(nil); ; {
		f := Filter{Limit: 4}
		if len(page) > 0 {
			f.After = &page[len(page)-1]
		}
		var err error
		page, err = o.List(t.Context(), f)
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
			list, err := o.List(t.Context(), test.filter)
			require.NoError(t, err)
			require.Len(t, list, test.want)
		})
	}
	other, err := NewOutbox(db, testChain, "pool-2").List(t.Context(), Filter{})
	require.NoError(t, err)
	require.Empty(t, other)
}

func TestReplay_DeadLettersAndNamedDeliveries(t *testing.T) {
	t.Parallel()
	db := database(t)
	o := NewOutbox(db, testChain, testPool)
	due, delivered, dead := newTx(t), newTx(t), newTx(t)
	for _, id := range []uuid.UUID{due, delivered, dead} {
		change(t, db, id, 1, "here", "there")
	}
	reset := func() {
		write(t, db, "UPDATE relayer_deliveries SET state = 'due', attempts = 3, next_at = now() + interval '1 h', claimant = gen_random_uuid()")
		write(t, db, "UPDATE relayer_deliveries SET state = 'delivered', delivered_at = now() WHERE subject = $1", delivered)
		write(t, db, "UPDATE relayer_deliveries SET state = 'dead_letter' WHERE subject = $1", dead)
	}
	all, err := o.List(t.Context(), Filter{Target: "here"})
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
		"unknown id":           {Filter{IDs: []uuid.UUID{uuid.New()}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reset()
			n, err := o.Replay(t.Context(), test.filter)
			require.NoError(t, err)
			require.Equal(t, test.want, n)
			fresh, err := o.List(t.Context(), Filter{State: Due})
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
}

func TestReplayOfMoreThanAChunk(t *testing.T) {
	t.Parallel()
	db := database(t)
	write(t, db, `INSERT INTO relayer_deliveries (chain_id, pool_id, target, subject, revision, payload, state)
		SELECT $1, $2, 'here', md5(n::text)::uuid, 1, '{}', 'dead_letter' FROM generate_series(1, 2500) n`, testChain, testPool)
	n, err := NewOutbox(db, testChain, testPool).Replay(t.Context(), Filter{})
	require.NoError(t, err)
	require.Equal(t, 2500, n)
}

// idOfAge returns SQL for the id of a delivery that was created the interval ago.
func idOfAge(interval string) string {
	return `(lpad(to_hex((extract(epoch FROM now() - ` + interval + `) * 1000)::bigint), 12, '0') || '7' || right(md5(random()::text), 19))::uuid`
}

func TestPurgeRemovesWhatIsDeliveredAndOld(t *testing.T) {
	t.Parallel()
	db := database(t)
	o := NewOutbox(db, testChain, testPool)
	write(t, db, `INSERT INTO relayer_deliveries (id, chain_id, pool_id, target, subject, revision, payload, state, created_at)
		SELECT `+idOfAge("age * interval '1 h'")+`, $1, $2, 'here', md5(state || age || n)::uuid, 1, '{}', state, now() - age * interval '1 h'
		FROM generate_series(1, 1100) n, unnest(ARRAY['due', 'delivered', 'dead_letter']) state, unnest(ARRAY[1, 3]) age`, testChain, testPool)
	n, err := o.Purge(t.Context(), 2*time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1100, n)
	var left int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM relayer_deliveries").Scan(&left))
	require.Equal(t, 5*1100, left)
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM relayer_deliveries WHERE state = 'delivered' AND created_at < now() - interval '2 h'").Scan(&left))
	require.Zero(t, left)
}

func TestRunShowsCountsPurgesAndParksOrphans(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	old, orphan, young := newTx(t), newTx(t), newTx(t)
	change(t, db, old, 1, "here")
	write(t, db, "UPDATE relayer_deliveries SET state = 'delivered', id = "+idOfAge("interval '4 days'"))
	change(t, db, orphan, 1, "former")
	write(t, db, "UPDATE relayer_deliveries SET next_at = now() - interval '25 h' WHERE target = 'former'")
	change(t, db, young, 1, "former")
	cfg := settings(r.target("here"))
	reg := prometheus.NewRegistry()
	cfg.Metrics = NewMetrics(reg)
	cfg.tuning.maintenanceInterval = 10 * time.Millisecond
	run(t, db, cfg)
	eventually(t, "the orphan becomes a dead letter", func() bool { return only(t, db, orphan, 1).State == DeadLetter })
	require.Equal(t, Due, only(t, db, young, 1).State)
	list, err := NewOutbox(db, testChain, testPool).List(t.Context(), Filter{Transaction: old})
	require.NoError(t, err)
	require.Empty(t, list)
	eventually(t, "it shows", func() bool {
		return gauge(t, reg, "rollcall_webhook_due", "former") == 1 && gauge(t, reg, "rollcall_webhook_dead_letters", "former") == 1
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
func TestKeepNoneDeletesWhatIsDelivered(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	kept, fresh, gone := newTx(t), newTx(t), newTx(t)
	change(t, db, kept, 1, "here", "there")
	write(t, db, "UPDATE relayer_deliveries SET state = 'delivered', delivered_at = now() WHERE target = 'here'")
	write(t, db, "UPDATE relayer_deliveries SET state = 'dead_letter' WHERE target = 'there'")
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
}

// A replayed delivery has the body of the first one, whatever has happened to its transaction since.
func TestADeliveredWebhookIsReplayedAsItWas(t *testing.T) {
	t.Parallel()
	db := database(t)
	l := store.New(db, store.Config{ChainID: testChain, Pool: testPool, Targets: []string{"here"}})
	tx := accepted(t, l, relayer.Request{To: new(common.HexToAddress("0x0a")), Value: big.NewInt(3), Data: []byte{7}, GasLimit: 21_000, Speed: relayer.Fast})
	_, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	sent(t, l, signed(tx, 1, relayer.PurposeSend))
	d := claimer(t, db, nil)
	bodies := func() (all []string) {
		claims := claimAll(t, d)
		var settled []deliveryResult
		for _, c := range claims {
			body, err := c.body(time.Unix(1, 0))
			require.NoError(t, err)
			all = append(all, string(body))
			settled = append(settled, deliveryResult{claim: c, verdict: delivered})
		}
		_, _, _, err := d.syncBatch(t.Context(), settled, nil)
		require.NoError(t, err)
		return all
	}
	first := bodies()
	require.Len(t, first, 1)
	require.Contains(t, first[0], `"nonce":0`)
	// Another sender's transaction uses the nonce, and the row returns to the queue.
	displaced, err := l.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), store.Block{Number: 3, Hash: common.HexToHash("0x03")})
	require.NoError(t, err)
	require.True(t, displaced)
	second := bodies()
	require.Len(t, second, 1)
	require.Contains(t, second[0], `"nonce":null`)

	list, err := d.List(t.Context(), Filter{Transaction: tx.ID})
	require.NoError(t, err)
	require.Len(t, list, 2)
	n, err := d.Replay(t.Context(), Filter{IDs: []uuid.UUID{list[0].ID}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, first, bodies())
}

func TestOrphans_OnlyTheyBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	db := database(t)
	id := newTx(t)
	change(t, db, id, 1, "here", "former")
	write(t, db, "UPDATE relayer_deliveries SET next_at = now() - interval '25 h'")
	o := NewOutbox(db, testChain, testPool)
	n, err := o.deadLetterOrphans(t.Context(), []string{"here"}, 24*time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	list, err := o.List(t.Context(), Filter{State: DeadLetter})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "former", list[0].Target)
}

func TestCountsTellTheOldest(t *testing.T) {
	t.Parallel()
	db := database(t)
	change(t, db, newTx(t), 1, "here", "there")
	write(t, db, "UPDATE relayer_deliveries SET created_at = now() - interval '1 h' WHERE target = 'here'")
	change(t, db, newTx(t), 1, "here")
	write(t, db, "UPDATE relayer_deliveries SET state = 'dead_letter' WHERE target = 'there'")
	counts, err := NewOutbox(db, testChain, testPool).Counts(t.Context())
	require.NoError(t, err)
	require.Len(t, counts, 2)
	require.InDelta(t, time.Hour, counts[0].OldestDue, float64(time.Minute))
	counts[0].OldestDue = 0
	require.Equal(t, []Count{{Target: "here", Due: 2}, {Target: "there", DeadLetters: 1}}, counts)
}

func TestARelayersEventsAreDeliveredInOrder(t *testing.T) {
	t.Parallel()
	db := database(t)
	r := newReceiver(t, nil)
	cfg := settings(r.target("here"))
	o := NewOutbox(db, testChain, testPool)
	key := openzeppelin.Relayer{ID: "0xaa", Name: "東京", Network: "dev", NetworkType: "evm", SystemDisabled: new(true)}
	for n := range uint32(3) {
		require.NoError(t, postgres.InTx(t.Context(), db, func(tx pgx.Tx) error {
			if err := o.Announce(t.Context(), tx, []string{"here"}, "0xaa", RelayerDisabled{Relayer: key, DisableReason: "low balance"}); err != nil {
				return err
			}
			return o.Announce(t.Context(), tx, []string{"here"}, "0xaa", RelayerEnabled{Relayer: key, RetryCount: n})
		}))
	}
	// A rolled back event is not delivered.
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, o.Announce(t.Context(), tx, []string{"here"}, "0xaa", RelayerEnabled{}))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Error(t, o.Announce(t.Context(), tx, []string{"here"}, "0xaa", "anything"))

	run(t, db, cfg)
	taken := r.waitTaken(6)
	shown, err := json.Marshal(key)
	require.NoError(t, err)
	for i, got := range taken {
		var body struct{ Payload, Event json.RawMessage }
		require.NoError(t, json.Unmarshal(got.body, &body))
		require.JSONEq(t, `"relayer_state_update"`, string(body.Event))
		if i%2 == 0 {
			require.JSONEq(t, `{"payload_type":"relayer_disabled","relayer":`+string(shown)+`,"disable_reason":"low balance"}`, string(body.Payload))
		} else {
			require.JSONEq(t, `{"payload_type":"relayer_enabled","relayer":`+string(shown)+`,"retry_count":`+string(rune('0'+i/2))+`}`, string(body.Payload))
		}
	}
}
