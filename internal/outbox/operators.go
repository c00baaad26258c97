package outbox

import (
	"context"
	"fmt"
	"time"
)

// Purge deletes finished entries of lanes with a prefix that ended longer ago than given, and returns their number. After an error some may
// have been deleted. It reads the old entries once, in the order of their insertion: entries that are deleted and not vacuumed yet are read
// once, not for each chunk.
func (o *Outbox) Purge(ctx context.Context, prefix string, older time.Duration) (int, error) {
	for done, after := 0, int64(0); ; {
		var deleted int
		var last bool
		err := o.db.QueryRow(ctx, o.named(`WITH old AS MATERIALIZED (
				SELECT seq, created_at FROM $name WHERE seq > $1 ORDER BY seq LIMIT $3
			), gone AS (
				DELETE FROM $name WHERE seq = ANY(ARRAY(SELECT seq FROM old)) AND state = 'done' AND starts_with(lane, $4)
					AND settled_at < now() - $2::interval RETURNING 1)
			SELECT (SELECT count(*) FROM gone), coalesce((SELECT max(seq) FROM old), $1),
				NOT EXISTS (SELECT FROM old WHERE created_at < now() - $2::interval)`),
			after, older, chunk, prefix).Scan(&deleted, &after, &last)
		if err != nil {
			return done, fmt.Errorf("purge entries of %s: %w", o.table.Name, err)
		}
		done += deleted
		if last { // the others are not old enough
			return done, nil
		}
	}
}

// named returns a statement with the table's name.
func (o *Outbox) named(sql string) string { return o.table.named(sql) }
