package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/relayer/api"
	"github.com/rollcall-dev/rollcall/internal/relayer/limits"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/webhook"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// relayerCmd runs a relayer until it is told to stop.
type relayerCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	Listen              string `group:"Relayer" env:"RELAYER_LISTEN" default:":3000" help:"Address of the HTTP API, /health and /metrics."`
	Enabled             bool   `group:"Relayer" env:"RELAYER_ENABLED" default:"true" negatable:"" help:"The kill switch: false refuses everything new and stops top-ups; what was accepted is still brought to its end."`
	APIKeys             string `group:"Relayer" name:"api-keys" env:"RELAYER_API_KEYS" placeholder:"NAME[/ROLE]:KEY,…" secret:"" help:"Who may call: names and keys of 32 characters or more; better in a file. The role read lets a key look and ask nodes, submit also send, replace and cancel transactions, but not all that are pending at once; without one it may do everything. A name may have several keys, while one is rotated."`
	APIFile             string `group:"Relayer" name:"api-keys-file" env:"RELAYER_API_KEYS_FILE" placeholder:"FILE" help:"File that holds them."`
	AllowMessageSigning string `group:"Relayer" env:"RELAYER_ALLOW_MESSAGE_SIGNING" enum:"auto,on,off" default:"auto" help:"Whether callers may have messages signed, which may be worth money: auto allows it unless receivers are listed."`
	RevertData          bool   `group:"Relayer" name:"include-revert-data" env:"RELAYER_INCLUDE_REVERT_DATA" help:"Show the revert data of transactions that reverted on the chain in their status_reason. It takes up to three calls to a node for each of them."`
	MaxPendingPerKey    int    `group:"Relayer" env:"RELAYER_MAX_PENDING_PER_KEY" default:"16" min:"1" max:"1000000" help:"Transactions that a key may have pending; nodes guarantee an account 16 places in their pools."`
	MaxQueued           int    `group:"Relayer" env:"RELAYER_MAX_QUEUED" default:"10000" min:"0" max:"1000000" help:"Transactions that may wait where every key is full; past that callers get 429."`

	Store            storeFlags           `embed:"" group:"Store and chain"`
	Chain            chainFlags           `embed:"" group:"Store and chain"`
	Migrate          bool                 `group:"Store and chain" env:"RELAYER_MIGRATE" default:"true" negatable:"" help:"Bring the database's schema up to date at start. Otherwise \"rollcall migrate\" has to before, or the relayer ends."`
	HistoryRetention time.Duration        `group:"Store and chain" env:"RELAYER_HISTORY_RETENTION" default:"0s" min:"0s" help:"How long final transactions are kept, such as 2160h for 90 days; 0 for ever."`
	IdempotencyTTL   time.Duration        `group:"Store and chain" name:"idempotency-ttl" env:"RELAYER_IDEMPOTENCY_TTL" default:"720h" min:"1h" help:"How long an idempotency key is remembered: longer than any queue keeps a message."`
	Gas              gasFlags             `embed:"" group:"Gas"`
	Guard            guardFlags           `embed:"" group:"Safeguards"`
	Tracing          process.TracingFlags `embed:"" group:"Tracing"`
	Hook             hookFlags            `embed:"" group:"Webhooks" prefix:"webhook-"`
	Log              process.LogFlags     `embed:"" group:"Log" prefix:"log-"`

	keys *signer.Keys // those of the environment, read by Check
}

func (relayerCmd) Help() string {
	return `The private keys come from the environment alone, in one of three ways:

  RELAYER_PRIVATE_KEYS_JSON    ["0x…", …] or [{"privateKey": "0x…", "address": "0x…"}, …]
  RELAYER_PRIVATE_KEY_0, _1, … a key each, numbered without gaps
  RELAYER_KEYSTORE_DIR         folder of relayer-0.json, relayer-1.json, …, as geth writes them, which
                               RELAYER_KEYSTORE_PASSWORD opens

All but the folder may be in files: RELAYER_PRIVATE_KEYS_JSON_FILE, RELAYER_PRIVATE_KEY_0_FILE, RELAYER_KEYSTORE_PASSWORD_FILE.
RELAYER_ALLOWED_ADDRESSES, if it is set, lists the only addresses that keys may have, RELAYER_TOPUP_KEY too.`
}

