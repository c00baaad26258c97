package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// escrowCmd is the escrow monitor: its role, and beside it the operator's commands.
type escrowCmd struct {
	Run escrowRunCmd `cmd:"" default:"withargs" help:"Run an instance until it is told to stop (the default)."`
	cli.EscrowCommands
}

// escrowRunCmd runs an instance of the escrow monitor until it is told to stop.
type escrowRunCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	Listen     string `group:"Instance" env:"ESCROW_LISTEN" placeholder:"ADDRESS" help:"Address of /health, /status and /metrics; :9090 by default, or the port of PORT."`
	Port       int    `group:"Instance" env:"PORT" min:"1" max:"65535" help:"Port to listen at if no address is given, as Cloud Run sets it."`
	InstanceID string `group:"Instance" name:"instance-id" env:"INSTANCE_ID" placeholder:"ID" help:"Name of this instance, different for all of a chain: a process that starts under the id of another one replaces it. By default the host's name, or a random one where that is localhost."`

	Chain  escrowChainFlags    `embed:"" group:"Chain"`
	Store  escrowStoreFlags    `embed:"" group:"Store"`
	Topic  escrowTopicFlags    `embed:"" group:"Topic"`
	Hooks  escrowHookFlags     `embed:"" group:"Webhooks"`
	Log    process.LogFlags    `embed:"" group:"Log" prefix:"log-"`
	listen string              // of Listen and Port
	events *events.Set         // read by Check
	topic  publish.TopicConfig // read by Check; without a project if there is no topic
	hooks  webhook.Config      // likewise; without targets if there is no webhook
}

// escrowChainFlags are the chain, its nodes, and what is watched.
type escrowChainFlags struct {
	ID         uint64   `name:"chain-id" env:"CHAIN_ID" placeholder:"ID" help:"Chain id that every node must report."`
	RPCURLs    []string `name:"rpc-url" env:"RPC_URL" placeholder:"URL" secret:"" help:"Nodes, the preferred one first: http(s):// or ws(s)://. Of different providers: two have to agree on each final block, so with three one may be away. URLs with the same host and port count as one node, as do one by HTTP and one by WebSocket of the same host: the one by HTTP is called, and the WebSocket brings new blocks."`
	RPCFile    string   `name:"rpc-url-file" env:"RPC_URL_FILE" placeholder:"FILE" help:"File that holds them, between commas."`
	MaxRPS     []int    `name:"rpc-max-rps" env:"RPC_MAX_RPS" placeholder:"N" help:"Calls that a node is sent in a second: a number for each URL, in their order, or one for all. 0, the default, for any; a lower limit is learned from a node's refusals."`
	Factories  []string `name:"factory-address" env:"FACTORY_ADDRESS" placeholder:"ADDRESS" help:"Factory contracts whose escrows are watched. Stored at the first start; a start with others is refused."`
	StartBlock uint64   `env:"START_BLOCK" default:"0" placeholder:"N" help:"First block that is read, that of the first factory or an earlier one. Stored at the first start; a start with another one is refused."`
	Events     string   `env:"ESCROW_EVENTS" placeholder:"FILE" help:"YAML file of the events of other contracts than the built-in factory and escrow. Stored at the first start; a start with others is refused."`
	Delivery   string   `env:"ESCROW_DELIVERY" enum:"finalized,instant" default:"finalized" help:"When an event is published: finalized is once its block is final; instant is as pending once two nodes have its block, and later as final or retracted."`
	Finality   string   `env:"ESCROW_FINALITY" default:"finalized" placeholder:"TAG|DEPTH" help:"What makes a block final: finalized or safe, the tags of the nodes, or a number of blocks after it. Two nodes must agree. Nothing falls back to a depth by itself."`
}

// escrowStoreFlags are where the monitor's data is.
type escrowStoreFlags struct {
	DatabaseURL string `env:"DATABASE_URL" placeholder:"URL" secret:"" help:"Postgres: postgres://user:password@host:port/database, with the driver's options such as sslmode. A driver in the scheme, as in postgresql+asyncpg://, is ignored."`
	URLFile     string `name:"database-url-file" env:"DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL."`
	Migrate     bool   `env:"ESCROW_MIGRATE" default:"true" negatable:"" help:"Bring the database's schema up to date at start. Otherwise \"rollcall migrate\" has to before, or the process ends."`
}

