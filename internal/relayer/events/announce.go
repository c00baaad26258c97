package events

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Announce writes an event of a relayer, a [RelayerDisabled] or a [RelayerEnabled], for each of the targets. The event
// belongs to tx: it is delivered if and when tx commits. Events of one relayer are delivered in their order. For that,
// each call holds a lock of the relayer until tx ends.
func (p Pool) Announce(ctx context.Context, tx pgx.Tx, targets []string, relayerID string, payload any) error {
	switch event := payload.(type) {
	case RelayerDisabled:
		event.PayloadType = "relayer_disabled"
		payload = event
	case RelayerEnabled:
		event.PayloadType = "relayer_enabled"
		payload = event
	default:
		return fmt.Errorf("announce %T: it is no event of a relayer", payload)
	}
	encoded, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("announce a relayer's event: %w", err)
	}
	// One address is a relayer on each of several chains.
	subject := uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "%d/%s/%s", p.ChainID, p.ID, relayerID))
	batch := new(pgx.Batch)
	batch.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('relayer_deliveries ' || $1::uuid, 0))`, subject)
	// A separate statement, because it must see the rows of the transaction that held the lock.
	batch.Queue(`
		INSERT INTO relayer_deliveries (chain_id, pool_id, target, subject, revision, payload)
		SELECT $1, $2, target, $3, 1 + coalesce(
			(SELECT max(d.revision) FROM relayer_deliveries d WHERE d.subject = $3 AND d.target = t.target), 0), $4
		FROM unnest($5::text[]) AS t(target)`, int64(p.ChainID), p.ID, subject, encoded, targets)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("announce a relayer's event: %w", err)
	}
	return nil
}
