package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/lease"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// View is one endpoint's state at one block; [evm.View] is the production implementation.
type View interface {
	Header() evm.Header
	Endpoint() string // the name of the endpoint that it reads from
	Nonces(context.Context, []common.Address) ([]uint64, error)
	PendingNonces(context.Context, []common.Address) ([]uint64, error)
	Headers(ctx context.Context, from, to uint64) ([]evm.Header, error)
	Tagged(ctx context.Context, tag string) (evm.Header, error)
	Receipts(context.Context, []common.Hash) ([]*evm.Receipt, error)
	BlockReceipts(context.Context, common.Hash) ([]evm.Receipt, error)
	Transactions(context.Context, []common.Hash) ([]evm.Presence, error)
	FindNonce(ctx context.Context, addr common.Address, nonce, low uint64) (evm.Used, error)
	Distrust(method string, why error) error // the round is repeated from another endpoint
}

// Chain is the part of the nodes' client that a Tracker uses.
type Chain interface {
	// Latest fails with [evm.ErrNoEndpoint] if there are no endpoints but the excepted ones.
	Latest(ctx context.Context, except ...string) (View, error)
	Next(ctx context.Context, after common.Hash) (evm.Header, error)
	Fees(context.Context) (evm.Fees, error)
	MaxTransferGas() uint64
	Counts(ctx context.Context, block common.Hash, addrs []common.Address) []evm.Counts
	Anchors(ctx context.Context, number uint64, stragglers time.Duration) []evm.Anchor
	// Transaction fails unless an endpoint returns the transaction.
	Transaction(context.Context, common.Hash) (*types.Transaction, error)
}

// Nodes returns a Chain that uses a client.
func Nodes(c *evm.Client) Chain { return nodes{c} }

type nodes struct{ *evm.Client }

func (n nodes) Latest(ctx context.Context, except ...string) (View, error) {
	v, err := n.Client.Latest(ctx, except...)
	if err != nil {
		return nil, err // not a nil *evm.View in an interface
	}
	return v, nil
}

// Events is called by the tracker's goroutines, which wait for it.
type Events interface {
	// Round is called after each round that reached the chain's head, new or not. The next round waits for it.
	Round(ctx context.Context, head evm.Header)
	// Idle is called instead for each round that is left out because nothing is pending.
	Idle()
	// TakeTopUps returns the top-ups that were stored since its last call. The tracker signs them.
	TakeTopUps() []*relayer.Transaction
}

type noEvents struct{}

func (noEvents) Round(context.Context, evm.Header)  {}
func (noEvents) Idle()                              {}
func (noEvents) TakeTopUps() []*relayer.Transaction { return nil }

// DefaultMaxNonceJump is the default of Config.MaxNonceJump.
const DefaultMaxNonceJump = 64

// Config configures a Tracker. Fields without a default are required.
type Config struct {
	// Name identifies this process among those of the pool, and differs after a restart. Default: the host, the process id and
	// a random part.
	Name       string
	Store      *store.Store
	Sender     *sender.Sender
	Chain      Chain
	Allocation store.AllocationLimits
	Log        *slog.Logger

	// Everywhere returns the highest pending nonce of each key over all nodes, or an error unless all nodes responded.
	// Default: the pending nonces of the round's node.
	Everywhere func(context.Context, []common.Address) ([]uint64, error)
	// ChainIdentity reports whether the chain is the recorded one, and checks each round's view. Default: no check.
	ChainIdentity *ChainIdentity
	// Confirmations is how many blocks, the transaction's own included, make it final. Default 12.
	Confirmations uint64
	// Finality is the tag, "safe" or "finalized", that a final transaction's block must have reached as well. Default:
	// none.
	Finality string
	// AnchorDepth is the depth of the anchor block below the head. It is less on a young chain, more where nodes tag an
	// older block as finalized, and not less than Confirmations. Default 64.
	AnchorDepth uint64
	// Term is the duration of the lease. Default 5 s.
	Term time.Duration
	// Tend is the interval of maintenance. Default 1 s.
	Tend time.Duration
	// Abandoned is how long a row must be unchanged before another process handles it. Default 2 s.
	Abandoned time.Duration
	// BumpAfter is how long the lowest pending nonce of a key waits before it gets a higher fee, by speed. Default: 15 s,
	// 30 s, 60 s and 120 s, the fastest first.
	BumpAfter map[relayer.Speed]time.Duration
	// StuckAfter is how long it waits before its key gets no new transactions. Default 5 min.
	StuckAfter time.Duration
	// History is how long final transactions are kept. Default 0: forever.
	History time.Duration
	// IdempotencyKeys is how long idempotency keys are kept. It should exceed the time that a caller's queue keeps a
	// message. Default 30 days.
	IdempotencyKeys time.Duration
	// AdoptMargin is how much older than our transaction the block of an identical one may be for that to count as ours,
	// because clocks differ. Default 15 s.
	AdoptMargin time.Duration
	// MaxNonceJump is the most by which a key's next nonce is advanced to the nodes' count. A higher count stops the key.
	// Default [DefaultMaxNonceJump].
	MaxNonceJump uint64
	// NoopsPerHour is how many nonces without a row are filled per key and hour. Default 64.
	NoopsPerHour int
	// RevertData reads the revert data of a mined transaction, for its status. Default: statuses do not include it.
	RevertData func(ctx context.Context, tx, block common.Hash) ([]byte, error)
	// Metrics are unregistered by default.
	Metrics *Metrics
	// Events receives the rounds, and has the top-ups to sign. Default: none.
	Events Events
}