// escrowTopicFlags are where messages are published to.
type escrowTopicFlags struct {
	Project    string        `name:"pubsub-project-id" env:"PUBSUB_PROJECT_ID" placeholder:"ID" help:"Google Cloud project of the topic; without one there is no topic, and the messages go to webhooks alone. The credentials are those of the environment, as Google's libraries find them."`
	Topic      string        `name:"pubsub-topic-id" env:"PUBSUB_TOPIC_ID" default:"settlement.events.v1" placeholder:"ID" help:"Topic that gets the messages. It has to exist, unless an emulator serves it."`
	Emulator   string        `name:"pubsub-emulator-host" env:"PUBSUB_EMULATOR_HOST" placeholder:"HOST:PORT" help:"Emulator that is used in place of Google's service: plain gRPC without credentials. The topic is made if it does not exist."`
	Endpoint   string        `name:"pubsub-endpoint" env:"PUBSUB_ENDPOINT" placeholder:"HOST:PORT" help:"Endpoint of a region, such as europe-west1-pubsub.googleapis.com:443: the order of a key holds within one region. By default the global one."`
	Retention  time.Duration `name:"retention" env:"ESCROW_RETENTION" default:"72h" min:"1m" max:"87600h" help:"How long messages that the topic has accepted are kept, for rollcall dead-letters list --state done and rollcall escrow events --follow."`
	Partition  string        `name:"partition-number" env:"PARTITION_NUMBER" placeholder:"N" help:"Static partition that this instance publishes, from 0; with TOTAL_PARTITIONS. By default every instance publishes all that no other one has claimed."`
	Partitions string        `name:"total-partitions" env:"TOTAL_PARTITIONS" placeholder:"N" help:"Number of static partitions: an instance publishes the escrows with partition mod N = PARTITION_NUMBER, where partition is the address mod 2520."`

	number, total int // of the two, read by check
}

// escrowHookFlags are the webhooks that get messages.
type escrowHookFlags struct {
	Targets      string        `name:"webhooks" env:"ESCROW_WEBHOOKS_JSON" placeholder:"JSON" secret:"" help:"Webhooks that get the messages, beside a topic or instead of one, with one signing key or, while they are rotated, several, the newest first: [{\"name\": \"…\", \"url\": \"https://…\", \"signingKeys\": [\"…\"]}]; better in a file."`
	TargetsFile  string        `name:"webhooks-file" env:"ESCROW_WEBHOOKS_JSON_FILE" placeholder:"FILE" help:"File that holds them."`
	AllowPrivate bool          `name:"webhook-allow-private" env:"ESCROW_WEBHOOK_ALLOW_PRIVATE" help:"Allow targets at private addresses, and without TLS."`
	Retention    time.Duration `name:"webhook-retention" env:"ESCROW_WEBHOOK_RETENTION" default:"72h" min:"0s" max:"87600h" help:"How long delivered webhooks are kept, for rollcall dead-letters list --state done; 0 deletes each once it is delivered."`
}

// Check reports what is wrong with the settings together.
func (c *escrowRunCmd) Check(p *config.Problems) {
	c.listen = cmp.Or(c.Listen, ":"+strconv.Itoa(cmp.Or(c.Port, 9090)))
	if c.Listen != "" {
		cli.CheckListen(p, &c.Listen, ":9090")
	}
	c.InstanceID = cmp.Or(c.InstanceID, instanceName())
	if !validInstance.MatchString(c.InstanceID) {
		p.Addf(&c.InstanceID, "give one such as escrow-1", "has other characters than letters, digits, dots, hyphens, underscores, colons and slashes, or more than 255")
	}
	c.Chain.check(p)
	c.events = events.BuiltIn()
	if c.Chain.Events != "" {
		set, err := events.Load(c.Chain.Events)
		if err != nil {
			p.Addf(&c.Chain.Events, "", "%s", cli.OneLine(err))
		} else {
			c.events = set
		}
	}
	cli.ReadSecret(p, &c.Store.DatabaseURL, &c.Store.URLFile)
	if c.Store.DatabaseURL == "" && c.Store.URLFile == "" {
		p.Addf(&c.Store.DatabaseURL, "give postgres://user:password@host:port/database", "is missing")
	}
	c.Store.DatabaseURL = cli.WithoutDriver(c.Store.DatabaseURL)
	cli.CheckDatabaseURL(p, &c.Store.DatabaseURL, &c.Store.URLFile)
	c.hooks = c.Hooks.check(p)
	c.topic = c.Topic.check(p, len(c.hooks.Targets) > 0)
}

