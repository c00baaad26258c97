package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/lease"
)

const (
	// rangeBlocks is how many blocks a step reads at most.
	rangeBlocks = 10_000
	// violations is how many rounds in a row all endpoints must contradict a final block before the chain is halted.
	violations = 3
)

// Config configures a Watcher. Fields without a default are required.
type Config struct {
	Client    *evm.Client
	Store     *store.Store
	Events    *events.Set
	Factories []common.Address
	// Finality selects the final block of an endpoint.
	Finality evm.Finality
	// Alone reports that the client has a single endpoint, which no other one can confirm.
	Alone bool
	// Instance is the process's name in the lease. Default: a random one.
	Instance string
	// Interval is how often the process looks for a new final block, and for the lease without it. Default 1 s.
	Interval   time.Duration
	Registerer prometheus.Registerer // default: none
	Logger     *slog.Logger          // default: discard
}

// Watcher reads a chain while this process has the chain's lease. Any number of processes may run one for a chain.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	lease   *lease.Lease
	confirm *confirmer

	chain      store.Chain
	violations int // rounds in a row in which all endpoints contradicted the final block

	mu      sync.Mutex
	escrows map[common.Address]struct{} // that are on the chain
	problem error                       // of the last round

	turned  atomic.Int64 // Unix nanoseconds
	leading atomic.Bool
}

// New returns a Watcher.
func New(cfg Config) *Watcher {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	// A process that restarts under the same name is another holder: its former one may still be running.
	holder := cmp.Or(cfg.Instance, "watcher") + "/" + uuid.NewString()
	w := &Watcher{
		cfg: cfg, log: cfg.Logger.With("component", "watcher"),
		lease: lease.New(lease.Config{Row: cfg.Store.WatcherLease(), Holder: holder, Interval: cfg.Interval}),
	}
	w.confirm = &confirmer{
		lists: &lists{client: cfg.Client, topics: cfg.Events.Topics(), contracts: w.contracts, turned: w.turns},
		alone: cfg.Alone, metrics: newMetrics(cfg.Registerer), log: w.log,
	}
	return w
}

// Factory implements [events.Watched].
func (w *Watcher) Factory(a common.Address) bool { return slices.Contains(w.cfg.Factories, a) }

// Escrow implements [events.Watched].
func (w *Watcher) Escrow(a common.Address) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.escrows[a]
	return ok
}

// contracts returns the factories and the escrows.
func (w *Watcher) contracts() []common.Address {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := append(make([]common.Address, 0, len(w.cfg.Factories)+len(w.escrows)), w.cfg.Factories...)
	for escrow := range w.escrows {
		all = append(all, escrow)
	}
	return all
}

// Health returns nil while the last round of this process succeeded, or another process has the lease, and otherwise the cause.
func (w *Watcher) Health() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// Run reads the chain until ctx ends, while this process has the lease. Then it releases the lease and returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	for {
		w.turn(ctx)
		w.progress()
		select {
		case <-ctx.Done():
			// Also a lease that was dropped, because the stop has interrupted a step, may be this process's.
			if err := w.lease.Release(ctx); err != nil {
				w.log.Warn("lease not released: it expires by itself", "err", err)
			}
			w.progress()
			return nil
		case <-ticker.C:
		}
	}
}

// turn claims the lease and makes one round.
func (w *Watcher) turn(ctx context.Context) {
	elected, err := w.lease.Claim(ctx)
	if err == nil && elected {
		if err = w.begin(ctx); err != nil {
			w.lease.Drop()
		}
	}
	if err == nil && w.lease.Held() {
		err = w.round(ctx)
		if errors.Is(err, store.ErrFenced) { // another process has stored a step: the next election reads the cursor again
			w.lease.Drop()
		} else if w.lease.Held() && !w.lease.Record(err) && ctx.Err() == nil {
			w.log.Warn("lease given back: no round succeeded for its term", "err", err)
			if err := w.lease.StandBack(ctx); err != nil {
				w.log.Warn("lease not released: it expires by itself", "err", err)
			}
		}
	}
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	before := w.problem
	w.problem = err
	w.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		w.log.Warn("round failed", "err", err)
	case err == nil && before != nil:
		w.log.Info("rounds succeed again")
	}
}

