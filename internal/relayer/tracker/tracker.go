package tracker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/big"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// View is one block as one endpoint knows it; [evm.View] is what it is outside of tests.
type View interface {
	Header() evm.Header
	Endpoint() string // the name of the one that it reads from
	Nonces(context.Context, []common.Address) ([]uint64, error)
	PendingNonces(context.Context, []common.Address) ([]uint64, error)
	Headers(ctx context.Context, from, to uint64) ([]evm.Header, error)
	Tagged(ctx context.Context, tag string) (evm.Header, error)
	Receipts(context.Context, []common.Hash) ([]*evm.Receipt, error)
	BlockReceipts(context.Context, common.Hash) ([]evm.Receipt, error)
	Transactions(context.Context, []common.Hash) ([]evm.Presence, error)
	FindNonce(ctx context.Context, addr common.Address, nonce, low uint64) (evm.Used, error)
}

// Chain is what a Tracker needs of the nodes.
type Chain interface {
	Latest(context.Context) (View, error)
	Next(ctx context.Context, after common.Hash) (evm.Header, error)
	Fees(context.Context) (evm.Fees, error)
	Counts(ctx context.Context, block common.Hash, addrs []common.Address) []evm.Counts
	Anchors(ctx context.Context, number uint64, stragglers time.Duration) []evm.Anchor
	Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

// Nodes makes a Chain of a client.
func Nodes(c *evm.Client) Chain { return nodes{c} }

type nodes struct{ *evm.Client }

func (n nodes) Latest(ctx context.Context) (View, error) {
	v, err := n.Client.Latest(ctx)
	if err != nil {
		return nil, err // not a nil *chain.View in an interface
	}
	return v, nil
}

// Config configures a Tracker. Fields without a default are required.
type Config struct {
	// Name tells this process from the others of the pool, and from its own earlier life.
	Name   string
	Store  *store.Store
	Sender *sender.Sender
	Chain  Chain
	Terms  store.AllocationLimits
	Log    *slog.Logger

	// Everywhere returns the highest nonce that any node has pending of each key, or an error unless all nodes answered.
	// Default: what the node of the round has.
	Everywhere func(context.Context, []common.Address) ([]uint64, error)
	// ChainIdentity says whether the chain is to be believed, and hears where a round's own view contradicts. Default: it always is.
	ChainIdentity *ChainIdentity
	// Confirmations is how many blocks, its own included, make a transaction final. Default 12.
	Confirmations uint64
	// Finality is the tag, "safe" or "finalized", that a final transaction's block has to have reached, too. Default: none.
	Finality string
	// AnchorDepth is how many blocks below the head the block is by which the chain is recognized; less on a young chain, more where
	// nodes tag an older block as finalized, and not less than Confirmations. Default 64.
	AnchorDepth uint64
	// Term is how long this process follows without saying so again. Default 5 s.
	Term time.Duration
	// Tend is how often what is pending is looked after. Default 1 s.
	Tend time.Duration
	// Abandoned is how long nothing must have happened to a row before somebody else takes it up. Default 2 s.
	Abandoned time.Duration
	// BumpAfter is how long the lowest pending nonce of a key waits before it gets a higher fee, by speed. Default: 15 s,
	// 30 s, 60 s and 120 s, the fastest first.
	BumpAfter map[relayer.Speed]time.Duration
	// StuckAfter is how long it waits before its key gets nothing new. Default 5 min.
	StuckAfter time.Duration
	// History is how long final transactions are kept; 0, the default: for ever.
	History time.Duration
	// IdempotencyKeys is how long these are kept, longer than any queue keeps a message. Default 30 days.
	IdempotencyKeys time.Duration
	// AdoptMargin is how much older than a transaction a block may be in which an identical one counts as ours: clocks differ.
	// Default 15 s.
	AdoptMargin time.Duration
	// MaxNonceJump is by how much a key's next nonce follows nodes that count more transactions than were given out. A higher
	// count stops the key. Default 64.
	MaxNonceJump uint64
	// NoopsPerHour is how many nonces of a key without a transaction are filled in an hour. Default 64.
	NoopsPerHour int
	// RevertData reads what a mined transaction reverted with, for its status. Default: statuses do not have that.
	RevertData func(ctx context.Context, tx, block common.Hash) ([]byte, error)
	// Metrics, by default unregistered.
	Metrics *Metrics
	// Round, if not nil, is called after each round that has followed the chain to its head, new or not, with the keys as
	// they were before it; the next round waits for it.
	Round func(ctx context.Context, keys []*relayer.Key, head evm.Header)
}

// Tracker follows the chain. It has one Run.
type Tracker struct {
	cfg Config

	last        evm.Header                           // of the last round that succeeded
	hinted      evm.Header                           // the newest that was heard of; the node that is asked may be behind it
	heard       time.Time                            // when one was heard of that was not followed yet; zero: none is
	behind      int                                  // looks in a row that did not get to it
	unexplained map[store.KeyNonce]*unexplainedNonce // used nonces whose transaction was not found
	anchor      store.Block
	// confirmed is the newest block whose transactions this process has made final since it follows.
	confirmed store.Block
	noTag     time.Time                 // when it was last logged that the node has no block of the tag
	ahead     map[common.Address]*ahead // keys that have more transactions than were given out

	lease lease

	strandedKeys common.Address               // a key that this process does not hold, for which others are to follow
	handed       map[common.Address]time.Time // when this process last let others follow for a key

	// What is pending is tended beside the rounds, by one goroutine at a time: signing hundreds of no-ops, or a node that
	// takes its time over what it is sent, is not to keep a new head waiting.
	maintenance  sync.WaitGroup
	busy         chan struct{} // holds one while it is
	tended       time.Time     // when that last began
	limited      time.Time     // when it was last logged that no more gaps are filled; the tending goroutine's
	observations *observations // the tending goroutine's, like what follows
	purged       time.Time
	failed       bool // a round, since that last began

	comparing chan struct{}             // holds one while nonces are being compared with the nodes'
	reported  map[common.Address]uint64 // by nodes at the last comparison; the comparing goroutine's

	mu      sync.Mutex
	rounds  rounds
	signing map[common.Address]bool // keys that something is being outbid for, however long their signers take
}

// rounds is how the rounds of this process go.
type rounds struct {
	following bool
	succeeded time.Time
	failure   error // of the last one; nil if it succeeded
}

// Rounds reports whether this process follows the chain, when a round of it last succeeded, and why the last one failed.
func (t *Tracker) Rounds() (following bool, succeeded time.Time, failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rounds.following, t.rounds.succeeded, t.rounds.failure
}

// record takes note of how a round went, if this process follows.
func (t *Tracker) record(following bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds.following, t.rounds.failure = following, err
	if following && err == nil {
		t.rounds.succeeded = time.Now()
	}
}

// observations is what tending has observed since this process follows.
type observations struct {
	found  map[common.Address]time.Time // when a node had by hash all that it lacked of a key by its count
	resent map[common.Address]uint64    // a key's mined count when its missing transactions were last looked for

	conditions map[common.Address]conditions
	price      *big.Int // the highest since fees fell; nil before the first
}

// New makes a Tracker; Run runs it.
func New(cfg Config) *Tracker {
	cfg.Confirmations = cmp.Or(cfg.Confirmations, 12)
	cfg.AnchorDepth = cmp.Or(cfg.AnchorDepth, 64)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	cfg.Term = cmp.Or(cfg.Term, 5*time.Second)
	cfg.Tend = cmp.Or(cfg.Tend, time.Second)
	cfg.Abandoned = cmp.Or(cfg.Abandoned, 2*time.Second)
	cfg.StuckAfter = cmp.Or(cfg.StuckAfter, 5*time.Minute)
	cfg.MaxNonceJump = cmp.Or(cfg.MaxNonceJump, 64)
	cfg.NoopsPerHour = cmp.Or(cfg.NoopsPerHour, 64)
	cfg.AdoptMargin = cmp.Or(cfg.AdoptMargin, 15*time.Second)
	cfg.IdempotencyKeys = cmp.Or(cfg.IdempotencyKeys, 30*24*time.Hour)
	if cfg.BumpAfter == nil {
		cfg.BumpAfter = map[relayer.Speed]time.Duration{
			relayer.Fastest: 15 * time.Second, relayer.Fast: 30 * time.Second, relayer.Average: time.Minute, relayer.SafeLow: 2 * time.Minute,
		}
	}
	t := &Tracker{cfg: cfg, busy: make(chan struct{}, 1), comparing: make(chan struct{}, 1), signing: map[common.Address]bool{}, handed: map[common.Address]time.Time{}}
	t.forget()
	return t
}

// forget begins observing again.
func (t *Tracker) forget() {
	t.unexplained, t.confirmed, t.ahead = map[store.KeyNonce]*unexplainedNonce{}, store.Block{}, map[common.Address]*ahead{}
	t.strandedKeys = common.Address{}
	// The tending goroutine may still have the old one.
	t.observations = &observations{found: map[common.Address]time.Time{}, resent: map[common.Address]uint64{}, conditions: map[common.Address]conditions{}}
}

// Run follows, or waits for its turn to, until ctx ends. It returns nil then.
func (t *Tracker) Run(ctx context.Context) error {
	defer t.leave(context.WithoutCancel(ctx))
	defer t.maintenance.Wait()
	for {
		var err error
		level := slog.LevelWarn
		if t.cfg.ChainIdentity != nil {
			if err = t.cfg.ChainIdentity.Err(); err != nil {
				level = slog.LevelDebug // the Lineage, and the endpoints, log the cause
				// It may be another chain when it is ready again.
				t.last, t.anchor, t.confirmed = evm.Header{}, store.Block{}, store.Block{}
			}
		}
		if err == nil {
			err = t.claim(ctx)
		} else if !t.lease.held {
			err = nil // it does not take the lease, and the others may be well
		}
		if t.lease.held && err == nil {
			err = t.round(ctx)
		}
		t.record(t.lease.held, err)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			t.failed = true
			t.cfg.Metrics.rounds.WithLabelValues("failed").Inc()
			t.cfg.Log.Log(ctx, level, "tracker round failed", "err", err)
		}
		if t.lease.held && !t.lease.succeeded(err, t.cfg.Term) {
			t.standBack(ctx)
		}
		if t.lease.held && t.strandedKeys != (common.Address{}) {
			t.handOver(ctx)
			continue
		}
		t.await(ctx, t.lease.held && err == nil)
	}
}

