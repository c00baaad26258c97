package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// Step is a step of a chain.
type Step struct {
	// Epoch is that of the caller's lease.
	Epoch int64
	// From is the cursor that the step follows; zero for the first step.
	From events.Block
	// Ancestor is the newest stored block that is still on the chain, if a reorganization removed From; nil otherwise.
	Ancestor *events.Block
	// Final is the newest final block; zero if that is not known. The final block never goes back.
	Final events.Block
	// Blocks are new blocks in the order of the chain. Blocks without events or parked logs may be left out, but not if they are after the
	// final one.
	Blocks []Read
	// To is the newest block that was read: the cursor afterwards.
	To events.Block
	// Count is how many blocks were read.
	Count uint64
	// Between is called between two transactions of a step that takes several: it renews the lease. Default: nothing.
	Between func(context.Context) error
}

// Read is a block as it was read.
type Read struct {
	events.Block
	Found  []events.Occurrence
	Parked []events.Parked
}

// retractMost is how many pending events a transaction retracts at most, if they are of several blocks: they are in memory, and the chain's
// row is locked.
const retractMost = 5_000

// Commit stores a step and returns its messages. A reorganization of very many events is stored in several transactions, each of which moves
// the cursor back: after an error the cursor may be a block between, and only the messages of the last transaction are returned. Commit returns
// [ErrFenced], [ErrHalted] or [ErrSettings] if the step may not be stored, and a *postgres.UnknownError if it is not known whether it was: then
// the chain's cursor shows it.
func (s *Store) Commit(ctx context.Context, step Step) (messages []*events.Message, err error) {
	begin := step.From.Number
	if err = s.retractMany(ctx, &step); err == nil {
		messages, err = s.commitAlone(ctx, step)
	}
	if err != nil {
		return nil, fmt.Errorf("store blocks %d to %d of chain %d: %w", begin, step.To.Number, s.cfg.ChainID, err)
	}
	return messages, nil
}

// retractMany stores the first part of a reorganization, in transactions of its own, until the step has at most retractMost events to
// retract. Each moves the cursor, and the step's From, back to a block that is to be removed, too.
func (s *Store) retractMany(ctx context.Context, step *Step) error {
	for step.Ancestor != nil {
		var to events.Block
		err := s.db.QueryRow(ctx, `SELECT number, hash, parent, time FROM escrow_blocks WHERE chain_id = $1 AND number > $2 AND number <=
				(SELECT LEAST(block_number, $4::bigint - 1) FROM processed_events WHERE chain_id = $1 AND status = 'pending' AND block_number > $2
					ORDER BY block_number DESC, place DESC LIMIT 1 OFFSET $3)
			ORDER BY number DESC LIMIT 1`, int64(s.cfg.ChainID), int64(step.Ancestor.Number), retractMost, int64(step.From.Number)).
			Scan(&to.Number, &to.Hash, &to.Parent, &to.Time)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err == nil {
			_, err = s.commitAlone(ctx, Step{Epoch: step.Epoch, From: step.From, Ancestor: &to, To: to})
		}
		if err == nil && step.Between != nil {
			err = step.Between(ctx)
		}
		if err != nil {
			return err
		}
		step.From = to
	}
	return nil
}

// commitAlone is commit in a transaction of its own.
func (s *Store) commitAlone(ctx context.Context, step Step) (messages []*events.Message, err error) {
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		messages, err = s.commit(ctx, tx, step)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.cfg.Stored != nil && len(messages) > 0 {
		s.cfg.Stored()
	}
	return messages, nil
}

func (s *Store) commit(ctx context.Context, tx pgx.Tx, step Step) ([]*events.Message, error) {
	chain, err := s.lock(ctx, tx)
	if err != nil {
		return nil, err
	}
	switch {
	case chain.Halted != "":
		return nil, fmt.Errorf("%w: %s", ErrHalted, chain.Halted)
	case s.current(chain) != nil:
		return nil, s.current(chain)
	case chain.Epoch != step.Epoch || chain.Cursor.Number != step.From.Number || chain.Cursor.Hash != step.From.Hash:
		return nil, ErrFenced
	}
	// A newer start may have other targets than this process.
	s = s.forTargets(chain)
	final := chain.Final
	switch {
	case step.Final.Number > final.Number:
		final = step.Final
	case step.Final.Number == final.Number && step.Final.Hash != final.Hash && step.Final.Number > 0:
		return nil, fmt.Errorf("%w: block %d is %s, and was final as %s", ErrFinality, final.Number, step.Final.Hash, final.Hash)
	}
	if step.Ancestor != nil && step.Ancestor.Number < min(chain.Final.Number, chain.Cursor.Number) {
		return nil, fmt.Errorf("%w: the blocks after %d are gone, and block %d was final", ErrFinality, step.Ancestor.Number, chain.Final.Number)
	}
	l := s.newLedger()
	if err := s.load(ctx, tx, step, final, l); err != nil {
		return nil, err
	}
	if err := s.decide(ctx, tx, step, final, l); err != nil {
		return nil, err
	}
	return l.Messages, s.write(ctx, tx, step, final, l)
}