// storeFlags are where a pool's data is.
type storeFlags struct {
	PoolID      string `env:"RELAYER_POOL_ID" default:"pool" help:"Name of the pool of keys, the same for all processes that share it: a DNS label."`
	DatabaseURL string `env:"DATABASE_URL,RELAYER_DATABASE_URL" placeholder:"URL" secret:"" help:"Postgres: postgres://user:password@host:port/database, with the driver's options such as sslmode."`
	URLFile     string `name:"database-url-file" env:"DATABASE_URL_FILE,RELAYER_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL."`
}

// chainFlags are which chain it is, and its nodes.
type chainFlags struct {
	ID            uint64        `name:"chain-id" env:"RELAYER_CHAIN_ID" placeholder:"ID" help:"Chain id that every node must report."`
	RPCURLs       []string      `name:"rpc-urls" env:"RELAYER_RPC_URLS,RELAYER_RPC_URL" placeholder:"URL" secret:"" help:"Nodes, the preferred one first: http(s):// or ws(s)://."`
	RPCFile       string        `name:"rpc-urls-file" env:"RELAYER_RPC_URLS_FILE" placeholder:"FILE" help:"File that holds them, between commas."`
	SubscribeURL  string        `name:"subscribe-url" env:"RELAYER_SUBSCRIBE_URL" placeholder:"URL" secret:"" help:"ws(s):// URL to learn of new blocks from; the first websocket of the nodes by default, otherwise they are polled."`
	BroadcastAll  bool          `env:"RELAYER_BROADCAST_ALL" help:"Send new transactions to all nodes, not to the first that accepts them. All nodes get fee bumps and what is sent again."`
	PollInterval  time.Duration `env:"RELAYER_POLL_INTERVAL" default:"1s" min:"50ms" max:"1m" help:"How often a node without subscription is asked for a new block."`
	Timeout       time.Duration `name:"rpc-timeout" env:"RELAYER_RPC_TIMEOUT" default:"5s" min:"100ms" max:"1m" help:"Time a node has for an answer."`
	MaxRPS        []int         `name:"rpc-max-rps" env:"RELAYER_RPC_MAX_RPS,RPC_MAX_RPS" placeholder:"N" help:"Calls that a node is sent in a second, each item of a batch counted: a number for each node, in their order, or one for all. 0, the default, for any; a lower limit is learned from a node's refusals."`
	MaxHeadAge    time.Duration `env:"RELAYER_MAX_HEAD_AGE" default:"0s" min:"0s" help:"Age of the newest block above which a node counts as stuck; 0 for any, as on a chain that makes blocks only when there is something in them."`
	MaxLag        time.Duration `env:"RELAYER_MAX_LAG" default:"5s" min:"100ms" max:"1h" help:"How much older than the others' newest block that of a node may be, and at least three blocks; one that shows the same block for six times as long, while others have a later one, counts as lagging too."`
	Confirmations uint64        `env:"RELAYER_CONFIRMATIONS" default:"12" min:"1" max:"10000" help:"Blocks, its own included, that make a transaction final."`
	Finality      string        `env:"RELAYER_FINALITY" enum:"depth,safe,finalized" default:"depth" help:"What else makes a transaction final: depth is nothing else; safe and finalized are a node's tags, which its block has to have reached, too. Where nodes lack the tag nothing becomes final."`
	AnchorDepth   uint64        `env:"RELAYER_ANCHOR_DEPTH" default:"64" min:"1" max:"100000" help:"Depth of the block by which the chain is recognized, not less than the confirmations, and more where nodes have finalized only an older one: a reorganization that goes deeper stops all sending."`
}

