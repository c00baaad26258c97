package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// MaxReplay is how many messages one Replay enqueues at most for each target: they are in memory, and in one transaction.
const MaxReplay = 20_000

// insertMost is how many entries a statement inserts: a statement has a limit of time.
const insertMost = 5_000

// ErrReplayTooLarge means that the blocks of a Replay have more than MaxReplay messages.
var ErrReplayTooLarge = fmt.Errorf("more than %d messages", MaxReplay)

// ErrNoTarget means that there are messages, and that no start of an instance has stored the targets that they are for.
var ErrNoTarget = errors.New("the chain has no targets")

// forTargets returns a Store whose messages are for the stored targets of a chain. An operator's command has no targets of its own, and
// a start with others may have replaced those of an instance.
func (s *Store) forTargets(c Chain) *Store {
	cfg := s.cfg
	cfg.Targets = c.Targets
	return &Store{db: s.db, cfg: cfg, box: s.box}
}

// requireTarget fails with [ErrNoTarget] if there are messages for no target: they would be stored as if they had been sent.
func (s *Store) requireTarget(messages []*events.Message) error {
	if len(messages) > 0 && len(s.cfg.Targets) == 0 {
		return ErrNoTarget
	}
	return nil
}

// lock locks the chain's row for the rest of a transaction, and returns its state.
func (s *Store) lock(ctx context.Context, tx pgx.Tx) (c Chain, err error) {
	return c, s.scanChain(tx.QueryRow(ctx, selectChain+` FOR UPDATE`, int64(s.cfg.ChainID)), &c)
}

// Replay enqueues the latest message of each event of a range of blocks again, of an escrow or of all, and returns their number. The
// messages are as they were stored, with the member replay. It fails with [ErrHalted] or [ErrReplayTooLarge]; then nothing was done, and so
// with any error but a *postgres.UnknownError.
func (s *Store) Replay(ctx context.Context, from, to uint64, escrow *common.Address) (n int, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		chain, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		if chain.Halted != "" {
			return fmt.Errorf("%w: %s", ErrHalted, chain.Halted)
		}
		entries, err := s.replays(ctx, tx, from, to, escrow)
		if err != nil {
			return err
		}
		n = len(entries) / max(1, len(s.cfg.Targets))
		return s.insert(ctx, tx, entries)
	})
	if err != nil {
		return 0, fmt.Errorf("replay blocks %d to %d of chain %d: %w", from, to, s.cfg.ChainID, err)
	}
	return n, nil
}

// replays returns the entries of a Replay.
func (s *Store) replays(ctx context.Context, tx pgx.Tx, from, to uint64, escrow *common.Address) ([]outbox.Entry, error) {
	rows, err := tx.Query(ctx, `SELECT message FROM processed_events WHERE chain_id = $1 AND block_number BETWEEN $2 AND $3 AND ($4::bytea IS NULL OR escrow = $4)
		LIMIT $5`, int64(s.cfg.ChainID), int64(from), int64(to), bytesOf(escrow), MaxReplay+1)
	if err != nil {
		return nil, err
	}
	type stored struct {
		events.Message
		text []byte
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m stored, err error) {
		if err := row.Scan(&m.text); err != nil {
			return m, err
		}
		return m, json.Unmarshal(m.text, &m.Message)
	})
	if err != nil {
		return nil, err
	}
	if len(all) > MaxReplay {
		return nil, ErrReplayTooLarge
	}
	// The order of an escrow's messages is that of the sequence: a retracted event has the block that was removed.
	slices.SortFunc(all, func(a, b stored) int { return cmp.Compare(a.Sequence, b.Sequence) })
	entries := make([]outbox.Entry, 0, len(all)*len(s.cfg.Targets))
	for i := range all {
		entries = s.enqueue(entries, &all[i].Message, events.Replayed(all[i].text))
	}
	return entries, nil
}

// insert inserts entries, in several statements if there are many.
func (s *Store) insert(ctx context.Context, tx pgx.Tx, entries []outbox.Entry) error {
	for chunk := range slices.Chunk(entries, insertMost) {
		if err := s.box.Insert(ctx, tx, chunk...); err != nil {
			return err
		}
	}
	return nil
}

// enqueue appends the entries of a message, one for each target.
func (s *Store) enqueue(entries []outbox.Entry, m *events.Message, text []byte) []outbox.Entry {
	for _, target := range s.cfg.Targets {
		lane := Lane(m.ChainID, target)
		entries = append(entries, outbox.Entry{Lane: lane, Subject: lane + "/" + m.OrderingKey(), Partition: events.Partition(m.Escrow), Payload: text})
	}
	return entries
}