// FinalizeUpTo returns the number of the highest block, up to one, whose step makes at most some pending events final. It returns the
// first block with pending events if that alone has more.
func (s *Store) FinalizeUpTo(ctx context.Context, number uint64, most int) (uint64, error) {
	const pending = `SELECT block_number FROM processed_events WHERE chain_id = $1 AND status = 'pending' AND block_number <= $2 ORDER BY block_number, place`
	var first, beyond *int64
	err := s.db.QueryRow(ctx, `SELECT (`+pending+` LIMIT 1), (`+pending+` LIMIT 1 OFFSET $3)`, int64(s.cfg.ChainID), int64(number), most).Scan(&first, &beyond)
	switch {
	case err != nil:
		return 0, fmt.Errorf("count the pending events of chain %d: %w", s.cfg.ChainID, err)
	case beyond == nil:
		return number, nil
	}
	return uint64(max(*first, *beyond-1)), nil
}

// ledger is the ledger of a step with what its rows need.
type ledger struct {
	events.Ledger
	places            map[string]int32 // of the events in their blocks, by id
	retract, finalize []string         // ids of stored events, in order
}

// load reads what a step touches.
func (s *Store) load(ctx context.Context, tx pgx.Tx, step Step, final events.Block, l *ledger) error {
	var batch pgx.Batch
	queueEvents := func(into *[]string, sql string, args ...any) {
		batch.Queue(`SELECT message, place FROM processed_events WHERE `+sql, args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var text []byte
				var place int32
				if err := rows.Scan(&text, &place); err != nil {
					return err
				}
				m := new(events.Message)
				if err := json.Unmarshal(text, m); err != nil {
					return fmt.Errorf("stored message: %w", err)
				}
				l.Last[m.EventID], l.places[m.EventID] = m, place
				if into != nil {
					*into = append(*into, m.EventID)
				}
			}
			return rows.Err()
		})
	}
	chain := int64(s.cfg.ChainID)
	if step.Ancestor != nil {
		queueEvents(&l.retract, `chain_id = $1 AND status = 'pending' AND block_number > $2 ORDER BY block_number DESC, place DESC`, chain, int64(step.Ancestor.Number))
	}
	upto := final.Number
	if step.Ancestor != nil {
		upto = min(upto, step.Ancestor.Number)
	}
	queueEvents(&l.finalize, `chain_id = $1 AND status = 'pending' AND block_number <= $2 ORDER BY block_number, place`, chain, int64(upto))
	var ids []string
	touched := map[common.Address]bool{}
	for i := range step.Blocks {
		for k := range step.Blocks[i].Found {
			o := &step.Blocks[i].Found[k]
			ids = append(ids, o.ID.String())
			touched[o.Escrow] = true
		}
	}
	if len(ids) > 0 {
		queueEvents(nil, `event_id = ANY($1)`, ids)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	for _, m := range l.Last {
		touched[m.Escrow] = true
	}
	return s.loadAccounts(ctx, tx, touched, l)
}

