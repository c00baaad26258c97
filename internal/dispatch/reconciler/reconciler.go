package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// Store is the part of the store that a reconciler calls.
type Store interface {
	TakeDue(ctx context.Context, limit int, since time.Duration, except []string) ([]store.Due, error)
	Enqueue(ctx context.Context, ids []uuid.UUID) error
	Apply(ctx context.Context, reports []dispatch.Update) ([]store.Applied, error)
	MatchReports(ctx context.Context) (removed int, err error)
	Withdraw(ctx context.Context, at dispatch.Submission) (bool, error)
	StopWithdrawing(ctx context.Context, at dispatch.Submission) error
	Lose(ctx context.Context, at dispatch.Submission, reason string) (bool, error)
	TakeLate(ctx context.Context) ([]store.Late, error)
	SettleLate(ctx context.Context, l *store.Late, executed *common.Hash) (bool, error)
	Purge(ctx context.Context, history time.Duration, limit int) (deleted int, err error)
}

// Relayer is the part of a relayer's API that a reconciler calls.
type Relayer interface {
	Get(ctx context.Context, ref upstream.Ref, id string) (upstream.Transaction, error)
	Cancel(ctx context.Context, ref upstream.Ref, id string) (upstream.Transaction, error)
}

// Witness is a relayer that can be asked about a transaction.
type Witness struct {
	Relayer
	URL string
}

// Config configures a Reconciler. Fields without a default are required.
type Config struct {
	Store Store
	// Witnesses returns the relayers that can be asked about a route's transaction, the most certain one first: the route's own
	// relayer, the live one of the same service under another URL, and live ones of the same idempotency scope.
	Witnesses func(dispatch.Route) []Witness
	// Answering reports whether any relayer answers this process. Default: always. While none does, the process leaves transactions to
	// others, because the fault may be its own.
	Answering func() bool
	// Elsewhere reports whether a relayer outside an idempotency scope can take transactions now.
	Elsewhere func(scope string) bool
	// Queued is called after transactions were queued again. Default: nothing.
	Queued func()
	// Interval is how often silent transactions are looked for. Default 5 s.
	Interval time.Duration
	// Withdraw is after how long a transaction that its relayer has accepted and not sent is taken back, if it can be sent elsewhere.
	// It doubles with each withdrawal. Default 5 min.
	Withdraw time.Duration
	// History is how long final transactions are kept. Default: for ever.
	History time.Duration
	// Away is after how long without an answer of any relayer a transaction becomes unknown. Default 30 min.
	Away time.Duration
	// Overdue is after how long without a webhook a transaction counts as overdue. Default 5 min.
	Overdue    time.Duration
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Reconciler asks relayers about silent transactions.
type Reconciler struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	asking  *asking
	purged  time.Time
}

// New returns a Reconciler.
func New(cfg Config) *Reconciler {
	cfg.Interval = cmp.Or(cfg.Interval, 5*time.Second)
	cfg.Away = cmp.Or(cfg.Away, 30*time.Minute)
	cfg.Overdue = cmp.Or(cfg.Overdue, 5*time.Minute)
	cfg.Withdraw = cmp.Or(cfg.Withdraw, 5*time.Minute)
	if cfg.Answering == nil {
		cfg.Answering = func() bool { return true }
	}
	if cfg.Queued == nil {
		cfg.Queued = func() {}
	}
	return &Reconciler{cfg: cfg, log: cfg.Logger.With("component", "reconciler"), metrics: newMetrics(cfg.Registerer), asking: newAsking()}
}

const (
	// page is how many silent transactions one round takes from the store at a time.
	page = 200
	// purgeInterval and purgePage are how often old transactions are deleted, and how many at a time.
	purgeInterval, purgePage = time.Minute, 5000
	// leftToOthers is for how long a process that no relayer answers leaves a due transaction to other processes. Then it
	// takes the transaction, because no relayer may answer any process.
	leftToOthers = 30 * time.Second
	// maxWithdrawDoublings is how often the time until a withdrawal doubles: from five minutes to more than two hours.
	maxWithdrawDoublings = 5
	// checksUntilLost is how many checks in a row must not find a transaction until it counts as lost.
	checksUntilLost = 2
	// checksUntilAway is how many checks in a row no relayer must answer, beside the time of Config.Away, until a transaction becomes
	// unknown.
	checksUntilAway = 5
	// slowFailure is how long a failed call takes at least to count as no answer. Without it, a relayer that sends a header and no body,
	// or its errors late, would cost a round that time for each of its transactions. Relayers reject in milliseconds.
	slowFailure = 2 * time.Second
)