// Tracker tracks the chain. Run may be called once.
type Tracker struct {
	cfg Config

	last        evm.Header                           // of the last round that succeeded
	hinted      evm.Header                           // the newest known head; the queried node may be behind it
	headAt      time.Time                            // when a head arrived that was not processed yet; zero: none
	behind      int                                  // successive rounds that did not reach it
	unexplained map[store.KeyNonce]*unexplainedNonce // used nonces for which no transaction was found
	anchor      store.Block
	anchorTried uint64 // the last block that no majority of the nodes had; 0: none since the anchor moved
	// confirmed is the newest block whose transactions were made final, by any process.
	confirmed store.Block
	// confirmedDue reports that the chain may have been reorganized since it was last compared with confirmed. The new
	// branch may be shorter at first.
	confirmedDue bool

	marksCleared bool // stored marks of explained nonces were removed since this process took the lease

	noTag    time.Time                  // when it was last logged that the node has no block of the tag
	disputed map[common.Address]dispute // keys of which the round's endpoint counted more transactions than another
	ahead    map[common.Address]*ahead  // keys with more transactions than were allocated

	// lease names the process that follows the chain. Two processes that consider themselves its holder do no harm.
	lease    *lease.Lease
	taken    time.Time // when this process took the lease
	logged   bool      // that it follows the chain
	declined time.Time // when this process last released the lease because it cannot send
	declines int       // how many times in a row

	quiet idleState

	strandedKeys common.Address               // a key that this process does not hold, for which it releases the lease
	handed       map[common.Address]time.Time // when this process last released the lease for a key

	// Maintenance runs concurrently with the rounds, in one goroutine at a time. Signing hundreds of no-ops, or a slow node
	// that receives transactions, must not delay the processing of a new head.
	maintenance  sync.WaitGroup
	busy         chan struct{} // holds one while maintenance runs
	tended       time.Time     // when maintenance last began
	limited      time.Time     // when the fill limit was last logged; used by the maintenance goroutine only
	observations *observations // used by the maintenance goroutine only, like purged
	purged       time.Time
	failed       bool      // whether a round failed since the last one that succeeded with maintenance
	lastRecovery time.Time // when rejected transactions were last sent again because rounds succeed again

	comparing chan struct{}             // holds one while nonces are compared with the nodes'
	reported  map[common.Address]uint64 // by nodes at the last comparison; used by the comparing goroutine only

	mu      sync.Mutex
	rounds  rounds
	fees    feesFault
	signing map[common.Address]bool // keys whose signer tasks are running, however long their signers take
}

// rounds is the state that Rounds reports.
type rounds struct {
	following bool
	succeeded time.Time
	failure   error // of the last one; nil if it succeeded
}

// Rounds reports whether this process holds the tracker lease, when its last round succeeded, and why the last one failed.
func (t *Tracker) Rounds() (following bool, succeeded time.Time, failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rounds.following, t.rounds.succeeded, t.rounds.failure
}

// record stores the outcome of a round for Rounds.
func (t *Tracker) record(following bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds.following, t.rounds.failure = following, err
	if following && err == nil {
		t.rounds.succeeded = time.Now()
	}
}

// observations are what maintenance has observed since this process took the lease.
type observations struct {
	found  map[common.Address]time.Time // when a node returned by hash all attempts of a key that its count lacked
	resent map[common.Address]uint64    // a key's mined count when its missing transactions were last searched

	conditions map[common.Address]conditions
	paces      paces
	price      *big.Int // the highest since fees fell; nil before the first
}