// begin reads what an elected process needs.
func (w *Watcher) begin(ctx context.Context) error {
	chain, err := w.cfg.Store.Chain(ctx)
	if err != nil {
		return err
	}
	list, err := w.cfg.Store.Escrows(ctx)
	if err != nil {
		return err
	}
	escrows := make(map[common.Address]struct{}, len(list))
	for _, a := range list {
		escrows[a] = struct{}{}
	}
	w.mu.Lock()
	w.escrows = escrows
	w.mu.Unlock()
	w.chain, w.violations = chain, 0
	w.progress()
	w.log.Info("elected to read the chain", "epoch", w.lease.Epoch(), "cursor", chain.Cursor.Number, "final", chain.Final.Number, "escrows", len(list))
	return nil
}

// round stores the events up to the final block.
func (w *Watcher) round(ctx context.Context) error {
	if w.chain.Halted != "" {
		return w.halted(ctx)
	}
	final, err := w.final(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		from := max(w.chain.StartBlock, w.chain.Cursor.Number+1)
		if from > final.Number {
			break
		}
		if err := w.step(ctx, from, min(from+rangeBlocks-1, final.Number), final); err != nil {
			return err
		}
		w.lease.Record(nil)
		if _, err := w.lease.Claim(ctx); err != nil {
			return err
		}
		if !w.lease.Held() {
			return store.ErrFenced
		}
	}
	return ctx.Err()
}

// halted looks whether an operator has resumed the chain. The round counts as a success, so that the lease stays: no other process could
// do more.
func (w *Watcher) halted(ctx context.Context) error {
	chain, err := w.cfg.Store.Chain(ctx)
	if err != nil {
		return err
	}
	if chain.Halted == "" {
		return w.begin(ctx)
	}
	return nil
}

// step reads a range of final blocks and stores it.
func (w *Watcher) step(ctx context.Context, from, to uint64, final events.Block) error {
	logs, err := w.read(ctx, from, to)
	if err != nil {
		return err
	}
	step := store.Step{Epoch: w.lease.Epoch(), From: w.chain.Cursor, Final: final, Count: to - from + 1}
	for len(logs) > 0 {
		number := logs[0].BlockNumber
		of := ofBlock(logs, number)
		logs = logs[len(of):]
		found, parked := w.cfg.Events.Match(w.cfg.Client.ChainID(), convert(of), w)
		if len(found) == 0 && len(parked) == 0 {
			continue
		}
		b, err := w.header(ctx, number)
		if err != nil {
			return err
		}
		if b.Hash != of[0].BlockHash {
			return fmt.Errorf("block %d: %w: its logs are of %s, its header of %s", number, errUnconfirmed, of[0].BlockHash, b.Hash)
		}
		step.Blocks = append(step.Blocks, store.Read{Block: b, Found: found, Parked: parked})
		w.register(found)
	}
	if step.To, err = w.header(ctx, to); err != nil {
		return err
	}
	messages, err := w.cfg.Store.Commit(ctx, step)
	if err != nil {
		w.lease.Drop() // the escrows in memory may not be those that are stored
		return err
	}
	w.chain.Cursor, w.chain.Final = step.To, final
	w.progress()
	w.log.Debug("blocks stored", "from", from, "to", to, "messages", len(messages))
	return nil
}

// register adds the escrows that a block creates, for the next blocks of the step.
func (w *Watcher) register(found []events.Occurrence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range found {
		if found[i].Event.Role == events.Factory {
			w.escrows[found[i].Escrow] = struct{}{}
		}
	}
}

func convert(logs []evm.Log) []events.Log {
	all := make([]events.Log, len(logs))
	for i, l := range logs {
		all[i] = events.Log{Contract: l.Contract, Topics: l.Topics, Data: l.Data, Tx: l.TxHash, Index: l.Index}
	}
	return all
}

// header returns a final block that two endpoints have, or one if no other is configured.
func (w *Watcher) header(ctx context.Context, number uint64) (events.Block, error) {
	var seen []evm.Header
	var errs []error
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		h, err := w.cfg.Client.HeaderAt(ctx, name, number)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, other := range append(seen, h)[:len(seen)] {
			if other.Hash == h.Hash && other.Parent == h.Parent && other.Time.Equal(h.Time) {
				return blockOf(h), nil
			}
		}
		if seen = append(seen, h); w.cfg.Alone {
			return blockOf(h), nil
		}
	}
	return events.Block{}, fmt.Errorf("block %d: %w: %d endpoints answer, and no two of them agree: %w", number, errUnconfirmed, len(seen), reasons(errs))
}

func blockOf(h evm.Header) events.Block {
	return events.Block{Number: h.Number, Hash: h.Hash, Parent: h.Parent, Time: h.Time}
}