// Run reconciles until ctx ends, and returns nil then.
func (r *Reconciler) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
	defer r.asking.group.Wait()
	failing := false
	for {
		err := r.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failing {
			r.log.Warn("reconciliation failed", "err", err)
		} else if err == nil && failing {
			r.log.Info("reconciliation succeeds again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.asking.more:
		}
	}
}

// round looks at the transactions that are due now, but those of relayers that are still being asked for an earlier round.
func (r *Reconciler) round(ctx context.Context) error {
	removed, failed := r.cfg.Store.MatchReports(ctx) // its failure must not keep relayers from being asked
	if removed > 0 {
		r.log.Warn("reports dropped: no transaction had their ids for a day", "count", removed)
	}
	silent := &sync.Map{}
	failed = errors.Join(failed, r.late(ctx, silent))
	for {
		var since time.Duration
		if !r.cfg.Answering() {
			since = leftToOthers
		}
		due, err := r.cfg.Store.TakeDue(ctx, page, since, r.asking.urls())
		if err == nil {
			err = r.reconcile(ctx, due, silent)
		}
		if err != nil || len(due) < page || r.asking.full() {
			return errors.Join(failed, err, r.asking.takeErrors(), r.purge(ctx))
		}
	}
}

// purge deletes old transactions: some in each round while there are many, so that neither the other work nor the database waits,
// and then once a minute.
func (r *Reconciler) purge(ctx context.Context) error {
	if r.cfg.History <= 0 || time.Since(r.purged) < purgeInterval {
		return nil
	}
	n, err := r.cfg.Store.Purge(ctx, r.cfg.History, purgePage)
	if n < purgePage {
		r.purged = time.Now()
	}
	return err
}

// reconcile queues transactions again that no relayer has, and begins to ask the relayers about the others. A relayer that does not
// answer, or fails slowly, is asked nothing more in this round, and is added to silent: the transactions of others would wait for it.
func (r *Reconciler) reconcile(ctx context.Context, due []store.Due, silent *sync.Map) error {
	var lost []uuid.UUID
	var ask []store.Due
	for _, d := range due {
		switch {
		case d.Status == dispatch.Queued, d.Status == dispatch.Submitting:
			lost = append(lost, d.ID)
		case d.Status.AtRelayer(), d.RelayerTx != "": // one that was lost may be found again
			ask = append(ask, d)
		default: // unknown: an operator decides
		}
	}
	if len(lost) > 0 {
		r.metrics.requeued.Add(float64(len(lost)))
		if err := r.cfg.Store.Enqueue(ctx, lost); err != nil {
			return err
		}
		r.cfg.Queued()
	}
	r.asking.start(ctx, ask, len(due) == page, func(ctx context.Context, d store.Due) error { return r.ask(ctx, d, silent) })
	return nil
}

