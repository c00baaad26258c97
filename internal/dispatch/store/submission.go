package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// Start is a consumer's request to submit a transaction to a relayer.
type Start struct {
	ID uuid.UUID
	// Holder is the lease's holder: another one for each attempt.
	Holder uuid.UUID
	// Route is the chosen relayer. It is used if the transaction is queued.
	Route dispatch.Route
	// Lease is how long the consumer may submit.
	Lease time.Duration
}

// Begun is the result of a Start.
type Begun struct {
	// Transaction is the row as it is now; nil if there is none with the id.
	Transaction *dispatch.Transaction
	State       StartState
	// Until is when another consumer's lease ends. It is set if State is Held.
	Until time.Time
}

// StartState is what a Start found.
type StartState int

// The results of a Start.
const (
	// Fresh: the consumer has the lease, and no relayer has the transaction. The row has the chosen route.
	Fresh StartState = iota
	// Resumed: the consumer has the lease. The relayer of the row may have the transaction.
	Resumed
	// Held: another consumer has the lease.
	Held
	// Blocked: the chosen relayer has no idempotency keys, and may have another call with the same effect.
	Blocked
	// Avoided: the transaction was withdrawn from the chosen relayer's scope within AvoidedFor.
	Avoided
	// Settled: there is nothing to submit, because a relayer has accepted the transaction, an operator decides, or it is final.
	Settled
	// Missing: there is no such transaction.
	Missing
)

// AvoidedFor is how long a transaction is not given to the scope from which it was withdrawn. A relayer that sends nothing looks idle
// once everything was withdrawn from it. The limit is for the case that it recovers, and no other one takes the transaction.
const AvoidedFor = 5 * time.Minute

// avoided is the condition for a queued row t, a scope and the parameter that has AvoidedFor.
func avoided(scope, limit string) string {
	return `coalesce(t.withdrawn_from = ` + scope + ` AND t.withdrawn_at > now() - ` + limit + `::interval, false)`
}

// Begin takes the leases of transactions and stores the chosen relayers of those that are queued. It returns a result for
// each Start. A queued transaction that the relayer of a late acceptance may have stays as it is. A queued gasless transaction
// whose deadline has passed expires instead: its forwarder would revert it.
func (s *Store) Begin(ctx context.Context, starts []Start) ([]Begun, error) {
	n := len(starts)
	ids, holders, leases := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]time.Duration, n)
	relayers, urls, relayerIDs, scopes := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, a := range starts {
		ids[i], holders[i], leases[i] = a.ID, a.Holder, a.Lease
		relayers[i], urls[i], relayerIDs[i], scopes[i] = a.Route.Relayer, a.Route.URL, a.Route.RelayerID, a.Route.Scope
	}
	taken, err := s.leases(ctx, `WITH asked AS (
			SELECT DISTINCT ON (id) * FROM unnest($1::uuid[], $2::uuid[], $3::interval[], $4::text[], $5::text[], $6::text[], $7::text[])
				AS a (id, holder, lease, relayer, url, relayer_id, scope) ORDER BY id
		), free AS MATERIALIZED (
			SELECT t.id, t.status, t.digest, t.status = 'queued' AND coalesce(t.forward_deadline < extract(epoch FROM now()), false) AS late,
				`+avoided("a.scope", "$8")+` AS avoided, a.holder, a.lease, a.relayer, a.url, a.relayer_id, a.scope
			FROM asked a JOIN relay_transactions t ON t.id = a.id
			WHERE t.held_until <= now() AND (t.status = 'submitting' OR t.status = 'queued' AND NOT `+maybeElsewhere+`)
			ORDER BY t.id FOR UPDATE OF t SKIP LOCKED
		), unresolved AS (
			INSERT INTO relay_unresolved_calls (digest, tx) SELECT digest, id FROM free WHERE status = 'queued' AND NOT late AND scope = ''
			ON CONFLICT DO NOTHING RETURNING tx
		), begun AS (
			UPDATE relay_transactions t SET status = 'submitting', status_reason = '', relayer = f.relayer, relayer_url = f.url,
				relayer_id = f.relayer_id, scope = f.scope, holder = f.holder, held_until = now() + f.lease, attempts = t.attempts + 1,
				revision = t.revision + 1, updated_at = now(), check_at = now(), checks = 0
			FROM free f WHERE t.id = f.id AND f.status = 'queued' AND NOT f.late AND NOT f.avoided
				AND (f.scope <> '' OR f.id IN (SELECT tx FROM unresolved)) RETURNING t.*
		), expired AS (
			UPDATE relay_transactions t SET status = 'expired', status_reason = 'the deadline of the forward request has passed', open = false,
				revision = t.revision + 1, updated_at = now()
			FROM free f WHERE t.id = f.id AND f.late RETURNING t.*
		), changed AS (SELECT * FROM begun UNION ALL SELECT * FROM expired), resumed AS (
			UPDATE relay_transactions t SET holder = f.holder, held_until = now() + f.lease, requested_at = GREATEST(t.requested_at, t.held_until)
			FROM free f WHERE t.id = f.id AND f.status = 'submitting' RETURNING t.*
		)`+record+`
		SELECT holder, true AS fresh, `+columns+` FROM begun UNION ALL SELECT holder, false, `+columns+` FROM resumed`,
		ids, holders, leases, relayers, urls, relayerIDs, scopes, AvoidedFor)
	if err != nil {
		return nil, fmt.Errorf("begin submissions: %w", err)
	}
	results := make([]Begun, n)
	for i, a := range starts {
		if got, ok := taken[a.Holder]; ok {
			results[i] = got
			continue
		}
		if results[i], err = s.state(ctx, &a); err != nil {
			results[i] = Begun{State: Held, Until: time.Now().Add(time.Second)} // the others have their leases, and must be submitted
		}
		if tx := results[i].Transaction; tx != nil && tx.Status == dispatch.Expired { // maybe just now
			s.cfg.WebhooksStored()
		}
	}
	return results, nil
}

