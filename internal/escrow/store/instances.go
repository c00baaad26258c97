package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// goneAfter is after how long without a heartbeat the row of an instance is removed: long after its alert.
const goneAfter = time.Hour

// Instance is a process that runs the role for a chain.
type Instance struct {
	ID string // at most one process at a time has it
	// Run differs for each process, also for two under one id.
	Run     string
	Version string
	Host    string
	PID     int
	// Total and Number are the static partitions that it publishes. Total is 0 if it publishes all.
	Total, Number int
	// Leader reports that it has the watcher's lease.
	Leader    bool
	StartedAt time.Time     // by the database's clock
	Age       time.Duration // since the latest heartbeat, by the database's clock
}

const insertInstance = `INSERT INTO relayer_instances (chain_id, instance_id, run, version, host, pid, is_leader, partition_number, total_partitions)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (chain_id, instance_id) DO UPDATE SET `

// args returns the parameters of insertInstance.
func (s *Store) args(i Instance) []any {
	var number, total *int
	if i.Total > 0 {
		number, total = &i.Number, &i.Total
	}
	return []any{int64(s.cfg.ChainID), i.ID, i.Run, i.Version, i.Host, i.PID, i.Leader, number, total}
}

// Join stores an instance that starts. A process that runs under the same id finds at its next heartbeat that it was replaced.
func (s *Store) Join(ctx context.Context, i Instance) error {
	_, err := s.db.Exec(ctx, insertInstance+`run = EXCLUDED.run, started_at = now(), heartbeat_at = now(), version = EXCLUDED.version, host = EXCLUDED.host,
		pid = EXCLUDED.pid, is_leader = EXCLUDED.is_leader, partition_number = EXCLUDED.partition_number, total_partitions = EXCLUDED.total_partitions`, s.args(i)...)
	if err != nil {
		return fmt.Errorf("store instance %s: %w", i.ID, err)
	}
	return nil
}

// Beat stores a heartbeat, and with that of a leader that no other instance is one. It reports whether the process still has its id. A row
// that was removed meanwhile is stored again.
func (s *Store) Beat(ctx context.Context, i Instance) (mine bool, err error) {
	tag, err := s.db.Exec(ctx, insertInstance+`heartbeat_at = now(), is_leader = EXCLUDED.is_leader WHERE relayer_instances.run = EXCLUDED.run`, s.args(i)...)
	if err != nil {
		return false, fmt.Errorf("store the heartbeat of instance %s: %w", i.ID, err)
	}
	if mine = tag.RowsAffected() > 0; mine && i.Leader {
		// The former leader may have died. This is a statement of its own, so that it holds no lock while it waits for another one.
		_, err = s.db.Exec(ctx, `UPDATE relayer_instances SET is_leader = false WHERE chain_id = $1 AND instance_id <> $2 AND is_leader`, int64(s.cfg.ChainID), i.ID)
		if err != nil {
			return mine, fmt.Errorf("take over from the former leader of chain %d: %w", s.cfg.ChainID, err)
		}
	}
	return mine, nil
}

// Replaced reports whether another process has started under the id.
func (s *Store) Replaced(ctx context.Context, i Instance) (replaced bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relayer_instances WHERE chain_id = $1 AND instance_id = $2 AND run <> $3)`,
		int64(s.cfg.ChainID), i.ID, i.Run).Scan(&replaced)
	if err != nil {
		return false, fmt.Errorf("read instance %s: %w", i.ID, err)
	}
	return replaced, nil
}

// Leave removes the row of a process that ends. It changes nothing if another process has the id.
func (s *Store) Leave(ctx context.Context, i Instance) error {
	_, err := s.db.Exec(ctx, `DELETE FROM relayer_instances WHERE chain_id = $1 AND instance_id = $2 AND run = $3`, int64(s.cfg.ChainID), i.ID, i.Run)
	if err != nil {
		return fmt.Errorf("remove instance %s: %w", i.ID, err)
	}
	return nil
}

// Instances returns the instances of the chain by id, also those that are gone.
func (s *Store) Instances(ctx context.Context) ([]Instance, error) {
	return s.instances(ctx, new(pgx.Batch))
}

// recentInstances is Instances after it has removed those that are gone for an hour.
func (s *Store) recentInstances(ctx context.Context) ([]Instance, error) {
	var batch pgx.Batch
	batch.Queue(`DELETE FROM relayer_instances WHERE chain_id = $1 AND heartbeat_at < now() - $2::interval`, int64(s.cfg.ChainID), goneAfter)
	return s.instances(ctx, &batch)
}

// instances reads the instances after the statements of a batch.
func (s *Store) instances(ctx context.Context, batch *pgx.Batch) (list []Instance, err error) {
	batch.Queue(`SELECT instance_id, run, version, host, pid, coalesce(total_partitions, 0), coalesce(partition_number, 0), is_leader, started_at,
			GREATEST(now() - heartbeat_at, '0') FROM relayer_instances WHERE chain_id = $1 ORDER BY instance_id`, int64(s.cfg.ChainID)).
		Query(func(rows pgx.Rows) error {
			list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Instance])
			return err
		})
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("read the instances: %w", err)
	}
	return list, nil
}
