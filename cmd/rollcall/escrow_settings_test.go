package main

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

const (
	someFactory  = "0x00000000000000000000000000000000000000aa"
	otherFactory = "0x00000000000000000000000000000000000000bb"
)

// escrowSettings are the least that an instance needs, with changes.
func escrowSettings(change map[string]string) map[string]string {
	all := map[string]string{
		"CHAIN_ID": "1337", "RPC_URL": "http://a,http://b", "FACTORY_ADDRESS": someFactory, "DATABASE_URL": "postgres://u:p@h/x", "PUBSUB_PROJECT_ID": "rollcall",
	}
	maps.Copy(all, change)
	return all
}

const oneEvent = `
factory:
  abi: [escrow.abi.json]
  events: [{event: Made(address), escrow: child}]
escrow:
  abi: [escrow.abi.json]
  events: [{event: Closed()}]
`

// eventFile writes a file of events with the ABI that it names.
func eventFile(t *testing.T, content string) string {
	t.Helper()
	path := writeFile(t, "events.yaml", content)
	abi := `[{"type":"event","name":"Made","inputs":[{"name":"child","type":"address","indexed":true}]},{"type":"event","name":"Closed","inputs":[]}]`
	require.NoError(t, os.WriteFile(strings.TrimSuffix(path, "events.yaml")+"escrow.abi.json", []byte(abi), 0o600))
	return path
}

