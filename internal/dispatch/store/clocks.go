package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RecordClocks stores how far the clocks of relayers are ahead, by the ids of their services. It forgets those of relayers that were
// not measured for a day.
func (s *Store) RecordClocks(ctx context.Context, ahead map[string]time.Duration) error {
	relayers, offsets := make([]string, 0, len(ahead)), make([]time.Duration, 0, len(ahead))
	for relayer, d := range ahead {
		relayers, offsets = append(relayers, relayer), append(offsets, d)
	}
	_, err := s.db.Exec(ctx, `WITH forgotten AS (DELETE FROM relay_relayer_clocks WHERE measured_at < now() - interval '1 day' AND relayer <> ALL($1))
		INSERT INTO relay_relayer_clocks (relayer, ahead) SELECT * FROM unnest($1::text[], $2::interval[]) AS a (relayer, ahead) ORDER BY relayer
		ON CONFLICT (relayer) DO UPDATE SET ahead = excluded.ahead, measured_at = now()`, relayers, offsets)
	if err != nil {
		return fmt.Errorf("record the relayers' clocks: %w", err)
	}
	return nil
}

// measured is the condition that a row of a relayer's clock counts. A webhook that was recorded must not be valid for ever because its
// relayer sends a wrong Date.
func measured(clock string) string {
	return clock + `.measured_at > now() - interval '1 hour' AND ` + clock + `.ahead BETWEEN '-1 day' AND '1 day'`
}

// Sender is a relayer that may have sent a webhook.
type Sender struct {
	Relayer string        // the id of its service
	Ahead   time.Duration // of its clock; 0 if it was not measured within the last hour, or is off by more than a day
}

// maxSenders bounds the relayers that have given one id.
const maxSenders = 10

// Senders returns the relayers that have accepted a transaction under an id.
func (s *Store) Senders(ctx context.Context, relayerTx string) ([]Sender, error) {
	rows, err := s.db.Query(ctx, `SELECT DISTINCT t.relayer, coalesce(c.ahead, '0') AS ahead
		FROM relay_transactions t LEFT JOIN relay_relayer_clocks c ON c.relayer = t.relayer AND `+measured("c")+`
		WHERE t.relayer_tx = $1 LIMIT $2`, relayerTx, maxSenders)
	if err != nil {
		return nil, fmt.Errorf("read a webhook's sender: %w", err)
	}
	senders, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Sender])
	if err != nil {
		return nil, fmt.Errorf("read a webhook's sender: %w", err)
	}
	return senders, nil
}
