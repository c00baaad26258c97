package store

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// StoreAttempts stores signed bytes and reports for each attempt whether it was stored. It does not store an attempt if
// another process has stored that number. Nor does it if the transaction no longer has that nonce, or is final. Only stored
// bytes may be broadcasted, and they count as possibly sent from here on. An unknown outcome counts as not stored: Unsent
// finds the bytes. A second or later attempt sets the transaction's status to unknown until a node responds to it.
// Responses to earlier attempts no longer count.
func (s *Store) StoreAttempts(ctx context.Context, attempts []*relayer.Attempt) (stored []bool, err error) {
	return s.storeAttempts(ctx, s.db, attempts)
}

func (s *Store) storeAttempts(ctx context.Context, db querier, attempts []*relayer.Attempt) (stored []bool, err error) {
	n := len(attempts)
	rows := make([]*relayer.AttemptRow, n)
	for i, a := range attempts {
		rows[i] = a.Row()
	}
	// The rows are locked. Otherwise a row that loses its nonce or its chain at this moment would have bytes that no
	// process may broadcast. The change to unknown is not delivered to webhooks now, but with the first response to the
	// bytes. The attempt number keeps late responses to earlier bytes out.
	found, err := db.Query(ctx, `WITH held AS MATERIALIZED (
			SELECT id, relayer_address, nonce FROM relayer_txs WHERE id = ANY($2) AND open ORDER BY relayer_address, nonce FOR UPDATE
		), stored AS (
		INSERT INTO relayer_attempts (`+newAttempt.names()+`, chain_id) SELECT r.*, $1
		FROM `+newAttempt.rows(2)+` JOIN held ON (held.id, held.relayer_address, held.nonce) = (r.tx_id, r.address, r.nonce)
		ON CONFLICT DO NOTHING RETURNING tx_id, attempt, tx_hash
		), unsent AS (
			UPDATE relayer_txs t SET status = CASE WHEN t.status = 'broadcasted' THEN 'unknown' ELSE t.status END, status_reason = '',
				attempts = s.attempt, updated_at = now()
			FROM stored s WHERE s.attempt > 1 AND t.id = s.tx_id AND t.status <> 'mined'
		) SELECT tx_hash FROM stored`,
		append([]any{s.ChainID}, arrays(newAttempt, rows...)...)...) // the first array has the transactions' ids
	if err != nil {
		return nil, fmt.Errorf("store %d attempts: %w", n, err)
	}
	won := make(map[string]bool, n)
	var hash string
	if _, err := pgx.ForEachRow(found, []any{&hash}, func() error { won[hash] = true; return nil }); err != nil {
		return nil, fmt.Errorf("store %d attempts: %w", n, err)
	}
	stored = make([]bool, n)
	for i, row := range rows {
		stored[i] = won[row.Hash]
	}
	return stored, nil
}

// Broadcast is the nodes' response to an attempt.
type Broadcast struct {
	TxID   uuid.UUID
	Number int
	From   common.Address
	Nonce  uint64
	Hash   common.Hash
	// Status is relayer.Broadcasted, relayer.Unknown, or relayer.Allocated if no node accepted it.
	Status relayer.Status
	Error  string // of the nodes; "" for none
	// Pause is how long the attempt is not sent again. It doubles for each earlier send, up to MaxPause. An attempt that is
	// accepted before its last pause is over starts again with the first pause. Pause is zero for an attempt that was
	// accepted at its first send, whose row stays unchanged.
	Pause, MaxPause time.Duration
}

