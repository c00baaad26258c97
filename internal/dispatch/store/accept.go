package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// Accepted is the result of accepting one transaction.
type Accepted struct {
	// Transaction is the stored one. For a request that came before it is the earlier one, which has all names of the request by now.
	Transaction *dispatch.Transaction
	// Err is [dispatch.ErrReused] or [dispatch.ErrNonceTaken] if the request was not stored. Then Transaction is nil.
	Err error
}

// Accept stores and queues transactions, in one database transaction, and returns a result for each. It fails for all of
// them together; whether something was stored is then for [postgres.Uncertain] to say.
func (s *Store) Accept(ctx context.Context, txs []*dispatch.Transaction) ([]Accepted, error) {
	stored, err := s.insert(ctx, txs)
	for tries := 1; isCode(err, deadlock) && tries < triesToInsert; tries++ {
		stored, err = s.insert(ctx, txs)
	}
	if err != nil {
		return nil, fmt.Errorf("store transactions: %w", err)
	}
	results := make([]Accepted, len(txs))
	for i, tx := range txs {
		if at, ok := stored[tx.ID]; ok {
			tx.Status, tx.Revision, tx.CreatedAt, tx.UpdatedAt = dispatch.Queued, 1, at, at
			results[i].Transaction = tx
			continue
		}
		results[i].Transaction, results[i].Err = s.earlier(ctx, tx)
	}
	return results, nil
}

// triesToInsert is how often an insert is tried that deadlocks: two batches with the same names wait for one another, in whatever order
// each has its own, because a row waits for all of its names at once. Postgres ends one of them, which has stored nothing.
const triesToInsert = 5

// insert stores those of the transactions that conflict with no stored one, and returns the times of their rows. Unique indexes decide
// about names. The id that a transaction was given is a name, too: its client cannot use it before the row is committed, so that looking
// for it is no race.
func (s *Store) insert(ctx context.Context, txs []*dispatch.Transaction) (map[uuid.UUID]time.Time, error) {
	n := len(txs)
	var (
		ids                                    = make([]uuid.UUID, n)
		given                                  = make([]*uuid.UUID, n)
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
		if id := givenID(tx.ClientID); id != uuid.Nil {
			given[i] = &id
		}
		if datas[i] == nil {
			datas[i] = []byte{}
		}
		if f := tx.Forward; f != nil {
			nonce, deadline := f.Nonce.String(), int64(f.Deadline)
			signers[i], forwardNonces[i], deadlines[i] = f.Signer[:], &nonce, &deadline
		}
	}
	rows, err := s.db.Query(ctx, `WITH given AS MATERIALIZED (
			SELECT client, id FROM relay_transactions WHERE id = ANY($18::uuid[])
		), changed AS (
			INSERT INTO relay_transactions (id, client, client_id, idempotency_key, request_hash, kind, to_address, value_wei, data, gas_limit,
				speed, digest, signer, forward_nonce, forward_deadline, traceparent, check_at, webhook)
			SELECT a.*, now(), a.client = ANY($17)
			FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $8::numeric[], $9::bytea[],
				$10::bigint[], $11::text[], $12::bytea[], $13::bytea[], $14::numeric[], $15::bigint[], $16::text[])
				AS a (id, client, client_id, idempotency_key, request_hash, kind, to_address, value_wei, data, gas_limit, speed, digest, signer,
				forward_nonce, forward_deadline, traceparent)
			WHERE NOT EXISTS (SELECT FROM given g WHERE g.client = a.client AND g.id::text = lower(a.client_id))
			ON CONFLICT DO NOTHING RETURNING *
		), queue AS (`+s.cfg.Enqueue("changed")+`)`+record+` SELECT id, created_at FROM changed`,
		ids, clients, clientIDs, keys, hashes, kinds, tos, values, datas, limits, speeds, digests, signers, forwardNonces,
		deadlines, traces, s.cfg.Targets, given)
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

// Repeated returns the stored transaction that a request repeats, and binds the request's names to it. It fails with
// [dispatch.ErrNotFound] if there is none, and with [dispatch.ErrReused] if a name was used with another request.
func (s *Store) Repeated(ctx context.Context, tx *dispatch.Transaction) (*dispatch.Transaction, error) {
	if tx.ClientID == "" && tx.IdempotencyKey == "" {
		return nil, dispatch.ErrNotFound
	}
	found, err := s.earlier(ctx, tx)
	if errors.Is(err, dispatch.ErrNonceTaken) || errors.Is(err, errGone) {
		return nil, dispatch.ErrNotFound
	}
	return found, err
}

// errGone means that a conflicting row does not exist any more.
var errGone = errors.New("the transaction conflicts with one that is gone")

// triesToBind is how often a request reads the earlier transaction again after another request has bound a name to it.
const triesToBind = 3

// earlier returns the stored transaction that a request repeats, or the reason why it was not stored. All names of the request are bound
// to that transaction: the client may use any of them later, and alone.
func (s *Store) earlier(ctx context.Context, tx *dispatch.Transaction) (*dispatch.Transaction, error) {
	hash := tx.RequestHash()
	for range triesToBind {
		found, err := s.named(ctx, tx)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: read the earlier transaction: %w", dispatch.ErrUnavailable, err)
		case len(found) == 0 && tx.Forward != nil:
			return nil, dispatch.ErrNonceTaken
		case len(found) == 0:
			return nil, fmt.Errorf("%w: %w", dispatch.ErrUnavailable, errGone)
		case len(found) > 1:
			return nil, dispatch.ErrReused
		}
		if now := found[0].RequestHash(); !bytes.Equal(now[:], hash[:]) {
			return nil, dispatch.ErrReused
		}
		if bound, err := s.bind(ctx, found[0], tx); err != nil || bound {
			return found[0], err
		}
	}
	return nil, fmt.Errorf("%w: other requests change the names of the transaction", dispatch.ErrUnavailable)
}