// leased is a row that a Start has taken.
type leased struct {
	Holder uuid.UUID `db:"holder"`
	Fresh  bool      `db:"fresh"`
	row
}

// leases reads the taken rows by their holders.
func (s *Store) leases(ctx context.Context, query string, args ...any) (map[uuid.UUID]Begun, error) {
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	taken := map[uuid.UUID]Begun{}
	for rows.Next() {
		one, err := pgx.RowToStructByName[leased](rows)
		if err != nil {
			return nil, err
		}
		tx, err := one.transaction()
		if err != nil {
			return nil, err
		}
		state := Resumed
		if one.Fresh {
			state = Fresh
		}
		taken[one.Holder] = Begun{Transaction: tx, State: state}
	}
	return taken, rows.Err()
}

// state returns why a Start did not take a row.
func (s *Store) state(ctx context.Context, a *Start) (b Begun, err error) {
	found, err := s.transactions(ctx, `SELECT `+columns+` FROM relay_transactions WHERE id = $1`, a.ID)
	if err != nil {
		return b, err
	}
	if len(found) == 0 {
		return Begun{State: Missing}, nil
	}
	b.Transaction = found[0]
	if b.Transaction.Status != dispatch.Queued && b.Transaction.Status != dispatch.Submitting {
		b.State = Settled
		return b, nil
	}
	// A row that the statement passed over because of a lock is held, too, for a moment.
	var remaining time.Duration
	var blocked, isAvoided bool
	if err = s.db.QueryRow(ctx, `SELECT
			CASE WHEN held_until > now() THEN held_until - now() WHEN `+maybeElsewhere+` THEN interval '1 s' ELSE interval '0' END,
			t.status = 'queued' AND $2 = '' AND EXISTS (SELECT FROM relay_unresolved_calls u WHERE u.digest = t.digest),
			t.status = 'queued' AND held_until <= now() AND `+avoided("$2", "$3")+`
		FROM relay_transactions t WHERE id = $1`, a.ID, a.Route.Scope, AvoidedFor).Scan(&remaining, &blocked, &isAvoided); err != nil {
		return b, err
	}
	b.State, b.Until = Held, time.Now().Add(remaining)
	switch {
	case blocked:
		b.State = Blocked
	case isAvoided:
		b.State = Avoided
	}
	return b, nil
}

// Acceptance is a relayer's answer that it has a transaction.
type Acceptance struct {
	ID uuid.UUID
	// Attempt is the attempt that the relayer has answered, by the transaction that Begin returned.
	Attempt int
	Route   dispatch.Route // with RelayerTx
	Hash    *common.Hash
}

