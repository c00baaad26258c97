package reconciler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/store"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream"
)

// Store is the part of the store that a reconciler calls.
type Store interface {
	TakeDue(ctx context.Context, limit int) ([]store.Due, error)
	Enqueue(ctx context.Context, ids []uuid.UUID) error
	Apply(ctx context.Context, reports []relay.Update) ([]store.Applied, error)
	MatchReports(ctx context.Context) (removed int, err error)
}

// Relayer is the part of a relayer's API that a reconciler calls.
type Relayer interface {
	Get(ctx context.Context, ref upstream.Ref, id string) (upstream.Transaction, error)
}

// Config configures a Reconciler. Fields without a default are required.
type Config struct {
	Store Store
	// At returns the relayer of a route; false if nothing is known of it.
	At func(relay.Route) (Relayer, bool)
	// Queued is called after transactions were queued again. Default: nothing.
	Queued func()
	// Interval is how often silent transactions are looked for. Default 5 s.
	Interval time.Duration
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
}

// New returns a Reconciler.
func New(cfg Config) *Reconciler {
	cfg.Interval = cmp.Or(cfg.Interval, 5*time.Second)
	cfg.Overdue = cmp.Or(cfg.Overdue, 5*time.Minute)
	if cfg.Queued == nil {
		cfg.Queued = func() {}
	}
	return &Reconciler{cfg: cfg, log: cfg.Logger.With("component", "reconciler"), metrics: newMetrics(cfg.Registerer)}
}

const (
	// atOnce is how many transactions are asked for concurrently.
	atOnce = 16
	// page is how many silent transactions one round takes from the store at a time.
	page = 200
)

// Run reconciles until ctx ends, and returns nil then.
func (r *Reconciler) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
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
		}
	}
}

// round looks at all transactions that are due now.
func (r *Reconciler) round(ctx context.Context) error {
	if removed, err := r.cfg.Store.MatchReports(ctx); err != nil {
		return err
	} else if removed > 0 {
		r.log.Warn("reports dropped: no transaction had their ids for a week", "count", removed)
	}
	for {
		due, err := r.cfg.Store.TakeDue(ctx, page)
		if err != nil {
			return err
		}
		if err := r.reconcile(ctx, due); err != nil {
			return err
		}
		if len(due) < page {
			return nil
		}
	}
}

// reconcile queues transactions again that no relayer has, and asks the relayers about the others.
func (r *Reconciler) reconcile(ctx context.Context, due []store.Due) error {
	var lost []uuid.UUID
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, d := range due {
		switch {
		case d.Status == relay.Queued, d.Status == relay.Submitting:
			lost = append(lost, d.ID)
		case d.Status.AtRelayer():
			group.Go(func() error { return r.ask(asking, d) })
		default: // unknown: an operator decides
		}
	}
	err := group.Wait()
	if len(lost) == 0 {
		return err
	}
	r.metrics.requeued.Add(float64(len(lost)))
	if failed := r.cfg.Store.Enqueue(ctx, lost); failed != nil {
		return errors.Join(err, failed)
	}
	r.cfg.Queued()
	return err
}

// ask asks the relayer of a transaction about it, and applies the answer. It fails only if the answer cannot be stored.
func (r *Reconciler) ask(ctx context.Context, d store.Due) error {
	overdue := time.Since(d.UpdatedAt) > r.cfg.Overdue
	if overdue {
		r.metrics.overdue.Inc()
	}
	log := r.log.With("tx", d.ID, "relayer", d.Relayer)
	relayer, ok := r.cfg.At(d.Route)
	if !ok {
		r.metrics.asked.WithLabelValues("unknown relayer").Inc()
		return nil
	}
	at := time.Now()
	got, err := relayer.Get(ctx, upstream.Ref{ID: d.RelayerID, Scope: d.Scope}, d.RelayerTx)
	switch {
	case errors.Is(err, upstream.ErrNotFound):
		r.metrics.asked.WithLabelValues("not found").Inc()
		log.Error("relayer does not have a transaction that it accepted", "relayer_tx", d.RelayerTx)
		return nil
	case err != nil:
		r.metrics.asked.WithLabelValues("failed").Inc()
		log.Info("relayer not asked", "err", err)
		return nil
	}
	status, ok := statuses[got.Status]
	if !ok {
		r.metrics.asked.WithLabelValues("failed").Inc()
		log.Warn("relayer answers an unknown status", "status", string(got.Status))
		return nil
	}
	u := relay.Update{RelayerTx: d.RelayerTx, Status: status, Reason: got.Reason, Revision: got.Revision, At: at}
	if got.Hash != (common.Hash{}) {
		u.Hash = &got.Hash
	}
	applied, err := r.cfg.Store.Apply(ctx, []relay.Update{u})
	if err != nil {
		return err
	}
	result := "unchanged"
	if applied[0].Changed {
		result = "changed"
		log.Info("webhook missing: its change was found at the relayer", "status", string(status))
	}
	r.metrics.asked.WithLabelValues(result).Inc()
	return nil
}

// statuses are the statuses of a relayer.
var statuses = map[upstream.Status]relay.Status{
	upstream.Pending: relay.Submitted, upstream.Sent: relay.Submitted, upstream.Submitted: relay.Submitted, upstream.Mined: relay.Mined,
	upstream.Confirmed: relay.Confirmed, upstream.Failed: relay.Failed, upstream.Canceled: relay.Canceled, upstream.Expired: relay.Expired,
}

// metrics are a reconciler's metrics.
type metrics struct {
	asked             *prometheus.CounterVec
	requeued, overdue prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_reconciled_total",
			Help: "Silent transactions, by the relayer's answer: changed, unchanged, not found, failed, unknown relayer.",
		}, []string{"result"}),
		requeued: prometheus.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_requeued_total", Help: "Transactions that were queued again, because no relayer had them for too long."}),
		overdue:  prometheus.NewCounter(prometheus.CounterOpts{Name: "rollcall_relay_webhook_timeouts_total", Help: "Checks of transactions without a webhook for longer than five minutes."}),
	}
	if reg != nil {
		reg.MustRegister(m.asked, m.requeued, m.overdue)
	}
	return m
}