// gasFlags bound what transactions may cost.
type gasFlags struct {
	MaxFee           string   `name:"gas-price-cap" env:"RELAYER_GAS_PRICE_CAP" default:"100000000000" placeholder:"WEI" help:"Most that is offered for a unit of gas; 0 for any. First attempts leave room for two replacements below it."`
	NoopFactor       int      `name:"noop-price-factor" env:"RELAYER_NOOP_PRICE_FACTOR" default:"2" min:"1" max:"10" help:"How many times the cap a no-op may offer, so that a cancellation or an expiry can replace a transaction at the cap."`
	MaxGas           uint64   `name:"gas-limit-cap" env:"RELAYER_GAS_LIMIT_CAP" default:"16777216" placeholder:"GAS" help:"Most gas that a transaction may have; the default is what EIP-7825 allows, 0 what fits into a block."`
	MaxData          int      `name:"max-data" env:"RELAYER_MAX_DATA" default:"130048" min:"1" max:"500000" placeholder:"BYTES" help:"Most data that a transaction may have; the default is what geth accepts."`
	TransferGas      uint64   `name:"transfer-gas-cap" env:"RELAYER_TRANSFER_GAS_CAP" default:"0" placeholder:"GAS" help:"Most gas that the relayer's own transfers may have, no-ops and top-ups; 0 for what nodes estimate and a block takes. Where a transfer needs more, a key stops at the first nonce that a no-op has to fill."`
	MinBalance       string   `env:"RELAYER_MIN_BALANCE" default:"1" placeholder:"WEI" help:"Balance below which a key gets nothing new."`
	AllowedReceivers []string `env:"RELAYER_ALLOWED_RECEIVERS" placeholder:"ADDRESS" help:"Allowed receiver addresses; any if empty."`
}

// hookFlags configure the webhooks.
type hookFlags struct {
	URL          string `env:"RELAYER_WEBHOOK_URL" placeholder:"URL" secret:"" help:"Where changes of transactions are posted to: the one target, which is called default."`
	Key          string `name:"signing-key" env:"RELAYER_WEBHOOK_SIGNING_KEY" placeholder:"KEY" secret:"" help:"What they are signed with, 32 characters or more; better in a file."`
	KeyFile      string `name:"signing-key-file" env:"RELAYER_WEBHOOK_SIGNING_KEY_FILE" placeholder:"FILE" help:"File that holds it."`
	Targets      string `name:"targets" env:"RELAYER_WEBHOOKS_JSON" placeholder:"JSON" secret:"" help:"Instead, any number of targets, with one signing key or, while they are rotated, several, the newest first: [{\"name\": \"…\", \"url\": \"https://…\", \"signingKeys\": [\"…\"]}]; better in a file."`
	TargetsFile  string `name:"targets-file" env:"RELAYER_WEBHOOKS_JSON_FILE" placeholder:"FILE" help:"File that holds them."`
	AllowPrivate bool   `env:"RELAYER_WEBHOOK_ALLOW_PRIVATE" help:"Allow targets at private addresses, and without TLS."`

	Retention time.Duration `env:"RELAYER_WEBHOOK_RETENTION" default:"72h" min:"0s" max:"87600h" help:"How long delivered webhooks are kept, for rollcall dead-letters replay; 0 deletes each once it is delivered."`
}

// Check reports what is wrong with the settings together.
func (c *relayerCmd) Check(p *config.Problems) {
	cli.CheckListen(p, &c.Listen, ":3000")
	cli.ReadSecret(p, &c.APIKeys, &c.APIFile)
	keys, err := apikey.Parse(c.APIKeys)
	if err == nil {
		err = apikey.Check(keys)
	}
	if err != nil {
		p.Addf(cli.From(&c.APIKeys, &c.APIFile), "give them as name:key,name:key, with keys from `openssl rand -hex 32`", "%s", cli.OneLine(err))
	}
	c.Store.check(p)
	c.Tracing.CheckFlags(p)
	c.Chain.check(p)
	c.Guard.TopUp.checkKey(p)
	c.checkKeys(p)
	c.Gas.check(p)
	c.Guard.check(p, c.keys.Ring(), amount(c.Gas.MinBalance))
	c.Hook.check(p)
}