var validInstance = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,255}$`)

// instanceName returns the host's name, or a random one: all containers of some platforms are called localhost.
func instanceName() string {
	if name, err := os.Hostname(); err == nil && name != "" && name != "localhost" {
		return name
	}
	return "escrow-" + uuid.NewString()[:8]
}

func (c *escrowChainFlags) check(p *config.Problems) {
	switch {
	case c.ID == 0:
		p.Addf(&c.ID, "1 is Ethereum, 1337 the dev chain", "is missing")
	case c.ID >= 1<<63:
		p.Addf(&c.ID, "give one below 2^63", "is too large")
	}
	cli.ReadSecrets(p, &c.RPCURLs, &c.RPCFile)
	if len(c.RPCURLs) == 0 {
		p.Addf(&c.RPCURLs, "give two nodes' URLs, such as https://…,https://…", "is missing")
	} else if cli.CheckMaxRPS(p, &c.MaxRPS, len(c.RPCURLs)) {
		cfg := c.nodes()
		cfg.ChainID = max(c.ID, 1) // a missing one was reported
		client, err := evm.Open(cfg)
		if err != nil {
			p.Addf(&c.RPCURLs, "", "%s", cli.OneLine(err))
		} else {
			client.Close()
		}
	}
	if len(c.Factories) == 0 {
		p.Addf(&c.Factories, "give the address of a factory contract", "is missing")
	}
	for _, f := range c.Factories {
		if !common.IsHexAddress(f) || common.HexToAddress(f) == (common.Address{}) {
			p.Addf(&c.Factories, "give 0x and 40 hexadecimal digits", "%q is not an address of a contract", f)
		}
	}
	if c.StartBlock >= 1<<63 {
		p.Addf(&c.StartBlock, "give one below 2^63", "is too large")
	}
	if _, err := parseFinality(c.Finality); err != nil {
		p.Addf(&c.Finality, "give finalized, safe, or a number of blocks from 1", "%v", err)
	}
}

// parseFinality reads a tag or a depth.
func parseFinality(text string) (evm.Finality, error) {
	if text == "finalized" || text == "safe" {
		return evm.Finality{Tag: text}, nil
	}
	depth, err := strconv.ParseUint(text, 10, 32)
	if err != nil || depth == 0 {
		return evm.Finality{}, fmt.Errorf("%q is neither a tag nor a depth", text)
	}
	return evm.Finality{Depth: depth}, nil
}

func (c *escrowChainFlags) nodes() evm.Config {
	cfg := cli.DistinctNodes(c.RPCURLs, c.MaxRPS)
	cfg.ChainID, cfg.Lazy = c.ID, true
	return cfg
}

// alone reports that a single node is configured.
func (c *escrowChainFlags) alone() bool { return len(c.nodes().Endpoints) == 1 }

func (c *escrowChainFlags) factories() []common.Address {
	list := make([]common.Address, len(c.Factories))
	for i, f := range c.Factories {
		list[i] = common.HexToAddress(f)
	}
	return list
}

// check returns the webhooks.
func (f *escrowHookFlags) check(p *config.Problems) webhook.Config {
	cli.ReadSecret(p, &f.Targets, &f.TargetsFile)
	cfg, err := parseWebhooks(f.Targets, f.AllowPrivate, f.Retention)
	if err != nil {
		p.Addf(cli.From(&f.Targets, &f.TargetsFile), "", "%s", cli.OneLine(err))
	}
	cfg.DrainTimeout = publish.DrainTimeout
	return cfg
}

// check returns the topic. It may be missing if there are webhooks.
func (f *escrowTopicFlags) check(p *config.Problems, webhooks bool) publish.TopicConfig {
	cfg := publish.TopicConfig{Project: f.Project, Topic: f.Topic, Emulator: f.Emulator, Endpoint: f.Endpoint}
	switch {
	case f.Project != "":
		if err := cfg.Validate(); err != nil {
			p.Addf(&f.Project, "", "%s", cli.OneLine(err))
		}
	case !webhooks:
		p.Addf(&f.Project, "give the id of the topic's project, or webhooks in ESCROW_WEBHOOKS_JSON", "is missing")
	case f.Emulator != "" || f.Endpoint != "":
		p.Addf(&f.Project, "give the id of the topic's project, or leave PUBSUB_EMULATOR_HOST and PUBSUB_ENDPOINT away", "is missing")
	}
	for _, address := range []*string{&f.Emulator, &f.Endpoint} {
		if _, _, err := net.SplitHostPort(*address); *address != "" && err != nil {
			p.Addf(address, "give one such as localhost:8085", "%q is not host:port", *address)
		}
	}
	if err := f.partition(); err != nil {
		p.Addf(&f.Partition, "give both, as in PARTITION_NUMBER=0 and TOTAL_PARTITIONS=3, or none", "%v", err)
	}
	return cfg
}

// partition reads the static partition.
func (f *escrowTopicFlags) partition() (err error) {
	if f.Partition == "" && f.Partitions == "" {
		return nil
	}
	if f.total, err = strconv.Atoi(f.Partitions); err != nil || f.total < 1 || f.total > events.Partitions {
		return fmt.Errorf("the number of partitions %q is not 1 to %d", f.Partitions, events.Partitions)
	}
	if f.number, err = strconv.Atoi(f.Partition); err != nil || f.number < 0 || f.number >= f.total {
		return fmt.Errorf("%q is not a partition of %d: they are 0 to %d", f.Partition, f.total, f.total-1)
	}
	return nil
}

// errReplaced ends a process whose id another one has taken.
var errReplaced = errors.New("another process has started under this instance id")

// Run watches until ctx ends, or until another process starts under the id.
func (c *escrowRunCmd) Run(ctx context.Context, con *cli.Console) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	role := process.Role{Name: "escrow", Log: c.Log, Stderr: con.Stderr, Attrs: []any{"instance", c.InstanceID}, LimitWarnings: true}
	return role.Run(ctx, func(p *process.Process) error {
		parts := &escrowParts{
			escrowRunCmd: c, replaced: func() { end(errReplaced) }, turned: map[string]func() time.Time{}, problems: map[string]func() error{},
		}
		return parts.start(p)
	})
}
