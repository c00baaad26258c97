package sender

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Chain is the part of the nodes' client that a Sender uses.
type Chain interface {
	Fees(context.Context) (evm.Fees, error)
	TransferGas(ctx context.Context, from, to common.Address, fresh bool) uint64
	// MaxTransferGas returns the highest gas limit of a transfer.
	MaxTransferGas() uint64
	Send(context.Context, []evm.Raw) []evm.Result
	SendToAll(context.Context, []evm.Raw) []evm.Result
	// Balances returns the accounts' balances in wei at the newest block.
	Balances(context.Context, []common.Address) ([]*big.Int, error)
}

// Store is the part of the store that a Sender uses.
type Store interface {
	StoreAttempts(context.Context, []*relayer.Attempt) ([]bool, error)
	RecordBroadcasts(context.Context, []store.Broadcast) error
}

// Events receives the results of a key's signatures and broadcasts. Its methods must not block.
type Events interface {
	// Signed reports a result of the key's signer; err is nil where it signed.
	Signed(key common.Address, err error)
	// Broadcasted reports the outcome of a broadcast of the key's bytes.
	Broadcasted(key common.Address, outcome evm.Outcome)
}

type noEvents struct{}

func (noEvents) Signed(common.Address, error)            {}
func (noEvents) Broadcasted(common.Address, evm.Outcome) {}

// Config configures a Sender. Fields without a default are required.
type Config struct {
	ChainID uint64
	Ring    *signer.Ring
	Chain   Chain
	Store   Store
	Log     *slog.Logger
	// Events receives what happens to keys. Default: none.
	Events Events
	// Metrics are unregistered by default.
	Metrics *Metrics
	// Tracer makes a span of each signature, in the trace of the caller's request. Default: none.
	Tracer trace.Tracer
	// Ready returns why nothing may be signed or broadcasted, or nil if it may. Default: always nil.
	Ready func() error
	// MaxFee bounds the offered price per unit of gas, wei; nil: no bound.
	MaxFee *big.Int
	// NoopFactor is the factor, 1 or more, by which no-ops may exceed MaxFee. Default 2.
	NoopFactor int
	// Signers is how many signatures each key makes concurrently. Default: one per processor; use more for remote signers.
	Signers int
	// Broadcasters is how many broadcasts run concurrently, each for its own keys. Default 4.
	Broadcasters int
	// Pause is how long a rejected attempt is not sent again. It doubles with each send, up to MaxPause. Defaults: 1 s and
	// 30 s.
	Pause, MaxPause time.Duration
}

// Sender signs, stores and broadcasts. It is safe for concurrent use.
type Sender struct {
	cfg     Config
	chainID *big.Int

	signed  chan *Job
	shards  []chan *relayer.Attempt
	results chan store.Broadcast
	reach   reach

	signers sync.WaitGroup
	mu      sync.Mutex
	queues  map[common.Address]*signQueue
	begin   func(*signQueue) // runs a worker of a queue; nil before Run
	stopped bool             // no more jobs are accepted
}

// Job is a transaction to sign for.
type Job struct {
	// Tx has a key and a nonce.
	Tx      *relayer.Transaction
	Number  int // of the attempt
	Purpose relayer.Purpose
	// Bid is the fee to offer; zero: by the request and the chain.
	Bid FeeBid
	// Gas is the gas limit; 0: see [Sender.gasLimit].
	Gas uint64

	attempt *relayer.Attempt
}

// NewJob returns the job for the next attempt of a transaction that has a nonce and no attempt.
func NewJob(tx *relayer.Transaction) *Job {
	j := &Job{Tx: tx, Number: tx.Attempts + 1, Purpose: relayer.PurposeSend}
	if tx.Kind == relayer.KindNoop || tx.Intent != relayer.IntentSend {
		j.Purpose = relayer.PurposeNoop
	}
	return j
}