func TestEscrowSettings_FlagsAndVariables_AreRead(t *testing.T) {
	t.Parallel()
	url, nodes := writeFile(t, "url", "postgresql+asyncpg://u:p@file/x\n"), writeFile(t, "nodes", "http://c,ws://d\n")
	hooks := `[{"name": "shop", "url": "https://shop.example/hook", "signingKeys": ["` + outboundSecret + `"]}]`
	run := func(f func(*escrowRunCmd) any) func(*commands) any {
		return func(c *commands) any { return f(&c.Escrow.Run) }
	}
	node := func(f func(evm.Config) any) func(*commands) any {
		return func(c *commands) any { return f(c.Escrow.Run.Chain.nodes()) }
	}
	topic := func(f func(publish.TopicConfig) any) func(*commands) any {
		return func(c *commands) any { return f(c.Escrow.Run.topic) }
	}
	without := func(names ...string) map[string]string {
		empty := map[string]string{}
		for _, name := range names {
			empty[name] = ""
		}
		return empty
	}
	checkSettings(t, []string{"escrow", "run"}, escrowSettings(nil), []setting{
		{"listen", "ESCROW_LISTEN", "127.0.0.1:1", nil, run(func(c *escrowRunCmd) any { return c.listen }), "127.0.0.1:1"},
		{"port", "PORT", "8080", nil, run(func(c *escrowRunCmd) any { return c.listen }), ":8080"},
		{"instance-id", "INSTANCE_ID", "escrow-7", nil, run(func(c *escrowRunCmd) any { return c.InstanceID }), "escrow-7"},
		{"chain-id", "CHAIN_ID", "5", nil, node(func(c evm.Config) any { return c.ChainID }), uint64(5)},
		{"rpc-url", "RPC_URL", "http://c", nil, node(func(c evm.Config) any { return c.Endpoints }), []string{"http://c"}},
		{"rpc-url-file", "RPC_URL_FILE", nodes, without("RPC_URL"), node(func(c evm.Config) any { return c.Endpoints }), []string{"http://c", "ws://d"}},
		{"rpc-max-rps", "RPC_MAX_RPS", "7,8", nil, node(func(c evm.Config) any { return c.MaxRPS }), []int{7, 8}},
		{"factory-address", "FACTORY_ADDRESS", someFactory + "," + otherFactory, nil, run(func(c *escrowRunCmd) any { return c.Chain.factories() }),
			[]common.Address{common.HexToAddress(someFactory), common.HexToAddress(otherFactory)}},
		{"start-block", "START_BLOCK", "17", nil, run(func(c *escrowRunCmd) any { return c.Chain.StartBlock }), uint64(17)},
		{"events", "ESCROW_EVENTS", eventFile(t, oneEvent), nil, run(func(c *escrowRunCmd) any { return c.events.String() }),
			"escrow Closed()\nfactory Made(address indexed child) escrow=child"},
		{"delivery", "ESCROW_DELIVERY", "instant", nil, run(func(c *escrowRunCmd) any { return c.Chain.Delivery }), "instant"},
		{"finality", "ESCROW_FINALITY", "12", nil, run(func(c *escrowRunCmd) any { f, _ := parseFinality(c.Chain.Finality); return f }), evm.Finality{Depth: 12}},
		{"database-url", "DATABASE_URL", "postgresql+psycopg2://u:p@other/x", nil, run(func(c *escrowRunCmd) any { return c.Store.DatabaseURL }), "postgresql://u:p@other/x"},
		{"database-url-file", "DATABASE_URL_FILE", url, without("DATABASE_URL"), run(func(c *escrowRunCmd) any { return c.Store.DatabaseURL }), "postgresql://u:p@file/x"},
		{"migrate", "ESCROW_MIGRATE", "false", nil, run(func(c *escrowRunCmd) any { return c.Store.Migrate }), false},
		{"pubsub-project-id", "PUBSUB_PROJECT_ID", "other-project", nil, topic(func(c publish.TopicConfig) any { return c.Project }), "other-project"},
		{"pubsub-topic-id", "PUBSUB_TOPIC_ID", "other", nil, topic(func(c publish.TopicConfig) any { return c.Topic }), "other"},
		{"pubsub-emulator-host", "PUBSUB_EMULATOR_HOST", "e:1", nil, topic(func(c publish.TopicConfig) any { return c.Emulator }), "e:1"},
		{"pubsub-endpoint", "PUBSUB_ENDPOINT", "europe-west1-pubsub.googleapis.com:443", nil, topic(func(c publish.TopicConfig) any { return c.Endpoint }), "europe-west1-pubsub.googleapis.com:443"},
		{"retention", "ESCROW_RETENTION", "1h", nil, run(func(c *escrowRunCmd) any { return c.Topic.Retention }), time.Hour},
		{"partition-number", "PARTITION_NUMBER", "2", map[string]string{"TOTAL_PARTITIONS": "3", "PARTITION_NUMBER": "1"},
			run(func(c *escrowRunCmd) any { return c.Topic.number }), 2},
		{"total-partitions", "TOTAL_PARTITIONS", "3", map[string]string{"PARTITION_NUMBER": "1", "TOTAL_PARTITIONS": "2"},
			run(func(c *escrowRunCmd) any { return c.Topic.total }), 3},
		{"webhooks", "ESCROW_WEBHOOKS_JSON", hooks, without("PUBSUB_PROJECT_ID"), run(func(c *escrowRunCmd) any { return c.hooks.Names() }), []string{"shop"}},
		{"webhooks-file", "ESCROW_WEBHOOKS_JSON_FILE", writeFile(t, "hooks.json", hooks), nil, run(func(c *escrowRunCmd) any { return c.hooks.Names() }), []string{"shop"}},
		{"webhook-allow-private", "ESCROW_WEBHOOK_ALLOW_PRIVATE", "true", nil, run(func(c *escrowRunCmd) any { return c.hooks.AllowPrivate }), true},
		{"webhook-retention", "ESCROW_WEBHOOK_RETENTION", "0s", nil, run(func(c *escrowRunCmd) any { return c.hooks.Retention }), webhook.KeepNone},
		{"log-level", "ROLLCALL_LOG_LEVEL", "debug", nil, logged(func(c *commands) *process.LogFlags { return &c.Escrow.Run.Log }), "json debug"},
		{"log-format", "ROLLCALL_LOG_FORMAT", "text", nil, logged(func(c *commands) *process.LogFlags { return &c.Escrow.Run.Log }), "text info"},
	})
}

