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
	batch.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('relayer_webhooks ' || $1::uuid, 0))`, subject)
	// A separate statement, because it must see the rows of the transaction that held the lock.
	batch.Queue(`
		INSERT INTO relayer_webhooks (lane, subject, about, revision, payload)
		SELECT $1 || target, $2::uuid || '/' || target, $2, 1 + coalesce(
			(SELECT max(e.revision) FROM relayer_webhooks e WHERE e.about = $2 AND e.lane = $1 || target), 0), $3
		FROM unnest($4::text[]) AS t(target)`, p.lanePrefix(), subject, encoded, targets)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("announce a relayer's event: %w", err)
	}
	return nil
}