// checkKeys reads the keys. A keystore is opened by the start, because that takes a second for each key, and HTTP answers then.
func (c *relayerCmd) checkKeys(p *config.Problems) {
	log, _ := c.Log.Logger(os.Stderr) // for warnings about files that others may read
	source := signer.Source{Environ: os.Environ(), Log: log}
	if funding := c.Guard.TopUp.signer; funding != nil {
		source.Elsewhere = []common.Address{funding.Address()}
	}
	var err error
	c.keys, err = signer.Read(source)
	if wrong, ok := errors.AsType[*signer.Error](err); ok {
		for _, one := range wrong.Problems {
			p.Add(config.Problem{Where: one.Where, What: one.What})
		}
	} else if err != nil {
		p.Add(config.Problem{Where: "keys", What: err.Error()})
	}
}

// openKeys opens the keystore, if the keys are in one. It returns the ring of the keys, and one with the funding key, if there is one.
func (c *relayerCmd) openKeys(ctx context.Context) (own, all *signer.Ring, err error) {
	if own, err = c.keys.Open(ctx); err != nil {
		return nil, nil, cli.UsageError{Err: err}
	}
	if all, err = ringWith(own, c.Guard.TopUp.signer); err != nil {
		return nil, nil, cli.UsageError{Err: fmt.Errorf("RELAYER_TOPUP_KEY: %w; give a key of its own", err)}
	}
	return own, all, nil
}

func (s *storeFlags) check(p *config.Problems) {
	if err := rollcallv1.CheckDNSLabel(s.PoolID); err != nil {
		p.Addf(&s.PoolID, "give a name such as pool", "%v", err)
	} else if common.IsHexAddress(s.PoolID) {
		p.Addf(&s.PoolID, "give a name such as pool", "%q would be taken for a key's address", s.PoolID)
	}
	cli.ReadSecret(p, &s.DatabaseURL, &s.URLFile)
	if s.DatabaseURL == "" {
		p.Addf(&s.DatabaseURL, "give postgres://user:password@host:port/database", "is missing")
	}
	cli.CheckDatabaseURL(p, &s.DatabaseURL, &s.URLFile)
}

func (c *chainFlags) check(p *config.Problems) {
	if c.ID == 0 {
		p.Addf(&c.ID, "1 is Ethereum, 1337 the dev chain", "is missing")
	}
	cli.ReadSecrets(p, &c.RPCURLs, &c.RPCFile)
	if len(c.RPCURLs) == 0 {
		p.Addf(&c.RPCURLs, "give a node's URL, such as http://127.0.0.1:8545", "is missing")
		return
	}
	if !cli.CheckMaxRPS(p, &c.MaxRPS, len(c.RPCURLs)) {
		return
	}
	cfg := c.config()
	cfg.ChainID = max(c.ID, 1) // that none is given has been said
	if client, err := evm.Open(cfg); err != nil {
		p.Addf(&c.RPCURLs, "", "%v", err)
	} else {
		client.Close()
	}
}

func (c *chainFlags) config() evm.Config {
	return evm.Config{
		ChainID: c.ID, Endpoints: c.RPCURLs, Subscribe: c.SubscribeURL, Timeout: c.Timeout, PollInterval: c.PollInterval,
		BroadcastAll: c.BroadcastAll, MaxHeadAge: c.MaxHeadAge, MaxLag: c.MaxLag, MaxRPS: c.MaxRPS,
	}
}

// tag is the finality that nodes have to tag a block with; empty where depth alone counts.
func (c *chainFlags) tag() string {
	if c.Finality == "depth" {
		return ""
	}
	return c.Finality
}

func (g *gasFlags) check(p *config.Problems) {
	for _, field := range []*string{&g.MaxFee, &g.MinBalance} {
		checkWei(p, field)
	}
	for _, r := range g.AllowedReceivers {
		if _, err := jsonbody.ParseAddress(r); err != nil {
			p.Addf(&g.AllowedReceivers, "give 0x and 40 hexadecimal digits", "%v", err)
		}
	}
}

func (g *gasFlags) policies() service.Policies {
	policies := service.Policies{MaxGas: g.MaxGas, MaxData: g.MaxData}
	policies.MaxFee = amount(g.MaxFee)
	policies.MinBalance, _ = new(big.Int).SetString(g.MinBalance, 10)
	for _, r := range g.AllowedReceivers {
		policies.Receivers = append(policies.Receivers, common.HexToAddress(r))
	}
	return policies
}

