package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"
)

// Config configures a Writer.
type Config struct {
	// Client is the connection to Redis; see NewClient. The Writer does not close it.
	Client redis.UniversalClient
	// Store replaces Client and Prefix.
	Store Store
	// Prefix is put before each key and the channel.
	Prefix string

	// Cluster, Node and Epoch identify the leadership. An epoch has only one node. Epochs are below 2^53.
	Cluster, Node string
	Epoch         uint64
	// Confirm returns nil when a quorum, asked after the call began, has confirmed the leadership.
	Confirm func(ctx context.Context) error
	// Lease is how long a confirmation is valid, counted from before the request was sent; 0 means 200 ms. Redis must
	// answer well within it, or writes are too late and are refused.
	Lease time.Duration

	// Interval is the interval of the health checks, for readers of meta; 0 means 10 s.
	Interval time.Duration
	// Heartbeat is the longest time between two writes; 0 means 1 s.
	Heartbeat time.Duration
	// Flush is how often hashes are written for services whose membership does not change; 0 means 500 ms.
	Flush time.Duration
	// Audit is how often the sets are read and compared; 0 means 10 s.
	Audit time.Duration
	// Timeout is the time limit of one operation; 0 means 1 s.
	Timeout time.Duration

	// Removed receives the services that have left the sets without joining another, once Redis has confirmed it.
	// Run's goroutine calls it, so it must be quick. It may be nil.
	Removed func([]Removal)

	// Logger may be nil.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// complete returns a copy with defaults, or an error that lists all faults.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.Store == nil && c.Client == nil {
		errs = append(errs, errors.New("no client"))
	}
	if c.Store == nil && c.Client != nil {
		c.Store = NewStore(c.Client, c.Prefix)
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("no cluster id"))
	}
	if c.Node == "" {
		errs = append(errs, errors.New("no node id"))
	}
	if c.Epoch == 0 || c.Epoch >= 1<<53 {
		errs = append(errs, fmt.Errorf("epoch %d is not between 1 and 2^53", c.Epoch))
	}
	if c.Confirm == nil {
		errs = append(errs, errors.New("no way to confirm the leadership"))
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"lease", &c.Lease, 200 * time.Millisecond},
		{"interval", &c.Interval, 10 * time.Second},
		{"heartbeat", &c.Heartbeat, time.Second},
		{"flush", &c.Flush, 500 * time.Millisecond},
		{"audit", &c.Audit, 10 * time.Second},
		{"timeout", &c.Timeout, time.Second},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", d.name))
		}
		*d.value = cmp.Or(*d.value, d.or)
	}
	if c.Removed == nil {
		c.Removed = func([]Removal) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("mirror: %w", err)
	}
	return c, nil
}

// Writer keeps Redis equal to one leader's state, for one epoch. Its methods are safe for concurrent use. Run is
// called once.
type Writer struct {
	cfg       Config
	store     Store
	log       *slog.Logger
	m         *Metrics
	desired   *desiredState
	tried     chan struct{}
	triedOnce func() // closes tried

	// The fields below belong to Run.
	claimed bool
	token   Token // the last one used, whatever its outcome
	base    Token // the expected token in meta
	// started has the monotonic clock. storeStarted is a lower bound of the store's time at started.
	started, storeStarted time.Time
	asked                 time.Time // when the last successful confirmation was requested
	wrote, flushed        time.Time
	audited               time.Time
	suspect               bool // the sets must be read again at once
	retry                 backoff.ExponentialBackOff
	failing               failure
	attempt               int
	since                 time.Time
	warned                time.Time // of the fence, in the current series of failures

	mu     sync.Mutex
	report Report
}

// Removal is a service that readers of Redis no longer find in an active set.
type Removal struct {
	ID, Kind, URL string
	// Reason is the reason of the failed check, or that the service is not in the directory.
	Reason string
	// Checked is when that check ended; zero for a service that is not in the directory.
	Checked time.Time
}

