package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dispatch/api"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/dispatch/health"
	"github.com/rollcall-dev/rollcall/internal/dispatch/statuscache"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/webhook"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// apiCmd runs an API of the relay path until it is told to stop.
type apiCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	Listen     string `group:"API" env:"API_LISTEN" default:":8080" help:"Address of the HTTP API, /health and /metrics."`
	APIKeys    string `group:"API" name:"api-keys" env:"API_KEYS" placeholder:"CLIENT[/ROLE]:KEY,…" secret:"" help:"Clients, each with a key of 32 characters or more, which it sends as x-api-key; better in a file. The role read allows no transactions. A client may have several keys, while one is rotated."`
	APIFile    string `group:"API" name:"api-keys-file" env:"API_KEYS_FILE" placeholder:"FILE" help:"File that holds them."`
	Secrets    string `group:"API" name:"webhook-secret" env:"WEBHOOK_SECRET" placeholder:"SECRET[,SECRET]" secret:"" help:"Signing keys of the relayers' webhooks, 32 characters or more each: any of them may have signed, while one is rotated. Better in a file."`
	SecretFile string `group:"API" name:"webhook-secret-file" env:"WEBHOOK_SECRET_FILE" placeholder:"FILE" help:"File that holds them."`
	MaxWebhook int    `group:"API" name:"webhook-max-body" env:"API_WEBHOOK_MAX_BODY" default:"65536" min:"1024" max:"1048576" help:"Maximum size of a relayer's webhook, in bytes. A larger one gets a 413, and a consumer asks the relayer instead. A webhook has the transaction's data in hex."`
	Rate       string `group:"API" name:"rate-limit" env:"API_RATE_LIMIT" default:"0" placeholder:"N[:BURST]" help:"Transactions a second that this process takes, and at once after a pause; 0 for any number."`
	ClientRate string `group:"API" name:"rate-limit-per-client" env:"API_RATE_LIMIT_PER_CLIENT" default:"0" placeholder:"N[:BURST]" help:"The same for each client."`

	Store   relayStoreFlags      `embed:"" group:"Store and queue"`
	Forward forwardFlags         `embed:"" group:"Gasless transactions"`
	Redis   cli.RedisFlags       `embed:"" group:"Redis, which holds the answers about statuses if it is given"`
	Tracing process.TracingFlags `embed:"" group:"Tracing"`
	Hooks   clientHookFlags      `embed:"" group:"Webhooks" prefix:"client-webhook"`
	Log     process.LogFlags     `embed:"" group:"Log" prefix:"log-"`

	secrets []signature.Key // of Secrets, read by Check
}

// forwardFlags are the ERC-2771 forwarder of gasless transactions.
type forwardFlags struct {
	Address string   `name:"forwarder" env:"FORWARDER_ADDRESS" placeholder:"ADDRESS" help:"ERC-2771 forwarder contract that executes gasless transactions; without one there are none."`
	ChainID uint64   `name:"chain-id" env:"API_CHAIN_ID,RELAYER_CHAIN_ID" placeholder:"ID" help:"Chain of all transactions, which every node and the database must have; required with a forwarder. By default the database's, which the first relayer gives it."`
	RPCURLs []string `name:"rpc-urls" env:"API_RPC_URLS,RELAYER_RPC_URLS,RELAYER_RPC_URL" placeholder:"URL" secret:"" help:"Nodes of that chain, the preferred one first."`
	RPCFile string   `name:"rpc-urls-file" env:"API_RPC_URLS_FILE,RELAYER_RPC_URLS_FILE" placeholder:"FILE" help:"File that holds them, between commas."`
	MaxRPS  []int    `name:"rpc-max-rps" env:"API_RPC_MAX_RPS,RELAYER_RPC_MAX_RPS,RPC_MAX_RPS" placeholder:"N" help:"Calls that a node is sent in a second: a number for each node, in their order, or one for all. 0, the default, for any; a lower limit is learned from a node's refusals."`
}

