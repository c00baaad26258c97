package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// MaxNonce is the highest nonce that a key is moved to. No account has as many transactions.
const MaxNonce = 1 << 53

// RequireComparison makes the store allocate no nonce of a key before [Store.Compared] has recorded a comparison that began
// after this process registered. Requests are queued meanwhile.
func (s *Store) RequireComparison() {
	s.registered.CompareAndSwap(nil, new(time.Time))
}

// comparedSince returns the time since which a key must have been compared to be used.
func (s *Store) comparedSince() pgtype.Timestamptz {
	since := s.registered.Load()
	switch {
	case since == nil:
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}
	case since.IsZero(): // not registered yet
		return pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}
	default:
		return pgtype.Timestamptz{Valid: true, Time: *since}
	}
}

// Trusts reports whether nonces of a key may be allocated, as far as comparisons are concerned.
func (s *Store) Trusts(k *relayer.Key) bool {
	since := s.registered.Load()
	return since == nil || !since.IsZero() && !k.ComparedAt.Before(*since)
}

// Compared records that a round that began at the given time compared keys with the chain of the given generation. In
// another generation it does nothing.
func (s *Store) Compared(ctx context.Context, keys []common.Address, known int, at time.Time) error {
	_, err := s.db.Exec(ctx, `UPDATE relayer_keys k SET compared_at = $4
		FROM (SELECT address FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE) AS locked
		WHERE k.chain_id = $1 AND k.address = locked.address AND k.compared_at < $4 AND `+generationSQL("$1")+` = $5`,
		s.ChainID, s.Pool, hexAddresses(keys), at, known)
	if err != nil {
		return fmt.Errorf("record that keys were compared: %w", err)
	}
	return nil
}

// AdvanceNonce moves a key's next nonce up to the chain's, because another sender has used the key. It never moves it down.
// It reports whether it moved. next belongs to the chain of the given generation; in another generation it does nothing.
func (s *Store) AdvanceNonce(ctx context.Context, key common.Address, known int, next uint64) (raised bool, err error) {
	if next > MaxNonce {
		return false, fmt.Errorf("raise the nonce of %s: %d is above %d", key, next, uint64(MaxNonce))
	}
	batch := new(pgx.Batch) // one database transaction
	// This is a separate statement, because the next one must see the changes that this one waited for.
	batch.Queue(`SELECT FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 FOR UPDATE`, s.ChainID, s.Pool, hexAddress(key))
	batch.Queue(`UPDATE relayer_keys SET next_nonce = $4, updated_at = now()
		WHERE chain_id = $1 AND pool_id = $2 AND address = $3 AND next_nonce < $4 AND `+generationSQL("$1")+` = $5`,
		s.ChainID, s.Pool, hexAddress(key), int64(next), known).Exec(func(tag pgconn.CommandTag) error {
		raised = tag.RowsAffected() > 0
		return nil
	})
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return false, fmt.Errorf("raise the nonce of %s: %w", key, err)
	}
	return raised, nil
}

// gapRows is how many rows of a key are searched for gaps at once, the lowest first. A gap above them is found later, when
// those are mined.
const gapRows = 5000

// fillLimit bounds how many nonces one call fills.
const fillLimit = 1000

// gap is a range of nonces without rows, both ends included.
type gap struct{ low, high uint64 }

// queueGaps queues the query for the gaps of a key below next_nonce and not below mined, the lowest first. It reads an
// index, and at most gapRows rows however large a gap is.
func (s *Store) queueGaps(b *pgx.Batch, key common.Address, known int, mined uint64, gaps *[]gap) {
	b.Queue(`WITH next AS (
			SELECT next_nonce AS nonce FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 AND next_nonce > $4 AND `+generationSQL("$1")+` = $5
		), used AS (
			SELECT t.nonce FROM relayer_txs t WHERE t.chain_id = $1 AND t.relayer_address = $3 AND t.nonce >= $4 AND t.generation = $5
			ORDER BY t.nonce LIMIT $6
		), edges AS (
			SELECT $4::bigint - 1 AS nonce UNION ALL SELECT nonce FROM used UNION ALL SELECT nonce FROM next WHERE (SELECT count(*) FROM used) < $6
		) SELECT low, high FROM (SELECT nonce + 1 AS low, lead(nonce) OVER (ORDER BY nonce) - 1 AS high FROM edges) AS between
		WHERE high >= low AND EXISTS (SELECT FROM next) ORDER BY low LIMIT $7`,
		s.ChainID, s.Pool, hexAddress(key), int64(mined), known, gapRows, fillLimit).Query(func(rows pgx.Rows) error {
		*gaps = nil
		var g gap
		_, err := pgx.ForEachRow(rows, []any{&g.low, &g.high}, func() error {
			*gaps = append(*gaps, g)
			return nil
		})
		return err
	})
}