// ask asks the relayer of a transaction about it, and applies the answer. It fails only if the answer cannot be stored.
func (r *Reconciler) ask(ctx context.Context, d store.Due, silent *sync.Map) error {
	overdue := time.Since(d.QuietSince) > r.cfg.Overdue
	if overdue {
		r.metrics.overdue.Inc()
	}
	ctx = tracing.Extract(ctx, d.Traceparent) // log lines about the transaction carry the ids of its trace
	log := r.log.With("tx", d.ID, "service", d.Relayer)
	ref := upstream.Ref{ID: d.RelayerID, Scope: d.Scope}
	at := time.Now()
	relayer, got, err := r.find(ctx, &d, ref, silent)
	switch {
	case errors.Is(err, upstream.ErrNotFound):
		r.metrics.asked.WithLabelValues("not found").Inc()
		return r.lost(ctx, &d, log)
	case err != nil:
		r.metrics.asked.WithLabelValues("failed").Inc()
		log.InfoContext(ctx, "relayer not asked", "err", err)
		return r.away(ctx, &d, log)
	}
	// Each withdrawal costs a transaction its place in a queue, so the next one comes later.
	unsent := swallowed(&got) && d.AtRelayer > r.cfg.Withdraw<<min(d.Withdrawn, maxWithdrawDoublings)
	switch {
	case unsent && d.Scope == "":
		return r.parkUnsent(ctx, &d, log)
	case unsent && r.cfg.Elsewhere(d.Scope): // in its own scope it would wait again, behind the others
		marked, err := r.cfg.Store.Withdraw(ctx, d.Submission())
		if err != nil {
			return err
		}
		if marked {
			return r.withdraw(ctx, &d, relayer, ref, log)
		}
		// The row is not submitted, for example because it became unknown. The answer makes it submitted again, and a later check
		// withdraws it.
	case unsent:
		r.metrics.unsent.Inc()
		log.WarnContext(ctx, "relayer does not send a transaction, and no relayer of another idempotency scope is usable")
	}
	if d.Withdrawing && !got.IsCanceled { // the relayer was not asked, or refused: a later cancellation is an operator's
		if err := r.cfg.Store.StopWithdrawing(ctx, d.Submission()); err != nil {
			return err
		}
	}
	return r.report(ctx, &d, &got, at, log)
}

// errUnasked means that no relayer can be asked about a transaction.
var errUnasked = errors.New("no relayer is known that has it")

// find asks the witnesses of a transaction in turn, until one answers, and returns that one. Without a scope only the relayer under
// the route's own URL proves that the transaction is missing: another one may have got the name.
func (r *Reconciler) find(ctx context.Context, d *store.Due, ref upstream.Ref, silent *sync.Map) (Relayer, upstream.Transaction, error) {
	failure := errUnasked
	for _, w := range r.cfg.Witnesses(d.Route) {
		if _, is := silent.Load(w.URL); is {
			failure = fmt.Errorf("%s did not answer in time before in this round", w.URL)
			continue
		}
		asked := time.Now()
		got, err := w.Get(ctx, ref, d.RelayerTx)
		if err == nil || errors.Is(err, upstream.ErrNotFound) && (w.URL == d.URL || d.Scope != "") {
			return w.Relayer, got, err
		}
		failed, ok := errors.AsType[*upstream.Error](err)
		switch {
		case ok && failed.Code == 0, time.Since(asked) > slowFailure:
			silent.Store(w.URL, true)
		case errors.Is(err, upstream.ErrOtherScope):
			// A failover of the relayer's database gives it another scope. An execution that it reports is believed nevertheless. All else
			// may be a state from before commits that the failover lost.
			if got, err := w.Get(ctx, upstream.Ref{ID: ref.ID}, d.RelayerTx); err == nil && executed(&got) {
				got.Revision = 0 // its revisions may have fallen back below the stored one
				return w.Relayer, got, nil
			}
		}
		if errors.Is(err, upstream.ErrNotFound) {
			err = errors.New("another relayer may have the name: it does not have the transaction")
		}
		failure = fmt.Errorf("%s: %w", w.URL, err)
	}
	return nil, upstream.Transaction{}, failure
}

// away makes a transaction unknown about which no relayer has answered for long. The checks go on.
func (r *Reconciler) away(ctx context.Context, d *store.Due, log *slog.Logger) error {
	if d.Checks < checksUntilAway || d.Silence < r.cfg.Away {
		return nil
	}
	return r.park(ctx, d, "its relayer has accepted it as "+d.RelayerTx+", and no relayer has answered about it in several checks", log)
}

// swallowed reports whether a relayer has neither sent a transaction nor begun to cancel it.
func swallowed(t *upstream.Transaction) bool {
	return t.Pending && t.Hash == (common.Hash{}) && !t.IsCanceled
}

// executed reports whether a relayer has seen the transaction in a block.
func executed(t *upstream.Transaction) bool {
	return (t.Status == dispatch.Mined || t.Status == dispatch.Confirmed) && t.Hash != (common.Hash{})
}

