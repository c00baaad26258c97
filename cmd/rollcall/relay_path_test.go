package main

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/process"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// The secrets of the relay path's settings, which nothing may show.
const (
	clientKey      = "client-key-of-the-settings-0123456789abc"
	relayerKey     = "relayer-key-of-the-settings-0123456789ab"
	inboundSecret  = "inbound-secret-of-the-settings-012345678"
	outboundSecret = "outbound-secret-of-the-settings-01234567"
	queuePassword  = "queue-password-of-the-settings-012345678"
)

// relayRole are the settings without which there is no API and no consumer.
func relayRole(role string, more map[string]string) map[string]string {
	env := map[string]string{"DATABASE_URL": "postgres://127.0.0.1/x"}
	if role == "api" {
		maps.Copy(env, map[string]string{"API_KEYS": "shop:" + clientKey, "WEBHOOK_SECRET": inboundSecret})
	} else {
		env["CONSUMER_RELAYER_KEY"] = relayerKey
	}
	maps.Copy(env, more)
	return env
}

func TestRelayRoles_BadSettings_AreReported(t *testing.T) {
	hooks := `[{"name":"shop","url":"http://a.example/token","signingKeys":["` + outboundSecret + `"]}]`
	for _, c := range []struct {
		role string
		env  map[string]string
		want string
	}{
		{"api", map[string]string{"API_KEYS": ""}, "--api-keys: no API key: no client could use the API; give them as client:key"},
		{"api", map[string]string{"API_KEYS": clientKey + ":shop"}, "API_KEYS in the environment: API key 1: has fewer than 32 characters"},
		{"api", map[string]string{"WEBHOOK_SECRET": ""}, "--webhook-secret: is missing; make one with `openssl rand -hex 32`, and give it to the relayers"},
		{"api", map[string]string{"WEBHOOK_SECRET": inboundSecret + ",short"}, "WEBHOOK_SECRET in the environment: secret 2: "},
		{"api", map[string]string{"API_RATE_LIMIT": "many"}, "API_RATE_LIMIT in the environment: "},
		{"api", map[string]string{"FORWARDER_ADDRESS": "0x12"}, `FORWARDER_ADDRESS in the environment: "0x12" is not an address of a contract`},
		{"api", map[string]string{"FORWARDER_ADDRESS": "0x9724499cEaee9c7C60f0eCd0E66984228E528369"}, "--chain-id: is missing"},
		{"api", map[string]string{"CLIENT_WEBHOOKS_JSON": hooks}, "CLIENT_WEBHOOKS_JSON in the environment: "},
		{"api", map[string]string{"CLIENT_WEBHOOKS_JSON": strings.Replace(hooks, "shop", "other", 1), "CLIENT_WEBHOOK_ALLOW_PRIVATE": "true"}, `no API key has the name "other"`},
		{"api", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT in the environment: is not one like http://collector:4318"},
		{"api", map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "team"}, `OTEL_RESOURCE_ATTRIBUTES in the environment: "team" is not key=value; give them as `},
		{"api", map[string]string{"OTEL_TRACES_SAMPLER": "xray"}, `OTEL_TRACES_SAMPLER in the environment: "xray" is not one of parentbased_traceidratio, `},
		{"consumer", map[string]string{"CONSUMER_RELAYER_KEY": ""}, "--relayer-key: is missing; give the key that the relayers know this consumer by"},
		{"consumer", map[string]string{"CONSUMER_RELAYER_KEY": "blank " + relayerKey}, "CONSUMER_RELAYER_KEY in the environment: an API key has one or more visible ASCII characters"},
		{"consumer", map[string]string{"CONSUMER_RELAYER_KEYS": relayerKey}, "CONSUMER_RELAYER_KEYS in the environment: is not id:key,id:key; give them as oz-relayer-0:KEY"},
		{"consumer", map[string]string{"CONSUMER_RELAYER_KEYS": "a:" + relayerKey + ",a:" + relayerKey}, "has two keys for one relayer"},
		{"consumer", map[string]string{"RELAYER_URL_TEMPLATE": "oz-relayer-{N}"}, "RELAYER_URL_TEMPLATE in the environment: "},
		{"consumer", map[string]string{"CONSUMER_RELAYER_ID": "a b"}, "CONSUMER_RELAYER_ID in the environment: has blanks"},
		{"consumer", map[string]string{"CONSUMER_RELAYER_HOSTS": "10.0.0.1/8"}, `CONSUMER_RELAYER_HOSTS in the environment: network "10.0.0.1/8" has bits of a host: its first address is 10.0.0.0/8; give names such as oz-relayer-*`},
		{"consumer", map[string]string{"CONSUMER_CONCURRENCY": "0"}, "CONSUMER_CONCURRENCY"},
		{"consumer", map[string]string{"CONSUMER_NOT_FOUND": "maybe"}, "CONSUMER_NOT_FOUND"},
		{"consumer", map[string]string{"DATABASE_URL": ""}, "--database-url: is missing"},
		{"consumer", map[string]string{"QUEUE_URL": "amqp://u:" + queuePassword + "@"}, "QUEUE_URL in the environment: "},
		{"consumer", map[string]string{"QUEUE_URL": "redis://x"}, "expected postgres (the database of the transactions), sqs://… or amqps://…"},
		{"consumer", map[string]string{"REDIS_URL": "redis://:" + queuePassword + "@h:x"}, "REDIS_URL in the environment: "},
	} {
		_, err := parseCommand(t, relayRole(c.role, c.env), c.role)
		require.ErrorContains(t, err, c.want, "%v", c.env)
		for _, secret := range []string{clientKey, relayerKey, inboundSecret, outboundSecret, queuePassword} {
			require.NotContains(t, err.Error(), secret)
		}
	}
}