// New returns a Tracker; Run runs it.
func New(cfg Config) *Tracker {
	cfg.Name = cmp.Or(cfg.Name, processName())
	cfg.Confirmations = cmp.Or(cfg.Confirmations, 12)
	cfg.AnchorDepth = cmp.Or(cfg.AnchorDepth, 64)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Events == nil {
		cfg.Events = noEvents{}
	}
	cfg.Term = cmp.Or(cfg.Term, 5*time.Second)
	cfg.Tend = cmp.Or(cfg.Tend, time.Second)
	cfg.Abandoned = cmp.Or(cfg.Abandoned, 2*time.Second)
	cfg.StuckAfter = cmp.Or(cfg.StuckAfter, 5*time.Minute)
	cfg.MaxNonceJump = cmp.Or(cfg.MaxNonceJump, DefaultMaxNonceJump)
	cfg.NoopsPerHour = cmp.Or(cfg.NoopsPerHour, 64)
	cfg.AdoptMargin = cmp.Or(cfg.AdoptMargin, 15*time.Second)
	cfg.IdempotencyKeys = cmp.Or(cfg.IdempotencyKeys, 30*24*time.Hour)
	if cfg.BumpAfter == nil {
		cfg.BumpAfter = map[relayer.Speed]time.Duration{
			relayer.Fastest: 15 * time.Second, relayer.Fast: 30 * time.Second, relayer.Average: time.Minute, relayer.SafeLow: 2 * time.Minute,
		}
	}
	t := &Tracker{cfg: cfg, busy: make(chan struct{}, 1), comparing: make(chan struct{}, 1), signing: map[common.Address]bool{}, handed: map[common.Address]time.Time{}}
	t.lease = lease.New(lease.Config{Row: cfg.Store.TrackerLease(), Holder: cfg.Name, Term: cfg.Term, Interval: cfg.Tend})
	t.forget()
	return t
}

func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
}

// forget resets the observations.
func (t *Tracker) forget() {
	t.unexplained, t.confirmed, t.ahead = map[store.KeyNonce]*unexplainedNonce{}, store.Block{}, map[common.Address]*ahead{}
	t.disputed, t.marksCleared = map[common.Address]dispute{}, false
	t.strandedKeys, t.quiet = common.Address{}, idleState{}
	// The maintenance goroutine may still use the old ones.
	t.observations = &observations{
		found: map[common.Address]time.Time{}, resent: map[common.Address]uint64{}, conditions: map[common.Address]conditions{},
		paces: paces{},
	}
}

// Run tracks the chain while it holds the lease, and otherwise tries to take it, until ctx ends. It returns nil then.
func (t *Tracker) Run(ctx context.Context) error {
	defer func() { t.leave(t.lease.Release(ctx)) }()
	defer t.maintenance.Wait()
	for {
		var err error
		level := slog.LevelWarn
		if t.cfg.ChainIdentity != nil {
			if err = t.cfg.ChainIdentity.Err(); err != nil {
				level = slog.LevelDebug // ChainIdentity and the endpoints log the cause
				// The chain may be another one when sending is enabled again.
				t.last, t.anchor, t.anchorTried, t.confirmed = evm.Header{}, store.Block{}, 0, store.Block{}
			}
		}
		if err == nil {
			err = t.claim(ctx)
		} else if !t.lease.Held() {
			err = nil // it does not take the lease; other processes' nodes may work
		}
		if t.lease.Held() && err == nil {
			err = t.round(ctx)
		}
		t.record(t.lease.Held(), err)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			t.failed = true
			t.cfg.Metrics.rounds.WithLabelValues("failed").Inc()
			t.cfg.Log.Log(ctx, level, "tracker round failed", "err", err)
		}
		switch {
		case !t.lease.Held():
		case !t.lease.Record(err):
			if !t.lease.Succeeded().IsZero() {
				t.cfg.Log.Warn("lease released: no round has succeeded for a term", "term", t.cfg.Term)
			}
			t.standBack(ctx)
		default:
			t.logFollowing()
			if fault := t.sendFault(); fault != nil {
				t.cfg.Log.Warn("lease released: another process may be able to send", "err", fault)
				t.declined = time.Now()
				t.declines++
				t.standBack(ctx)
			}
		}
		if t.lease.Held() && t.strandedKeys != (common.Address{}) {
			t.handOver(ctx)
			continue
		}
		t.await(ctx, t.lease.Held() && err == nil)
	}
}

// headRetryDelay is the delay before a node that lacks the newest head is queried again; it doubles each time.
const headRetryDelay = 25 * time.Millisecond