func (s *Store) loadAccounts(ctx context.Context, tx pgx.Tx, touched map[common.Address]bool, l *ledger) error {
	if len(touched) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT escrow, sequence, created, state, payer, payee, amount::text FROM escrow_accounts WHERE chain_id = $1 AND escrow = ANY($2)`,
		int64(s.cfg.ChainID), raw(touched))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		a := new(events.Account)
		var created *int64
		var amount *string
		if err := rows.Scan(&a.Address, &a.Sequence, &created, &a.State, &a.Payer, &a.Payee, &amount); err != nil {
			return err
		}
		if created != nil {
			a.Created = new(uint64(*created))
		}
		if amount != nil {
			a.Amount, _ = new(big.Int).SetString(*amount, 10)
		}
		l.Accounts[a.Address] = a
	}
	return rows.Err()
}

// decide fills the ledger's messages.
func (s *Store) decide(ctx context.Context, tx pgx.Tx, step Step, final events.Block, l *ledger) error {
	changed := map[common.Address]bool{}
	for _, id := range l.retract {
		if err := l.Retract(id); err != nil {
			return err
		}
		changed[l.Last[id].Escrow] = true
	}
	if len(changed) > 0 {
		if err := s.restate(ctx, tx, l, changed, step.Ancestor.Number); err != nil {
			return err
		}
	}
	for _, id := range l.finalize {
		if err := l.Finalize(id); err != nil {
			return err
		}
	}
	for i := range step.Blocks {
		b := &step.Blocks[i]
		status := events.Pending
		if b.Number <= final.Number {
			status = events.Final
		}
		for k := range b.Found {
			o := &b.Found[k]
			l.places[o.ID.String()] = int32(k)
			if err := l.Add(b.Block, o, status); err != nil {
				return err
			}
		}
	}
	return nil
}

// restate sets the facts of escrows to those of their events up to a block that were not retracted.
func (s *Store) restate(ctx context.Context, tx pgx.Tx, l *ledger, escrows map[common.Address]bool, upto uint64) error {
	rows, err := tx.Query(ctx, `SELECT message FROM processed_events WHERE chain_id = $1 AND escrow = ANY($2) AND block_number <= $3 AND status <> 'retracted'
		ORDER BY block_number, place`, int64(s.cfg.ChainID), raw(escrows), int64(upto))
	if err != nil {
		return err
	}
	standing := map[common.Address][]*events.Message{}
	var text []byte
	if _, err := pgx.ForEachRow(rows, []any{&text}, func() error {
		m := new(events.Message)
		if err := json.Unmarshal(text, m); err != nil {
			return fmt.Errorf("stored message: %w", err)
		}
		standing[m.Escrow] = append(standing[m.Escrow], m)
		return nil
	}); err != nil {
		return err
	}
	for escrow := range escrows {
		l.Restate(escrow, s.cfg.Events, standing[escrow])
	}
	return nil
}

// raw returns a set of addresses in the form of the database.
func raw(set map[common.Address]bool) [][]byte {
	list := make([][]byte, 0, len(set))
	for a := range set {
		list = append(list, a.Bytes())
	}
	return list
}

// write stores the results of a step.
func (s *Store) write(ctx context.Context, tx pgx.Tx, step Step, final events.Block, l *ledger) error {
	chain := int64(s.cfg.ChainID)
	entries, err := s.queueMessages(ctx, tx, chain, l)
	if err != nil {
		return err
	}
	if err := s.insert(ctx, tx, entries); err != nil {
		return err
	}
	var batch pgx.Batch
	if step.Ancestor != nil {
		batch.Queue(`DELETE FROM escrow_blocks WHERE chain_id = $1 AND number > $2`, chain, int64(step.Ancestor.Number))
		batch.Queue(`DELETE FROM escrow_parked WHERE chain_id = $1 AND block_number > $2`, chain, int64(step.Ancestor.Number))
	}
	var numbers []int64
	var hashes, parents [][]byte
	var times []time.Time
	for _, b := range append(step.Blocks, Read{Block: step.To}) {
		if b.Number < final.Number && b.Number != step.To.Number || len(numbers) > 0 && numbers[len(numbers)-1] == int64(b.Number) {
			continue
		}
		numbers, hashes, parents, times = append(numbers, int64(b.Number)), append(hashes, b.Hash.Bytes()), append(parents, b.Parent.Bytes()), append(times, b.Time)
	}
	batch.Queue(`INSERT INTO escrow_blocks (chain_id, number, hash, parent, time) SELECT $1, * FROM unnest($2::bigint[], $3::bytea[], $4::bytea[], $5::timestamptz[])
		ON CONFLICT (chain_id, number) DO UPDATE SET hash = EXCLUDED.hash, parent = EXCLUDED.parent, time = EXCLUDED.time`, chain, numbers, hashes, parents, times)
	batch.Queue(`DELETE FROM escrow_blocks WHERE chain_id = $1 AND number < $2`, chain, int64(min(final.Number, step.To.Number)))
	for i := range step.Blocks {
		for k := range step.Blocks[i].Parked {
			queueParked(&batch, chain, step.Blocks[i].Block, &step.Blocks[i].Parked[k])
		}
	}
	batch.Queue(`UPDATE escrow_chains SET cursor_number = $2, cursor_hash = $3, cursor_time = $4, final_number = nullif($5::bigint, 0), final_hash = CASE WHEN $5 > 0 THEN $6::bytea END,
			moved_at = now(), blocks = blocks + $7, repeated = repeated + $8 WHERE chain_id = $1`,
		chain, int64(step.To.Number), step.To.Hash[:], step.To.Time, int64(final.Number), final.Hash[:], int64(step.Count), int64(l.Repeated))
	return tx.SendBatch(ctx, &batch).Close()
}

// queueMessages writes the events and accounts of a ledger, and returns the entries of its messages.
func (s *Store) queueMessages(ctx context.Context, tx pgx.Tx, chain int64, l *ledger) ([]outbox.Entry, error) {
	if len(l.Messages) == 0 {
		return nil, nil
	}
	entries := make([]outbox.Entry, 0, len(l.Messages)*len(s.cfg.Targets))
	rows := map[string]int{}
	var ids, statuses []string
	var escrows, texts [][]byte
	var blocks []int64
	var places []int32
	touched := map[common.Address]bool{}
	for _, m := range l.Messages {
		text, err := m.Encode()
		if err != nil {
			return nil, err
		}
		entries = s.enqueue(entries, m, text)
		touched[m.Escrow] = true
		i, again := rows[m.EventID]
		if !again {
			i = len(ids)
			rows[m.EventID] = i
			ids, statuses, escrows, texts = append(ids, m.EventID), append(statuses, ""), append(escrows, m.Escrow.Bytes()), append(texts, nil)
			blocks, places = append(blocks, 0), append(places, 0)
		}
		statuses[i], texts[i], blocks[i], places[i] = string(m.Status), text, int64(m.BlockNumber), l.places[m.EventID]
	}
	var batch pgx.Batch
	batch.Queue(`INSERT INTO processed_events (chain_id, event_id, escrow, status, block_number, place, message)
		SELECT $1, * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::int[], $7::bytea[])
		ON CONFLICT (event_id) DO UPDATE SET status = EXCLUDED.status, block_number = EXCLUDED.block_number, place = EXCLUDED.place,
			message = EXCLUDED.message, processed_at = now()`, chain, ids, escrows, statuses, blocks, places, texts)
	s.queueAccounts(&batch, chain, touched, l)
	return entries, tx.SendBatch(ctx, &batch).Close()
}

func (s *Store) queueAccounts(batch *pgx.Batch, chain int64, touched map[common.Address]bool, l *ledger) {
	n := len(touched)
	escrows, payers, payees := make([][]byte, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
	partitions, sequences, created := make([]int32, 0, n), make([]int64, 0, n), make([]*int64, 0, n)
	states, amounts := make([]string, 0, n), make([]*string, 0, n)
	for address := range touched {
		a := l.Accounts[address]
		escrows, partitions, sequences = append(escrows, address.Bytes()), append(partitions, int32(events.Partition(address))), append(sequences, a.Sequence)
		var block *int64
		if a.Created != nil {
			block = new(int64(*a.Created))
		}
		var amount *string
		if a.Amount != nil {
			amount = new(a.Amount.String())
		}
		created, states, amounts = append(created, block), append(states, string(a.State)), append(amounts, amount)
		payers, payees = append(payers, bytesOf(a.Payer)), append(payees, bytesOf(a.Payee))
	}
	batch.Queue(`INSERT INTO escrow_accounts (chain_id, escrow, partition, sequence, created, state, payer, payee, amount)
		SELECT $1, escrow, partition, sequence, created, state, payer, payee, amount::numeric
		FROM unnest($2::bytea[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::bytea[], $8::bytea[], $9::text[])
			AS a (escrow, partition, sequence, created, state, payer, payee, amount)
		ON CONFLICT (chain_id, escrow) DO UPDATE SET sequence = EXCLUDED.sequence, created = EXCLUDED.created, state = EXCLUDED.state,
			payer = EXCLUDED.payer, payee = EXCLUDED.payee, amount = EXCLUDED.amount, updated_at = now()`,
		chain, escrows, partitions, sequences, created, states, payers, payees, amounts)
}

func bytesOf(a *common.Address) []byte {
	if a == nil {
		return nil
	}
	return a.Bytes()
}

func queueParked(batch *pgx.Batch, chain int64, b events.Block, p *events.Parked) {
	topics := make([][]byte, len(p.Log.Topics))
	for i, topic := range p.Log.Topics {
		topics[i] = topic.Bytes()
	}
	batch.Queue(`INSERT INTO escrow_parked (chain_id, block_number, block_hash, event_id, escrow, contract, topics, data, tx_hash, log_index, reason)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING`,
		chain, int64(b.Number), b.Hash[:], p.ID.String(), bytesOf(p.Escrow), p.Log.Contract[:], topics, p.Log.Data, p.Log.Tx[:],
		int64(min(p.Log.Index, math.MaxInt64)), p.Reason) // no chain has so many logs
}
