package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// CountLimit is the highest number in a [Count]. It means at least that many. With more than 30 lanes the numbers end lower, but
// not below 20.
const CountLimit = 1000

// Count holds the numbers of a lane's entries, each at most [CountLimit].
type Count struct {
	Lane    string `json:"lane"`
	Waiting int    `json:"waiting"` // due, or sent to a broker, and not claimed
	Delayed int    `json:"delayed"` // due later
	Blocked int    `json:"blocked"` // behind an unfinished entry of the subject, as far as claims have found them
	Working int    `json:"working"` // claimed
	Dead    int    `json:"dead"`
	// Oldest is the age of the oldest of the counted entries that are not dead; 0 if there is none.
	Oldest time.Duration `json:"oldest"`
}

// maxLanes is how many lanes Counts returns at most.
const maxLanes = 1000

// countBudget is how many entries of each kind Counts reads of all lanes together; but at least 20 of each.
const countBudget = 30_000

// countEvery is how often KeepCounting counts.
const countEvery = 15 * time.Second

// sqlCounts reads at most $1 entries of each lane and kind, by the index, and fewer if there are many lanes. Counters in a table of
// their own would be exact, but every insert and every result of a lane would wait for the row of its counter.
const sqlCounts = `WITH RECURSIVE lanes (partition, lane) AS (
		(SELECT e.partition, e.lane FROM $name e WHERE e.state = 'waiting' ORDER BY e.partition, e.lane LIMIT 1)
	UNION ALL
		SELECT n.partition, n.lane FROM lanes l CROSS JOIN LATERAL (SELECT e.partition, e.lane FROM $name e
			WHERE e.state = 'waiting' AND (e.partition, e.lane) > (l.partition, l.lane) ORDER BY e.partition, e.lane LIMIT 1) AS n
	), few AS MATERIALIZED (
		SELECT * FROM lanes LIMIT $2
	), ended (lane) AS (
		(SELECT e.lane FROM $name e WHERE e.state = 'dead' AND e.lane >= $3 ORDER BY e.lane LIMIT 1)
	UNION ALL
		SELECT n.lane FROM ended l CROSS JOIN LATERAL (SELECT e.lane FROM $name e
			WHERE e.state = 'dead' AND e.lane > l.lane ORDER BY e.lane LIMIT 1) AS n WHERE starts_with(l.lane, $3)
	), most AS MATERIALIZED (
		SELECT LEAST($1, GREATEST($4 / GREATEST(count(*), 1), 20)) AS n FROM few
	), counted AS (
		SELECT l.lane, d.waiting + a.sent AS waiting, a.delayed, b.blocked, d.working + a.working AS working, 0::bigint AS dead, LEAST(d.oldest, a.oldest, b.oldest) AS oldest
		FROM few l
		CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE claimed_until <= now()) AS waiting, count(*) FILTER (WHERE claimed_until > now()) AS working,
			min(created_at) AS oldest FROM (SELECT e.claimed_until, e.created_at FROM $name e WHERE e.state = 'waiting'
				AND e.partition = l.partition AND e.lane = l.lane AND e.due_at <= now() ORDER BY e.due_at LIMIT (SELECT n FROM most)) AS due) AS d
		CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE claimed_until <= now() AND NOT sent) AS delayed, count(*) FILTER (WHERE claimed_until > now()) AS working,
			count(*) FILTER (WHERE claimed_until <= now() AND sent) AS sent, min(created_at) AS oldest FROM (SELECT e.claimed_until, e.created_at, e.sent FROM $name e WHERE e.state = 'waiting'
				AND e.partition = l.partition AND e.lane = l.lane AND e.due_at > now() AND e.due_at < 'infinity' ORDER BY e.due_at LIMIT (SELECT n FROM most)) AS later) AS a
		CROSS JOIN LATERAL (SELECT count(*) AS blocked, min(created_at) AS oldest FROM (SELECT e.created_at FROM $name e WHERE e.state = 'waiting'
				AND e.partition = l.partition AND e.lane = l.lane AND e.due_at = 'infinity' LIMIT (SELECT n FROM most)) AS behind) AS b
	UNION ALL
		SELECT l.lane, 0, 0, 0, 0, d.dead, NULL FROM (SELECT lane FROM ended LIMIT $2) AS l
		CROSS JOIN LATERAL (SELECT count(*) AS dead FROM (SELECT FROM $name e WHERE e.state = 'dead' AND e.lane = l.lane LIMIT $1) AS ended_entries) AS d
	)
	SELECT lane, LEAST(sum(waiting), $1)::int, LEAST(sum(delayed), $1)::int, LEAST(sum(blocked), $1)::int, LEAST(sum(working), $1)::int,
		LEAST(sum(dead), $1)::int, coalesce(extract(epoch FROM now() - min(oldest)), 0)::float8
	FROM counted WHERE starts_with(lane, $3) GROUP BY lane ORDER BY lane`

// Counts returns a Count for every lane with a prefix that has entries, by name, for at most 1,000 lanes. The cost does not
// depend on the number of entries.
func (o *Outbox) Counts(ctx context.Context, prefix string) ([]Count, error) {
	rows, err := o.db.Query(ctx, o.table.named(sqlCounts), CountLimit, maxLanes, prefix, countBudget)
	if err != nil {
		return nil, fmt.Errorf("count entries of %s: %w", o.table.Name, err)
	}
	counts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Count, err error) {
		var seconds float64
		err = row.Scan(&c.Lane, &c.Waiting, &c.Delayed, &c.Blocked, &c.Working, &c.Dead, &seconds)
		c.Oldest = time.Duration(max(0, seconds) * float64(time.Second))
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("count entries of %s: %w", o.table.Name, err)
	}
	return counts, nil
}

// KeepCounting calls report with the result of [Outbox.Counts] at once, and then every 15 seconds until ctx ends. It logs failures for
// debugging alone, because the table's other users report an unavailable database.
func (o *Outbox) KeepCounting(ctx context.Context, prefix string, log *slog.Logger, report func([]Count)) {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	for {
		counts, err := o.Counts(ctx, prefix)
		switch {
		case err == nil:
			report(counts)
		case ctx.Err() == nil:
			log.Debug("entries not counted", "table", o.table.Name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