// await returns at the next head, and at the latest when maintenance is due. A head counts once: it is a hint, mostly from
// another node, and the queried node may be behind for long. That node is queried again soon, and then at growing
// intervals.
func (t *Tracker) await(ctx context.Context, heads bool) {
	pause := t.cfg.Tend
	if t.hinted.Number < t.last.Number || t.hinted.Hash == t.last.Hash {
		t.behind = 0
	} else if heads {
		pause = min(pause, headRetryDelay<<min(t.behind, 16))
		t.behind++
	}
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	for heads {
		head, err := t.cfg.Chain.Next(ctx, t.hinted.Hash)
		if err != nil {
			break
		}
		if t.hinted = head; head.Hash == t.last.Hash {
			continue // a round found it before the hint arrived
		}
		if t.headAt.IsZero() {
			t.headAt = time.Now()
		}
		return
	}
	<-ctx.Done()
}

// round reads the chain, updates the store to it, and starts maintenance. If that fails at its endpoint, it repeats the
// whole round with another one, because reads of two endpoints need not agree. It tries each endpoint once, whether or not
// the client records the failure. If none is left, the round fails.
//
// A round whose endpoint hides a receipt, or has no block of the configured finality, is complete. It is repeated as well,
// because another endpoint may return the receipt or the block.
func (t *Tracker) round(ctx context.Context) error {
	var failed error
	var complete evm.Header // the head of the complete round
	var receiptAt uint64    // the block whose receipt its endpoint hides
	var again bool          // another endpoint failed
	for tried := []string(nil); ; {
		// The keys are read first, because decisions based on the view are valid in the generation that was recorded before it.
		all, err := t.cfg.Store.Keys(ctx)
		if err != nil {
			return err
		}
		if len(tried) == 0 {
			idle, err := t.isIdle(ctx, all)
			if err != nil {
				return err
			}
			if idle {
				t.noteIdle()
				return nil
			}
		}
		view, err := t.cfg.Chain.Latest(ctx, tried...)
		if err != nil || view.Header().Number < receiptAt {
			switch {
			case !complete.IsZero():
				// An endpoint that failed may have it the next time. On a quiet chain, no new head would have it asked.
				if !again && (err == nil || errors.Is(err, evm.ErrNoEndpoint)) {
					t.last = complete
				}
				return nil
			case failed != nil && errors.Is(err, evm.ErrNoEndpoint):
				return failed
			default:
				return errors.Join(failed, err)
			}
		}
		tried = append(tried, view.Endpoint())
		failed = t.roundFrom(ctx, view, all)
		hidden, hides := errors.AsType[*hiddenReceiptError](failed)
		_, untagged := errors.AsType[*untaggedError](failed)
		if hides {
			receiptAt = hidden.block
		}
		switch {
		case hides || untagged:
			complete, t.last = t.last, evm.Header{} // the next endpoint processes the same head, or one shortly before it
		case failed == nil || ctx.Err() != nil:
			return failed
		case !atAnyEndpoint(failed):
			again = true
			t.cfg.Log.Debug("the round failed at an endpoint", "endpoint", view.Endpoint(), "err", failed)
		case complete.IsZero():
			return failed
		default:
			t.cfg.Log.Info("a complete round was not repeated", "endpoint", view.Endpoint(), "err", failed)
			t.last = complete
			return nil
		}
	}
}

// atAnyEndpoint reports whether a round fails in the same way at any endpoint: the database rejects a statement, or the
// chain has another history, about which the majority of the endpoints decides. A lost connection to the database is found
// when the keys are read again.
func atAnyEndpoint(err error) bool {
	if evm.IsNoAnswer(err) || errors.Is(err, evm.ErrStale) {
		return false
	}
	_, rejected := errors.AsType[*pgconn.PgError](err)
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	return rejected || unconnected || errors.Is(err, errForeign)
}

