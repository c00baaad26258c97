package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
)

var (
	// ErrNothingNew means that a backfill would add nothing.
	ErrNothingNew = errors.New("the chain has these settings already")
	// ErrNoFinal means that the chain has been read, and no block of it was final yet.
	ErrNoFinal = errors.New("no block is final yet")
	// ErrRemoves means that a set of events lacks some of the chain's.
	ErrRemoves = errors.New("the set of events lacks some that the chain has")
)

const (
	// lateBlocks is how many blocks a backfill reads and stores at a time.
	lateBlocks = 2_000
	// lateTerm is how long the watcher's lease stays with a backfill that was killed.
	lateTerm = 30 * time.Second
)

// Backfill is what a backfill adds.
type Backfill struct {
	// From is the first block that is read again. All up to the newest one are.
	From uint64 `json:"from"`
	// Factories are the new ones.
	Factories []common.Address `json:"factories"`
	// Events are the new events, one text for each.
	Events []string `json:"events"`
	// StartBlock and AllFactories are the settings afterwards, which each start must repeat.
	StartBlock   uint64           `json:"startBlock"`
	AllFactories []common.Address `json:"allFactories"`

	seen store.Chain
}

// PlanBackfill returns what [Admin.Backfill] would add: factories, and the events of the set of n, from a block on. The start block becomes
// from if that is earlier. It fails with [ErrNothingNew], [ErrNoFinal], [ErrRemoves] or [store.ErrHalted].
func (a *Admin) PlanBackfill(ctx context.Context, n Nodes, from uint64, factories []common.Address) (*Backfill, error) {
	chain, err := a.Chain(ctx)
	if err != nil {
		return nil, err
	}
	if chain.Halted != "" {
		return nil, fmt.Errorf("%w: %s", store.ErrHalted, chain.Halted)
	}
	if chain.Cursor.Number > 0 && chain.Final.Number == 0 {
		return nil, ErrNoFinal
	}
	b := &Backfill{From: max(from, 1), Factories: []common.Address{}, Events: []string{}, StartBlock: min(from, chain.StartBlock), seen: chain}
	for _, f := range factories {
		if !slices.Contains(chain.Factories, f) && !slices.Contains(b.Factories, f) {
			b.Factories = append(b.Factories, f)
		}
	}
	b.AllFactories = slices.SortedFunc(slices.Values(slices.Concat(chain.Factories, b.Factories)), common.Address.Cmp)
	had, has := strings.Split(chain.Events, "\n"), strings.Split(n.Events.String(), "\n")
	for _, e := range had {
		if !slices.Contains(has, e) {
			return nil, fmt.Errorf("%w: %s", ErrRemoves, e)
		}
	}
	for _, e := range has {
		if !slices.Contains(had, e) {
			b.Events = append(b.Events, e)
		}
	}
	if len(b.Factories) == 0 && len(b.Events) == 0 && b.StartBlock == chain.StartBlock {
		return nil, ErrNothingNew
	}
	return b, nil
}

// Backfill reads the blocks from b.From up to the newest final one again, and stores the events that the chain's settings did not have, as
// late messages. Then it stores the settings. The watcher goes on with the former ones meanwhile. For the last blocks the backfill takes its
// lease, so that no block is read with the former settings alone; afterwards only processes that start with the new settings store blocks.
//
// The messages are for all targets of the chain, because each takes the next sequence of its escrow. progress is called with the last block and the number of
// messages so far. It fails with [watch.ErrNoCode] for a new factory, with [watch.ErrUnconfirmed], or as
// [store.Store.CommitLate] does. After an error, or a death, the settings are the former ones, unless the error is a
// *postgres.UnknownError, and another Backfill repeats the reading and stores what is missing.
func (a *Admin) Backfill(ctx context.Context, b *Backfill, n Nodes, progress func(block uint64, messages int)) (messages int, err error) {
	// The chain would find nothing of a factory with a false address, and no later start corrects it.
	if err := a.patiently(ctx, func() error { return watch.CheckFactories(ctx, n.Client, b.Factories, n.Alone) }); err != nil {
		return 0, err
	}
	s, err := a.store(n.Events)
	if err != nil {
		return 0, err
	}
	r, err := a.reader(ctx, n, b.AllFactories)
	if err != nil {
		return 0, err
	}
	l := &late{Admin: a, Backfill: b, store: s, reader: r, next: b.From, progress: progress}
	if err := l.history(ctx); err != nil {
		return l.messages, err
	}
	return l.messages, l.end(ctx)
}

// late is a running backfill.
type late struct {
	*Admin
	*Backfill
	store    *store.Store
	reader   *watch.Reader
	next     uint64 // the block to read next
	messages int
	progress func(uint64, int)
}

// last returns the last block that a backfill reads now.
func (l *late) last(ctx context.Context) (uint64, error) {
	chain, err := l.Chain(ctx)
	return min(chain.Cursor.Number, chain.Final.Number), err
}

// history reads and stores the blocks up to the newest one, while the watcher goes on.
func (l *late) history(ctx context.Context) error {
	for {
		last, err := l.last(ctx)
		if err != nil {
			return err
		}
		if last < l.next || last-l.next < l.part {
			return nil // the end reads these
		}
		if err := l.read(ctx, min(l.next+l.part-1, last), nil); err != nil {
			return err
		}
	}
}

// end reads and stores the last blocks with the watcher's lease, and stores the settings.
func (l *late) end(ctx context.Context) error {
	holder := "backfill/" + uuid.NewString()
	epoch, err := l.store.TakeLease(ctx, holder, lateTerm)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = l.store.WatcherLease().Release(ctx, holder) // otherwise it expires by itself
	}()
	last, err := l.last(ctx)
	if err != nil {
		return err
	}
	renew := func(ctx context.Context) error {
		held, err := l.store.WatcherLease().Renew(ctx, holder, epoch, lateTerm)
		if err == nil && !held {
			err = store.ErrFenced
		}
		return err
	}
	for last >= l.next && last-l.next >= l.part {
		if err := l.read(ctx, l.next+l.part-1, nil); err != nil {
			return err
		}
		if err := renew(ctx); err != nil {
			return err
		}
	}
	return l.read(ctx, last, &store.LastLate{
		Epoch: epoch, Settings: store.Settings{Factories: l.AllFactories, StartBlock: l.StartBlock}, Between: renew,
	})
}

// read reads and stores the blocks up to one.
func (l *late) read(ctx context.Context, to uint64, end *store.LastLate) error {
	part := store.Late{Seen: l.seen, To: to, Last: end}
	if to >= l.next {
		err := l.patiently(ctx, func() (err error) {
			part.Blocks, err = l.reader.Read(ctx, l.next, to)
			return err
		})
		if err != nil {
			return err
		}
	}
	n, err := l.store.CommitLate(ctx, part)
	if err != nil {
		return err
	}
	l.messages += n
	l.next = max(l.next, to+1)
	l.progress(to, l.messages)
	return nil
}
