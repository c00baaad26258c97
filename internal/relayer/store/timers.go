package store

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// Timer is how long a condition of a key has been unchanged, across processes.
type Timer struct {
	Age  time.Duration // by the database's clock
	Head uint64        // the chain's head when it began
}

// Timers sets the timers with the given name and returns those of the given keys. A timer whose mark differs from the
// stored one restarts at the given head. The mark "" removes a timer. A key that is not given keeps its timer.
func (s *Store) Timers(ctx context.Context, name string, head uint64, marks map[common.Address]string) (map[common.Address]Timer, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	var set, texts, removed []string
	for key, mark := range marks {
		if mark == "" {
			removed = append(removed, hexAddress(key))
			continue
		}
		set, texts = append(set, hexAddress(key)), append(texts, mark)
	}
	timers := map[common.Address]Timer{}
	batch := new(pgx.Batch) // one database transaction
	if len(removed) > 0 {
		batch.Queue(`DELETE FROM relayer_timers WHERE chain_id = $1 AND name = $2 AND address = ANY($3)`, s.ChainID, name, removed)
	}
	if len(set) > 0 {
		// An unchanged timer is not touched, because even a lock would write. The rows are sorted, so that two processes do
		// not wait for each other.
		batch.Queue(`INSERT INTO relayer_timers (chain_id, address, name, mark, head)
			SELECT $1, m.address, $2, m.mark, $5 FROM unnest($3::text[], $4::text[]) AS m (address, mark)
			WHERE NOT EXISTS (SELECT FROM relayer_timers t WHERE (t.chain_id, t.address, t.name, t.mark) = ($1, m.address, $2, m.mark)) ORDER BY m.address
			ON CONFLICT (chain_id, address, name) DO UPDATE SET mark = excluded.mark, head = excluded.head, since = now()`,
			s.ChainID, name, set, texts, int64(head))
		batch.Queue(`SELECT address, head, extract(epoch FROM now() - since)::float8 FROM relayer_timers WHERE chain_id = $1 AND name = $2 AND address = ANY($3)`,
			s.ChainID, name, set).Query(func(rows pgx.Rows) error {
			var address string
			var t Timer
			var seconds float64
			_, err := pgx.ForEachRow(rows, []any{&address, &t.Head, &seconds}, func() error {
				t.Age = time.Duration(seconds * float64(time.Second))
				timers[common.HexToAddress(address)] = t
				return nil
			})
			return err
		})
	}
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("set timers %q: %w", name, err)
	}
	return timers, nil
}