// Gap returns how many nonces of a key have no row, below next_nonce and not below mined.
func (s *Store) Gap(ctx context.Context, key common.Address, known int, mined uint64) (missing uint64, err error) {
	var gaps []gap
	b := new(pgx.Batch)
	s.queueGaps(b, key, known, mined, &gaps)
	if err := s.db.SendBatch(ctx, b).Close(); err != nil {
		return 0, fmt.Errorf("find gaps of %s: %w", key, err)
	}
	for _, g := range gaps {
		missing += g.high - g.low + 1
	}
	return missing, nil
}

// ErrFillLimit means that a key has gaps, and that this hour's limit of fills is reached.
var ErrFillLimit = errors.New("no more nonces of the key are filled with no-ops in this hour")

// FillNonceGaps stores no-ops for nonces of a key that have no row, below next_nonce and not below mined. They are then
// signed like every row with a nonce. It returns them, at most fillLimit, and with perHour above 0 at most perHour in an
// hour. At that limit it returns [ErrFillLimit] along with the filled ones. mined belongs to the chain of the given
// generation; in another generation it does nothing.
func (s *Store) FillNonceGaps(ctx context.Context, key common.Address, known int, mined uint64, perHour int) (filled []*relayer.Transaction, err error) {
	if missing, err := s.Gap(ctx, key, known, mined); err != nil || missing == 0 { // without the key's lock
		return nil, err
	}
	var gaps []gap
	var done int
	var now time.Time
	limited := false
	err = s.transaction(ctx, func(b *pgx.Batch) error {
		b.Queue(`SELECT CASE WHEN filled_hour = date_trunc('hour', now()) THEN filled ELSE 0 END, clock_timestamp()
			FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 FOR UPDATE`,
			s.ChainID, s.Pool, hexAddress(key)).QueryRow(func(row pgx.Row) error { return row.Scan(&done, &now) })
		s.queueGaps(b, key, known, mined, &gaps)
		return nil
	}, func(b *pgx.Batch) error {
		filled = nil
		for _, g := range gaps {
			for n := g.low; n <= g.high; n++ {
				if perHour > 0 && done+len(filled) >= perHour {
					limited = true
					break
				}
				if len(filled) == fillLimit {
					break
				}
				tx := s.transactionOf(&NewTransaction{ID: uuid.Must(uuid.NewV7()), Target: hexAddress(key), Kind: relayer.KindNoop}, now)
				tx.From, tx.Nonce, tx.To = key, new(n), new(key)
				tx.Intent = relayer.IntentSend
				filled = append(filled, tx)
			}
		}
		s.insert(b, filled, nil)
		if len(filled) > 0 {
			b.Queue(`UPDATE relayer_keys SET pending_count = pending_count + $4, filled_hour = date_trunc('hour', now()), filled = $5
				WHERE chain_id = $1 AND pool_id = $2 AND address = $3`,
				s.ChainID, s.Pool, hexAddress(key), len(filled), done+len(filled))
		}
		return nil
	}, nil)
	if err == nil && limited {
		return filled, ErrFillLimit
	}
	if err != nil {
		return nil, fmt.Errorf("fill gaps of %s: %w", key, err)
	}
	return filled, nil
}

// NonceUsedError reports a nonce that a key cannot go back below, because a transaction was signed for it or another sender
// has used it.
type NonceUsedError struct {
	Key         common.Address
	Next, Nonce uint64
}

func (e *NonceUsedError) Error() string {
	return fmt.Sprintf("the next nonce of %s cannot be %d: nonce %d may have been sent, and would be used twice; give %d or more", e.Key, e.Next, e.Nonce, e.Nonce+1)
}