// RecordBroadcasts stores the results of broadcasts. It skips rows that are mined or final by now, and rows with another
// nonce. A late result about bytes that no longer count would make them look sent.
func (s *Store) RecordBroadcasts(ctx context.Context, broadcasts []Broadcast) error {
	n := len(broadcasts)
	ids, numbers, hashes := make([][16]byte, n), make([]int32, n), make([]string, n)
	statuses, errs := make([]string, n), make([]string, n)
	addresses, nonces := make([]string, n), make([]int64, n)
	var paused pauses
	for i, b := range broadcasts {
		addresses[i], nonces[i] = hexAddress(b.From), int64(b.Nonce)
		ids[i], numbers[i], hashes[i], statuses[i], errs[i] = b.TxID, int32(b.Number), b.Hash.Hex(), string(b.Status), b.Error
		paused.add(b)
	}
	batch, counts := relaxed(), statusCounts{}
	// A bump changes the hash and not the status. Webhook targets receive that as well, because they may look the hash up.
	batch.Queue(`WITH held AS MATERIALIZED (
		SELECT id FROM relayer_txs WHERE id = ANY($2) AND open AND status IN ('allocated', 'broadcasted', 'unknown') ORDER BY relayer_address, nonce FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET status = v.status, status_reason = v.error, tx_hash = v.hash, attempts = v.number,
			sent_at = CASE WHEN v.status = 'allocated' THEN t.sent_at ELSE coalesce(t.sent_at, now()) END,
			revision = revision + 1, updated_at = now()
		FROM unnest($2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[])
			AS v (id, number, hash, status, error, address, nonce) JOIN held ON held.id = v.id
		WHERE t.id = held.id AND t.relayer_address = v.address AND t.nonce = v.nonce AND t.open AND t.status IN ('allocated', 'broadcasted', 'unknown') AND v.number >= t.attempts
			AND (t.status, t.status_reason, t.attempts) IS DISTINCT FROM (v.status, v.error, v.number)
			AND NOT (t.status = 'broadcasted' AND v.status <> 'broadcasted' AND t.attempts = v.number)
		RETURNING t.*)`+enqueueDeliveriesSQL+statusCountsSQL, s.targets(), ids, numbers, hashes, statuses, errs, addresses, nonces).Query(counts.read)
	paused.queue(batch)
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("record %d broadcasts: %w", n, err)
	}
	s.notifyDeliveries()
	s.recordStatusCounts(counts)
	return nil
}

// pauses are the attempts that must not be sent again for a while.
type pauses struct {
	ids         [][16]byte
	numbers     []int32
	errs        []string
	first, most []int64 // milliseconds: the first pause and the longest
}

func (p *pauses) add(b Broadcast) {
	if b.Pause == 0 && b.Error == "" {
		return
	}
	p.ids, p.numbers, p.errs = append(p.ids, b.TxID), append(p.numbers, int32(b.Number)), append(p.errs, b.Error)
	p.first, p.most = append(p.first, b.Pause.Milliseconds()), append(p.most, b.MaxPause.Milliseconds())
}

// queue adds the update. A pause that ended long ago does not count, because it had another reason. Nor does a pause during
// which a node accepted the attempt. The tracker sends that early after a lower nonce was mined, which made room in the
// node's pool.
func (p *pauses) queue(b *pgx.Batch) {
	if len(p.ids) == 0 {
		return
	}
	const over = `a.next_send_at < now() - 2 * v.most OR a.next_send_at > now() AND v.error = ''`
	b.Queue(`UPDATE relayer_attempts a SET last_error = v.error,
			resends = CASE WHEN `+over+` THEN 1 ELSE a.resends + 1 END,
			next_send_at = now() + least(v.most, v.first * power(2, CASE WHEN `+over+` THEN 0 ELSE least(a.resends, 30) END))
		FROM (SELECT id, number, error, first * interval '1 millisecond' AS first, most * interval '1 millisecond' AS most
			FROM unnest($1::uuid[], $2::int[], $3::text[], $4::bigint[], $5::bigint[]) AS u (id, number, error, first, most)) AS v
		WHERE a.tx_id = v.id AND a.attempt = v.number`, p.ids, p.numbers, p.errs, p.first, p.most)
}

// Attempts returns all attempts signed for a transaction, the first one first.
func (s *Store) Attempts(ctx context.Context, id uuid.UUID) ([]*relayer.Attempt, error) {
	return s.listAttempts(ctx, "read attempts", selectAttempts+` WHERE tx_id = $1 ORDER BY attempt`, id)
}

func (s *Store) listAttempts(ctx context.Context, doing, query string, args ...any) ([]*relayer.Attempt, error) {
	return collect(ctx, s.db, doing, scanAttempt, query, args...)
}

// HasHash reports whether a hash was signed for a transaction other than the given one, in the chain's current generation.
func (s *Store) HasHash(ctx context.Context, hash common.Hash, except uuid.UUID) (has bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_attempts a JOIN relayer_txs t ON t.id = a.tx_id
		WHERE a.tx_hash = $2 AND a.tx_id <> $3 AND a.chain_id = $1 AND t.generation = `+generationSQL("$1")+`)`, s.ChainID, hash.Hex(), except).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for another transaction with hash %s: %w", hash, err)
	}
	return has, nil
}

var selectAttempts = `SELECT ` + relayer.SelectList[relayer.AttemptRow]("a", nil) + `, coalesce(a.next_send_at > now(), false) AS paused FROM relayer_attempts a`