// named returns the client's transactions that have a name of the request.
func (s *Store) named(ctx context.Context, tx *dispatch.Transaction) ([]*dispatch.Transaction, error) {
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions
		WHERE client = $1 AND (client_id = nullif($2, '') OR idempotency_key = nullif($3, '') OR id = $4) LIMIT 3`,
		tx.Client, tx.ClientID, tx.IdempotencyKey, givenID(tx.ClientID))
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(found, func(f *dispatch.Transaction) bool { return tx.ClientID != "" && f.ClientID == tx.ClientID }) {
		// An earlier version let a client choose the id that another of its transactions was given. The chosen one counts.
		found = slices.DeleteFunc(found, func(f *dispatch.Transaction) bool {
			return f.ClientID != tx.ClientID && (tx.IdempotencyKey == "" || f.IdempotencyKey != tx.IdempotencyKey)
		})
	}
	return found, nil
}

// Postgres's codes for a value that another row has, and for a transaction that was ended because it was part of a deadlock.
const (
	uniqueViolation = "23505"
	deadlock        = "40P01"
)

func isCode(err error, code string) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && answer.Code == code
}

// bind gives a stored transaction the names of a request that repeats it, and reports whether it has them. It reports false if another
// request has changed the row's names. A row has one name of each kind: with another one, or one of another transaction, it fails
// with [dispatch.ErrReused].
func (s *Store) bind(ctx context.Context, stored, request *dispatch.Transaction) (bool, error) {
	id, key := request.ClientID, request.IdempotencyKey
	if givenID(id) == stored.ID {
		id = ""
	}
	if id != "" && stored.ClientID != "" && stored.ClientID != id || key != "" && stored.IdempotencyKey != "" && stored.IdempotencyKey != key {
		return false, dispatch.ErrReused
	}
	if (id == "" || stored.ClientID == id) && (key == "" || stored.IdempotencyKey == key) {
		return true, nil
	}
	tag, err := s.db.Exec(ctx, `UPDATE relay_transactions SET client_id = coalesce(client_id, nullif($2, '')), idempotency_key = coalesce(idempotency_key, nullif($3, ''))
		WHERE id = $1 AND coalesce(client_id, '') = $4 AND coalesce(idempotency_key, '') = $5`,
		stored.ID, id, key, stored.ClientID, stored.IdempotencyKey)
	if isCode(err, uniqueViolation) {
		return false, dispatch.ErrReused
	}
	if err != nil {
		return false, fmt.Errorf("%w: bind a name to the earlier transaction: %w", dispatch.ErrUnknown, err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	stored.ClientID, stored.IdempotencyKey = cmp.Or(stored.ClientID, id), cmp.Or(stored.IdempotencyKey, key)
	return true, nil
}

// givenID returns the id that a name has the form of; uuid.Nil if it is none that a transaction may have been given.
func givenID(name string) uuid.UUID {
	id, err := uuid.Parse(name)
	if err != nil || len(name) != len(id.String()) || id.Version() != 7 {
		return uuid.Nil
	}
	return id
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