// SetNonce moves a key's next nonce up or down and returns the previous one. Rows at or above next for which nothing was
// signed lose their nonce, and callers' transactions are queued again. It fails with a [NonceUsedError] if an attempt at or
// above next was ever stored, or with [ErrChainChanged] in another generation; nothing is changed then.
func (s *Store) SetNonce(ctx context.Context, key common.Address, known int, next uint64) (was uint64, err error) {
	if next > MaxNonce {
		return 0, fmt.Errorf("set the next nonce of %s: %d is above %d", key, next, uint64(MaxNonce))
	}
	used := &NonceUsedError{Key: key, Next: next}
	// There is no index for this query, so it comes before the lock. Attempts stored meanwhile belong to rows that have
	// such a nonce.
	var highest *uint64
	if err := s.db.QueryRow(ctx, `SELECT max(a.nonce) FROM relayer_attempts a JOIN relayer_txs t ON t.id = a.tx_id
		WHERE a.chain_id = $1 AND a.address = $2 AND a.nonce >= $3 AND t.generation = $4`, s.ChainID, hexAddress(key), int64(next), known).Scan(&highest); err != nil {
		return 0, fmt.Errorf("set the next nonce of %s: %w", key, err)
	}
	if highest != nil {
		used.Nonce = *highest
		return 0, used
	}
	counts := statusCounts{}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		// Each statement must see the changes that the previous one waited for.
		batch := new(pgx.Batch)
		batch.Queue(`SELECT next_nonce FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 AND address = $3 AND `+generationSQL("$1")+` = $4 FOR UPDATE`,
			s.ChainID, s.Pool, hexAddress(key), known).QueryRow(func(row pgx.Row) error { return row.Scan(&was) })
		batch.Queue(`SELECT FROM relayer_txs WHERE chain_id = $1 AND relayer_address = $2 AND nonce >= $3 AND generation = $4 ORDER BY nonce FOR UPDATE`,
			s.ChainID, hexAddress(key), int64(next), known)
		batch.Queue(`WITH displaced AS MATERIALIZED (
			SELECT id, chain_id, pool_id, relayer_address, key_budget_day, reserve_wei FROM relayer_txs t
			WHERE t.chain_id = $2 AND t.pool_id = $3 AND t.relayer_address = $4 AND t.nonce >= $5 AND t.generation = $6 AND t.open AND t.status <> 'mined'
				AND NOT EXISTS (SELECT FROM relayer_attempts a WHERE a.tx_id = t.id AND a.nonce = t.nonce AND a.address = t.relayer_address)
		), changed AS (
			UPDATE relayer_txs t SET relayer_address = NULL, nonce = NULL, key_budget_day = NULL,
				status = CASE WHEN t.intent = 'cancel' THEN 'canceled' WHEN t.intent = 'expire' THEN 'expired'
					WHEN t.intent = 'fail' THEN 'failed' WHEN t.kind <> 'transaction' THEN 'replaced' ELSE 'allocated' END,
				open = t.intent = 'send' AND t.kind = 'transaction', status_reason = 'an operator took its nonce back', revision = revision + 1, updated_at = now()
			FROM displaced d WHERE t.id = d.id RETURNING t.*
		), counted AS (SELECT $4::text AS address, -count(*)::int AS n FROM changed)`+refundBudgetSQL+s.updatePendingSQL()+enqueueDeliveriesSQL+statusCountsSQL,
			s.targets(), s.ChainID, s.Pool, hexAddress(key), int64(next), known).Query(counts.read)
		batch.Queue(`SELECT max(nonce) FROM relayer_txs WHERE chain_id = $1 AND relayer_address = $2 AND nonce >= $3 AND generation = $4`,
			s.ChainID, hexAddress(key), int64(next), known).QueryRow(func(row pgx.Row) error { return row.Scan(&highest) })
		batch.Queue(`UPDATE relayer_keys SET next_nonce = $4, updated_at = now() WHERE chain_id = $1 AND pool_id = $2 AND address = $3`,
			s.ChainID, s.Pool, hexAddress(key), int64(next))
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if highest != nil {
			used.Nonce = *highest
			return used
		}
		return nil
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrChainChanged
	}
	if err == error(used) { //nolint:errorlint // returned as is, because it names the key
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("set the next nonce of %s: %w", key, err)
	}
	s.notifyDeliveries()
	s.recordStatusCounts(counts)
	return was, nil
}

// StopJump disables a key for a [relayer.NonceJump]: nodes report count transactions, more than bound beyond the next
// nonce. It reports whether it did. In another generation than the given one, or where the next nonce has caught up, it
// does nothing.
func (s *Store) StopJump(ctx context.Context, key common.Address, known int, count, bound uint64) (stopped bool, err error) {
	count = min(count, MaxNonce)
	tag, err := s.db.Exec(ctx, `UPDATE relayer_keys SET enabled = false, disabled_until = NULL, updated_at = now(),
			disabled_reason = $6 || ': nodes count ' || $4::bigint || ' transactions, and the next nonce is ' || next_nonce
		WHERE chain_id = $1 AND pool_id = $2 AND address = $3 AND next_nonce < $4::bigint - $5::bigint AND `+generationSQL("$1")+` = $7
			AND (enabled OR NOT starts_with(disabled_reason, $6))`,
		s.ChainID, s.Pool, hexAddress(key), int64(count), int64(min(bound, MaxNonce)), relayer.NonceJump, known)
	if err != nil {
		return false, fmt.Errorf("stop key %s: %w", key, err)
	}
	return tag.RowsAffected() > 0, nil
}

// EndJump enables a key again that [Store.StopJump] has disabled, and reports whether it did.
func (s *Store) EndJump(ctx context.Context, key common.Address) (ended bool, err error) {
	tag, err := s.db.Exec(ctx, `UPDATE relayer_keys SET enabled = true, disabled_reason = '', updated_at = now()
		WHERE chain_id = $1 AND pool_id = $2 AND address = $3 AND NOT enabled AND starts_with(disabled_reason, $4)`,
		s.ChainID, s.Pool, hexAddress(key), relayer.NonceJump)
	if err != nil {
		return false, fmt.Errorf("enable key %s: %w", key, err)
	}
	return tag.RowsAffected() > 0, nil
}

// Unknown returns the addresses that are not registered yet.
func (s *Store) Unknown(ctx context.Context, addresses []common.Address) ([]common.Address, error) {
	known, err := s.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(a common.Address) bool { return slices.Contains(known, a) }), nil
}
