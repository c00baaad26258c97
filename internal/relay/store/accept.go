package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relay"
)

// Accepted is the result of accepting one transaction.
type Accepted struct {
	// Transaction is the stored one. For a request that came before it is the earlier one.
	Transaction *relay.Transaction
	// Err is [relay.ErrReused] or [relay.ErrNonceTaken] if the request was not stored. Then Transaction is nil.
	Err error
}

// Accept stores and queues transactions, in one database transaction, and returns a result for each. It fails for all of
// them together; whether something was stored is then for [postgres.Uncertain] to say.
func (s *Store) Accept(ctx context.Context, txs []*relay.Transaction) ([]Accepted, error) {
	stored, err := s.insert(ctx, txs)
	if err != nil {
		return nil, fmt.Errorf("store transactions: %w", err)
	}
	results := make([]Accepted, len(txs))
	for i, tx := range txs {
		if at, ok := stored[tx.ID]; ok {
			tx.Status, tx.Revision, tx.CreatedAt, tx.UpdatedAt = relay.Queued, 1, at, at
			results[i].Transaction = tx
			continue
		}
		results[i].Transaction, results[i].Err = s.earlier(ctx, tx)
	}
	return results, nil
}

// insert stores those of the transactions that conflict with no stored one, and returns the times of their rows.
func (s *Store) insert(ctx context.Context, txs []*relay.Transaction) (map[uuid.UUID]time.Time, error) {
	n := len(txs)
	var (
		ids                                    = make([]uuid.UUID, n)
		clients, kinds, values, speeds, traces = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		clientIDs, keys, forwardNonces         = make([]*string, n), make([]*string, n), make([]*string, n)
		hashes, tos, datas, digests, signers   = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
		limits                                 = make([]int64, n)
		deadlines                              = make([]*int64, n)
	)
	for i, tx := range txs {
		hash, digest := tx.RequestHash(), tx.Digest()
		ids[i], clients[i], kinds[i], values[i] = tx.ID, tx.Client, string(tx.Kind), tx.Value.String()
		speeds[i], traces[i], limits[i] = string(tx.Speed), tx.Traceparent, int64(tx.GasLimit)
		clientIDs[i], keys[i] = orNil(tx.ClientID), orNil(tx.IdempotencyKey)
		hashes[i], tos[i], datas[i], digests[i] = hash[:], tx.To[:], tx.Data, digest[:]
		if datas[i] == nil {
			datas[i] = []byte{}
		}
		if f := tx.Forward; f != nil {
			nonce, deadline := f.Nonce.String(), int64(f.Deadline)
			signers[i], forwardNonces[i], deadlines[i] = f.Signer[:], &nonce, &deadline
		}
	}
	rows, err := s.db.Query(ctx, `WITH changed AS (
			INSERT INTO relay_transactions (id, client, client_id, idempotency_key, request_hash, kind, to_address, value_wei, data, gas_limit,
				speed, digest, signer, forward_nonce, forward_deadline, traceparent, check_at, webhook)
			SELECT a.*, now(), a.client = ANY($17)
			FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $8::numeric[], $9::bytea[],
				$10::bigint[], $11::text[], $12::bytea[], $13::bytea[], $14::numeric[], $15::bigint[], $16::text[])
				AS a (id, client, client_id, idempotency_key, request_hash, kind, to_address, value_wei, data, gas_limit, speed, digest, signer,
				forward_nonce, forward_deadline, traceparent)
			ON CONFLICT DO NOTHING RETURNING *
		), queue AS (`+s.cfg.Enqueue("changed")+`)`+record+` SELECT id, created_at FROM changed`,
		ids, clients, clientIDs, keys, hashes, kinds, tos, values, datas, limits, speeds, digests, signers, forwardNonces,
		deadlines, traces, s.cfg.Targets)
	if err != nil {
		return nil, err
	}
	stored := make(map[uuid.UUID]time.Time, n)
	var id uuid.UUID
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		stored[id] = at
		return nil
	})
	return stored, err
}

// Repeated returns the stored transaction that a request repeats. It fails with [relay.ErrNotFound] if there is none, and with
// [relay.ErrReused] if the id or the key was used with another request.
func (s *Store) Repeated(ctx context.Context, tx *relay.Transaction) (*relay.Transaction, error) {
	if tx.ClientID == "" && tx.IdempotencyKey == "" {
		return nil, relay.ErrNotFound
	}
	found, err := s.earlier(ctx, tx)
	if errors.Is(err, relay.ErrNonceTaken) || errors.Is(err, errGone) {
		return nil, relay.ErrNotFound
	}
	return found, err
}

// errGone means that a conflicting row does not exist any more.
var errGone = errors.New("the transaction conflicts with one that is gone")

// earlier returns the stored transaction that a request repeats, or the reason why it was not stored.
func (s *Store) earlier(ctx context.Context, tx *relay.Transaction) (*relay.Transaction, error) {
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions
		WHERE client = $1 AND (client_id = nullif($2, '') OR idempotency_key = nullif($3, '')) LIMIT 2`, tx.Client, tx.ClientID, tx.IdempotencyKey)
	if err != nil {
		return nil, fmt.Errorf("%w: read the earlier transaction: %w", relay.ErrUnavailable, err)
	}
	hash := tx.RequestHash()
	switch {
	case len(found) == 0 && tx.Forward != nil:
		return nil, relay.ErrNonceTaken
	case len(found) == 0:
		return nil, fmt.Errorf("%w: %w", relay.ErrUnavailable, errGone)
	case len(found) == 2:
		return nil, relay.ErrReused
	}
	if now := found[0].RequestHash(); !bytes.Equal(now[:], hash[:]) {
		return nil, relay.ErrReused
	}
	return found[0], nil
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