// Accepted stores that relayers have accepted transactions, and applies the reports that came before. It needs no lease, because
// within its attempt an answer stays true. An acceptance of an earlier attempt, or another one of the same, changes no row: it is kept
// as a late one, and the reconciler asks its relayer and the row's. One with an id that is another row's submission in the same pool, maybe
// a former one, changes nothing: a lookup has found the other row's, or a relayer with idempotency keys has given an id twice. The row stays
// submitting then, until an operator resolves it.
func (s *Store) Accepted(ctx context.Context, accepted []Acceptance) error {
	err := s.inTx(ctx, func(db *dbTx) error { return s.storeAccepted(ctx, db, accepted) })
	if err != nil {
		return fmt.Errorf("store acceptances: %w", err)
	}
	return nil
}

func (s *Store) storeAccepted(ctx context.Context, db *dbTx, accepted []Acceptance) error {
	ids, txs, keyless := make([]uuid.UUID, len(accepted)), make([]string, len(accepted)), []string(nil)
	for i, a := range accepted {
		if ids[i], txs[i] = a.ID, a.Route.RelayerTx; a.Route.Scope == "" {
			keyless = append(keyless, a.Route.RelayerTx)
		}
	}
	// owners are the rows that have a relayer's id in a pool, maybe of a former submission.
	type submission struct{ pool, relayerTx string }
	owners, locked := map[submission][]uuid.UUID{}, map[uuid.UUID]*dispatch.Transaction{}
	batch := new(pgx.Batch)
	if len(keyless) > 0 {
		// A keyless relayer's id may be stored for two rows at a time, by a lookup and by a late answer. The second one has to see the first.
		// One with keys gives an id twice only after a loss of its own, and a lock for each of its ids would be most of all acceptances: of two
		// that are stored at the same moment both may count.
		batch.Queue(`SELECT pg_advisory_xact_lock(key) FROM (SELECT DISTINCT hashtextextended(relayer_tx, 0) AS key
			FROM unnest($1::text[]) AS a (relayer_tx) ORDER BY key) keys`, keyless)
	}
	queueLock(batch, byID, `true`, locked, ids)
	batch.Queue(`SELECT t.id, t.relayer_tx, `+pool("t")+` FROM relay_transactions t WHERE t.relayer_tx = ANY($1)
		UNION ALL SELECT tx, relayer_tx, pool FROM relay_late_acceptances WHERE relayer_tx = ANY($1)`, txs).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var of submission
		_, err := pgx.ForEachRow(rows, []any{&id, &of.relayerTx, &of.pool}, func() error {
			owners[of] = append(owners[of], id)
			return nil
		})
		return err
	})
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	of := func(a *Acceptance) submission { return submission{a.Route.Pool(), a.Route.RelayerTx} }
	own := func(a *Acceptance) { owners[of(a)] = append(owners[of(a)], a.ID) }
	isOthers := func(a *Acceptance) bool {
		return slices.ContainsFunc(owners[of(a)], func(id uuid.UUID) bool { return id != a.ID })
	}
	var changes []change
	var resolved []uuid.UUID
	present := map[uuid.UUID]bool{}
	batch = new(pgx.Batch)
	for i := range accepted {
		a := &accepted[i]
		tx := locked[a.ID]
		if tx == nil {
			continue
		}
		if isOthers(a) {
			s.cfg.Logger.WarnContext(ctx, "acceptance refused: its relayer has given another transaction the same id", "tx", a.ID,
				"others", owners[of(a)], "service", a.Route.Relayer, "relayer_tx", a.Route.RelayerTx)
			continue
		}
		next, ok := tx.Accept(a.Attempt, a.Route, a.Hash)
		if !ok {
			continue
		}
		changes, locked[a.ID], present[a.ID] = append(changes, change{tx, next}), &next, true
		if slices.Contains(owners[of(a)], a.ID) { // a former submission
			batch.Queue(forgetAcceptance, a.ID, a.Route.Pool(), a.Route.RelayerTx)
		}
		own(a)
		if a.Route.Scope == "" {
			resolved = append(resolved, a.ID)
		}
	}
	for i := range accepted {
		a := &accepted[i]
		if tx := locked[a.ID]; tx != nil && !tx.Names(&a.Route) && !isOthers(a) {
			own(a)
			queueAcceptance(batch, a.ID, &a.Route, false, !present[a.ID])
		}
	}
	db.queueChanges(batch, changes)
	if len(resolved) > 0 {
		batch.Queue(forgetCalls, resolved)
	}
	var early []dispatch.Update
	queueTaken(batch, keptOf, txs, &early)
	if err := db.SendBatch(ctx, batch).Close(); err != nil || len(early) == 0 {
		return err
	}
	_, err := s.applyReports(ctx, db, early, false)
	return err
}