// withdraw asks a relayer to cancel a transaction that it does not send, and applies the answer. The store has marked the
// transaction before, so that the relayer's report returns it to the queue, in whichever process receives the report.
func (r *Reconciler) withdraw(ctx context.Context, d *store.Due, relayer Relayer, ref upstream.Ref, log *slog.Logger) error {
	at := time.Now()
	got, err := relayer.Cancel(ctx, ref, d.RelayerTx)
	if err != nil {
		log.WarnContext(ctx, "transaction not withdrawn from a relayer that does not send it", "err", err)
		if refused, ok := errors.AsType[*upstream.Error](err); ok && refused.Code != 0 && !refused.Unknown {
			return r.cfg.Store.StopWithdrawing(ctx, d.Submission())
		}
		return nil // the next check finds out
	}
	log.WarnContext(ctx, "transaction withdrawn from a relayer that does not send it", "relayer_status", string(got.Status))
	r.metrics.withdrawn.Inc()
	return r.report(ctx, d, &got, at, log)
}

// parkUnsent makes a transaction unknown that a relayer without idempotency keys does not send. Such a relayer may report it as
// canceled while it signs it, so it is not given to another one.
func (r *Reconciler) parkUnsent(ctx context.Context, d *store.Due, log *slog.Logger) error {
	return r.park(ctx, d, "its relayer has accepted it as "+d.RelayerTx+", and does not send it", log)
}

// lost makes a transaction unknown that its relayer does not have in two checks.
func (r *Reconciler) lost(ctx context.Context, d *store.Due, log *slog.Logger) error {
	if d.Checks < checksUntilLost {
		log.WarnContext(ctx, "relayer does not have a transaction that it accepted; it is asked again", "relayer_tx", d.RelayerTx)
		return nil
	}
	return r.park(ctx, d, "its relayer had accepted it as "+d.RelayerTx+", and does not have it any more", log)
}

// park makes a transaction unknown, for an operator.
func (r *Reconciler) park(ctx context.Context, d *store.Due, reason string, log *slog.Logger) error {
	ok, err := r.cfg.Store.Lose(ctx, d.Submission(), reason)
	if err != nil || !ok {
		return err
	}
	r.metrics.lost.Inc()
	log.ErrorContext(ctx, "transaction parked: `rollcall tx resolve` ends that", "err", reason)
	return nil
}

// report applies a relayer's answer.
func (r *Reconciler) report(ctx context.Context, d *store.Due, got *upstream.Transaction, at time.Time, log *slog.Logger) error {
	u := dispatch.Update{ID: d.ID, Attempt: d.Attempt, RelayerTx: d.RelayerTx, Status: got.Status, Reason: got.Reason, Revision: got.Revision, Known: d.Reported, At: at}
	if got.CallComplete {
		u.Call = &dispatch.Call{To: *got.To, Value: got.Value, Data: got.Data}
	}
	if got.Hash != (common.Hash{}) {
		u.Hash = &got.Hash
	}
	applied, err := r.cfg.Store.Apply(ctx, []dispatch.Update{u})
	if err != nil {
		return err
	}
	result := "unchanged"
	if applied[0].Changed {
		result = "changed"
		log.InfoContext(ctx, "webhook missing: its change was found at the relayer", "status", string(got.Status))
		r.cfg.Queued() // it may be queued again
	}
	r.metrics.asked.WithLabelValues(result).Inc()
	return nil
}

// metrics are a reconciler's metrics.
type metrics struct {
	asked                                            *prometheus.CounterVec
	requeued, overdue, withdrawn, unsent, lost, late prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		asked: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_reconciled_total",
			Help: "Silent transactions, by the relayer's answer: changed, unchanged, not found, failed.",
		}, []string{"result"}),
		requeued:  f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_requeued_total", Help: "Transactions that were queued again, because no relayer had them for too long."}),
		withdrawn: f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_withdrawn_total", Help: "Transactions that were taken back from a relayer that had accepted and not sent them."}),
		unsent:    f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_unsent_total", Help: "Checks that found a transaction unsent at its relayer for more than five minutes, while no relayer of another idempotency scope was usable."}),
		lost:      f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_lost_total", Help: "Transactions that became unknown after a relayer had accepted them: it does not have them any more, does not send them although it has no idempotency keys, or no relayer has answered about them for half an hour."}),
		late:      f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_late_acceptances_total", Help: "Acceptances by a relayer that came when their transaction was at another relayer, or final: two relayers may execute it."}),
		overdue:   f.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_webhook_timeouts_total", Help: "Checks of transactions without a webhook for longer than five minutes."}),
	}
}
