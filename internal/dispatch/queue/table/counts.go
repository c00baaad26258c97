package table

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// counts is the number of entries by state, and the age of the oldest that is no dead letter.
type counts struct {
	waiting, delayed, handled, dead int
	oldest                          time.Duration
}

// sqlCount reads at most 100,000 entries, and at most as many dead letters.
const sqlCount = `SELECT count(*) FILTER (WHERE due_at <= now() AND claimed_until <= now()), count(*) FILTER (WHERE due_at > now()),
		count(*) FILTER (WHERE due_at <= now() AND claimed_until > now()), coalesce(extract(epoch FROM now() - min(enqueued_at)), 0)::float8,
		(SELECT count(*) FROM (SELECT FROM relay_queue WHERE dead_at IS NOT NULL ORDER BY dead_at LIMIT 100000) AS letters)
	FROM (SELECT due_at, claimed_until, enqueued_at FROM relay_queue WHERE due_at < 'infinity' ORDER BY due_at LIMIT 100000) AS entries`

func readCounts(ctx context.Context, db *pgxpool.Pool) (c counts, err error) {
	var seconds float64
	if err := db.QueryRow(ctx, sqlCount).Scan(&c.waiting, &c.delayed, &c.handled, &seconds, &c.dead); err != nil {
		return counts{}, fmt.Errorf("count queue entries: %w", err)
	}
	c.oldest = time.Duration(max(0, seconds) * float64(time.Second))
	return c, nil
}

// countQueue sets the metrics of a queue until ctx ends.
func countQueue(ctx context.Context, db *pgxpool.Pool, cfg queue.Config) {
	countEntries(ctx, db, cfg, func(c counts) {
		cfg.Metrics.Depth("waiting", c.waiting)
		cfg.Metrics.Depth("delayed", c.delayed)
		cfg.Metrics.Depth("handled", c.handled)
		cfg.Metrics.Depth("dead", c.dead)
		cfg.Metrics.Oldest("queue", c.oldest)
	})
}

// countOutbox sets the metrics of an outbox until ctx ends.
func countOutbox(ctx context.Context, db *pgxpool.Pool, cfg queue.Config) {
	countEntries(ctx, db, cfg, func(c counts) {
		cfg.Metrics.Depth("outbox", c.waiting+c.delayed+c.handled)
		cfg.Metrics.Depth("dead", c.dead)
		cfg.Metrics.Oldest("outbox", c.oldest)
	})
}

func countEntries(ctx context.Context, db *pgxpool.Pool, cfg queue.Config, show func(counts)) {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	for {
		c, err := readCounts(ctx, db)
		switch {
		case err == nil:
			show(c)
		case ctx.Err() == nil: // the turns report an unavailable database
			cfg.Logger.Debug("queue entries not counted", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
