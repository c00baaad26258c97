package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// ErrChanged means that the chain's state is not as the operator saw it. Nothing was changed.
var ErrChanged = errors.New("the chain's state has changed meanwhile")

// unchanged locks the chain's row and returns its state, or fails with [ErrChanged] if it is not a halted one as it was seen.
func (s *Store) unchanged(ctx context.Context, tx pgx.Tx, seen Chain) (Chain, error) {
	chain, err := s.lock(ctx, tx)
	if err != nil {
		return Chain{}, err
	}
	if chain.Halted == "" || chain.Halted != seen.Halted || chain.Cursor.Hash != seen.Cursor.Hash || chain.Final.Hash != seen.Final.Hash {
		return Chain{}, ErrChanged
	}
	return chain, nil
}

// Abandon retracts the newest standing events of a halted chain, as it was seen, that are in blocks after a number: at most limit of them,
// in the reverse order of the chain. It returns their number, and is repeated until that is 0. Nothing leaves while the chain is halted. The
// retractions are for the stored targets. It fails with [ErrChanged] or [ErrNoTarget].
func (s *Store) Abandon(ctx context.Context, seen Chain, after uint64, limit int) (n int, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		chain, err := s.unchanged(ctx, tx, seen)
		if err != nil {
			return err
		}
		l := s.newLedger()
		touched := map[common.Address]bool{}
		rows, err := tx.Query(ctx, `SELECT message, place FROM processed_events WHERE chain_id = $1 AND block_number > $2 AND status <> 'retracted'
			ORDER BY block_number DESC, place DESC LIMIT $3`, int64(s.cfg.ChainID), int64(after), limit)
		if err != nil {
			return err
		}
		var ids []string
		var text []byte
		var place int32
		if _, err := pgx.ForEachRow(rows, []any{&text, &place}, func() error {
			m := new(events.Message)
			if err := json.Unmarshal(text, m); err != nil {
				return fmt.Errorf("stored message: %w", err)
			}
			ids, touched[m.Escrow] = append(ids, m.EventID), true
			l.Last[m.EventID], l.places[m.EventID] = m, place
			return nil
		}); err != nil {
			return err
		}
		if err := s.loadAccounts(ctx, tx, touched, l); err != nil {
			return err
		}
		for _, id := range ids {
			if err := l.Abandon(id); err != nil {
				return err
			}
		}
		n = len(ids)
		return s.forTargets(chain).writeMessages(ctx, tx, l, touched)
	})
	if err != nil {
		return 0, fmt.Errorf("retract the events after block %d of chain %d: %w", after, s.cfg.ChainID, err)
	}
	return n, nil
}

// newLedger returns an empty ledger of the chain.
func (s *Store) newLedger() *ledger {
	return &ledger{Ledger: events.Ledger{Chain: s.cfg.ChainID, Accounts: map[common.Address]*events.Account{}, Last: map[string]*events.Message{}}, places: map[string]int32{}}
}

// writeMessages writes the messages of a ledger, and the facts of some of its accounts as their standing events have them afterwards. It
// fails with [ErrNoTarget].
func (s *Store) writeMessages(ctx context.Context, tx pgx.Tx, l *ledger, restated map[common.Address]bool) error {
	if err := s.requireTarget(l.Messages); err != nil {
		return err
	}
	chain := int64(s.cfg.ChainID)
	entries, err := s.queueMessages(ctx, tx, chain, l)
	if err != nil {
		return err
	}
	if err := s.insert(ctx, tx, entries); err != nil {
		return err
	}
	if len(restated) == 0 {
		return nil
	}
	if err := s.restate(ctx, tx, l, restated, math.MaxInt64); err != nil {
		return err
	}
	var batch pgx.Batch
	s.queueAccounts(&batch, chain, restated, l)
	return tx.SendBatch(ctx, &batch).Close()
}

// Resume ends the halt of a chain as it was seen. to is nil if the chain has its final block again. Otherwise it is the newest block that
// the chain still has, or zero if it has none, and becomes the cursor and the final block: the events after it must have been retracted by
// [Store.Abandon]. The watcher's lease ends, so that the next one reads the state again. It fails with [ErrChanged].
func (s *Store) Resume(ctx context.Context, seen Chain, to *events.Block) error {
	err := postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := s.unchanged(ctx, tx, seen); err != nil {
			return err
		}
		id := int64(s.cfg.ChainID)
		var batch pgx.Batch
		batch.Queue(`UPDATE escrow_chains SET halted = '', watcher = '', watcher_until = now(), epoch = epoch + 1 WHERE chain_id = $1`, id)
		if to != nil {
			if err := s.requireAbandoned(ctx, tx, to.Number); err != nil {
				return err
			}
			s.queueRewind(&batch, id, *to)
		}
		return tx.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return fmt.Errorf("resume chain %d: %w", s.cfg.ChainID, err)
	}
	return nil
}

// requireAbandoned fails if an event after a block stands.
func (s *Store) requireAbandoned(ctx context.Context, tx pgx.Tx, number uint64) (err error) {
	var left bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM processed_events WHERE chain_id = $1 AND block_number > $2 AND status <> 'retracted')`,
		int64(s.cfg.ChainID), int64(number)).Scan(&left)
	if err == nil && left {
		err = fmt.Errorf("events after block %d were not retracted: %w", number, ErrChanged)
	}
	return err
}

// queueRewind moves the cursor and the final block back.
func (s *Store) queueRewind(batch *pgx.Batch, chain int64, to events.Block) {
	number, hash, at := new(int64(to.Number)), to.Hash.Bytes(), &to.Time
	if to.Number == 0 {
		number, hash, at = nil, nil, (*time.Time)(nil)
	}
	batch.Queue(`UPDATE escrow_chains SET cursor_number = $2, cursor_hash = $3, cursor_time = $4, final_number = $2, final_hash = $3, moved_at = now()
		WHERE chain_id = $1`, chain, number, hash, at)
	batch.Queue(`DELETE FROM escrow_blocks WHERE chain_id = $1`, chain)
	if to.Number > 0 {
		batch.Queue(`INSERT INTO escrow_blocks (chain_id, number, hash, parent, time) VALUES ($1, $2, $3, $4, $5)`, chain, number, hash, to.Parent.Bytes(), to.Time)
	}
	batch.Queue(`DELETE FROM escrow_parked WHERE chain_id = $1 AND block_number > $2`, chain, int64(to.Number))
}
