package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/fleet"
	"github.com/rollcall-dev/rollcall/internal/dispatch/health"
	"github.com/rollcall-dev/rollcall/internal/dispatch/reconciler"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// consumerCmd runs a consumer of the relay path until it is told to stop.
type consumerCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	Listen      string        `group:"Consumer" env:"CONSUMER_LISTEN" default:":9090" help:"Address of /health and /metrics."`
	Concurrency int           `group:"Consumer" env:"CONSUMER_CONCURRENCY" default:"64" min:"1" max:"1000" help:"Transactions that are submitted at the same time."`
	Silent      time.Duration `group:"Consumer" name:"webhook-silence" env:"CONSUMER_WEBHOOK_SILENCE" default:"60s" min:"1s" max:"1h" help:"How long a relayer may be silent about a transaction before it is asked."`

	History time.Duration `group:"Consumer" name:"history-retention" env:"CONSUMER_HISTORY_RETENTION" default:"0s" min:"0s" help:"How long transactions are kept after they became final, such as 2160h for 90 days, and 24h or more; 0 for ever. Their ids and idempotency keys can be used again after that."`

	NotFound string `group:"Consumer" name:"not-found" env:"CONSUMER_NOT_FOUND" enum:"retry,park" default:"retry" help:"What becomes of a transaction that a relayer without idempotency keys answered with a 500, and that its complete list does not have afterwards: retry queues it again, park leaves it to an operator. Without a complete list it is always parked."`

	Relayers relayersFlags        `embed:"" group:"Relayers"`
	Store    relayStoreFlags      `embed:"" group:"Store and queue"`
	Tracing  process.TracingFlags `embed:"" group:"Tracing"`
	Redis    cli.RedisFlags       `embed:"" group:"Redis"`
	Log      process.LogFlags     `embed:"" group:"Log" prefix:"log-"`
}

// relayersFlags are how relayers are called. Their URLs come from Redis.
type relayersFlags struct {
	Key         string        `name:"relayer-key" env:"CONSUMER_RELAYER_KEY" placeholder:"KEY" secret:"" help:"API key for all relayers, sent as a bearer token; better in a file. Relayers of one pool must know it by the same name."`
	KeyFile     string        `name:"relayer-key-file" env:"CONSUMER_RELAYER_KEY_FILE" placeholder:"FILE" help:"File that holds it."`
	Keys        string        `name:"relayer-keys" env:"CONSUMER_RELAYER_KEYS" placeholder:"ID:KEY,…" secret:"" help:"API keys for single relayers, by the ids of their services; better in a file."`
	KeysFile    string        `name:"relayer-keys-file" env:"CONSUMER_RELAYER_KEYS_FILE" placeholder:"FILE" help:"File that holds them."`
	URLTemplate string        `name:"relayer-url-template" env:"RELAYER_URL_TEMPLATE" default:"http://oz-relayer-{N}:3000" placeholder:"URL" help:"URL of relayers that Redis lists without one: {N} is the number of oz-relayer-N, {id} is the id."`
	Hosts       []string      `name:"relayer-hosts" env:"CONSUMER_RELAYER_HOSTS" placeholder:"PATTERN|NETWORK" help:"Hosts to which API keys and transactions may go: patterns of names, in which * and ? match within one label, addresses, and networks such as 10.0.0.0/8, which must have the address that any other name resolves to. By default the host of the URL template, private networks and loopback."`
	RelayerID   string        `name:"relayer-id" env:"CONSUMER_RELAYER_ID" placeholder:"ID" help:"Id that every relayer must have in its own API; one without it is not used. By default the first usable EVM relayer behind each URL."`
	Network     string        `name:"relayer-network" env:"CONSUMER_NETWORK" placeholder:"NAME" help:"Network that every relayer must have, by the name in its own API; one of another network is not used. By default any of the database's chain."`
	ChainID     uint64        `name:"chain-id" env:"CONSUMER_CHAIN_ID" placeholder:"ID" help:"Chain that every relayer and the database must have. By default the database's, which the first relayer gives it. With --relayer-network it is also the chain of relayers of that network that do not serve eth_chainId."`
	Timeout     time.Duration `name:"relayer-timeout" env:"CONSUMER_RELAYER_TIMEOUT" default:"30s" min:"100ms" max:"5m" help:"Time that a relayer has to answer a transaction. An answer that does not come in time leaves the outcome unknown."`
	CAFile      string        `name:"relayer-ca-file" env:"CONSUMER_RELAYER_CA_FILE" placeholder:"FILE" help:"Certificates of the CAs that those of https:// relayers must lead to, PEM; by default the system's."`

	keys  relayerKeys   // read by check
	hosts hostlist.List // likewise
}