// clientHookFlags are the webhooks of clients.
type clientHookFlags struct {
	Targets      string        `name:"s" env:"CLIENT_WEBHOOKS_JSON" placeholder:"JSON" secret:"" help:"Clients that get a webhook for each change of their transactions, with one signing key or, while they are rotated, several, the newest first: [{\"name\": \"CLIENT\", \"url\": \"https://…\", \"signingKeys\": [\"…\"]}]; better in a file."`
	TargetsFile  string        `name:"s-file" env:"CLIENT_WEBHOOKS_JSON_FILE" placeholder:"FILE" help:"File that holds them."`
	AllowPrivate bool          `name:"-allow-private" env:"CLIENT_WEBHOOK_ALLOW_PRIVATE" help:"Allow targets at private addresses, and without TLS."`
	Retention    time.Duration `name:"-retention" env:"CLIENT_WEBHOOK_RETENTION" default:"72h" min:"0s" max:"87600h" help:"How long delivered webhooks are kept; 0 deletes each once it is delivered."`
}

func (h *clientHookFlags) config() (webhook.Config, error) {
	return parseWebhooks(h.Targets, h.AllowPrivate, h.Retention)
}

// Check reports what is wrong with the settings together.
func (c *apiCmd) Check(p *config.Problems) {
	cli.CheckListen(p, &c.Listen, ":8080")
	cli.ReadSecret(p, &c.APIKeys, &c.APIFile)
	keys, err := apikey.Parse(c.APIKeys)
	if err == nil {
		err = apikey.Check(keys)
	}
	if err != nil {
		p.Addf(cli.From(&c.APIKeys, &c.APIFile), "give them as client:key,client:key, with keys from `openssl rand -hex 32`", "%s", cli.OneLine(err))
	}
	c.checkSecrets(p)
	for _, field := range []*string{&c.Rate, &c.ClientRate} {
		if _, err := ratelimit.ParseRate(*field); err != nil {
			p.Addf(field, "give a number, or two as in 100:300", "%v", err)
		}
	}
	c.Store.check(p)
	c.Tracing.CheckFlags(p)
	c.Forward.check(p)
	c.Redis.CheckFlags(p)
	cli.ReadSecret(p, &c.Hooks.Targets, &c.Hooks.TargetsFile)
	hooks, err := c.Hooks.config()
	if err != nil {
		p.Addf(cli.From(&c.Hooks.Targets, &c.Hooks.TargetsFile), "", "%s", cli.OneLine(err))
	}
	for _, name := range hooks.Names() {
		if !slices.ContainsFunc(keys, func(k apikey.Key) bool { return k.Name == name }) {
			p.Addf(cli.From(&c.Hooks.Targets, &c.Hooks.TargetsFile), "name each target as the client whose transactions it receives", "no API key has the name %q", name)
		}
	}
}

func (c *apiCmd) checkSecrets(p *config.Problems) {
	cli.ReadSecret(p, &c.Secrets, &c.SecretFile)
	field := cli.From(&c.Secrets, &c.SecretFile)
	if c.Secrets == "" {
		p.Addf(field, "make one with `openssl rand -hex 32`, and give it to the relayers as RELAYER_WEBHOOK_SIGNING_KEY", "is missing")
		return
	}
	for i, secret := range strings.Split(c.Secrets, ",") {
		key, err := signature.NewKey(strings.TrimSpace(secret))
		if err != nil {
			p.Addf(field, "make one with `openssl rand -hex 32`", "secret %d: %v", i+1, err)
			continue
		}
		c.secrets = append(c.secrets, key)
	}
}

func (f *forwardFlags) check(p *config.Problems) {
	cli.ReadSecrets(p, &f.RPCURLs, &f.RPCFile)
	if f.Address == "" {
		return
	}
	if !common.IsHexAddress(f.Address) || common.HexToAddress(f.Address) == (common.Address{}) {
		p.Addf(&f.Address, "give 0x and 40 hexadecimal digits", "%q is not an address of a contract", f.Address)
	}
	switch {
	case f.ChainID == 0:
		p.Addf(&f.ChainID, "1 is Ethereum, 1337 the dev chain", "is missing")
	case len(f.RPCURLs) == 0:
		p.Addf(&f.RPCURLs, "give a node's URL, such as https://…", "is missing")
	case cli.CheckMaxRPS(p, &f.MaxRPS, len(f.RPCURLs)):
		client, err := f.open(slog.New(slog.DiscardHandler), nil)
		if err != nil {
			p.Addf(&f.RPCURLs, "", "%v", err)
			return
		}
		client.Close()
	}
}