// Report is the status of a Writer.
type Report struct {
	// Connected reports whether Redis executes operations. It is false if Redis fails, or if the fence has held back
	// every write for three heartbeats.
	Connected bool
	// Claimed reports whether Redis holds the epoch.
	Claimed bool
	// Seq and LastWrite belong to the last write known to be applied.
	Seq       uint64
	LastWrite time.Time
	// Err is why the last write failed, nil if it succeeded.
	Err error
}

// New returns a Writer. It does nothing before Run.
func New(cfg Config) (*Writer, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	tried := make(chan struct{})
	return &Writer{
		cfg:       cfg,
		store:     cfg.Store,
		log:       cfg.Logger.With("component", "mirror", "epoch", cfg.Epoch),
		m:         cfg.Metrics,
		desired:   newDesiredState(cfg.Epoch),
		tried:     tried,
		triedOnce: sync.OnceFunc(func() { close(tried) }),
	}, nil
}

// Update records new or changed services, and the ids of services that left the directory. It never blocks. Updates
// faster than the writes are merged. The Writer keeps the entries, which must not change any more. The first call must
// contain the whole directory, and may be empty. From then on a listed id that no call contained is a leftover and is
// removed.
func (w *Writer) Update(upserts []*Entry, removed []string) {
	w.desired.update(upserts, removed, time.Now())
}

// FirstClaim returns a channel that is closed after the first attempt to claim the epoch and to read the listed
// services, whatever its result.
func (w *Writer) FirstClaim() <-chan struct{} { return w.tried }

// Status returns the Writer's status.
func (w *Writer) Status() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// Active reports whether the id is in a set, as last written or read.
func (w *Writer) Active(id string) (yes bool) {
	w.ReadActive(func(active func(id, kind string) bool) { yes = active(id, "") })
	return yes
}

// ReadActive calls read with a function like Active, for many ids at one moment: nothing changes while it runs. kind
// is a hint: the set that most likely has the id.
func (w *Writer) ReadActive(read func(active func(id, kind string) bool)) { w.desired.readActive(read) }

// ActiveOf returns the number of members of a kind's set, as last written or read.
func (w *Writer) ActiveOf(kind string) int { return w.desired.activeOf(kind) }

// Run claims the epoch, then writes until ctx ends, and then returns nil. It ends early only with *HigherEpochError,
// *ForeignClusterError or ErrSuperseded. It retries after other errors of Redis.
//
// If ctx ends during an operation, Run returns when the operation ends, at the latest after Config.Timeout.
func (w *Writer) Run(ctx context.Context) error {
	w.started = time.Now()
	w.wrote = w.started // nothing is overdue yet
	w.retry = backoff.ExponentialBackOff{RandomizationFactor: 0.25, Multiplier: 2}
	defer w.m.connected.Set(0)
	for {
		err := w.session(ctx)
		w.triedOnce()
		if ctx.Err() != nil {
			return nil
		}
		_, higher := errors.AsType[*HigherEpochError](err)
		_, foreign := errors.AsType[*ForeignClusterError](err)
		if higher || foreign || errors.Is(err, ErrSuperseded) {
			w.failed(err, true)
			return err
		}
		w.retryState(ctx, err)
	}
}

