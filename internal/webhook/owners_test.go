package webhook_test

import (
	"testing"

	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	relayerstore "github.com/rollcall-dev/rollcall/internal/relayer/store"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// The relayer's table holds the deliveries of several pools. Both packages import this one, so they are added from here.
var (
	pool    = events.Pool{ChainID: 1337, ID: "pool-1"}
	clients = webhook.Owner{
		Name:       "clients",
		Source:     store.Webhooks(),
		Letters:    store.WebhookLetters(),
		Migrations: store.Migrations(),
		Change: `
			INSERT INTO deliveries (lane, subject, about, revision, transaction_id, status, status_reason, accepted_at, changed_at)
			SELECT target, $1::uuid || '/' || target, $1, $2::int, $1::text, 'submitted', '', now(), now()
			FROM unnest($3::text[]) AS target`,
	}
	relayers = webhook.Owner{
		Name:       "relayer",
		Source:     pool.Source(),
		Letters:    pool.Letters(),
		Migrations: relayerstore.Migrations(),
		Change: `
			WITH changed AS (
				INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, status, revision, value_wei, data, to_address)
				VALUES ($1, 1337, 'pool-1', 'pool-1', 'alice', 'transaction', 'broadcasted', $2, 1, '\x0102',
					'0x00000000000000000000000000000000000000aa')
				ON CONFLICT (id) DO UPDATE SET revision = $2 RETURNING *)
			INSERT INTO deliveries (lane, subject, about, revision, status, status_reason, tx_attempts, relayer_address,
				nonce, tx_hash, sent_at, confirmed_at)
			SELECT '1337/pool-1/' || t.name, c.id || '/' || t.name, c.id, c.revision, c.status, c.status_reason, c.attempts,
				decode(substr(c.relayer_address, 3), 'hex'), c.nonce, decode(substr(c.tx_hash, 3), 'hex'), c.sent_at, c.confirmed_at
			FROM changed c CROSS JOIN unnest($3::text[]) AS t (name)`,
	}
)

func init() {
	webhook.AddOwner(&clients)
	webhook.AddOwner(&relayers)
}

// The conformance kit takes minutes: make soak runs it.
func TestTables_Conform(t *testing.T) {
	if testing.Short() {
		t.Skip("the kit runs on other tables in short runs")
	}
	t.Parallel()
	for _, o := range []*webhook.Owner{&clients, &relayers} {
		t.Run(o.Name, func(t *testing.T) {
			outboxtest.Run(t, outboxtest.Setup{Table: o.Source.Table, Migrations: []postgres.Migrations{o.Migrations}})
		})
	}
}

// The owners' tables have all columns and indexes of the template that package outbox expects.
func TestTables_HaveTheTemplate(t *testing.T) {
	t.Parallel()
	for _, o := range []*webhook.Owner{&clients, &relayers} {
		t.Run(o.Name, func(t *testing.T) {
			t.Parallel()
			outboxtest.RequireTemplate(t, testpostgres.New(t, testpostgres.Migrated(o.Migrations)).Pool(t), o.Source.Table)
		})
	}
}
