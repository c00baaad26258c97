package queue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// maxFailures is after how many failures an entry is dead. A consumer that died with the entry counts.
const maxFailures = 20

// Config configures a [Queue]. The zero value has all defaults.
type Config struct {
	// URL is where the ids travel, see [CheckURL]. Default: [Postgres].
	URL string
	// Concurrency is how many handlers of Receive run concurrently, from 1. Default 1.
	Concurrency int
	// Lease is how long no other consumer gets an entry whose consumer died, at least 1 s. Default 60 s.
	Lease time.Duration
	// DrainTimeout is how long running handlers may continue after a stop before their contexts end. Default 40 s.
	DrainTimeout time.Duration
	// Registerer receives the metrics. Default: none.
	Registerer prometheus.Registerer
	// Logger receives state changes and dead entries. Default: discard.
	Logger *slog.Logger
}

// Queue is the queue in a process. Its methods are safe for concurrent use.
type Queue struct {
	cfg       Config
	box       *outbox.Outbox
	metrics   *metrics
	transport transport // nil: consumers claim from the table
	producer  producer
	worker    atomic.Pointer[outbox.Worker] // nil while Receive does not run
}

// producer makes committed entries known to the consumers: a notifier, or the dispatcher of a broker.
type producer interface {
	Notify()
	Run(context.Context) error
	Health() error
}

// Open returns the queue in db, the database of the transactions, with the table of [Migrations]. It does not connect: a backend that is
// unavailable shows in Health. The caller closes the queue, and then db.
func Open(db *pgxpool.Pool, cfg Config) (*Queue, error) {
	cfg.Concurrency = max(cfg.Concurrency, 1)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	box, err := outbox.New(db, Table)
	if err != nil {
		return nil, err
	}
	q := &Queue{cfg: cfg, box: box, metrics: newMetrics(cfg.Registerer)}
	if q.transport, err = openTransport(cfg.URL, cfg.Concurrency); err != nil {
		return nil, err
	}
	if q.transport == nil {
		q.producer = box.NewNotifier(cfg.Logger.With("component", "queue"), q.metrics)
	} else {
		q.producer = box.NewDispatcher(outbox.DispatcherConfig{
			Transport: q.transport, Component: "queue", Logger: cfg.Logger, Observer: q.metrics,
		})
	}
	return q, nil
}

// Receive calls handle for due entries until ctx ends, as [outbox.Worker.Run] documents. It fails if the Config is invalid. One call runs
// at a time.
func (q *Queue) Receive(ctx context.Context, handle outbox.Handler) error {
	w, err := q.box.NewWorker(outbox.Config{
		Handle: handle, Concurrency: q.cfg.Concurrency, Lease: q.cfg.Lease, MaxFailures: maxFailures, DrainTimeout: q.cfg.DrainTimeout,
		Transport: q.transport, Component: "consumer", Logger: q.cfg.Logger, Observer: q.metrics,
	})
	if err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	q.worker.Store(w)
	defer func() {
		q.worker.Store(nil)
		q.metrics.forgetWorker()
	}()
	return w.Run(ctx)
}

// Notify reports that entries were committed. It never blocks. Without it, a consumer gets them a second later.
func (q *Queue) Notify() { q.producer.Notify() }

// Run works until ctx ends, and returns nil then. It wakes the consumers, or sends ids to the broker: any process that runs it sends
// those of all, so the consumers' processes should run it, too. It counts the entries for the metrics.
func (q *Queue) Run(ctx context.Context) error {
	var counting sync.WaitGroup
	counting.Go(func() { q.box.KeepCounting(ctx, "", q.cfg.Logger, q.metrics.counted) })
	defer counting.Wait()
	return q.producer.Run(ctx)
}

// Health returns nil while the database and the broker answer, and otherwise the cause, without secrets.
func (q *Queue) Health() error {
	if w := q.worker.Load(); w != nil {
		return cmp.Or(w.Health(), q.producer.Health())
	}
	return q.producer.Health()
}

// Close closes the connections to the broker. Call it after Receive and Run have returned.
func (q *Queue) Close() error {
	if q.transport == nil {
		return nil
	}
	return q.transport.Close()
}
