package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

var (
	// ErrNotHalted means that there is nothing to resume.
	ErrNotHalted = errors.New("the chain is not halted")
	// ErrFork means that the chain has another block than the final one, so that an operator has to accept that.
	ErrFork = errors.New("the chain has another block")
)

// abandonMost is how many events one transaction retracts.
const abandonMost = 5_000

// Fork is what an operator decides about: a halted chain, and what the endpoints have now.
type Fork struct {
	Reason string `json:"reason"` // of the halt
	Final  Block  `json:"final"`  // the final block that was contradicted
	Has    Block  `json:"has"`    // the block of that number that the endpoints have
	// Ancestor is the newest block with events that the endpoints still have, or the cursor; null if there is none. It is the final block
	// itself if they have that again.
	Ancestor *Block `json:"ancestor"`
	// Abandoned is how many events after it are retracted if the fork is accepted.
	Abandoned int `json:"abandoned"`

	seen store.Chain
	to   events.Block
}

// Same reports whether the endpoints have the final block again.
func (f *Fork) Same() bool { return f.Has.Hash == f.Final.Hash }

// Fork returns why the chain is halted, and what the endpoints have. It fails with [ErrNotHalted] or [watch.ErrUnconfirmed].
func (a *Admin) Fork(ctx context.Context, n Nodes) (*Fork, error) {
	chain, err := a.Chain(ctx)
	if err != nil {
		return nil, err
	}
	if chain.Halted == "" {
		return nil, ErrNotHalted
	}
	f := &Fork{Reason: chain.Halted, Final: Block{Number: chain.Final.Number, Hash: chain.Final.Hash}, seen: chain}
	if chain.Final.Number == 0 { // no block was contradicted
		return f, nil
	}
	r := watch.NewReader(watch.ReaderConfig{Client: n.Client, Events: n.Events, Alone: n.Alone, Logger: n.Logger})
	has, err := a.block(ctx, r, chain.Final.Number)
	if err != nil {
		return nil, err
	}
	f.Has = blockOf(has)
	if f.Same() {
		f.Ancestor = &f.Has
		return f, nil
	}
	if f.to, err = a.ancestor(ctx, r, chain); err != nil {
		return nil, err
	}
	if f.to.Number > 0 {
		f.Ancestor = new(blockOf(f.to))
	}
	err = a.db.QueryRow(ctx, `SELECT count(*) FROM processed_events WHERE chain_id = $1 AND block_number > $2 AND status <> 'retracted'`,
		int64(a.ChainID), int64(f.to.Number)).Scan(&f.Abandoned)
	if err != nil {
		return nil, fmt.Errorf("count the events after block %d: %w", f.to.Number, err)
	}
	return f, nil
}

func blockOf(b events.Block) Block { return Block{b.Number, b.Hash, timefmt.Timestamp{Time: b.Time}} }

// block returns the block of a number that the endpoints have.
func (a *Admin) block(ctx context.Context, r *watch.Reader, number uint64) (b events.Block, err error) {
	err = a.patiently(ctx, func() error {
		b, err = r.Block(ctx, number)
		return err
	})
	return b, err
}

// ancestor returns the newest block that is known to be on the chain before and after the fork: the cursor, or the newest block with events
// that the endpoints still have; zero if there is none. Only blocks with events have a stored hash, and the fork may begin right after one.
func (a *Admin) ancestor(ctx context.Context, r *watch.Reader, chain store.Chain) (b events.Block, err error) {
	if chain.Cursor.Number == 0 {
		return b, nil
	}
	at := chain.Final.Number - 1
	if chain.Cursor.Number < chain.Final.Number {
		if b, err = a.block(ctx, r, chain.Cursor.Number); err != nil || b.Hash == chain.Cursor.Hash {
			return b, err
		}
		at = chain.Cursor.Number - 1
	}
	// The chain lacks all after a block that it lacks: steps that double go back beyond the ancestor, and then halving finds it.
	var low events.Block // the newest one that was found on the chain
	begin, high := at, at+1
	for step := uint64(1); ; step *= 2 {
		found, stored, err := a.newest(ctx, r, begin)
		if err != nil {
			return events.Block{}, err
		}
		if !stored || found.same {
			low = found.Block
			break
		}
		high = found.Number
		begin = found.Number - min(found.Number, step)
	}
	// All blocks with events from high on are not on the chain, and of those up to begin low is the newest.
	for begin+1 < high {
		middle := begin + (high-begin)/2
		found, stored, err := a.newest(ctx, r, middle)
		switch {
		case err != nil:
			return events.Block{}, err
		case stored && !found.same:
			high = found.Number
		default:
			low, begin = found.Block, middle
		}
	}
	return low, nil
}

// candidate is the block that the chain has at the number of one with events.
type candidate struct {
	events.Block
	same bool // it is the stored one
}

// newest returns the newest block with standing events up to a number. stored is false if there is none.
func (a *Admin) newest(ctx context.Context, r *watch.Reader, upto uint64) (c candidate, stored bool, err error) {
	var text []byte
	err = a.db.QueryRow(ctx, `SELECT message FROM processed_events WHERE chain_id = $1 AND block_number <= $2 AND status <> 'retracted'
		ORDER BY block_number DESC, place DESC LIMIT 1`, int64(a.ChainID), int64(upto)).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, false, nil
	}
	var m events.Message
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return c, false, fmt.Errorf("read the newest event up to block %d: %w", upto, err)
	}
	if c.Block, err = a.block(ctx, r, m.BlockNumber); err != nil {
		return c, false, err
	}
	c.same = c.Hash == m.BlockHash
	return c, true, nil
}

// Resume ends a halt, as an operator has decided. If the endpoints have the final block again, it only does that. Otherwise it fails with
// [ErrFork], unless accept is set: then it retracts the events of the abandoned blocks, the newest first, and the watcher reads the chain
// from the ancestor on. After an error the chain is halted still, unless that is a *postgres.UnknownError; a part may be retracted, and
// another Resume does the rest. It fails with [store.ErrChanged] if the state is not that of f. The
// retractions are for all targets of the chain, because each takes the next sequence of its escrow; if there are none, it fails with
// [store.ErrNoTarget]. progress is called with the number of events that were retracted so far.
func (a *Admin) Resume(ctx context.Context, f *Fork, n Nodes, accept bool, progress func(int)) error {
	if n.Events.String() != f.seen.Events {
		return ErrEvents
	}
	s, err := a.store(n.Events)
	if err != nil {
		return err
	}
	if f.Same() {
		return s.Resume(ctx, f.seen, nil)
	}
	if !accept {
		return fmt.Errorf("%w: block %d was final as %s and is %s", ErrFork, f.Final.Number, f.Final.Hash, f.Has.Hash)
	}
	for done := 0; ; {
		retracted, err := s.Abandon(ctx, f.seen, f.to.Number, abandonMost)
		if err != nil {
			return err
		}
		if retracted == 0 {
			return s.Resume(ctx, f.seen, &f.to)
		}
		done += retracted
		progress(done)
	}
}
