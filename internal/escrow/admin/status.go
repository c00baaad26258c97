package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// Block is a block in the form that operators and their scripts see.
type Block struct {
	Number uint64            `json:"number"`
	Hash   common.Hash       `json:"hash"`
	Time   timefmt.Timestamp `json:"time"` // null if it is not stored
}

// Status is the state of a chain in the form that operators and their scripts see.
type Status struct {
	ChainID    uint64            `json:"chainId"`
	Factories  []common.Address  `json:"factories"`
	StartBlock uint64            `json:"startBlock"`
	Cursor     *Block            `json:"cursor"`  // the newest block whose events are stored; null before the first
	MovedAt    timefmt.Timestamp `json:"movedAt"` // when the cursor last moved
	Final      *Block            `json:"final"`   // null before the first
	Halted     string            `json:"halted"`  // why; "" if it is not
	Leader     string            `json:"leader"`  // the process that reads the chain; "" if none has the lease
	Epoch      int64             `json:"epoch"`   // of the leader's election
	Blocks     int64             `json:"blocks"`  // processed so far
	Repeated   int64             `json:"repeated"`
	// Escrows counts the escrows that are on the chain, in all and by state.
	Escrows  int64                  `json:"escrows"`
	ByState  map[events.State]int64 `json:"byState"`
	Parked   int64                  `json:"parked"` // logs that do not decode
	Messages []Messages             `json:"messages"`
	// Instances are those that have not ended by themselves, by id.
	Instances []Instance `json:"instances"`
}

// Instance is a process of the role in the form that operators and their scripts see.
type Instance struct {
	ID           string            `json:"id"`
	Version      string            `json:"version"`
	Host         string            `json:"host"`
	PID          int               `json:"pid"`
	Total        int               `json:"totalPartitions"` // 0: it publishes all
	Partition    int               `json:"partition"`       // of the total
	Leading      bool              `json:"leading"`         // it reads the chain, as of its latest heartbeat
	StartedAt    timefmt.Timestamp `json:"startedAt"`
	HeartbeatAge float64           `json:"heartbeatAgeSeconds"`
}

// Messages counts the messages to a target that are not published.
type Messages struct {
	To      string            `json:"to"`
	Waiting int64             `json:"waiting"`
	Dead    int64             `json:"dead"`
	Oldest  timefmt.Timestamp `json:"oldest"` // when the oldest was stored; null if all are published
}

// unpublished is the condition for the messages that are not published, in the form of the outbox's index by subject, which has those alone.
// The published ones stay in the outbox, and no other index leaves them out. Each message has a subject.
const unpublished = `state IN ('waiting', 'dead') AND subject IS NOT NULL`

// Status returns the state of the chain. Its cost grows with the numbers of escrows and of unpublished messages.
func (a *Admin) Status(ctx context.Context) (s Status, err error) {
	st, err := a.store(nil)
	if err != nil {
		return s, err
	}
	chain, err := st.Chain(ctx)
	if err != nil {
		return s, err
	}
	instances, err := st.Instances(ctx)
	if err != nil {
		return s, err
	}
	s = Status{
		ChainID: a.ChainID, Factories: chain.Factories, StartBlock: chain.StartBlock, Halted: chain.Halted, Epoch: chain.Epoch,
		ByState: map[events.State]int64{}, Messages: []Messages{}, Instances: []Instance{},
	}
	if chain.Cursor.Number > 0 {
		s.Cursor = &Block{chain.Cursor.Number, chain.Cursor.Hash, timefmt.Timestamp{Time: chain.Cursor.Time}}
	}
	if chain.Final.Number > 0 {
		s.Final = &Block{Number: chain.Final.Number, Hash: chain.Final.Hash}
	}
	id := int64(a.ChainID)
	var batch pgx.Batch
	batch.Queue(`SELECT CASE WHEN watcher_until > now() THEN watcher ELSE '' END, moved_at, blocks, repeated,
		(SELECT count(*) FROM escrow_parked WHERE chain_id = $1) FROM escrow_chains WHERE chain_id = $1`, id).
		QueryRow(func(row pgx.Row) error { return row.Scan(&s.Leader, &s.MovedAt, &s.Blocks, &s.Repeated, &s.Parked) })
	batch.Queue(`SELECT state, count(*) FROM escrow_accounts WHERE chain_id = $1 AND created IS NOT NULL GROUP BY state`, id).
		Query(func(rows pgx.Rows) error {
			var state events.State
			var n int64
			_, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error {
				s.ByState[state] = n
				s.Escrows += n
				return nil
			})
			return err
		})
	// A target whose messages are all published has no row.
	batch.Queue(`SELECT lane, count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'dead'), min(created_at)
		FROM escrow_outbox WHERE `+unpublished+` AND starts_with(lane, $1) GROUP BY lane ORDER BY lane`, a.prefix()).
		Query(func(rows pgx.Rows) error {
			var m Messages
			_, err := pgx.ForEachRow(rows, []any{&m.To, &m.Waiting, &m.Dead, &m.Oldest}, func() error {
				m.To = m.To[len(a.prefix()):]
				s.Messages = append(s.Messages, m)
				return nil
			})
			return err
		})
	if err := a.db.SendBatch(ctx, &batch).Close(); err != nil {
		return s, fmt.Errorf("read the status of chain %d: %w", a.ChainID, err)
	}
	for _, i := range instances {
		s.Instances = append(s.Instances, Instance{
			ID: i.ID, Version: i.Version, Host: i.Host, PID: i.PID, Total: i.Total, Partition: i.Number,
			// The row of a process that died says that it leads until another one does.
			Leading: i.Leader && s.Leader != "", StartedAt: timefmt.Timestamp{Time: i.StartedAt}, HeartbeatAge: i.Age.Round(time.Millisecond).Seconds(),
		})
	}
	return s, nil
}

// Partition counts what belongs to a partition, or to those that are equal modulo a total.
type Partition struct {
	Partition   int               `json:"partition"`
	Escrows     int64             `json:"escrows"`
	Unpublished int64             `json:"unpublished"` // messages, dead ones included, of all targets
	Oldest      timefmt.Timestamp `json:"oldest"`      // when the oldest of them was stored
}

// Partitions returns the partitions that have escrows or unpublished messages; or with a total, from 1 to [events.Partitions], all numbers
// below it, with the partitions that are equal to each modulo the total: what an instance with that PARTITION_NUMBER publishes. Its cost grows
// with the numbers of escrows and of unpublished messages.
func (a *Admin) Partitions(ctx context.Context, total int) ([]Partition, error) {
	modulus, all := total, 0
	if total == 0 {
		modulus = events.Partitions
	} else {
		all = total
	}
	rows, err := a.db.Query(ctx, `SELECT part, sum(escrows)::bigint, sum(unpublished)::bigint, min(oldest) FROM (
			SELECT partition % $2 AS part, count(*) AS escrows, 0 AS unpublished, NULL::timestamptz AS oldest
				FROM escrow_accounts WHERE chain_id = $1 AND created IS NOT NULL GROUP BY 1
		UNION ALL
			SELECT partition % $2, 0, count(*), min(created_at) FROM escrow_outbox
				WHERE `+unpublished+` AND starts_with(lane, $4) GROUP BY 1
		UNION ALL
			SELECT n, 0, 0, NULL FROM generate_series(0, $3::int - 1) AS n
		) AS parts GROUP BY part ORDER BY part`, int64(a.ChainID), modulus, all, a.prefix())
	if err != nil {
		return nil, fmt.Errorf("read the partitions of chain %d: %w", a.ChainID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("read the partitions of chain %d: %w", a.ChainID, err)
	}
	return list, nil
}
