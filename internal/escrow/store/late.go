package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// ErrSettings means that an operator has added to the chain's settings since this process registered them. A *[SettingsError] for each
// that differs is joined to it.
var ErrSettings = errors.New("an operator has added to the chain's settings since this process has started")

// current returns nil if a chain has the settings that this process has registered, or if it has registered none.
func (s *Store) current(c Chain) error {
	given := s.registered.Load()
	if given == nil {
		return nil
	}
	if err := s.compare(c, *given); err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	return nil
}

// TakeLease takes the watcher's lease from whichever process has it, and returns the epoch. That process stores nothing more.
func (s *Store) TakeLease(ctx context.Context, holder string, term time.Duration) (epoch int64, err error) {
	err = s.db.QueryRow(ctx, `UPDATE escrow_chains SET watcher = $2, watcher_until = now() + $3::interval, epoch = epoch + 1 WHERE chain_id = $1 RETURNING epoch`,
		int64(s.cfg.ChainID), holder, term).Scan(&epoch)
	if err != nil {
		return 0, fmt.Errorf("take the lease of chain %d: %w", s.cfg.ChainID, err)
	}
	return epoch, nil
}

// Late is a part of a chain that was read again with settings that add to those of the chain.
type Late struct {
	// Seen is the chain as the operator saw it: it must have these settings still.
	Seen Chain
	// To is the last block that was read. It is final, and not after the cursor.
	To uint64
	// Blocks are the blocks up to To that have events or parked logs, with all of them, in the order of the chain.
	Blocks []Read
	// Last ends the backfill, nil in all parts but the last one.
	Last *LastLate
}

// LastLate is the end of a backfill. To is the final block then, or the cursor if that is before it.
type LastLate struct {
	Epoch    int64 // of the caller's lease
	Settings Settings
	Between  func(context.Context) error // as in Step
}

// CommitLate stores the events of a part that are not stored yet: as late and final messages, after those that their escrows have. It
// returns their number. The messages are for the stored targets. The last part stores the settings, too: the Store's set of events, and the
// given ones. Before that, messages that are pending are retracted, and the cursor goes back to the final block, so that the next watcher
// reads the others with the new settings: very many in several transactions, as [Store.Commit] does. The other parts retract nothing,
// because the watcher goes on: their messages may follow pending ones of later blocks.
//
// It fails with [ErrHalted], with [ErrNoTarget], with [ErrChanged] if the settings are others, or with [ErrFenced] if the part is not up to
// the right block, or the lease was lost. All that fails can be repeated.
func (s *Store) CommitLate(ctx context.Context, late Late) (n int, err error) {
	if late.Last != nil {
		err = s.rewindMany(ctx, late)
	}
	if err == nil {
		n, err = s.commitLate(ctx, late)
	}
	if err != nil {
		return 0, fmt.Errorf("store blocks up to %d of chain %d again: %w", late.To, s.cfg.ChainID, err)
	}
	return n, nil
}