func (f *forwardFlags) open(log *slog.Logger, reg prometheus.Registerer) (*evm.Client, error) {
	cfg := f.config()
	cfg.Logger, cfg.Metrics = log, evm.NewMetrics(reg)
	return evm.Open(cfg)
}

func (f *forwardFlags) config() evm.Config {
	return evm.Config{ChainID: f.ChainID, Endpoints: f.RPCURLs, MaxRPS: f.MaxRPS}
}

// handlerConfig returns the configuration of the handler, without what has to be opened.
func (c *apiCmd) handlerConfig(p *process.Process) api.Config {
	cfg := api.Config{
		Secrets: c.secrets, MaxWebhook: c.MaxWebhook, Version: process.Version(), Health: p.Health, Tracer: p.Tracer,
		Registerer: p.Registry, Metrics: p.Metrics(), Logger: p.Log,
	}
	cfg.Keys, _ = apikey.Parse(c.APIKeys) // which Check has seen
	cfg.Global, _ = ratelimit.ParseRate(c.Rate)
	cfg.Client, _ = ratelimit.ParseRate(c.ClientRate)
	return cfg
}

// Run serves until ctx ends.
func (c *apiCmd) Run(ctx context.Context, con *cli.Console) error {
	collectRarely()
	role := process.Role{Name: "API", Log: c.Log, Stderr: con.Stderr, Tracing: &c.Tracing, LimitWarnings: true}
	return role.Run(ctx, c.start)
}

// start opens the API's parts and starts its stages.
func (c *apiCmd) start(p *process.Process) error {
	cfg := c.handlerConfig(p)
	if c.Redis.URL != "" || c.Redis.Host != "" {
		client, err := redisclient.New(c.Redis.Options())
		if err != nil {
			return err
		}
		p.OnStop("Redis", 0, client.Close)
		cfg.Cache = statuscache.New(statuscache.Config{Redis: client, Prefix: c.Redis.KeyPrefix, Registerer: p.Registry, Logger: p.Log})
	}
	stored := make(chan struct{}, 1)
	cfg.Stored = func() {
		select {
		case stored <- struct{}{}:
		default:
		}
	}
	handler, err := api.NewHandler(cfg)
	if err != nil {
		return err
	}
	web, err := api.Open(p.Context(), c.Listen, handler)
	if err != nil {
		return err
	}
	p.Serve(web)
	hooks, err := c.Hooks.config()
	if err != nil {
		return err
	}
	s, err := c.Store.open(p.Context(), "api", hooks.Names(), p.Log, p.Registry, p.Database())
	if err != nil {
		return err
	}
	p.OnStop("store", 0, s.Close)
	p.Stage("chain")
	if err := claimChain(p.Context(), s.store, "API_CHAIN_ID or RELAYER_CHAIN_ID", c.Forward.ChainID); err != nil {
		return err
	}
	hooks.Logger, hooks.Metrics = p.Log, webhook.NewMetrics(p.Registry)
	deliverer, err := webhook.New(s.db, store.Webhooks(), hooks)
	if err != nil {
		return err
	}
	var forwards api.Forwards
	background := []func(context.Context) error{deliverer.Run, s.webhooks.Run, s.queue.Run}
	if c.Forward.Address != "" {
		nodes, err := c.Forward.open(p.Log, p.Registry)
		if err != nil {
			return err
		}
		p.OnStop("node clients", 0, func() error { nodes.Close(); return nil })
		if forwards, err = forward.New(forward.Config{Nodes: nodes, Address: common.HexToAddress(c.Forward.Address)}); err != nil {
			return err
		}
		background = append(background, nodes.Run)
	}
	watch := health.New(health.Config{
		Store: s.store, Components: map[string]health.Component{"queue": {Problem: s.queue.Health}}, Registerer: p.Registry, Logger: p.Log,
	})
	p.ReportHealth(watch.Health)
	handler.Start(s.store, forwards)
	p.Started("gasless", c.Forward.Address != "")

	// HTTP stops first. Then the batches end that its requests have left.
	p.Go("webhooks and queue", 0, append(background, watch.Run)...)
	p.Go("accepted transactions", 0, func(ctx context.Context) error {
		defer handler.Wait()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-stored:
				s.queue.Notify()
			}
		}
	})
	p.StopHTTPHere()
	return nil
}
