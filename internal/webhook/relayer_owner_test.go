package webhook_test

import (
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// The relayer's deliveries have a scope, and their payloads come from other tables. Its package imports this one, so it is
// added from here.
func init() {
	webhook.AddOwner(&webhook.Owner{
		Name:       "relayer",
		Source:     events.Pool{ChainID: 1337, ID: "pool-1"}.Source(),
		Migrations: store.Migrations(),
		Change: `
			WITH changed AS (
				INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, status, revision, value_wei, data, to_address)
				VALUES ($1, 1337, 'pool-1', 'pool-1', 'alice', 'transaction', 'broadcasted', $2, 1, '\x0102',
					'0x00000000000000000000000000000000000000aa')
				ON CONFLICT (id) DO UPDATE SET revision = $2 RETURNING *)
			INSERT INTO deliveries (chain_id, pool_id, target, subject, revision, status, status_reason, tx_attempts, relayer_address,
				nonce, tx_hash, sent_at, confirmed_at)
			SELECT c.chain_id, c.pool_id, t.name, c.id, c.revision, c.status, c.status_reason, c.attempts, decode(substr(c.relayer_address, 3), 'hex'),
				c.nonce, decode(substr(c.tx_hash, 3), 'hex'), c.sent_at, c.confirmed_at
			FROM changed c CROSS JOIN unnest($3::text[]) AS t (name)`,
	})
}