const (
	// signLimit is how long a signer may take.
	signLimit = 30 * time.Second
	// stopLimit is how long a stop waits for signers. Another process signs the rest.
	stopLimit = 5 * time.Second
	// sendLimit is how long a stop waits for signers and nodes together. Another process sends the rest, which is stored.
	sendLimit = 2 * stopLimit
)

// group bounds the attempts of one statement, and of one broadcast call.
const group = 256

// recordBatchWindow is how long results of broadcasts may wait to be stored together with later ones. No caller waits for
// them, and each commit delays the commits of callers that post.
const recordBatchWindow = 25 * time.Millisecond

// storePause is how long signed attempts may wait to be stored together with later ones. No caller waits for them, and each
// commit delays the commits of callers that post.
const storePause = 10 * time.Millisecond

// New returns a Sender; Run runs it.
func New(cfg Config) *Sender {
	cfg.Signers = cmp.Or(cfg.Signers, runtime.GOMAXPROCS(0))
	cfg.Broadcasters = cmp.Or(cfg.Broadcasters, 4)
	cfg.Pause, cfg.MaxPause = cmp.Or(cfg.Pause, time.Second), cmp.Or(cfg.MaxPause, 30*time.Second)
	cfg.NoopFactor = cmp.Or(cfg.NoopFactor, 2)
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	if cfg.Events == nil {
		cfg.Events = noEvents{}
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = tracing.Off()
	}
	s := &Sender{
		cfg: cfg, chainID: new(big.Int).SetUint64(cfg.ChainID),
		signed: make(chan *Job, group), results: make(chan store.Broadcast, group), queues: map[common.Address]*signQueue{},
	}
	for range cfg.Broadcasters {
		s.shards = append(s.shards, make(chan *relayer.Attempt, group))
	}
	return s
}

// Run runs the stages until ctx ends, and then finishes the accepted jobs, except those that signers do not sign and nodes do
// not receive in time. It returns nil, and may be called once.
func (s *Sender) Run(ctx context.Context) error {
	// Each stage ends after the one before it, so that accepted jobs are finished.
	var broadcasters, rest errgroup.Group
	work := context.WithoutCancel(ctx)
	signing, giveUp := context.WithCancel(work)
	defer giveUp()
	sending, cutOff := context.WithCancelCause(work)
	defer cutOff(nil)
	s.startSigning(signing)
	for _, shard := range s.shards {
		broadcasters.Go(func() error { s.broadcast(sending, shard); return nil })
	}
	rest.Go(func() error { s.store(work); return nil })
	var recorder errgroup.Group
	recorder.Go(func() error { s.record(work); return nil })
	<-ctx.Done()
	late := time.AfterFunc(stopLimit, giveUp)
	// A signer may wait for its turn behind the sends, so this does not begin when signing has ended.
	tooLate := time.AfterFunc(sendLimit, func() { cutOff(errStopped) })
	defer tooLate.Stop()
	s.stopSigning()
	late.Stop()
	close(s.signed)
	_ = rest.Wait()
	for _, shard := range s.shards {
		close(shard)
	}
	_ = broadcasters.Wait()
	close(s.results)
	return recorder.Wait()
}

// Resend broadcasts stored attempts in the given order, and records the results. It returns when that is done, so its
// caller sets the pace. All nodes receive them, because the first one may have accepted them without forwarding them.
func (s *Sender) Resend(ctx context.Context, attempts []*relayer.Attempt) ([]evm.Result, error) {
	if err := s.cfg.Ready(); err != nil {
		return nil, err
	}
	results := s.cfg.Chain.SendToAll(ctx, raws(attempts))
	s.explainRefusals(ctx, attempts, results)
	broadcasts := make([]store.Broadcast, len(attempts))
	for i, a := range attempts {
		broadcasts[i] = s.toBroadcast(a, results[i])
		broadcasts[i].Pause, broadcasts[i].MaxPause = s.cfg.Pause, s.cfg.MaxPause
	}
	return results, s.cfg.Store.RecordBroadcasts(ctx, broadcasts)
}