// session runs until an operation fails. Each session begins with reading Redis, because it may be another server.
func (w *Writer) session(ctx context.Context) error {
	if !w.claimed {
		if err := w.claim(ctx); err != nil {
			return fmt.Errorf("claim mirror: %w", err)
		}
	}
	if err := w.audit(ctx); err != nil {
		return err
	}
	w.triedOnce()
	for ctx.Err() == nil {
		changes, status := w.desired.pending()
		now := time.Now()
		flush, beat, audit := w.flushed.Add(w.cfg.Flush), w.wrote.Add(w.cfg.Heartbeat), w.audited.Add(w.cfg.Audit)
		var err error
		switch {
		case changes:
			err = w.write(ctx, OpChange)
		case w.suspect || !now.Before(audit):
			err = w.audit(ctx)
		case status && !now.Before(flush):
			err = w.write(ctx, OpStatus)
		case !now.Before(beat):
			err = w.write(ctx, OpHeartbeat)
		default:
			next := beat
			if audit.Before(next) {
				next = audit
			}
			if status && flush.Before(next) {
				next = flush
			}
			timer := time.NewTimer(next.Sub(now))
			select {
			case <-ctx.Done():
			case <-w.desired.wake:
			case <-timer.C:
			}
			timer.Stop()
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// claim opens the epoch. From then on no older write can be applied, as long as Redis keeps its data.
func (w *Writer) claim(ctx context.Context) error {
	view, err := w.read(ctx, nil)
	if err != nil {
		return err
	}
	w.token.Epoch = w.cfg.Epoch
	if held := view.Meta.Token; held.Epoch == w.cfg.Epoch {
		// The token belongs to an earlier Writer of this leadership, or to an earlier attempt. Their writes in flight
		// must be older than any later write, not equal.
		w.token.Seq = max(w.token.Seq, held.Seq) + 1<<20
	}
	reply, err := w.send(ctx, Write{Op: OpClaim}, batch{}, false)
	if err != nil {
		return err
	}
	w.claimed = true
	w.desired.addKinds(reply.Held.Kinds)
	w.log.Info("mirror claimed", "node", w.cfg.Node, "previous", reply.Held.Token.Epoch, "previous_leader", reply.Held.Leader)
	return nil
}

// audit reads the sets and queues all differences.
func (w *Writer) audit(ctx context.Context) error {
	kinds := w.desired.kinds()
	view, err := w.read(ctx, kinds)
	if err != nil {
		return err
	}
	if len(view.Meta.Kinds) > 0 {
		w.desired.addKinds(view.Meta.Kinds)
		if more := w.desired.kinds(); len(more) > len(kinds) {
			if view, err = w.read(ctx, more); err != nil {
				return err
			}
		}
	}
	held := view.Meta.Token
	// A write with an unknown outcome may have been applied.
	ours := view.Meta.Cluster == w.cfg.Cluster && held.Epoch == w.cfg.Epoch && held.Compare(w.base) >= 0
	drift, removed := w.desired.reconcile(view, !ours, time.Now())
	w.tellRemoved(removed)
	switch {
	case !ours:
		w.m.repairs.WithLabelValues(reasonRewrite).Inc()
		w.log.Warn("redis lost the mirror, writing it again", "held_epoch", held.Epoch, "held_seq", held.Seq,
			"expected_seq", w.base.Seq)
	case held == w.base && !w.audited.IsZero() && drift > 0:
		w.m.repairs.WithLabelValues(reasonDrift).Add(float64(drift))
		w.log.Warn("mirror was changed by someone else, repairing it", "members", drift)
	}
	w.base = held
	w.audited = time.Now()
	w.suspect = false
	return nil
}

// write writes one batch of the kind op.
func (w *Writer) write(ctx context.Context, op Op) error {
	b := w.desired.take(op)
	// A removal needs a confirmation requested after the check's result arrived, so that a leader that was paused in
	// between removes nothing.
	reply, err := w.send(ctx, Write{Op: op, Kinds: b.kinds, Sets: b.sets, Status: b.status}, b, b.removes)
	if err != nil {
		return fmt.Errorf("write %s: %w", op, err)
	}
	if op == OpStatus {
		if _, more := w.desired.pending(); !more {
			w.flushed = time.Now()
		}
	}
	for _, since := range b.changed {
		w.m.lag.Observe(time.Since(since).Seconds())
	}
	if !w.desired.applied(b, reply.Sizes, time.Now()) {
		w.suspect = true
	}
	w.tellRemoved(b.removals)
	return nil
}

func (w *Writer) tellRemoved(removals []Removal) {
	if len(removals) > 0 {
		w.cfg.Removed(removals)
	}
}

// send makes one fenced write. It returns nil only if Redis holds the write; otherwise it requeues the batch.
func (w *Writer) send(ctx context.Context, wr Write, b batch, fresh bool) (Reply, error) {
	unknown := false
	reply, err := func() (Reply, error) {
		until, err := w.confirm(ctx, fresh)
		if err != nil {
			return Reply{}, err
		}
		if wr.Op != OpClaim {
			w.token.Seq++
		}
		wr.Cluster, wr.Leader, wr.Interval = w.cfg.Cluster, w.cfg.Node, w.cfg.Interval
		wr.Token, wr.Base = w.token, w.base
		wr.NotAfter = w.storeTime(until)
		ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
		defer cancel()
		reply, err := w.store.Write(ctx, wr)
		if err != nil {
			unknown = true
			return Reply{}, err
		}
		w.syncClock(reply.Now)
		return reply, w.refusalError(reply)
	}()
	if err != nil {
		w.desired.requeue(b, unknown)
		return Reply{}, err
	}
	w.base = w.token
	w.wrote = time.Now()
	w.m.writes.WithLabelValues(string(wr.Op)).Inc()
	w.m.seq.Set(float64(w.token.Seq))
	w.succeeded()
	return reply, nil
}

// refusalError returns the error of a refused write, or nil.
func (w *Writer) refusalError(r Reply) error {
	switch r.Outcome {
	case Applied, Duplicate:
		return nil
	}
	w.m.refusals.WithLabelValues(string(r.Outcome)).Inc()
	switch r.Outcome {
	case Older, Foreign:
		if err := w.admit(r.Held); err != nil {
			return err
		}
		return ErrSuperseded
	default:
		return &fenceError{fmt.Errorf("redis refused a write as %s", r.Outcome)}
	}
}

// admit returns an error if Redis holds another leadership's mirror.
func (w *Writer) admit(m Meta) error {
	switch {
	case m.Cluster != "" && m.Cluster != w.cfg.Cluster:
		return &ForeignClusterError{Cluster: m.Cluster, Epoch: m.Token.Epoch, Own: w.cfg.Cluster}
	case m.Token.Epoch > w.cfg.Epoch, m.Token.Epoch == w.cfg.Epoch && m.Leader != w.cfg.Node:
		return &HigherEpochError{Epoch: w.cfg.Epoch, Seen: m.Token.Epoch}
	case w.claimed && m.Token.Compare(w.token) > 0:
		return ErrSuperseded
	}
	return nil
}

// read reads Redis. It returns an error if Redis holds another leadership's mirror.
func (w *Writer) read(ctx context.Context, kinds []string) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	view, err := w.store.Read(ctx, kinds)
	if err != nil {
		return View{}, fmt.Errorf("read mirror: %w", err)
	}
	w.syncClock(view.Now)
	if err := w.admit(view.Meta); err != nil {
		reason := Older
		if _, ok := errors.AsType[*ForeignClusterError](err); ok {
			reason = Foreign
		}
		w.m.refusals.WithLabelValues(string(reason)).Inc()
		return View{}, err
	}
	return view, nil
}

// confirm returns until when the leadership is valid, by the local clock. With fresh it requests a new confirmation.
// Otherwise half of the lease must be left, so that a write has time to arrive.
func (w *Writer) confirm(ctx context.Context, fresh bool) (time.Time, error) {
	if fresh || w.asked.IsZero() || time.Since(w.asked) > w.cfg.Lease/2 {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(ctx, w.cfg.Lease)
		defer cancel()
		err := w.cfg.Confirm(ctx)
		if err == nil && time.Since(asked) >= w.cfg.Lease {
			err = errors.New("the quorum answered after the lease")
		}
		if err != nil {
			w.m.refusals.WithLabelValues(reasonUnconfirmed).Inc()
			return time.Time{}, &fenceError{fmt.Errorf("confirm leadership: %w", err)}
		}
		w.asked = asked
	}
	return w.asked.Add(w.cfg.Lease), nil
}

// syncClock records Redis's time. The reading is slightly old, so a deadline derived from it is early, which is safe.
// All local times are monotonic.
func (w *Writer) syncClock(store time.Time) { w.storeStarted = store.Add(-time.Since(w.started)) }

// storeTime converts a local time to the store's clock.
func (w *Writer) storeTime(t time.Time) time.Time { return w.storeStarted.Add(t.Sub(w.started)) }