// Requeue returns a transaction to the queue, because its relayer certainly does not have it. Only the leaseholder may; it
// reports whether it did.
func (s *Store) Requeue(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error) {
	return s.end(ctx, id, holder, `status = 'queued', relayer = '', relayer_url = '', relayer_id = '', scope = ''`, "true", reason)
}

// Fail makes a transaction failed, because relayers reject it. If the relayer of a late acceptance may have it, it returns to the queue
// instead, from which TakeLate gives it to that relayer. Only the leaseholder may; it reports whether it did.
func (s *Store) Fail(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error) {
	failed, err := s.end(ctx, id, holder, `status = 'failed', open = false`, `NOT `+maybeElsewhere, reason)
	if err != nil || failed {
		return failed, err
	}
	return s.Requeue(ctx, id, holder, reason)
}

// Park makes a transaction unknown: its relayer may have it, and no lookup can tell. Only the leaseholder may; it reports
// whether it did. The call stays unresolved.
func (s *Store) Park(ctx context.Context, id, holder uuid.UUID, reason string) (bool, error) {
	return s.end(ctx, id, holder, `status = 'unknown'`, "true", reason)
}

// end ends a submission by the leaseholder if a condition holds. It reports whether it did.
func (s *Store) end(ctx context.Context, id, holder uuid.UUID, set, condition, reason string) (bool, error) {
	var n int
	var webhooks bool
	err := s.db.QueryRow(ctx, `WITH changed AS (
			UPDATE relay_transactions t SET `+set+`, status_reason = $3, holder = NULL, held_until = '-infinity', check_at = now(), checks = 0,
				revision = revision + 1, updated_at = now()
			WHERE id = $1 AND holder = $2 AND held_until > now() AND status = 'submitting' AND `+condition+` RETURNING t.*
		), resolved AS (DELETE FROM relay_unresolved_calls WHERE tx IN (SELECT id FROM changed WHERE status <> 'unknown'))`+record+`
		SELECT count(*), `+webhooksStored+` FROM changed`, id, holder, bounded(reason)).Scan(&n, &webhooks)
	if err != nil {
		return false, fmt.Errorf("end a submission: %w", err)
	}
	if webhooks {
		s.cfg.WebhooksStored()
	}
	return n > 0, nil
}

// Request is a leaseholder's request to a relayer.
type Request int

const (
	// NoRequest means that there was none, or the relayer certainly did not take it.
	NoRequest Request = iota
	// Unanswered means that the relayer may still process it.
	Unanswered
	// Failed means that the relayer has answered with a 500. It may have stored the transaction, and does not process the request any more.
	Failed
)

// Release gives a lease back without a change, so that another consumer need not wait for its end.
func (s *Store) Release(ctx context.Context, id, holder uuid.UUID, request Request) error {
	_, err := s.db.Exec(ctx, `UPDATE relay_transactions SET holder = NULL, held_until = '-infinity',
			requested_at = CASE WHEN $3 THEN now() ELSE requested_at END, failed_attempt = CASE WHEN $4 THEN attempts ELSE failed_attempt END
		WHERE id = $1 AND holder = $2`, id, holder, request != NoRequest, request == Failed)
	if err != nil {
		return fmt.Errorf("release a lease: %w", err)
	}
	return nil
}

// maxReason is the most bytes of a status's reason.
const maxReason = 1000

// bounded shortens a reason that came from outside. The result is valid UTF-8 without zero bytes, which Postgres rejects.
func bounded(reason string) string {
	b := []byte(reason)
	out := make([]rune, 0, len(b))
	size := 0
	for _, r := range string(b[:min(len(b), 4*maxReason)]) {
		if r == 0 {
			continue
		}
		if size += len(string(r)); size > maxReason {
			break
		}
		out = append(out, r)
	}
	return string(out)
}