// Next signs the attempt after the given ones, which are the transaction's whole history. Its fee is the request's or the
// chain's, and exceeds the last attempt's. Next neither stores nor broadcasts it. It fails with [ErrAtCap] if the fee is
// above the cap.
func (s *Sender) Next(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt) (*relayer.Attempt, error) {
	return s.nextAttempt(ctx, tx, purpose, attempts, false)
}

// NextAtMarketPrice is Next for a transaction that has waited too long: it offers at least the chain's current fee,
// whatever the request set. Bumping a far-too-low fee by 10% a round would take hours and block later nonces.
func (s *Sender) NextAtMarketPrice(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt) (*relayer.Attempt, error) {
	return s.nextAttempt(ctx, tx, purpose, attempts, true)
}

func (s *Sender) nextAttempt(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, attempts []*relayer.Attempt, market bool) (*relayer.Attempt, error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for fees: %w", err)
	}
	limit := s.limit(purpose)
	job := &Job{Tx: tx, Number: 1, Purpose: purpose}
	if n := len(attempts); n > 0 {
		job.Number = attempts[n-1].Number + 1
	}
	last := latestAt(tx, attempts)
	job.Gas = s.gasLimit(ctx, tx, purpose, last)
	if last == nil {
		job.Bid = s.first(tx, purpose, fees)
		return s.Attempt(ctx, job)
	}
	before := FeeBidOf(last)
	asked := s.first(tx, purpose, fees) // a tenth more than before may still raise it into the headroom
	if market {
		asked = MarketFee(tx.Speed, before.Tip == nil, fees, limit)
	}
	if lacksGas(tx, purpose, last, job.Gas) { // no node has the last attempt, so there is nothing to outbid
		job.Bid = atLeast(before, asked)
		return s.Attempt(ctx, job)
	}
	job.Bid, err = Bump(before, asked, limit)
	if errors.Is(err, ErrAtCap) && tx.Intent == relayer.IntentFail && purpose == relayer.PurposeNoop && last.Purpose != relayer.PurposeNoop {
		// No node accepted the previous attempt, so the no-op need not outbid it. Requiring that would block the nonce where
		// the cap was lowered since.
		job.Bid, err = asked, nil
	}
	if err != nil {
		return nil, err
	}
	return s.Attempt(ctx, job)
}

// latestAt returns the last attempt if it has the transaction's key and nonce, else nil.
func latestAt(tx *relayer.Transaction, attempts []*relayer.Attempt) *relayer.Attempt {
	if n := len(attempts); n > 0 && attempts[n-1].Nonce == *tx.Nonce && attempts[n-1].From == tx.From {
		return attempts[n-1]
	}
	return nil
}

// limit returns the maximum fee of an attempt per unit of gas; nil is no limit. No-ops may exceed the cap, so that a
// cancellation, an expiry or a failure can replace an original at the cap. They use little gas.
func (s *Sender) limit(purpose relayer.Purpose) *big.Int {
	if s.cfg.MaxFee == nil || purpose != relayer.PurposeNoop {
		return s.cfg.MaxFee
	}
	return new(big.Int).Mul(s.cfg.MaxFee, big.NewInt(int64(s.cfg.NoopFactor)))
}

// first returns the fee of the first attempt at a nonce. It leaves room for two replacements below the limit, except if the
// caller set a higher price.
func (s *Sender) first(tx *relayer.Transaction, purpose relayer.Purpose, fees evm.Fees) FeeBid {
	return price(tx, purpose, fees, headroom(s.limit(purpose)))
}

// price returns the request's fee, or the chain's. A no-op's fee does not depend on the request's.
func price(tx *relayer.Transaction, purpose relayer.Purpose, fees evm.Fees, limit *big.Int) FeeBid {
	request := &tx.Request
	if purpose == relayer.PurposeNoop {
		request = &relayer.Request{Speed: tx.Speed}
	}
	return Price(request, fees, limit)
}

