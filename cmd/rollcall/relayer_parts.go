package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/limits"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// relayerParts are the parts of a relayer, in the order in which they are opened.
type relayerParts struct {
	*relayerCmd

	log         *slog.Logger
	reg         *prometheus.Registry
	ring        *signer.Ring // the pool's keys
	db          *pgxpool.Pool
	client      *evm.Client
	passthrough *evm.Client // for callers' own calls
	deliverer   *webhook.Deliverer
	store       *store.Store
	identity    *tracker.ChainIdentity
}

// open opens the parts, the database first.
func (p *relayerParts) open(of *process.Process) error {
	of.OnStop("connections", 0, p.close)
	if err := p.openDatabase(of.Context(), of.Database()); err != nil {
		return err
	}
	of.Stage("nodes")
	if err := p.openNodes(); err != nil {
		return err
	}
	of.Stage("store")
	return p.openStore()
}

// close closes the parts that are open, the last one first.
func (p *relayerParts) close() error {
	if p.passthrough != nil {
		p.passthrough.Close()
	}
	if p.client != nil {
		p.client.Close()
	}
	if p.db != nil {
		p.db.Close()
	}
	return nil
}

// openDatabase connects to the database and migrates it if configured. It waits for a database that cannot be reached.
func (p *relayerParts) openDatabase(ctx context.Context, waiting func(error)) (err error) {
	migrations := store.Migrations()
	migrations.Log, migrations.Waiting = p.log, waiting
	if p.Migrate {
		if err := postgres.Migrate(ctx, p.Store.DatabaseURL, migrations); err != nil {
			return err
		}
	}
	// A process that freezes while it has the keys' locks must not delay the others of its pool for long.
	p.db, err = postgres.Open(ctx, postgres.Config{URL: p.Store.DatabaseURL, ApplicationName: "rollcall relayer", IdleInTxTimeout: 2 * time.Second, Waiting: waiting})
	if err != nil {
		return err
	}
	return postgres.Check(ctx, p.db, migrations) // another version may have migrated it
}

// openNodes opens two clients of the nodes. Callers' own calls use separate connections, because a slow or huge answer must
// not count against a node through which transactions are sent. They use half of the calls that a node allows at most.
func (p *relayerParts) openNodes() (err error) {
	nodes := p.Chain.config()
	nodes.Logger, nodes.Metrics, nodes.MaxTransferGas = p.log, evm.NewMetrics(p.reg), p.Gas.TransferGas
	if p.client, err = evm.Open(nodes); err != nil {
		return err
	}
	calls := p.Chain.config()
	calls.Logger, calls.Metrics, calls.MaxResponse, calls.MaxHeadAge = p.log, nodes.Metrics, 4<<20, 0
	calls.Beside = p.client
	p.passthrough, err = evm.Open(calls)
	return err
}

// openStore opens the store, the webhooks that it feeds, and the check of the chain's identity.
func (p *relayerParts) openStore() (err error) {
	hooks := p.Hook.config()
	hooks.Logger, hooks.Metrics = p.log, webhook.NewMetrics(p.reg)
	if p.deliverer, err = webhook.New(p.db, events.Pool{ChainID: p.Chain.ID, ID: p.Store.PoolID}.Source(), hooks); err != nil {
		return err
	}
	p.store = store.New(p.db, store.Config{
		ChainID: p.Chain.ID, Pool: p.Store.PoolID, Targets: p.deliverer.Names(), OnDeliveryQueued: p.deliverer.Notify,
		Budgets: p.Guard.budgets(), Metrics: store.NewMetrics(p.reg),
	})
	p.identity = tracker.NewChainIdentity(tracker.Nodes(p.client), p.store, p.log.With("component", "chain"), p.client, p.passthrough)
	return nil
}

// serviceConfig returns the service's configuration, without the sender and the tracker.
func (p *relayerParts) serviceConfig() service.Config {
	policies := p.Gas.policies()
	cfg := service.Config{
		ID: p.Store.PoolID, Store: p.store, Chain: p.client, Ring: p.ring, Log: p.log.With("component", "pool"),
		Policies: policies, Ready: p.identity.Err, Enabled: p.Enabled, Cap: p.MaxPendingPerKey, Queue: p.MaxQueued, MaxNonceJump: p.Guard.NonceJump,
		RevertData: p.RevertData, RPCProxy: p.passthrough,
		Signing: p.AllowMessageSigning == "on" || p.AllowMessageSigning == "auto" && policies.Receivers == nil,
		Guard:   limits.NewGuard(p.Guard.rates()), Metrics: service.NewMetrics(p.reg),
	}
	if topUp := p.Guard.TopUp.config(policies.MaxFee); topUp != nil {
		cfg.Funding = append(cfg.Funding, topUp.From)
	}
	return cfg
}

func (p *relayerParts) keyMonitor(relaying service.Config) *keymonitor.Monitor {
	return keymonitor.New(keymonitor.Config{
		Store: p.store, Chain: p.client, Log: p.log.With("component", "keymonitor"),
		Describe: relaying.Describe, Metrics: keymonitor.NewMetrics(p.reg), Interval: p.Guard.Interval, Margin: p.Guard.Margin, SwitchedOff: !p.Enabled,
		Refusals: p.Guard.MaxConsecutiveRejections, Cooldown: p.Guard.KeyDisabledFor, TopUp: p.Guard.TopUp.config(relaying.MaxFee),
	})
}

// senderConfig returns the sender's configuration, without the keys and the tracer.
func (p *relayerParts) senderConfig(relaying service.Config, keys *keymonitor.Monitor) sender.Config {
	return sender.Config{
		ChainID: p.Chain.ID, Chain: p.client, Store: p.store, Log: p.log.With("component", "sender"), Ready: p.identity.Err,
		MaxFee: relaying.MaxFee, NoopFactor: p.Gas.NoopFactor, Metrics: sender.NewMetrics(p.reg), Events: keys,
	}
}

func (p *relayerParts) trackerConfig(relaying service.Config, keys *keymonitor.Monitor, send *sender.Sender) tracker.Config {
	allocation := relaying.Allocation()
	allocation.Held = slices.Concat(allocation.Held, relaying.Funding)
	cfg := tracker.Config{
		Store: p.store, Sender: send, Chain: tracker.Nodes(p.client), Allocation: allocation, Log: p.log.With("component", "tracker"),
		Confirmations: p.Chain.Confirmations, Finality: p.Chain.tag(), AnchorDepth: p.Chain.AnchorDepth, ChainIdentity: p.identity,
		Everywhere: p.client.PendingEverywhere, MaxNonceJump: p.Guard.NonceJump, StuckAfter: p.Guard.StuckAfter, NoopsPerHour: p.Guard.Noops, Events: keys,
		History: p.HistoryRetention, IdempotencyKeys: p.IdempotencyTTL, Metrics: tracker.NewMetrics(p.reg),
	}
	if p.RevertData { // traces are slow, so they do not use the client that transactions are sent through
		cfg.RevertData = p.passthrough.RevertData
	}
	return cfg
}