// roundFrom runs a round on one endpoint's view.
func (t *Tracker) roundFrom(ctx context.Context, view View, all []*relayer.Key) error {
	r := &round{Tracker: t, view: view, head: view.Header(), keys: all, observations: t.observations, blocks: map[common.Hash][]evm.Receipt{}}
	if len(all) == 0 {
		t.last = r.head // nothing to do before the next head
		return nil
	}
	for _, k := range all {
		r.addresses = append(r.addresses, k.Address)
	}
	var reads errgroup.Group
	reads.Go(func() (err error) { r.counts, err = view.Nonces(ctx, r.addresses); return err })
	if t.cfg.ChainIdentity != nil && r.head.Hash != t.last.Hash {
		reads.Go(func() error { return t.cfg.ChainIdentity.Verify(ctx, view) })
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	if err := r.checkCounts(ctx); err != nil {
		return err
	}
	if err := r.reconcile(ctx); err != nil {
		return err
	}
	err := t.catchUp(ctx, r)
	// Maintenance needs no receipts, so it runs even if they are unavailable.
	if time.Since(t.tended) >= t.cfg.Tend {
		r.recovered = t.failed && err == nil && time.Since(t.lastRecovery) >= recoveryInterval
		if t.startMaintenance(ctx, r.maintain) {
			t.tended = time.Now()
			if err == nil {
				t.failed = false
			}
			if r.recovered {
				t.lastRecovery = time.Now()
			}
		}
	} else if r.freed { // queued transactions should be in the next block
		t.startMaintenance(ctx, r.dispatchQueued)
	}
	return cmp.Or(err, r.hidden, r.untagged)
}

// recoveryInterval bounds how often rounds that fail and succeed in turn have all rejected transactions sent again at once. The pauses of
// these transactions are not longer.
const recoveryInterval = 30 * time.Second

// catchUp updates the store to the round's head.
func (t *Tracker) catchUp(ctx context.Context, r *round) error {
	if r.head.Hash != t.last.Hash {
		if err := r.follow(ctx); err != nil {
			return err
		}
		t.last = r.head
		t.cfg.Metrics.block.Set(float64(r.head.Number))
		if !t.headAt.IsZero() && t.last.Number >= t.hinted.Number {
			t.cfg.Metrics.lag.Observe(time.Since(t.headAt).Seconds())
			t.headAt = time.Time{}
		}
	}
	r.noteComplete()
	t.cfg.Metrics.round.SetToCurrentTime()
	t.cfg.Metrics.rounds.WithLabelValues("ok").Inc()
	t.cfg.Metrics.show(r)
	if err := r.observe(ctx); err != nil {
		return err
	}
	t.cfg.Events.Round(ctx, r.head)
	return nil
}

// startMaintenance starts maintenance with the data of a round, unless it is still running.
func (t *Tracker) startMaintenance(ctx context.Context, tend func(context.Context) error) (begun bool) {
	return t.tryGo(t.busy, func() {
		if err := tend(ctx); err != nil && ctx.Err() == nil {
			t.cfg.Metrics.rounds.WithLabelValues("failed").Inc()
			t.cfg.Log.Warn("maintenance failed", "err", err)
		}
	})
}

// tryGo runs do concurrently with the rounds, unless place is taken.
func (t *Tracker) tryGo(place chan struct{}, do func()) (begun bool) {
	select {
	case place <- struct{}{}:
	default:
		return false
	}
	t.maintenance.Go(func() {
		defer func() { <-place }()
		do()
	})
	return true
}

// round is one pass over the chain.
type round struct {
	*Tracker
	view         View
	head         evm.Header
	keys         []*relayer.Key
	addresses    []common.Address
	counts       []uint64                      // mined, of each key
	sure         []uint64                      // mined, of each key: the lowest that endpoints report while they disagree
	blocks       map[common.Hash][]evm.Receipt // receipts read so far, by block
	freed        bool                          // mined transactions freed room on keys
	final        uint64                        // number of the newest final block; 0 while there is none
	recovered    bool                          // rounds failed before this one
	hidden       error                         // a hiddenReceiptError, if the endpoint hides a receipt
	untagged     error                         // an untaggedError, if the endpoint has no block of the configured finality
	observations *observations
}

// now returns the start of the round by the database's clock, which sets the rows' times.
func (r *round) now() time.Time { return r.keys[0].ReadAt }

// used reports whether the chain has used a key's nonce. Its transaction is mined or conflicting, and find handles it.
func (r *round) used(key common.Address, nonce uint64) bool {
	for i, address := range r.addresses {
		if address == key {
			return nonce < r.sure[i]
		}
	}
	return false
}

// mined returns the first unused nonce of each key: the chain has used those below.
func (r *round) mined() []store.KeyNonce { return r.froms(r.sure) }

func (r *round) froms(counts []uint64) []store.KeyNonce {
	froms := make([]store.KeyNonce, len(r.keys))
	for i, k := range r.keys {
		froms[i] = store.KeyNonce{Key: k.Address, Nonce: counts[i]}
	}
	return froms
}

// runAll runs all steps, also after an error, and joins their errors.
func runAll(steps ...func() error) error {
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
