package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// ErrUnconfirmed means that the endpoints that answer do not settle what a range of blocks has.
var ErrUnconfirmed = errUnconfirmed

// ReaderConfig configures a Reader. Fields without a default are required.
type ReaderConfig struct {
	Client    *evm.Client
	Events    *events.Set
	Factories []common.Address
	// Escrows are those that are known, with the blocks of their creation. The Reader adds others.
	Escrows map[common.Address]uint64
	// Alone reports that the client has a single endpoint, which no other one can confirm.
	Alone  bool
	Logger *slog.Logger // default: discard
}

// Reader reads blocks of the past for operators. It needs no lease and stores nothing. It is for one goroutine, and reads ranges in the
// order of the chain.
type Reader struct {
	cfg     ReaderConfig
	confirm *confirmer
	at      uint64 // the block whose logs are matched
}

// NewReader returns a Reader.
func NewReader(cfg ReaderConfig) *Reader {
	r := &Reader{cfg: cfg}
	r.confirm = &confirmer{
		lists: &lists{client: cfg.Client, topics: cfg.Events.Topics(), contracts: r.contracts, factory: r.Factory, known: r.known, set: cfg.Events},
		alone: cfg.Alone, metrics: newMetrics(nil), log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
	}
	return r
}

// Factory implements [events.Watched].
func (r *Reader) Factory(a common.Address) bool { return slices.Contains(r.cfg.Factories, a) }

// Escrow implements [events.Watched]. An escrow is watched from its creation on, as when the block was new.
func (r *Reader) Escrow(a common.Address) bool {
	created, ok := r.cfg.Escrows[a]
	return ok && created <= r.at
}

// known reports whether a contract is a factory or an escrow of any block.
func (r *Reader) known(a common.Address) bool {
	_, ok := r.cfg.Escrows[a]
	return ok || r.Factory(a)
}

// contracts returns the factories and the escrows.
func (r *Reader) contracts() []common.Address {
	all := slices.Clone(r.cfg.Factories)
	for escrow := range r.cfg.Escrows {
		all = append(all, escrow)
	}
	return all
}

// List is the answer of one endpoint for a range of blocks.
type List struct {
	Endpoint string
	Err      error // the endpoint gave no answer
	logs     []evm.Log
}

// Lists returns the answers of all endpoints for a range of blocks.
func (r *Reader) Lists(ctx context.Context, from, to uint64) []List {
	endpoints := r.cfg.Client.Status().Endpoints
	all := make([]List, len(endpoints))
	var wg sync.WaitGroup
	for i, ep := range endpoints {
		wg.Go(func() {
			logs, err := r.confirm.lists.read(ctx, ep.Endpoint, from, to)
			all[i] = List{Endpoint: ep.Endpoint, Err: err, logs: logs}
		})
	}
	wg.Wait()
	return all
}

// Confirm returns the confirmed list of a range of final blocks, of which endpoints have given the lists. It fails with [ErrUnconfirmed].
func (r *Reader) Confirm(ctx context.Context, from, to uint64, lists ...List) (List, error) {
	answers := slices.DeleteFunc(slices.Clone(lists), func(l List) bool { return l.Err != nil })
	if len(answers) > 1 && !slices.ContainsFunc(answers[1:], func(l List) bool { return !same(l.logs, answers[0].logs) }) {
		return List{logs: answers[0].logs}, nil
	}
	logs, err := r.confirm.read(ctx, from, to)
	return List{logs: logs}, err
}

// Match returns the blocks of an endpoint's list that have events or logs that do not decode, with their numbers and hashes alone.
func (r *Reader) Match(l List) []store.Read { return r.match(l, func([]events.Occurrence) {}) }

// MatchConfirmed is Match for a confirmed list. The Reader adds the escrows that it creates.
func (r *Reader) MatchConfirmed(l List) []store.Read {
	return r.match(l, func(found []events.Occurrence) {
		for i := range found {
			o := &found[i]
			if created, known := r.cfg.Escrows[o.Escrow]; o.Event.Role == events.Factory && (!known || created > r.at) {
				r.cfg.Escrows[o.Escrow] = r.at
			}
		}
	})
}

func (r *Reader) match(l List, register func([]events.Occurrence)) (blocks []store.Read) {
	for logs := l.logs; len(logs) > 0; {
		of := ofBlock(logs, logs[0].BlockNumber)
		logs = logs[len(of):]
		r.at = of[0].BlockNumber
		found, parked := r.cfg.Events.Match(r.cfg.Client.ChainID(), convert(of), r)
		if len(found) > 0 || len(parked) > 0 {
			blocks = append(blocks, store.Read{Block: events.Block{Number: r.at, Hash: of[0].BlockHash}, Found: found, Parked: parked})
		}
		register(found)
	}
	return blocks
}

// Read returns the confirmed blocks of a range of final blocks that have events or logs that do not decode. It fails with [ErrUnconfirmed].
func (r *Reader) Read(ctx context.Context, from, to uint64) ([]store.Read, error) {
	logs, err := r.confirm.read(ctx, from, to)
	if err != nil {
		return nil, err
	}
	blocks := r.MatchConfirmed(List{logs: logs})
	for i := range blocks {
		b, err := r.Block(ctx, blocks[i].Number)
		if err != nil {
			return nil, err
		}
		if b.Hash != blocks[i].Hash {
			return nil, fmt.Errorf("block %d: %w: its logs are of %s, its header of %s", b.Number, errUnconfirmed, blocks[i].Hash, b.Hash)
		}
		blocks[i].Block = b
	}
	return blocks, nil
}

// Block returns the block of a number that two endpoints have, or one if no other is configured. It fails with [ErrUnconfirmed].
func (r *Reader) Block(ctx context.Context, number uint64) (events.Block, error) {
	w := Watcher{cfg: Config{Client: r.cfg.Client, Alone: r.cfg.Alone}}
	return w.header(ctx, number)
}