func TestEscrowSettings_NoneGiven_HaveDefaults(t *testing.T) {
	t.Parallel()
	parsed, err := parseCommand(t, escrowSettings(nil), "escrow")
	require.NoError(t, err)
	c := parsed.Escrow.Run
	require.Equal(t, ":9090", c.listen)
	require.NotEmpty(t, c.InstanceID)
	require.Equal(t, publish.TopicConfig{Project: "rollcall", Topic: "settlement.events.v1"}, c.topic)
	require.Equal(t, "finalized", c.Chain.Delivery)
	require.Equal(t, "finalized", c.Chain.Finality)
	require.Zero(t, c.Topic.total)
	require.Empty(t, c.hooks.Targets)
	require.Equal(t, 72*time.Hour, c.Topic.Retention)
	require.Equal(t, c.Topic.Retention, c.hooks.Retention)
	require.Equal(t, publish.DrainTimeout, c.hooks.DrainTimeout)
}

func TestEscrowSettings_InvalidValues_AreReported(t *testing.T) {
	t.Parallel()
	hook := func(url string) string {
		return `[{"name": "shop", "url": "` + url + `", "signingKeys": ["` + outboundSecret + `"]}]`
	}
	for want, env := range map[string]map[string]string{
		"--chain-id: is missing":                          {"CHAIN_ID": ""},
		"--rpc-url: is missing":                           {"RPC_URL": ""},
		"its scheme is none of":                           {"RPC_URL": "ftp://a"},
		"--factory-address: is missing":                   {"FACTORY_ADDRESS": ""},
		`"0x1" is not an address of a`:                    {"FACTORY_ADDRESS": someFactory + ",0x1"},
		"--database-url: is missing":                      {"DATABASE_URL": ""},
		"--pubsub-project-id: is missing":                 {"PUBSUB_PROJECT_ID": ""},
		`topic id "1"`:                                    {"PUBSUB_TOPIC_ID": "1"},
		`"localhost" is not host:port`:                    {"PUBSUB_EMULATOR_HOST": "localhost"},
		"an emulator and an endpoint are":                 {"PUBSUB_EMULATOR_HOST": "a:1", "PUBSUB_ENDPOINT": "b:1"},
		`the number of partitions "" is`:                  {"PARTITION_NUMBER": "1"},
		`"" is not a partition of 3`:                      {"TOTAL_PARTITIONS": "3"},
		`"3" is not a partition of 3`:                     {"TOTAL_PARTITIONS": "3", "PARTITION_NUMBER": "3"},
		`partitions "2521" is not 1 to`:                   {"TOTAL_PARTITIONS": "2521", "PARTITION_NUMBER": "3"},
		`"latest" is neither a tag nor a`:                 {"ESCROW_FINALITY": "latest"},
		`"0" is neither a tag nor a`:                      {"ESCROW_FINALITY": "0"},
		"has other characters than":                       {"INSTANCE_ID": "a b"},
		"no such file":                                    {"ESCROW_EVENTS": "missing.yaml"},
		`no ABI of this section has the event "Opened()"`: {"ESCROW_EVENTS": eventFile(t, strings.Replace(oneEvent, "Closed()", "Opened()", 1))},
		`"never" is not one of finalized, instant`:        {"ESCROW_DELIVERY": "never"},
		"webhooks in ESCROW_WEBHOOKS_JSON":                {"PUBSUB_PROJECT_ID": ""},
		"or leave PUBSUB_EMULATOR_HOST":                   {"PUBSUB_PROJECT_ID": "", "PUBSUB_EMULATOR_HOST": "a:1", "ESCROW_WEBHOOKS_JSON": hook("https://h")},
		"its URL must begin with https://":                {"ESCROW_WEBHOOKS_JSON": hook("http://h")},
		"it needs a signing key":                          {"ESCROW_WEBHOOKS_JSON": `[{"name": "shop", "url": "https://h"}]`},
		"it takes a JSON array":                           {"ESCROW_WEBHOOKS_JSON": "https://" + outboundSecret},
		`"59s" is below 1m`:                               {"ESCROW_RETENTION": "59s"},
		`"87601h" is above`:                               {"ESCROW_RETENTION": "87601h"},
		"numbers for 2 nodes":                             {"RPC_MAX_RPS": "1,2,3"},
	} {
		_, err := parseCommand(t, escrowSettings(env), "escrow")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "u:p@")
		require.NotContains(t, err.Error(), outboundSecret)
	}
}