func (s *Store) commitLate(ctx context.Context, late Late) (n int, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		chain, err := s.lock(ctx, tx)
		if err == nil {
			err = late.follows(chain)
		}
		if err != nil {
			return err
		}
		s := s.forTargets(chain)
		// A retraction takes back the newest standing event, so it precedes the late messages.
		if late.Last != nil && chain.Cursor.Number > chain.Final.Number {
			step, err := s.rewind(ctx, tx, chain)
			if err != nil {
				return err
			}
			messages, err := s.commit(ctx, tx, step)
			if err == nil {
				err = s.requireTarget(messages)
			}
			if err != nil {
				return err
			}
		}
		if n, err = s.late(ctx, tx, late.Blocks); err != nil || late.Last == nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE escrow_chains SET factories = $2, start_block = $3, events = $4 WHERE chain_id = $1`,
			int64(s.cfg.ChainID), late.Last.Settings.raw(), int64(late.Last.Settings.StartBlock), s.cfg.Events.String())
		return err
	})
	return n, err
}

// late adds the events of blocks that are not stored, and returns their number.
func (s *Store) late(ctx context.Context, tx pgx.Tx, blocks []Read) (int, error) {
	if len(blocks) == 0 {
		return 0, nil
	}
	l := s.newLedger()
	l.Late = true
	var ids []string
	touched := map[common.Address]bool{}
	for i := range blocks {
		for k := range blocks[i].Found {
			o := &blocks[i].Found[k]
			ids = append(ids, o.ID.String())
			l.places[o.ID.String()] = int32(k)
			touched[o.Escrow] = true
		}
	}
	later, err := s.loadLate(ctx, tx, l, ids, touched, blocks[0].Number)
	if err != nil {
		return 0, err
	}
	for i := range blocks {
		for k := range blocks[i].Found {
			if err := l.Add(blocks[i].Block, &blocks[i].Found[k], events.Final); err != nil {
				return 0, err
			}
		}
	}
	restated := map[common.Address]bool{}
	for _, m := range l.Messages {
		if later[m.Escrow] {
			restated[m.Escrow] = true
		}
	}
	if err := s.writeMessages(ctx, tx, l, restated); err != nil {
		return 0, err
	}
	var batch pgx.Batch
	// A log that did not decode may be an event of the new set.
	batch.Queue(`DELETE FROM escrow_parked WHERE chain_id = $1 AND event_id = ANY($2)`, int64(s.cfg.ChainID), ids)
	for i := range blocks {
		for k := range blocks[i].Parked {
			queueParked(&batch, int64(s.cfg.ChainID), blocks[i].Block, &blocks[i].Parked[k])
		}
	}
	return len(l.Messages), tx.SendBatch(ctx, &batch).Close()
}

// loadLate reads what late events touch. It returns the escrows that have standing events from a block on, so that theirs may not be the
// latest facts.
func (s *Store) loadLate(ctx context.Context, tx pgx.Tx, l *ledger, ids []string, touched map[common.Address]bool, from uint64) (map[common.Address]bool, error) {
	rows, err := tx.Query(ctx, `SELECT message FROM processed_events WHERE event_id = ANY($1)`, ids)
	if err != nil {
		return nil, err
	}
	var text []byte
	if _, err := pgx.ForEachRow(rows, []any{&text}, func() error {
		m := new(events.Message)
		if err := json.Unmarshal(text, m); err != nil {
			return fmt.Errorf("stored message: %w", err)
		}
		l.Last[m.EventID] = m
		return nil
	}); err != nil {
		return nil, err
	}
	if err := s.loadAccounts(ctx, tx, touched, l); err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, `SELECT DISTINCT escrow FROM processed_events WHERE chain_id = $1 AND escrow = ANY($2) AND block_number >= $3 AND status <> 'retracted'`,
		int64(s.cfg.ChainID), raw(touched), int64(from))
	if err != nil {
		return nil, err
	}
	later := map[common.Address]bool{}
	var escrow common.Address
	_, err = pgx.ForEachRow(rows, []any{&escrow}, func() error {
		later[escrow] = true
		return nil
	})
	return later, err
}

// follows returns nil if a chain is as a part must find it, and otherwise why the part may not be stored.
func (l *Late) follows(chain Chain) error {
	last := min(chain.Cursor.Number, chain.Final.Number)
	switch {
	case chain.Halted != "":
		return fmt.Errorf("%w: %s", ErrHalted, chain.Halted)
	case chain.Events != l.Seen.Events || !chain.equal(l.Seen.Settings):
		return ErrChanged
	case l.To > last, l.Last != nil && (l.To != last || l.Last.Epoch != chain.Epoch):
		return ErrFenced
	}
	return nil
}

// rewindMany retracts all but retractMost of the pending events, as retractMany does, before the last part is stored.
func (s *Store) rewindMany(ctx context.Context, late Late) error {
	chain, err := s.Chain(ctx)
	if err == nil {
		err = late.follows(chain)
	}
	if err != nil || len(chain.Targets) == 0 || chain.Cursor.Number <= chain.Final.Number {
		return err
	}
	step, err := s.rewind(ctx, s.db, chain)
	if err == nil {
		step.Between = late.Last.Between
		err = s.retractMany(ctx, &step)
	}
	return err
}

// rewind returns the step that retracts the pending events, and moves the cursor back to the final block.
func (s *Store) rewind(ctx context.Context, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, chain Chain) (Step, error) {
	var final events.Block
	err := db.QueryRow(ctx, `SELECT number, hash, parent, time FROM escrow_blocks WHERE chain_id = $1 AND number = $2 AND hash = $3`,
		int64(s.cfg.ChainID), int64(chain.Final.Number), chain.Final.Hash[:]).Scan(&final.Number, &final.Hash, &final.Parent, &final.Time)
	if err != nil {
		return Step{}, fmt.Errorf("read the final block %d: %w", chain.Final.Number, err)
	}
	return Step{Epoch: chain.Epoch, From: chain.Cursor, Ancestor: &final, To: final}, nil
}