func TestRelayRoles_SecretsInFiles_AreRead(t *testing.T) {
	got, err := parseCommand(t, map[string]string{
		"DATABASE_URL_FILE": writeFile(t, "db", "postgres://127.0.0.1/x\n"), "QUEUE_URL_FILE": writeFile(t, "queue", "amqps://u:p@h/v\n"),
		"API_KEYS_FILE": writeFile(t, "clients", "# one\nshop:"+clientKey+"\n"), "WEBHOOK_SECRET_FILE": writeFile(t, "in", inboundSecret+",new-"+inboundSecret+"\n"),
		"CLIENT_WEBHOOKS_JSON_FILE": writeFile(t, "out", `[{"name":"shop","url":"https://a.example","signingKeys":["`+outboundSecret+`"]}]`),
	}, "api")
	require.NoError(t, err)
	require.Len(t, got.API.secrets, 2)
	require.Equal(t, "amqps://u:p@h/v", got.API.Store.QueueURL)
	hooks, err := got.API.Hooks.config()
	require.NoError(t, err)
	require.Equal(t, []string{"shop"}, hooks.Names())

	got, err = parseCommand(t, relayRole("consumer", map[string]string{
		"CONSUMER_RELAYER_KEY": "", "CONSUMER_RELAYER_KEY_FILE": writeFile(t, "all", relayerKey+"\n"),
		"CONSUMER_RELAYER_KEYS_FILE": writeFile(t, "some", "oz-relayer-1:other-"+relayerKey+"\n"),
	}), "consumer")
	require.NoError(t, err)
	require.Equal(t, relayerKey, got.Consumer.Relayers.keys.key("oz-relayer-0"))
	require.Equal(t, "other-"+relayerKey, got.Consumer.Relayers.keys.key("oz-relayer-1"))
}

