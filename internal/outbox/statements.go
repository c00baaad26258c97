package outbox

import (
	"strconv"
	"strings"
)

// statements holds the statements of a turn, for one [Table].
//
// No plan may depend on the planner's estimate of the table's size: Postgres keeps plans, and may have made them when the table was
// empty. So in a turn the planner may not sort, hash or scan a whole table. Rows are updated by an array of ids where a join would
// be shorter. That leaves one index for each query.
type statements struct {
	discover, claim, claimIDs, send, unsend string
	lock, done, settle, promote, extend     string
}

const (
	// sqlPlan returns the time of the turn.
	sqlPlan = `SELECT now(), set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true)`

	// sqlNoWait makes the commit of a turn not wait for the disk. Results that Postgres loses in a crash are repeated.
	sqlNoWait = `SELECT set_config('synchronous_commit', 'off', true)`

	// sqlDiscover returns up to $6 lanes in the gaps between the lanes that the worker knows. So it does not read past index entries of
	// their deleted rows. A gap is a range of the lanes of a partition, or a range of partitions: Postgres does not stop at the upper
	// bound of a comparison of rows.
	sqlDiscover = `WITH RECURSIVE found (partition, lane, whole, upto_partition, upto_lane) AS (
			SELECT n.partition, n.lane, g.whole, g.upto_partition, g.upto_lane
			FROM unnest($1::int[], $2::text[], $3::bool[], $4::int[], $5::text[]) AS g (partition, from_lane, whole, upto_partition, upto_lane)
			CROSS JOIN LATERAL ($lanes UNION ALL $partitions) AS n
		UNION ALL
			SELECT n.partition, n.lane, g.whole, g.upto_partition, g.upto_lane
			FROM (SELECT *, lane || chr(1) AS from_lane FROM found) AS g
			CROSS JOIN LATERAL ($lanes UNION ALL $partitions) AS n
		)
		SELECT partition, lane FROM found LIMIT $6`
	sqlLanes = `(SELECT e.partition, e.lane FROM $name e WHERE NOT g.whole AND e.state = 'waiting' AND e.partition = g.partition
		AND e.lane >= g.from_lane AND e.lane < g.upto_lane ORDER BY e.partition, e.lane LIMIT 1)`
	sqlPartitions = `(SELECT e.partition, e.lane FROM $name e WHERE g.whole AND e.state = 'waiting'
		AND e.partition > g.partition AND e.partition < g.upto_partition ORDER BY e.partition, e.lane LIMIT 1)`

	// sqlPickLanes picks the entries that are due, up to $4 of each lane and up to $5 in all. Lanes that come first are preferred.
	sqlPickLanes = `SELECT c.id, c.subject, c.seq, c.due_at
		FROM unnest($1::int[], $2::text[], $3::timestamptz[], $4::int[]) AS l (partition, lane, since, share)
		CROSS JOIN LATERAL (SELECT e.id, e.subject, e.seq, e.due_at FROM $name e WHERE e.state = 'waiting' AND e.partition = l.partition
			AND e.lane = l.lane AND e.due_at <= now() AND e.due_at >= l.since AND e.claimed_until <= now()
			ORDER BY e.due_at LIMIT l.share FOR UPDATE SKIP LOCKED) AS c
		LIMIT `

	// sqlPickIDs picks entries that a broker delivered. It ignores those that are finished, claimed, blocked or delayed. They are
	// filtered after the search for ids, because the planner might search the partial index of their states instead.
	sqlPickIDs = `SELECT g.id, g.subject, g.seq FROM given g WHERE g.state = 'waiting' AND g.claimed_until <= now() AND (g.sent OR g.due_at <= now())`
	sqlGiven   = `given AS MATERIALIZED (
			SELECT e.id, e.subject, e.seq, e.state, e.claimed_until, e.sent, e.due_at FROM $name e WHERE e.id = ANY($1::text[]) FOR UPDATE SKIP LOCKED
		), `

	// sqlOrder keeps the order of subjects among the picked entries. An entry with a lower unfinished one is not taken. It is
	// blocked if the lower entry can be locked: then the result of the lower one, which unblocks it, comes later. If another
	// transaction is changing the lower entry, the picked one stays as it is, and is picked again.
	//
	// Due entries behind a picked one are blocked, too, $chunk of all subjects together, because otherwise each of a backlog would
	// take the place of an entry of another subject in a claim. The picked one is locked, so its result comes later. A subject is searched only if
	// the next entry is due: the entries behind a blocked one are most probably blocked, and there may be any number of them.
	sqlOrder = `ordered AS MATERIALIZED (
			SELECT p.id, (SELECT b.id FROM $name b WHERE b.subject = p.subject AND b.seq < p.seq AND b.$unfinished
				ORDER BY b.seq LIMIT 1) AS lower FROM picked p
		), locked AS MATERIALIZED (
			SELECT b.id, b.state FROM $name b WHERE b.id = ANY(ARRAY(SELECT o.lower FROM ordered o WHERE o.lower IS NOT NULL)) FOR SHARE SKIP LOCKED
		), behind AS MATERIALIZED (
			SELECT n.id, n.due_at FROM picked p CROSS JOIN LATERAL (SELECT e.id, e.due_at FROM $name e WHERE e.subject = p.subject AND e.seq > p.seq
				AND e.$unfinished ORDER BY e.seq LIMIT $chunk) AS n
			WHERE (SELECT e.due_at FROM $name e WHERE e.subject = p.subject AND e.seq > p.seq AND e.$unfinished ORDER BY e.seq LIMIT 1) <= now() LIMIT $chunk
		), aside AS MATERIALIZED (
			SELECT a.id FROM (SELECT e.id, e.state, e.due_at, e.claimed_until FROM $name e WHERE e.id = ANY(ARRAY(SELECT b.id FROM behind b
				WHERE b.due_at <= now() AND b.id <> ALL (ARRAY(SELECT p.id FROM picked p)))) OFFSET 0 FOR UPDATE SKIP LOCKED) AS a
			WHERE a.state = 'waiting' AND a.due_at <= now() AND a.claimed_until <= now()
		), blocked AS (
			UPDATE $name e SET due_at = 'infinity', sent = false WHERE e.id = ANY(ARRAY(SELECT o.id FROM ordered o
				WHERE o.lower = ANY(ARRAY(SELECT l.id FROM locked l WHERE l.$unfinished UNION ALL SELECT p.id FROM picked p))
				UNION ALL SELECT a.id FROM aside a)) RETURNING 1
		), `

	// sqlCounted are the numbers of picked entries, and of blocked ones among them.
	sqlCounted = `(SELECT count(*) FROM picked), (SELECT count(*) FROM blocked) - (SELECT count(*) FROM aside)`

	// The result of a claim has a row for each claimed entry, or one row without an entry.
	sqlClaim = `WITH $given picked AS MATERIALIZED ($pick), $order claimed AS (
			UPDATE $name e SET claimed_until = now() + $lease::interval, claim = nextval('$name_numbers'), attempts = e.attempts + 1,
				failures = e.failures + 1, again = false, sent = false
			WHERE e.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NULL)) RETURNING e.*
		)
		SELECT $counted, e.id, e.subject, e.lane, e.partition, e.payload, e.claim,
			e.attempts, e.failures, e.reason, e.created_at, e.due_at $columns
		FROM (SELECT) AS always LEFT JOIN claimed e ON true $joins`

	// sqlSend marks entries as sent, so that they are due again after $6. While no worker begins an entry, each pause is twice the one
	// before, up to 10 times $6; claimed_until is when it was sent first. At most $7 are sent and not begun: room is how many more may
	// be.
	sqlSend = `WITH room AS MATERIALIZED (
			SELECT LEAST($5, GREATEST($7 - count(*), 0)) AS n FROM (SELECT FROM $name WHERE sent AND due_at > now() ORDER BY due_at LIMIT $7) AS sent
		), picked AS MATERIALIZED ($pick), $order marked AS (
			UPDATE $name e SET sent = true, claimed_until = CASE WHEN e.sent THEN e.claimed_until ELSE now() END,
				due_at = now() + CASE WHEN e.sent THEN LEAST($6::interval + GREATEST(now() - GREATEST(e.claimed_until, e.created_at), $6), 10 * $6)
					ELSE $6 END
			WHERE e.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NULL)) RETURNING e.id, e.lane, e.partition, e.created_at
		)
		SELECT (SELECT n FROM room), $counted, e.id, e.lane, e.partition, e.created_at,
			(SELECT p.due_at FROM picked p WHERE p.id = e.id)
		FROM (SELECT) AS always LEFT JOIN marked e ON true`

	// sqlUnsend does not change an entry that a worker has begun. It searches by id alone, like sqlPickIDs.
	sqlUnsend = `WITH $given unsent AS (SELECT id FROM given WHERE sent)
		UPDATE $name SET sent = false, due_at = now() WHERE id = ANY(ARRAY(SELECT id FROM unsent))`

	// sqlLock locks the entries whose results and extensions the turn stores, in the order of their ids. [Table.AgainSQL] takes the same
	// order, so that the two do not deadlock.
	sqlLock = `SELECT count(*) FROM unnest($1::text[]) AS u (id) CROSS JOIN LATERAL (
			SELECT e.id FROM $name e WHERE e.id = u.id FOR UPDATE) AS locked`

	// An entry that was enqueued again while it was claimed is not done, but due: sqlSettle or sqlKeep does that. Both clear sent: the
	// result may be that of a claim that ended, whose entry was sent again.
	sqlDelete = `DELETE FROM $name WHERE id = ANY($1::text[]) AND claim = ANY($2::bigint[]) AND NOT again`
	sqlKeep   = `UPDATE $name SET state = CASE WHEN again THEN 'waiting' ELSE 'done' END, settled_at = now(), claimed_until = '-infinity',
			claim = NULL, again = false, sent = false, reason = CASE WHEN again THEN reason ELSE '' END, failures = CASE WHEN again THEN 0 ELSE failures END,
			failing_since = CASE WHEN again THEN NULL ELSE failing_since END, due_at = CASE WHEN again THEN LEAST(due_at, now()) ELSE due_at END
		WHERE id = ANY($1::text[]) AND claim = ANY($2::bigint[])`

	// sqlSettle stores the other results, and returns the claims whose entries became dead. An entry without a delay keeps its
	// place. One with a reason failed.
	sqlSettle = `WITH settled AS (
			UPDATE $name e SET claimed_until = '-infinity', claim = NULL, again = false, sent = false, settled_at = now(),
			attempts = e.attempts - f.untried, failures = CASE WHEN e.again THEN 0 ELSE e.failures - f.uncounted END,
			failing_since = CASE WHEN e.again THEN NULL WHEN f.reason IS NULL THEN e.failing_since ELSE coalesce(e.failing_since, now()) END,
			reason = coalesce(f.reason, e.reason),
			state = CASE WHEN NOT e.again AND (f.dead OR f.reason IS NOT NULL AND now() >= e.failing_since + $8::interval)
				THEN 'dead' ELSE 'waiting' END,
			due_at = CASE WHEN e.again OR f.delay IS NULL THEN LEAST(e.due_at, now()) WHEN f.reason IS NULL THEN now() + f.delay
				ELSE LEAST(now() + f.delay, GREATEST(coalesce(e.failing_since, now()) + $8::interval, now())) END
		FROM unnest($1::text[], $2::bigint[], $3::int[], $4::int[], $5::interval[], $6::bool[], $7::text[])
			AS f (id, claim, untried, uncounted, delay, dead, reason)
		WHERE e.id = ANY($1::text[]) AND e.id = f.id AND e.claim = f.claim RETURNING f.claim, e.state
		) SELECT claim FROM settled WHERE state = 'dead'`

	// sqlPromote unblocks the lowest unfinished entry of each subject. With $2 it wakes the others. It is a statement after the one that
	// ended a lower entry, because it must see the entries that were blocked while that statement waited.
	//
	// An unblocked entry comes after those that are due, so that a subject with a backlog does not take every turn. Entries that are
	// unblocked together keep the order of the results, because otherwise one of three subjects may take half of the turns.
	sqlPromote = `WITH promoted AS (
			UPDATE $name SET due_at = now() - (cardinality($1::text[]) - array_position($1::text[], subject)) * interval '1 microsecond'
			WHERE due_at = 'infinity' AND id = ANY(ARRAY(
				SELECT n.id FROM unnest($1::text[]) AS s (subject) CROSS JOIN LATERAL (
					SELECT e.id, e.state, e.due_at FROM $name e WHERE e.subject = s.subject AND e.$unfinished ORDER BY e.seq LIMIT 1) AS n
				WHERE n.state = 'waiting' AND n.due_at = 'infinity')) RETURNING 1
		) SELECT pg_notify('$name', '') FROM promoted WHERE $2 LIMIT 1`

	sqlExtend = `UPDATE $name SET claimed_until = now() + $3::interval WHERE id = ANY($1::text[]) AND claim = ANY($2::bigint[]) RETURNING claim`
)