func (t *Tracker) leave(ctx context.Context) {
	t.cfg.Metrics.idle()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := t.cfg.Store.ReleaseTrackerLease(ctx, t.cfg.Name); err != nil {
		t.cfg.Log.Warn("lease not released; it expires by itself", "err", err)
	}
}

// headRetryDelay is after how long a node is asked again that does not have the newest head yet; twice as long each time.
const headRetryDelay = 25 * time.Millisecond

// await returns at the next head, and at the latest when it is time to tend. A head counts once: it is a hint, mostly another
// node's, and the one that is asked may be behind for long. That is asked again soon, and then less and less often.
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
			continue // it was found before it was heard of
		}
		if t.heard.IsZero() {
			t.heard = time.Now()
		}
		return
	}
	<-ctx.Done()
}

// round reads the chain, brings the store up to it, and has what is pending tended. If the endpoint that it reads from gives
// no answer to something, the whole round is done again from another endpoint: reads of two endpoints need not agree. Each
// endpoint has one try. Where none shows its newest block, the round fails.
func (t *Tracker) round(ctx context.Context) error {
	var failed error
	for tried := map[string]bool{}; ; {
		// First, since what is decided from the view holds in the era that was before it.
		all, err := t.cfg.Store.Keys(ctx)
		if err != nil {
			return err
		}
		view, err := t.cfg.Chain.Latest(ctx)
		if err != nil {
			return err
		}
		if tried[view.Endpoint()] {
			return failed
		}
		tried[view.Endpoint()] = true
		failed = t.roundFrom(ctx, view, all)
		if failed == nil || ctx.Err() != nil || !evm.IsNoAnswer(failed) && !errors.Is(failed, evm.ErrStale) {
			return failed
		}
	}
}