// The variables of OpenTelemetry are read, and a flag replaces its variable alone.
func TestTracing_Variables_AreRead(t *testing.T) {
	otel := func(sampler, ratio string) map[string]string {
		return relayRole("api", map[string]string{
			"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": ratio, "OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "team=payments",
		})
	}
	got, err := parseCommand(t, otel("traceidratio", "0.25"), "api")
	require.NoError(t, err)
	require.Equal(t, process.TracingFlags{Service: "shop", Attributes: "team=payments", Sampler: "traceidratio", Ratio: 0.25}, got.API.Tracing)
	got, err = parseCommand(t, otel("always_off", ""), "api")
	require.NoError(t, err)
	require.Equal(t, "always_off", got.API.Tracing.Sampler)
	got, err = parseCommand(t, otel("", ""), "api", "--trace-ratio", "0.25")
	require.NoError(t, err)
	require.Equal(t, process.TracingFlags{Service: "shop", Attributes: "team=payments", Sampler: "parentbased_traceidratio", Ratio: 0.25}, got.API.Tracing)
	got, err = parseCommand(t, otel("", ""), "api", "--trace-ratio", "0.25", "--trace-sampler", "traceidratio")
	require.NoError(t, err)
	require.Equal(t, "traceidratio", got.API.Tracing.Sampler)
	for _, ratio := range []string{"", "0.5"} {
		got, err = parseCommand(t, otel("traceidratio", ratio), "api", "--trace-ratio", "0.25")
		require.NoError(t, err)
		require.Equal(t, "traceidratio", got.API.Tracing.Sampler)
		require.InDelta(t, 0.25, got.API.Tracing.Ratio, 0)
	}
}

// A role answers from its first second, says what it waits for, and shows no secret.
func TestRelayRoles_DatabaseAway_AreUpAndSayWhy(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	for role, args := range map[string][]string{
		"api":      {"--api-keys", "shop:" + clientKey, "--webhook-secret", inboundSecret, "--redis-url", redis.URL()},
		"consumer": {"--relayer-key", relayerKey, "--redis-url", redis.URL()},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			listen := freeAddress(t)
			b := start(t, append([]string{role, "--listen", listen, "--database-url", "postgres://u:" + queuePassword + "@" + freeAddress(t) + "/x"}, args...)...)
			var body string
			require.Eventually(t, func() bool {
				code, text := fetch(t, "http://"+listen+"/health")
				body = text
				return code == http.StatusServiceUnavailable && strings.Contains(text, "starting: database: unreachable")
			}, 2*time.Minute, 10*time.Millisecond, "%s", &b.log)
			_, metrics := fetch(t, "http://"+listen+"/metrics")
			require.Contains(t, metrics, "go_goroutines")
			require.Zero(t, b.stop())
			for _, secret := range []string{clientKey, relayerKey, inboundSecret, queuePassword} {
				require.NotContains(t, body+metrics+b.log.String(), secret)
			}
		})
	}
}

func TestRelayRoles_Started_AreReadyAndStop(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	db := testpostgres.New(t)
	for role, args := range map[string][]string{
		"api":      {"--api-keys", "shop:" + clientKey, "--webhook-secret", inboundSecret, "--redis-url", redis.URL()},
		"consumer": {"--relayer-key", relayerKey, "--redis-url", redis.URL()},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			listen := freeAddress(t)
			b := start(t, append([]string{role, "--listen", listen, "--database-url", db.URL()}, args...)...)
			require.Eventually(t, func() bool {
				code, _ := fetch(t, "http://"+listen+"/ready")
				return code == http.StatusOK
			}, 2*time.Minute, 10*time.Millisecond, "%s", &b.log)
			_, metrics := fetch(t, "http://"+listen+"/metrics")
			require.Contains(t, metrics, `rollcall_relay_transactions{status="queued"} 0`)
			require.Zero(t, b.stop())
			require.Contains(t, b.log.String(), " stopped")
		})
	}
}

// A role that may not change the schema says what it lacks.
func TestRelayRoles_NoMigrate_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	b := start(t, "api", "--no-migrate", "--listen", "127.0.0.1:0", "--database-url", db.URL(), "--api-keys", "shop:"+clientKey, "--webhook-secret", inboundSecret)
	<-b.done
	require.Regexp(t, `API failed.*relay_migrations.*is at version 0 and this program needs \d+`, b.log.String())
	for _, m := range []string{store.Migrations().Table, queue.Migrations().Table} {
		var there bool
		require.NoError(t, db.Pool(t).QueryRow(t.Context(), `SELECT to_regclass($1) IS NOT NULL`, m).Scan(&there))
		require.False(t, there)
	}
}

// fetch returns the status and the body of a page; 0 without an answer.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}