func (r *relayersFlags) check(p *config.Problems) {
	cli.ReadSecret(p, &r.Key, &r.KeyFile)
	cli.ReadSecret(p, &r.Keys, &r.KeysFile)
	cli.CheckCAs(p, &r.CAFile)
	if r.RelayerID != "" && !upstream.ValidID(r.RelayerID) {
		p.Addf(&r.RelayerID, "give the id as GET /api/v1/relayers of the relayer returns it", "has blanks, or more than 255 characters")
		return
	}
	keys, err := parseRelayerKeys(r.Keys)
	if err != nil {
		p.Addf(cli.From(&r.Keys, &r.KeysFile), "give them as oz-relayer-0:KEY,oz-relayer-1:KEY", "%v", err)
		return
	}
	if r.Key != "" {
		keys[""] = r.Key
	}
	if len(keys) == 0 && r.KeyFile == "" && r.KeysFile == "" {
		p.Addf(&r.Key, "give the key that the relayers know this consumer by", "is missing")
	}
	r.keys = keys
	for id := range keys {
		client, err := r.client(id, "http://relayer")
		if err != nil {
			field := cli.From(&r.Keys, &r.KeysFile)
			if id == "" {
				field = cli.From(&r.Key, &r.KeyFile)
			}
			p.Addf(field, "", "%s", cli.OneLine(err))
			continue
		}
		_ = client.Close()
	}
	if _, err := upstream.CheckURL(strings.NewReplacer("{N}", "0", "{id}", "id").Replace(r.URLTemplate)); r.URLTemplate != "" && err != nil {
		p.Addf(&r.URLTemplate, "give one such as http://oz-relayer-{N}:3000", "%v", err)
		return
	}
	hosts := r.Hosts
	if len(hosts) == 0 {
		hosts = append(slices.Clone(hostlist.Private), templateHosts(r.URLTemplate)...)
	}
	if r.hosts, err = hostlist.Parse(hosts); err != nil {
		p.Addf(&r.Hosts, "give names such as oz-relayer-* and networks such as 10.0.0.0/8", "%v", err)
	}
}

// templateHosts returns the pattern of a template's host. There are no patterns of IPv6 addresses.
func templateHosts(template string) []string {
	_, host, _ := strings.Cut(template, "://")
	host, _, _ = strings.Cut(host, "/")
	if port := strings.LastIndexByte(host, ':'); port > strings.LastIndexByte(host, ']') {
		host = host[:port]
	}
	if host == "" || strings.HasPrefix(host, "[") && strings.Contains(host, "{") {
		return nil
	}
	return []string{strings.NewReplacer("{N}", "*", "{id}", "*").Replace(host)}
}

// lease returns how long a consumer may submit one transaction. If it dies, another one goes on after that.
func (r *relayersFlags) lease() time.Duration { return r.Timeout * 3 / 2 }

// drain returns how long a stopping consumer waits for its requests: for an answer, and until that is stored.
func (r *relayersFlags) drain() time.Duration { return r.Timeout + 10*time.Second }

// client returns the client of a relayer.
func (r *relayersFlags) client(id, url string) (*upstream.Client, error) {
	key := r.keys.key(id)
	if key == "" {
		return nil, fmt.Errorf("no API key for relayer %s: give CONSUMER_RELAYER_KEY, or one for it in CONSUMER_RELAYER_KEYS", id)
	}
	return upstream.New(upstream.Config{
		URL: url, Key: key, RelayerID: r.RelayerID, Network: r.Network, ChainID: r.ChainID, SubmitTimeout: r.Timeout, CAs: cli.ReadCAs(r.CAFile), Dial: r.hosts.Dial,
	})
}

