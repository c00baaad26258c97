package watch

import (
	"cmp"
	"context"
	"errors"
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

// Delivery is when the events of a block are reported.
type Delivery string

// The deliveries.
const (
	Finalized Delivery = "finalized" // once the block is final
	Instant   Delivery = "instant"   // as pending at once, and as final or retracted later
)

// Config configures a Watcher. Fields without a default are required.
type Config struct {
	// Client calls the endpoints. With Instant the Watcher runs it while it has the lease, so no other caller may; it should be Lazy.
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
	// Delivery is when events are reported. Default Finalized.
	Delivery Delivery
	// Interval is how often the process renews the lease, or looks for it. Default 1 s.
	Interval time.Duration
	// FinalInterval is how often the process with the lease looks for a new final block. Default: three times the Interval, and ten times
	// with Instant.
	FinalInterval time.Duration
	Registerer    prometheus.Registerer // default: none
	Logger        *slog.Logger          // default: discard
}

// Watcher reads a chain while this process has the chain's lease. Any number of processes may run one for a chain.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	lease   *lease.Lease
	confirm *confirmer

	claimed    time.Time // when the lease was last claimed or renewed
	chain      store.Chain
	blocks     []events.Block       // that are stored: a final one, and those after it
	span       uint64               // blocks of the next step of the history
	violations int                  // rounds in a row in which all endpoints contradicted the final block
	violated   time.Time            // when the first of them was
	excluded   map[string]time.Time // when endpoints were excluded
	looks      int                  // for a new final block
	// finalizeMost is how many pending events a step makes final at most, if they are of several blocks.
	finalizeMost int
	looked       time.Time // when the last one was
	finalErr     error     // of the last look
	follower

	mu      sync.Mutex
	escrows map[common.Address]struct{} // that are on the chain
	problem error                       // of the last round

	turned  atomic.Int64 // Unix nanoseconds
	leading atomic.Bool
	newest  atomic.Uint64 // 0 before it was looked for
}

// New returns a Watcher.
func New(cfg Config) *Watcher {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Delivery = cmp.Or(cfg.Delivery, Finalized)
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	if cfg.FinalInterval == 0 {
		cfg.FinalInterval = quietIntervals * cfg.Interval
		if cfg.Delivery == Instant {
			cfg.FinalInterval = 10 * cfg.Interval
		}
	}
	// A process that restarts under the same name is another holder: its former one may still be running.
	holder := cmp.Or(cfg.Instance, "watcher") + "/" + uuid.NewString()
	w := &Watcher{
		cfg: cfg, log: cfg.Logger.With("component", "watcher"), span: firstBlocks, finalizeMost: rangeLogs,
		lease: lease.New(lease.Config{Row: cfg.Store.WatcherLease(), Holder: holder, Interval: cfg.Interval}),
	}
	w.confirm = &confirmer{
		lists: &lists{
			client: cfg.Client, topics: cfg.Events.Topics(), contracts: w.contracts, factory: w.Factory, known: w.known, set: cfg.Events, turned: w.turns,
			maxBytes: maxListBytes,
		},
		alone: cfg.Alone, metrics: newMetrics(cfg.Registerer), log: w.log,
	}
	if cfg.Alone {
		w.confirm.metrics.alone.Set(1)
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

// known reports whether a contract is a factory or an escrow.
func (w *Watcher) known(a common.Address) bool { return w.Factory(a) || w.Escrow(a) }

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

// Run reads the chain until ctx ends, while this process has the lease. Then it releases the lease and returns nil. It returns
// [store.ErrSettings] if the chain has got other settings: this process can store nothing more.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.leave(ctx)
	for {
		_, changed := w.cfg.Client.Heads() // before the turn, so that no head is missed
		if err := w.turn(ctx); errors.Is(err, store.ErrSettings) {
			return err
		}
		pause := w.cfg.Interval
		if w.followHeads(ctx) {
			pause = w.pause()
		} else {
			changed = nil
		}
		w.progress()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-changed:
		}
		timer.Stop()
	}
}