// roundFrom does a round from one endpoint's view.
func (t *Tracker) roundFrom(ctx context.Context, view View, all []*relayer.Key) error {
	r := &round{Tracker: t, view: view, head: view.Header(), keys: all, observations: t.observations, blocks: map[common.Hash][]evm.Receipt{}}
	if len(all) == 0 {
		t.last = r.head // nothing to do before the next one
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
	// Tending needs no receipts. Where they cannot be had, what is pending is looked after all the same.
	if time.Since(t.tended) >= t.cfg.Tend {
		r.recovered = t.failed
		if t.startMaintenance(ctx, r.maintain) {
			t.tended, t.failed = time.Now(), false
		}
	} else if r.freed { // what waits is to be in the next block
		t.startMaintenance(ctx, r.dispatchQueued)
	}
	return err
}

// catchUp brings the store up to the round's head.
func (t *Tracker) catchUp(ctx context.Context, r *round) error {
	if r.head.Hash != t.last.Hash {
		if err := r.follow(ctx); err != nil {
			return err
		}
		t.last = r.head
		t.cfg.Metrics.block.Set(float64(r.head.Number))
		if !t.heard.IsZero() && t.last.Number >= t.hinted.Number {
			t.cfg.Metrics.lag.Observe(time.Since(t.heard).Seconds())
			t.heard = time.Time{}
		}
	}
	t.cfg.Metrics.round.SetToCurrentTime()
	t.cfg.Metrics.rounds.WithLabelValues("ok").Inc()
	t.cfg.Metrics.show(r)
	if err := r.observe(ctx); err != nil {
		return err
	}
	if t.cfg.Round != nil {
		t.cfg.Round(ctx, r.keys, r.head)
	}
	return nil
}

// startMaintenance has what is pending looked after, by what a round has read, unless that is still being done.
func (t *Tracker) startMaintenance(ctx context.Context, tend func(context.Context) error) (begun bool) {
	return t.tryGo(t.busy, func() {
		if err := tend(ctx); err != nil && ctx.Err() == nil {
			t.cfg.Metrics.rounds.WithLabelValues("failed").Inc()
			t.cfg.Log.Warn("maintenance failed", "err", err)
		}
	})
}

// tryGo does something beside the rounds, unless the place for that is taken.
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

// round is one look at the chain.
type round struct {
	*Tracker
	view         View
	head         evm.Header
	keys         []*relayer.Key
	addresses    []common.Address
	counts       []uint64                      // mined, of each key
	blocks       map[common.Hash][]evm.Receipt // that were read
	freed        bool                          // places of keys, by what was mined
	final        uint64                        // number of the newest final block; 0 while there is none
	recovered    bool                          // rounds failed before this one
	observations *observations
}

// now is when the round began, by the database's clock. Rows have their times from there.
func (r *round) now() time.Time { return r.keys[0].ReadAt }

// used reports whether the chain has used a key's nonce: what stands there is mined, or displaced, and find sees to it.
func (r *round) used(key common.Address, nonce uint64) bool {
	for i, address := range r.addresses {
		if address == key {
			return nonce < r.counts[i]
		}
	}
	return false
}

// mined are the nonces that each key has used up, as the first one that it has not.
func (r *round) mined() []store.KeyNonce {
	froms := make([]store.KeyNonce, len(r.keys))
	for i, k := range r.keys {
		froms[i] = store.KeyNonce{Key: k.Address, Nonce: r.counts[i]}
	}
	return froms
}

// runAll goes on after an error, and joins what went wrong.
func runAll(steps ...func() error) error {
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