// Underbids reports whether an attempt offers less than the chain's current fee, as far as the caps allow that fee.
func (s *Sender) Underbids(ctx context.Context, tx *relayer.Transaction, a *relayer.Attempt) (bool, error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	if err != nil {
		return false, fmt.Errorf("ask for fees: %w", err)
	}
	tip := a.MaxPriorityFee
	market := MarketFee(tx.Speed, tip == nil, fees, s.limit(a.Purpose))
	return a.MaxFee.Cmp(market.MaxFee) < 0 || tip != nil && market.Tip != nil && tip.Cmp(market.Tip) < 0, nil
}

// Attempt signs a job that has a fee and a gas limit. It neither stores nor broadcasts. It fails with [ErrNotSigned] if the
// signer does.
func (s *Sender) Attempt(ctx context.Context, j *Job) (*relayer.Attempt, error) {
	if err := s.cfg.Ready(); err != nil {
		return nil, err
	}
	keySigner, ok := s.cfg.Ring.Signer(j.Tx.From)
	if !ok {
		return nil, fmt.Errorf("%w: this process does not hold the key", errNotHeld)
	}
	limited, cancel := context.WithTimeout(ctx, signLimit)
	defer cancel()
	signed, err := signer.SignRaw(limited, keySigner, build(j.Tx, j.Purpose, j.Gas, j.Bid, s.chainID), s.chainID)
	if ctx.Err() == nil { // otherwise the caller gave up
		s.cfg.Events.Signed(j.Tx.From, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSigned, err)
	}
	return &relayer.Attempt{
		TxID: j.Tx.ID, Number: j.Number, From: j.Tx.From, Nonce: *j.Tx.Nonce, Purpose: j.Purpose, Hash: signed.Hash, Raw: signed.Raw,
		MaxFee: j.Bid.MaxFee, MaxPriorityFee: j.Bid.Tip,
	}, nil
}

// ErrNotSigned means that a key's signer did not sign.
var ErrNotSigned = errors.New("not signed")

var errNotHeld = errors.New("no signer")

// Store stores an attempt signed outside of the pipeline, and broadcasts it if it was the first of its number.
func (s *Sender) Store(ctx context.Context, a *relayer.Attempt) (stored bool, err error) {
	won, err := s.cfg.Store.StoreAttempts(ctx, []*relayer.Attempt{a})
	if err != nil || !won[0] {
		return false, err
	}
	s.cfg.Metrics.attempts.WithLabelValues(string(a.Purpose)).Inc()
	_, err = s.Resend(ctx, []*relayer.Attempt{a})
	return true, err
}

func (s *Sender) store(ctx context.Context) {
	for jobs := range groups(s.signed, storePause) {
		attempts := make([]*relayer.Attempt, len(jobs))
		for i, j := range jobs {
			attempts[i] = j.attempt
		}
		stored, err := s.cfg.Store.StoreAttempts(ctx, attempts)
		if err != nil {
			s.cfg.Metrics.lost.WithLabelValues("store").Add(float64(len(jobs)))
			s.cfg.Log.Warn("attempts could not be stored, and are not broadcasted", "count", len(jobs), "err", err)
			continue
		}
		for i, a := range attempts {
			if stored[i] {
				s.cfg.Metrics.attempts.WithLabelValues(string(a.Purpose)).Inc()
				s.broadcastShard(a.From) <- a
			}
		}
	}
}

func (s *Sender) broadcastShard(key common.Address) chan<- *relayer.Attempt {
	return s.shards[int(key[len(key)-1])%len(s.shards)]
}

// errStopped ends the sends of a process that stops.
var errStopped = errors.New("the process stops, and the nodes are slow")

func (s *Sender) broadcast(ctx context.Context, shard <-chan *relayer.Attempt) {
	for attempts := range groups(shard, 0) {
		if err := cmp.Or(context.Cause(ctx), s.cfg.Ready()); err != nil {
			s.cfg.Log.Warn("stored attempts are not broadcasted", "count", len(attempts), "err", err)
			continue
		}
		slices.SortFunc(attempts, func(a, b *relayer.Attempt) int { return cmp.Compare(a.Nonce, b.Nonce) })
		results := s.cfg.Chain.Send(ctx, raws(attempts))
		s.explainRefusals(ctx, attempts, results)
		for i, result := range results {
			s.results <- s.toBroadcast(attempts[i], result)
		}
	}
}