func newStatements(t Table) statements {
	columns := ""
	if t.Columns != "" {
		columns = ", " + t.Columns
	}
	order := strings.ReplaceAll(sqlOrder, "$chunk", strconv.Itoa(chunk))
	fill := func(sql string, pairs ...string) string {
		for i := 0; i < len(pairs); i += 2 {
			sql = strings.ReplaceAll(sql, pairs[i], pairs[i+1])
		}
		return strings.NewReplacer("$order", order, "$counted", sqlCounted, "$columns", columns, "$joins", t.Joins).Replace(sql)
	}
	all := statements{
		discover: fill(sqlDiscover, "$lanes", sqlLanes, "$partitions", sqlPartitions),
		claim:    fill(sqlClaim, "$given", "", "$pick", sqlPickLanes+"$5", "$lease", "$6"),
		claimIDs: fill(sqlClaim, "$given", sqlGiven, "$pick", sqlPickIDs, "$lease", "$2"),
		send:     fill(sqlSend, "$pick", sqlPickLanes+"(SELECT n FROM room)"),
		unsend:   fill(sqlUnsend, "$given", sqlGiven),
		lock:     sqlLock,
		done:     sqlDelete, settle: sqlSettle, promote: sqlPromote, extend: sqlExtend,
	}
	if t.KeepDone {
		all.done = sqlKeep
	}
	for _, sql := range []*string{&all.discover, &all.claim, &all.claimIDs, &all.send, &all.unsend, &all.lock, &all.done, &all.settle, &all.promote, &all.extend} {
		*sql = t.named(*sql)
	}
	return all
}
