package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/escrow/instance"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

const (
	// topicTarget is the name of the topic among the targets of messages.
	topicTarget = "topic"
	// databaseLost is after how long without the database the process ends, at the start as later.
	databaseLost = 5 * time.Minute
	// topicPause is the pause between two attempts to make the topic of an emulator.
	topicPause = time.Second
)

// escrowParts are the parts of an instance, in the order in which they are opened.
type escrowParts struct {
	*escrowRunCmd
	replaced func() // ends the process

	monitor  atomic.Pointer[instance.Monitor] // nil during the start
	db       *pgxpool.Pool
	box      *outbox.Outbox
	notifier *outbox.Notifier
	store    *store.Store
	client   *evm.Client

	// Those of the targets: the topic, if there is one, and the webhooks.
	senders    []func(context.Context) error
	background []func(context.Context) error
	turned     map[string]func() time.Time
	problems   map[string]func() error
}

// start opens an instance's parts and starts its stages.
func (e *escrowParts) start(p *process.Process) error {
	// HTTP stays up until everything has stopped, so that the end can be observed.
	if err := p.ServeHealth(e.listen, map[string]http.Handler{"GET /status": e.statusPage(p)}); err != nil {
		return err
	}
	if err := e.openStore(p); err != nil {
		return err
	}
	metrics := publish.NewMetrics(p.Registry)
	if e.topic.Project != "" {
		if err := e.openTopic(p, metrics); err != nil {
			return err
		}
	} else {
		e.purge(p, topicTarget, e.Topic.Retention)
	}
	if len(e.hooks.Targets) > 0 {
		if err := e.openWebhooks(p, metrics); err != nil {
			return err
		}
	} else {
		e.purge(p, publish.WebhookTarget(""), max(e.hooks.Retention, 1)) // also if none is to be kept
	}
	if err := e.register(p); err != nil {
		return err
	}
	watcher := e.watcher(p)
	monitor := e.instance(p, watcher)
	if err := monitor.Join(p.Context()); err != nil {
		return err
	}
	e.monitor.Store(monitor)
	p.ReportHealth(monitor.Health)
	if urls, nodes := len(e.Chain.RPCURLs), len(e.Chain.nodes().Endpoints); nodes < urls {
		p.Log.Warn("URLs of one host count as one node, and one of them is called", "component", "watcher", "urls", urls, "nodes", nodes)
	}
	if e.Chain.alone() {
		p.Log.Warn("one node is configured: where receipts prove nothing, no other node confirms its lists of logs", "component", "watcher")
	}
	p.Started("chain", e.Chain.ID, "factories", len(e.Chain.Factories), "start_block", e.Chain.StartBlock, "targets", strings.Join(e.targets(), ","))

	// They stop in reverse order: the lease and the claims are given back first, and the row is removed after that.
	p.Go("instance", 0, monitor.Run)
	p.Go("nodes and topic", 0, append(e.background, e.notifier.Run, watcher.Look)...)
	p.Go("watcher and publisher", 0, append(e.senders, watcher.Run)...)
	return nil
}

// targets returns the names of the targets of messages.
func (e *escrowParts) targets() (names []string) {
	if e.topic.Project != "" {
		names = append(names, topicTarget)
	}
	for _, name := range e.hooks.Names() {
		names = append(names, publish.WebhookTarget(name))
	}
	return names
}

// openStore connects to the database, waits for it, migrates it if configured, and opens the store.
func (e *escrowParts) openStore(p *process.Process) (err error) {
	waiting := p.Database()
	migrations := store.Migrations()
	migrations.Log, migrations.Waiting, migrations.Wait = p.Log, waiting, databaseLost
	if e.Store.Migrate {
		if err := postgres.Migrate(p.Context(), e.Store.DatabaseURL, migrations); err != nil {
			return err
		}
	}
	// A process that freezes while it has the chain's row must not delay the others for long.
	e.db, err = postgres.Open(p.Context(), postgres.Config{
		URL: e.Store.DatabaseURL, ApplicationName: "rollcall escrow", IdleInTxTimeout: 2 * time.Second, Wait: databaseLost, Waiting: waiting,
	})
	if err != nil {
		return err
	}
	p.OnStop("store", 0, func() error { e.db.Close(); return nil })
	if err := postgres.Check(p.Context(), e.db, migrations); err != nil { // another version may have migrated it
		return err
	}
	if e.box, err = outbox.New(e.db, store.Outbox); err != nil {
		return err
	}
	e.notifier = e.box.NewNotifier(p.Log.With("component", "publisher"), nil)
	e.store, err = store.New(e.db, store.Config{ChainID: e.Chain.ID, Events: e.events, Targets: e.targets(), Stored: e.notifier.Notify})
	return err
}

