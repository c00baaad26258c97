package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overview is the state of a chain for metrics and operators.
type Overview struct {
	Chain
	// Blocks is how many blocks were processed, and Repeated how many logs were met again from the same block, since the first start.
	Blocks, Repeated uint64
	// CursorAge is the age of the cursor's block by the database's clock, 0 before the first.
	CursorAge time.Duration
	Instances []Instance
}

// Lag returns how many final blocks are not stored yet.
func (o Overview) Lag() uint64 {
	if o.Final.Number < o.Cursor.Number {
		return 0
	}
	return o.Final.Number - o.Cursor.Number
}

// Overview returns the state of the chain, without the instances that are gone for an hour, whose rows it removes.
func (s *Store) Overview(ctx context.Context) (o Overview, err error) {
	if o.Chain, err = s.Chain(ctx); err != nil {
		return Overview{}, err
	}
	err = s.db.QueryRow(ctx, `SELECT blocks, repeated, GREATEST(coalesce(now() - cursor_time, '0'), '0')
		FROM escrow_chains WHERE chain_id = $1`, int64(s.cfg.ChainID)).Scan(&o.Blocks, &o.Repeated, &o.CursorAge)
	if err != nil {
		return Overview{}, fmt.Errorf("read chain %d: %w", s.cfg.ChainID, err)
	}
	if o.Instances, err = s.recentInstances(ctx); err != nil {
		return Overview{}, err
	}
	return o, nil
}

// MaxCounted is the highest number of parked logs, and of dead letters, in [Totals]. It means at least that many.
const MaxCounted = 10_000

// Totals are numbers that cost more than an [Overview].
type Totals struct {
	Registered int // escrows on the chain
	Monitored  int // of them, those that are neither released nor refunded
	Parked     int // at most MaxCounted
	// Dead is how many messages were given up, by target; of all together at most MaxCounted. The targets of this process are never missing.
	Dead map[string]int
	// Oldest is the age of the oldest message that is due, by partition, or of one behind a dead letter if none is. Partitions without
	// one are missing.
	Oldest map[int]time.Duration
}

// Totals counts what is stored of the chain. Its cost grows with the number of escrows.
func (s *Store) Totals(ctx context.Context) (t Totals, err error) {
	chain := int64(s.cfg.ChainID)
	var batch pgx.Batch
	batch.Queue(`SELECT count(*), count(*) FILTER (WHERE state NOT IN ('released', 'refunded')) FROM escrow_accounts WHERE chain_id = $1 AND created IS NOT NULL`, chain).
		QueryRow(func(row pgx.Row) error { return row.Scan(&t.Registered, &t.Monitored) })
	batch.Queue(`SELECT count(*) FROM (SELECT FROM escrow_parked WHERE chain_id = $1 LIMIT $2) AS parked`, chain, MaxCounted).
		QueryRow(func(row pgx.Row) error { return row.Scan(&t.Parked) })
	batch.Queue(`SELECT lane, count(*) FROM (SELECT lane FROM escrow_outbox WHERE state = 'dead' AND starts_with(lane, $1) LIMIT $2) AS dead GROUP BY lane`,
		Lane(s.cfg.ChainID, ""), MaxCounted).
		Query(func(rows pgx.Rows) error {
			t.Dead = map[string]int{}
			for _, target := range s.cfg.Targets {
				t.Dead[target] = 0
			}
			var lane string
			var n int
			_, err := pgx.ForEachRow(rows, []any{&lane, &n}, func() error {
				t.Dead[strings.TrimPrefix(lane, Lane(s.cfg.ChainID, ""))] = n
				return nil
			})
			return err
		})
	// One entry of each partition, the first by due_at, is read from the index. The lanes of the chain begin with its id.
	batch.Queue(`WITH RECURSIVE found AS (
			(SELECT e.partition, e.lane, e.created_at FROM escrow_outbox e WHERE e.state = 'waiting' ORDER BY e.partition, e.lane, e.due_at LIMIT 1)
		UNION ALL
			SELECT n.* FROM found f CROSS JOIN LATERAL (SELECT e.partition, e.lane, e.created_at FROM escrow_outbox e
				WHERE e.state = 'waiting' AND (e.partition, e.lane) > (f.partition, f.lane) ORDER BY e.partition, e.lane, e.due_at LIMIT 1) AS n
		)
		SELECT partition, GREATEST(now() - min(created_at), '0') FROM found WHERE split_part(lane, '/', 1) = $1::text GROUP BY partition`, fmt.Sprint(chain)).
		Query(func(rows pgx.Rows) error {
			t.Oldest = map[int]time.Duration{}
			var partition int
			var age time.Duration
			_, err := pgx.ForEachRow(rows, []any{&partition, &age}, func() error {
				t.Oldest[partition] = age
				return nil
			})
			return err
		})
	if err := s.db.SendBatch(ctx, &batch).Close(); err != nil {
		return Totals{}, fmt.Errorf("count what is stored of chain %d: %w", s.cfg.ChainID, err)
	}
	return t, nil
}