// leave ends what Run has begun. ctx may have ended.
func (w *Watcher) leave(ctx context.Context) {
	w.leaveHeads()
	// The row may have the lease of this process although it dropped it, such as by an election that the stop interrupted.
	if err := w.lease.Release(ctx); err != nil {
		w.log.Warn("lease not released: it expires by itself", "err", err)
	}
	w.progress()
}

// turn claims the lease and makes one round. It returns the problem.
func (w *Watcher) turn(ctx context.Context) error {
	elected, err := w.claim(ctx)
	if err == nil && elected {
		if err = w.begin(ctx); err != nil {
			w.lease.Drop()
		}
	}
	if err == nil && w.lease.Held() {
		err = w.round(ctx)
		if errors.Is(err, store.ErrFenced) { // another process has stored a step: the next election reads the cursor again
			w.lease.Drop()
		} else if w.lease.Held() && !w.lease.Record(failure(err)) && ctx.Err() == nil {
			w.log.Warn("lease given back: no round succeeded for its term", "err", err)
			if err := w.lease.StandBack(ctx); err != nil {
				w.log.Warn("lease not released: it expires by itself", "err", err)
			}
		}
	}
	if ctx.Err() != nil {
		return nil
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
	return err
}

// failure returns the error of a round that another process may do better. A contradiction is none: the endpoints answer, and the rounds
// that halt the chain are those of one process.
func failure(err error) error {
	if errors.Is(err, errContradiction) {
		return nil
	}
	return err
}

// claim claims or renews the lease, if that is due.
func (w *Watcher) claim(ctx context.Context) (elected bool, err error) {
	if w.lease.Held() && time.Since(w.claimed) < w.cfg.Interval {
		return false, nil
	}
	w.claimed = time.Now()
	return w.lease.Claim(ctx)
}

// renew keeps the lease during a long round, after a part of it that succeeded. It returns [store.ErrFenced] if the lease is lost.
func (w *Watcher) renew(ctx context.Context) error {
	w.lease.Record(nil)
	if _, err := w.claim(ctx); err != nil {
		return err
	}
	if !w.lease.Held() {
		return store.ErrFenced
	}
	return nil
}

// begin reads what an elected process needs.
func (w *Watcher) begin(ctx context.Context) error {
	if err := w.load(ctx); err != nil {
		return err
	}
	w.violations, w.looked, w.finalErr, w.follower = 0, time.Time{}, nil, follower{stop: w.stop, came: time.Now()}
	w.progress()
	w.log.Info("elected to read the chain", "epoch", w.lease.Epoch(), "cursor", w.chain.Cursor.Number, "final", w.chain.Final.Number, "escrows", len(w.escrows))
	return nil
}

// load reads what is stored.
func (w *Watcher) load(ctx context.Context) error {
	chain, err := w.cfg.Store.Chain(ctx)
	if err != nil {
		return err
	}
	blocks, err := w.cfg.Store.Blocks(ctx, 0)
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
	w.chain, w.blocks = chain, blocks
	w.mu.Lock()
	w.escrows = escrows
	w.mu.Unlock()
	return nil
}

// round stores what has become final, and with Instant the events up to the newest block.
func (w *Watcher) round(ctx context.Context) error {
	if w.chain.Halted != "" {
		return w.halted(ctx)
	}
	if time.Since(w.looked) >= w.lookAfter() {
		w.looked = time.Now()
		if w.finalErr = w.finalize(ctx); w.lease.Held() {
			w.finalErr = errors.Join(w.finalErr, w.checkTip(ctx))
		}
	}
	if w.cfg.Delivery != Instant || !w.lease.Held() || w.chain.Halted != "" {
		return w.finalErr
	}
	return errors.Join(w.finalErr, w.follow(ctx))
}

// quietIntervals is after how many intervals without a head the endpoints are asked whether they answer at all.
const quietIntervals = 3

// lookAfter returns the time between two looks for a new final block.
func (w *Watcher) lookAfter() time.Duration {
	quiet := quietIntervals * w.cfg.Interval
	switch {
	case w.finalErr != nil:
		return w.cfg.Interval
	case w.cfg.Delivery == Instant && time.Since(w.came) >= quiet:
		return min(quiet, w.cfg.FinalInterval)
	}
	return w.cfg.FinalInterval
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