// openTopic opens the topic and its publisher.
func (e *escrowParts) openTopic(p *process.Process, metrics *publish.Metrics) error {
	topic, err := publish.OpenTopic(p.Context(), e.topic)
	if err != nil {
		return err
	}
	p.OnStop("topic", 0, topic.Close)
	publisher, err := publish.New(publish.Config{
		Topic: topic, Outbox: e.box, Lane: store.Lane(e.Chain.ID, topicTarget), Halted: store.Halted, Total: e.Topic.total, Number: e.Topic.number,
		Retention: e.Topic.Retention, Metrics: metrics, Logger: p.Log,
	})
	if err != nil {
		return err
	}
	e.senders = append(e.senders, publisher.Run)
	e.background = append(e.background, func(ctx context.Context) error { return e.createTopic(ctx, p, topic) })
	e.turned["publisher"], e.problems["publisher"] = publisher.Turned, publisher.Health
	return nil
}

// openWebhooks opens the deliverer of the webhooks. Like the publisher it is woken by the notifications of all processes.
func (e *escrowParts) openWebhooks(p *process.Process, metrics *publish.Metrics) error {
	cfg := e.hooks
	cfg.Logger, cfg.Metrics = p.Log, webhook.NewMetrics(p.Registry)
	deliverer, err := webhook.New(e.db, publish.Webhooks(e.Chain.ID, e.Topic.total, e.Topic.number, metrics), cfg)
	if err != nil {
		return err
	}
	e.senders = append(e.senders, deliverer.Run)
	e.turned["webhooks"] = deliverer.Turned
	return nil
}

// purge deletes what targets that are not configured any more have accepted: no sender does it.
func (e *escrowParts) purge(p *process.Process, targets string, retention time.Duration) {
	e.background = append(e.background, func(ctx context.Context) error {
		e.box.KeepPurging(ctx, store.Lane(e.Chain.ID, targets), retention, p.Log)
		return nil
	})
}

// register opens the nodes and registers the chain. A chain that is registered for the first time must be on the nodes before, because its
// settings cannot be changed afterwards. If it was registered, the nodes may be away: messages are published without them. Then they
// are checked in the background.
func (e *escrowParts) register(p *process.Process) (err error) {
	p.Stage("chain")
	nodes := e.Chain.nodes()
	nodes.Logger, nodes.Metrics = p.Log, evm.NewMetrics(p.Registry)
	if e.client, err = evm.Open(nodes); err != nil {
		return err
	}
	p.OnStop("node clients", 0, func() error { e.client.Close(); return nil })
	settings := store.Settings{Factories: e.Chain.factories(), StartBlock: e.Chain.StartBlock}
	start := watch.Start{
		Client: e.client, Factories: settings.Factories, StartBlock: settings.StartBlock, Alone: e.Chain.alone(), Waiting: p.Waiting, Logger: p.Log,
	}
	registered, err := e.store.Registered(p.Context(), settings)
	switch {
	case err != nil:
		return err
	case registered:
		e.background = append(e.background, start.CheckChain)
		return nil
	}
	if err := start.Await(p.Context()); err != nil {
		return err
	}
	return e.store.Register(p.Context(), settings)
}

func (e *escrowParts) watcher(p *process.Process) *watch.Watcher {
	finality, _ := parseFinality(e.Chain.Finality) // Check has read it
	return watch.New(watch.Config{
		Client: e.client, Store: e.store, Events: e.events, Factories: e.Chain.factories(), Finality: finality, Alone: e.Chain.alone(),
		Instance: e.InstanceID, Delivery: watch.Delivery(e.Chain.Delivery), Registerer: p.Registry, Logger: p.Log,
	})
}

func (e *escrowParts) instance(p *process.Process, watcher *watch.Watcher) *instance.Monitor {
	e.turned["watcher"], e.problems["watcher"] = watcher.Turned, watcher.Health
	host, _ := os.Hostname() // for operators alone
	return instance.New(instance.Config{
		Store:    e.store,
		Self:     store.Instance{ID: e.InstanceID, Run: uuid.NewString(), Version: process.Version(), Host: host, PID: os.Getpid(), Total: e.Topic.total, Number: e.Topic.number},
		Leading:  watcher.Leading,
		Newest:   watcher.Newest,
		Turned:   e.turned,
		Problems: e.problems,
		Settings: instance.Settings{ChainID: e.Chain.ID, Delivery: e.Chain.Delivery, Finality: e.Chain.Finality, Alone: e.Chain.alone()},
		Replaced: e.replaced, Lost: databaseLost, Registerer: p.Registry, Logger: p.Log,
	})
}

// createTopic makes the topic of an emulator, and waits for the emulator.
func (e *escrowParts) createTopic(ctx context.Context, p *process.Process, topic *publish.Topic) error {
	if e.topic.Emulator == "" {
		return nil
	}
	for {
		err := topic.Create(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		p.Log.Warn("topic of the emulator not made", "component", "publisher", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(topicPause):
		}
	}
}

// statusPage serves the status, and the health alone during the start.
func (e *escrowParts) statusPage(p *process.Process) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if monitor := e.monitor.Load(); monitor != nil {
			monitor.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]any{"instance": e.InstanceID, "version": process.Version(), "health": p.Health()}) // the client has gone
	})
}