// Check reports what is wrong with the settings together.
func (c *consumerCmd) Check(p *config.Problems) {
	cli.CheckListen(p, &c.Listen, ":9090")
	if c.History > 0 && c.History < 24*time.Hour {
		p.Addf(&c.History, "give 24h or more, or 0 to keep them for ever", "is %v: clients may still ask for transactions, or repeat them", c.History)
	}
	c.Relayers.check(p)
	c.Store.check(p)
	c.Tracing.CheckFlags(p)
	c.Redis.CheckFlags(p)
}

// Run consumes until ctx ends.
func (c *consumerCmd) Run(ctx context.Context, con *cli.Console) error {
	collectRarely()
	role := process.Role{Name: "consumer", Log: c.Log, Stderr: con.Stderr, Tracing: &c.Tracing, LimitWarnings: true}
	return role.Run(ctx, c.start)
}

// start opens a consumer's parts and starts its stages.
func (c *consumerCmd) start(p *process.Process) error {
	// HTTP stays up until the taken entries are done, so that the end can be observed.
	if err := p.ServeHealth(c.Listen, nil); err != nil {
		return err
	}
	c.Store.silent, c.Store.lease = c.Silent, max(c.Relayers.lease(), time.Second)
	c.Store.drain, c.Store.concurrency = c.Relayers.drain(), c.Concurrency
	s, err := c.Store.open(p.Context(), "consumer", nil, p.Log, p.Registry, p.Database())
	if err != nil {
		return err
	}
	p.OnStop("store", 0, s.Close)
	redis, err := redisclient.New(c.Redis.Options())
	if err != nil {
		return err
	}
	p.OnStop("Redis", 0, redis.Close)
	relayers := fleet.New(fleet.Config{
		Redis: redis, Prefix: c.Redis.KeyPrefix, URLTemplate: c.Relayers.URLTemplate, Client: c.Relayers.client, Store: s.store,
		Clocks: s.store.RecordClocks, Registerer: p.Registry, Logger: p.Log,
	})
	p.Stage("chain")
	if err := claimChain(p.Context(), s.store, "CONSUMER_CHAIN_ID", c.Relayers.ChainID); err != nil {
		return err
	}
	if err := relayers.CheckChain(p.Context()); err != nil {
		return err
	}
	submit := consumer.New(consumer.Config{
		Queue: s.queue, Store: s.store, Relayers: relayers, Lease: c.Relayers.lease(),
		Settled: 3 * c.Relayers.Timeout, ParkNotFound: c.NotFound == "park", Tracer: p.Tracer, Registerer: p.Registry, Logger: p.Log,
	})
	reconcile := reconciler.New(reconciler.Config{
		Store: s.store, Queued: s.queue.Notify, Answering: relayers.Answering, Elsewhere: relayers.Elsewhere,
		History: c.History, Registerer: p.Registry, Logger: p.Log,
		Witnesses: func(at dispatch.Route) (witnesses []reconciler.Witness) {
			if client := relayers.Client(at); client != nil {
				witnesses = append(witnesses, reconciler.Witness{Relayer: client, URL: at.URL})
			}
			for _, client := range relayers.Sharing(at) {
				witnesses = append(witnesses, reconciler.Witness{Relayer: client, URL: client.URL()})
			}
			return witnesses
		},
	})
	watch := health.New(health.Config{
		Store: s.store, Registerer: p.Registry, Logger: p.Log,
		Components: map[string]health.Component{"queue": {Problem: s.queue.Health}, "relayers": {Problem: relayers.Health, Class: error.Error}},
	})
	p.ReportHealth(watch.Health)
	p.Started("redis", c.Redis.Options())

	// They stop in reverse order: the submissions end first, and the parts that they need last.
	p.Go("relayers", 0, relayers.Run, watch.Run)
	p.Go("reconciler and queue", 0, reconcile.Run, s.queue.Run, s.webhooks.Run)
	p.Go("submissions", c.Relayers.drain()+drainMargin, submit.Run)
	return nil
}

// drainMargin is how much longer than the drain the submissions may take to stop.
const drainMargin = 30 * time.Second