func (h *hookFlags) check(p *config.Problems) {
	cli.ReadSecret(p, &h.Key, &h.KeyFile)
	cli.ReadSecret(p, &h.Targets, &h.TargetsFile)
	targets := cli.From(&h.Targets, &h.TargetsFile)
	if key := cli.From(&h.Key, &h.KeyFile); *key != "" && h.URL == "" {
		p.Addf(key, "give RELAYER_WEBHOOK_URL; the targets of RELAYER_WEBHOOKS_JSON have keys of their own", "has no effect without a webhook URL")
	}
	switch {
	case h.URL != "" && *targets != "":
		p.Addf(targets, "give one of them", "contradicts %s", p.Where(&h.URL))
	case h.URL != "":
		if err := webhook.CheckURL(h.URL, h.AllowPrivate); err != nil {
			p.Addf(&h.URL, "private networks need RELAYER_WEBHOOK_ALLOW_PRIVATE", "%v", err)
		}
		if _, err := signature.NewKey(h.Key); err != nil {
			p.Addf(cli.From(&h.Key, &h.KeyFile), "make one with `openssl rand -hex 32`", "%v", err)
		}
	case h.Targets != "":
		if _, err := parseWebhooks(h.Targets, h.AllowPrivate, h.Retention); err != nil {
			p.Addf(targets, "", "%s", cli.OneLine(err))
		}
	}
}

func (h *hookFlags) config() webhook.Config {
	var targets []webhook.Target
	if h.Targets != "" {
		targets, _ = webhook.ParseTargets(h.Targets) // which check has seen
	} else if h.URL != "" {
		targets = []webhook.Target{{Name: "default", URL: h.URL, SigningKeys: []string{h.Key}}}
	}
	return webhookConfig(targets, h.AllowPrivate, h.Retention)
}

// Run relays until ctx ends.
func (c *relayerCmd) Run(ctx context.Context, con *cli.Console) error {
	collectRarely()
	role := process.Role{Name: "relayer", Log: c.Log, Stderr: con.Stderr, Tracing: &c.Tracing, LimitWarnings: true}
	return role.Run(ctx, c.start)
}

// start opens a relayer's parts and starts its stages. The port is open from the first second: /health answers with what the start
// waits for.
func (c *relayerCmd) start(p *process.Process) error {
	keys, err := apikey.Parse(c.APIKeys)
	if err != nil {
		return err
	}
	handler, err := api.NewHandler(api.Config{
		Starting: p.Starting, Keys: keys, Limit: limits.NewGuard(c.Guard.rates()).AdmitCalls, Version: process.Version(), Metrics: p.Metrics(),
		Registerer: p.Registry, Logger: p.Log,
	})
	if err != nil {
		return err
	}
	web, err := api.Open(p.Context(), c.Listen, handler)
	if err != nil {
		return err
	}
	p.Serve(web)
	p.Stage("keys")
	ring, withFunding, err := c.openKeys(p.Context())
	if err != nil {
		return err
	}
	parts := &relayerParts{relayerCmd: c, log: p.Log, reg: p.Registry, ring: ring}
	if err := parts.open(p); err != nil {
		return err
	}
	relaying := parts.serviceConfig()
	monitor := parts.keyMonitor(relaying)
	sending := parts.senderConfig(relaying, monitor)
	sending.Ring, sending.Tracer = withFunding, p.Tracer
	send := sender.New(sending)
	track := tracker.New(parts.trackerConfig(relaying, monitor, send))
	relaying.Sender, relaying.Rounds = send, track.Rounds
	relay := service.New(relaying)
	handler.Start(relay)
	p.Started("pool", c.Store.PoolID, "chain", c.Chain.ID, "keys", ring.Len(), "enabled", c.Enabled)

	// They stop in reverse order. HTTP accepts nothing new. Then accepted transactions are stored, and stored ones are signed and
	// broadcasted. The parts that all of these need end last.
	p.Go("nodes", 0, parts.client.Run)
	p.Go("webhooks", 0, parts.deliverer.Run, parts.identity.Run)
	p.Go("sender", 0, send.Run)
	p.Go("tracker", 0, track.Run, monitor.Run)
	p.Go("intake", 0, relay.Run)
	p.StopHTTPHere()
	return nil
}