func raws(attempts []*relayer.Attempt) []evm.Raw {
	out := make([]evm.Raw, len(attempts))
	for i, a := range attempts {
		out[i] = evm.Raw{Hash: a.Hash, Bytes: a.Raw}
	}
	return out
}

// toBroadcast converts a node's response. The bytes count as possibly sent after any response.
func (s *Sender) toBroadcast(a *relayer.Attempt, r evm.Result) store.Broadcast {
	s.cfg.Metrics.broadcasts.WithLabelValues(outcomeLabel(r.Outcome)).Inc()
	s.cfg.Events.Broadcasted(a.From, r.Outcome)
	s.reach.note(a.Hash, r)
	b := store.Broadcast{TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Allocated}
	switch {
	case r.Outcome.Done(), r.Outcome == evm.NonceTooLow: // NonceTooLow: this or another one is mined; the tracker checks
		b.Status = relayer.Broadcasted
	case r.Outcome == evm.Unknown:
		b.Status = relayer.Unknown
	}
	if b.Status != relayer.Broadcasted {
		b.Error, b.Pause, b.MaxPause = r.Outcome.String(), s.cfg.Pause, s.cfg.MaxPause
		switch {
		case r.Outcome == evm.Unknown && r.Rejected != evm.Unknown:
			b.Error = r.Rejected.String() // the tracker does not bump where a higher fee does not help
		case r.Unrecognized:
			b.Error = Unrecognized
		}
		s.cfg.Log.Info("node did not take a transaction", "tx", a.TxID, "key", a.From, "nonce", a.Nonce, "attempt", a.Number,
			"outcome", r.Outcome.String(), "endpoint", r.Endpoint, "err", r.Err)
	}
	return b
}

func (s *Sender) record(ctx context.Context) {
	for broadcasts := range groups(s.results, recordBatchWindow) {
		// Per transaction only the last result of its latest attempt is kept: shards preserve the order, resends do not.
		latest := map[[16]byte]int{}
		for i, b := range broadcasts {
			if was, known := latest[b.TxID]; !known || b.Number >= broadcasts[was].Number {
				latest[b.TxID] = i
			}
		}
		kept := make([]store.Broadcast, 0, len(latest))
		for i, b := range broadcasts {
			if latest[b.TxID] == i {
				kept = append(kept, b)
			}
		}
		if err := s.cfg.Store.RecordBroadcasts(ctx, kept); err != nil {
			s.cfg.Metrics.lost.WithLabelValues("record").Add(float64(len(kept)))
			s.cfg.Log.Warn("broadcasts could not be recorded", "count", len(kept), "err", err)
		}
	}
}

// groups yields batches of at least one and at most [group] elements from a channel, until it is closed. A batch waits
// until pause has passed since the previous one, so that more elements join it.
func groups[T any](c <-chan T, pause time.Duration) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		var next time.Time
		for first := range c {
			all := []T{first}
			collectBatch(&all, c, time.Until(next))
			next = time.Now().Add(pause)
			if !yield(all) {
				return
			}
		}
	}
}

// collectBatch adds elements while there is room and time.
func collectBatch[T any](all *[]T, c <-chan T, wait time.Duration) {
	var late <-chan time.Time
	if wait > 0 {
		late = time.After(wait)
	}
	for len(*all) < group {
		select {
		case next, ok := <-c:
			if !ok {
				return
			}
			*all = append(*all, next)
			continue
		default:
		}
		if late == nil {
			return
		}
		select {
		case next, ok := <-c:
			if !ok {
				return
			}
			*all = append(*all, next)
		case <-late:
			late = nil
		}
	}
}
