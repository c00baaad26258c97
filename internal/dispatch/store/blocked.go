package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// BlockedReason is the reason of a queued transaction that waits for an operator's decision about another one. The other one may be
// another client's, so the reason does not name it.
const BlockedReason = "waits: an equal call (receiver, value and data) has an unknown outcome at a relayer without idempotency keys, " +
	"and no relayer with them is available. An operator has to resolve that call first"

// ReportBlocked gives a transaction that Begin found [Blocked] the BlockedReason, unless the other call is only being submitted: that
// ends by itself. It reports whether it changed the transaction.
func (s *Store) ReportBlocked(ctx context.Context, id uuid.UUID) (bool, error) {
	var n int
	err := s.db.QueryRow(ctx, `WITH changed AS (
			UPDATE relay_transactions t SET status_reason = $2, revision = revision + 1, updated_at = now()
			WHERE id = $1 AND status = 'queued' AND status_reason <> $2 AND EXISTS (
				SELECT FROM relay_unresolved_calls u JOIN relay_transactions other ON other.id = u.tx
				WHERE u.digest = t.digest AND other.status = 'unknown') RETURNING t.*
		)`+record+` SELECT count(*) FROM changed`, id, BlockedReason).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("report a blocked transaction: %w", err)
	}
	return n > 0, nil
}
