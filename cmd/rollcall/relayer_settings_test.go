package main

import (
	"bytes"
	"log/slog"
	"maps"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// The secrets of these tests, which no error may show.
const (
	someAPIKey  = "api-key-of-the-settings-0123456789abcdef"
	someHookKey = "hook-key-of-the-settings-0123456789abcdef"
	hookToken   = "token-in-a-hooks-path"
)

// relayerSettings are those without which there is no relayer, and others.
func relayerSettings(t *testing.T, more map[string]string) map[string]string {
	t.Helper()
	// The keys are read from the process's own environment.
	t.Setenv("RELAYER_PRIVATE_KEY_0", signertest.Keys(t, "settings", 1)[0].Hex())
	env := map[string]string{
		"DATABASE_URL": "postgres://127.0.0.1/x", "RELAYER_CHAIN_ID": "1337", "RELAYER_RPC_URLS": "http://127.0.0.1:1",
		"RELAYER_API_KEYS": "me:" + someAPIKey,
	}
	maps.Copy(env, more)
	return env
}

// targets are a relayer's, field by field: a target shows none of them.
func targets(c *commands) (all [][]string) {
	for _, target := range c.Relayer.Hook.config().Targets {
		all = append(all, append([]string{target.Name, target.URL}, target.SigningKeys...))
	}
	return all
}

func TestRelayerSettings_WebhookTargets_AreOneOrMany(t *testing.T) {
	many := `[{"name":"default","url":"https://a.example/` + hookToken + `","signingKeys":["` + someHookKey + `-new","` + someHookKey + `"]},` +
		`{"name":"b","url":"https://b.example","signingKeys":["` + someHookKey + `-b"]}]`
	manyTargets := [][]string{
		{"default", "https://a.example/" + hookToken, someHookKey + "-new", someHookKey}, {"b", "https://b.example", someHookKey + "-b"},
	}
	for name, c := range map[string]struct {
		env  map[string]string
		want [][]string
	}{
		"none":         {nil, nil},
		"one":          {map[string]string{"RELAYER_WEBHOOK_URL": "https://x.example", "RELAYER_WEBHOOK_SIGNING_KEY": someHookKey}, [][]string{{"default", "https://x.example", someHookKey}}},
		"many":         {map[string]string{"RELAYER_WEBHOOKS_JSON": many}, manyTargets},
		"many, a file": {map[string]string{"RELAYER_WEBHOOKS_JSON_FILE": writeFile(t, "hooks.json", many+"\n")}, manyTargets},
	} {
		got, err := parseCommand(t, relayerSettings(t, c.env), "relayer")
		require.NoError(t, err, name)
		require.Equal(t, c.want, targets(got), name)
		require.NoError(t, got.Relayer.Hook.config().Validate(), name)
	}
}

// The settings of the chain's history and of no-ops decide about money, and a process test needs none of them.
func TestRelayerSettings_ChainAndGas_ReachTheParts(t *testing.T) {
	parts := func(env map[string]string) (service.Config, sender.Config, tracker.Config) {
		got, err := parseCommand(t, relayerSettings(t, env), "relayer")
		require.NoError(t, err)
		p := &relayerParts{relayerCmd: &got.Relayer, log: slog.New(slog.DiscardHandler), reg: prometheus.NewRegistry(), ring: got.Relayer.keys.Ring()}
		relaying := p.serviceConfig()
		return relaying, p.senderConfig(relaying, nil), p.trackerConfig(relaying, nil, nil)
	}
	relaying, sending, tracking := parts(nil)
	require.False(t, relaying.RevertData)
	require.Nil(t, tracking.RevertData)
	require.Equal(t, 2, sending.NoopFactor)
	require.Zero(t, tracking.Finality, "the depth alone")
	require.EqualValues(t, 64, tracking.AnchorDepth)
	require.EqualValues(t, 12, tracking.Confirmations)

	relaying, sending, tracking = parts(map[string]string{
		"RELAYER_INCLUDE_REVERT_DATA": "true", "RELAYER_NOOP_PRICE_FACTOR": "3", "RELAYER_FINALITY": "safe", "RELAYER_ANCHOR_DEPTH": "900",
		"RELAYER_CONFIRMATIONS": "5", "RELAYER_GAS_PRICE_CAP": "77", "RELAYER_MAX_NONCE_JUMP": "8", "RELAYER_NOOPS_PER_HOUR": "9",
		"RELAYER_MAX_DATA": "99", "RELAYER_STUCK_AFTER": "1h",
	})
	require.True(t, relaying.RevertData)
	require.NotNil(t, tracking.RevertData)
	require.Equal(t, 3, sending.NoopFactor)
	require.Equal(t, big.NewInt(77), sending.MaxFee)
	require.Equal(t, "safe", tracking.Finality)
	require.EqualValues(t, 900, tracking.AnchorDepth)
	require.EqualValues(t, 5, tracking.Confirmations)
	require.EqualValues(t, 8, tracking.MaxNonceJump)
	require.EqualValues(t, 8, relaying.MaxNonceJump)
	require.Equal(t, 99, relaying.MaxData)
	require.Equal(t, time.Hour, tracking.StuckAfter)
	require.EqualValues(t, 9, tracking.NoopsPerHour)
}

func TestRelayerSettings_WebhookRetention_IsRead(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 72 * time.Hour, "1h": time.Hour, "0s": webhook.KeepNone} {
		env := map[string]string{}
		if value != "" {
			env["RELAYER_WEBHOOK_RETENTION"] = value
		}
		got, err := parseCommand(t, relayerSettings(t, env), "relayer")
		require.NoError(t, err, value)
		cfg := got.Relayer.Hook.config()
		require.NoError(t, cfg.Validate(), value)
		require.Equal(t, want, cfg.Retention, value)
	}
	_, err := parseCommand(t, relayerSettings(t, map[string]string{"RELAYER_WEBHOOK_RETENTION": "90000h"}), "relayer")
	require.ErrorContains(t, err, "RELAYER_WEBHOOK_RETENTION")
}

func TestRelayerSettings_InvalidValues_AreReported(t *testing.T) {
	own := relayerSettings(t, nil)
	key := os.Getenv("RELAYER_PRIVATE_KEY_0")
	topUp := map[string]string{"RELAYER_TOPUP_THRESHOLD": "1", "RELAYER_TOPUP_TARGET": "2", "RELAYER_TOPUP_MAX_PER_DAY": "3"}
	hooks := writeFile(t, "hooks.json", `[{"name":"Big","url":"http://`+hookToken+`","signingKeys":["short-`+hookToken+`"]}]`)
	apiKeys := writeFile(t, "keys", "a:"+someAPIKey+"\nb:"+someAPIKey+"\n")
	for _, c := range []struct {
		env  map[string]string
		want []string
	}{
		{map[string]string{"RELAYER_API_KEYS": ""}, []string{"--api-keys: no API key: no client could use the API; give them as name:key"}},
		{map[string]string{"RELAYER_TOPUP_THRESHOLD": "7"}, []string{"RELAYER_TOPUP_THRESHOLD in the environment: has no effect without a top-up key; give RELAYER_TOPUP_KEY_FILE"}},
		{
			with(topUp, map[string]string{"RELAYER_TOPUP_KEY": strings.Repeat("1", 64), "RELAYER_MIN_BALANCE": "100", "RELAYER_TOPUP_THRESHOLD": "99", "RELAYER_TOPUP_TARGET": "500"}),
			[]string{`"99" is below the lowest balance`},
		},
		{
			with(topUp, map[string]string{"RELAYER_TOPUP_KEY": strings.Repeat("1", 64), "RELAYER_MIN_BALANCE": "100", "RELAYER_TOPUP_THRESHOLD": "100", "RELAYER_TOPUP_TARGET": "119"}),
			[]string{`"119" does not enable a key again that was below its lowest balance; give 120 or more`},
		},
		{map[string]string{"RELAYER_API_KEYS": someAPIKey + ":me"}, []string{"RELAYER_API_KEYS in the environment: API key 1: has fewer than 32 characters; give them"}}, // swapped
		{map[string]string{"RELAYER_API_KEYS": "me:" + someAPIKey[:31]}, []string{"RELAYER_API_KEYS in the environment: API key 1: has fewer than 32 characters; give them"}},
		{
			map[string]string{"RELAYER_API_KEYS": "a:" + someAPIKey + ",a:" + someAPIKey[:31] + "," + someAPIKey},
			[]string{"RELAYER_API_KEYS in the environment: API key 3: not name:key"},
		},
		{map[string]string{"RELAYER_API_KEYS": "", "RELAYER_API_KEYS_FILE": apiKeys}, []string{"RELAYER_API_KEYS_FILE in the environment: API keys 1 and 2 are the same"}},
		{
			map[string]string{"RELAYER_WEBHOOK_URL": "http://x.example/" + hookToken},
			[]string{
				"RELAYER_WEBHOOK_URL in the environment: its URL must begin with https://; plain http is for private networks",
				"--webhook-signing-key: signing key has 0 characters and needs at least 32; make one with",
			},
		},
		{
			map[string]string{"RELAYER_WEBHOOK_URL": "https://x.example", "RELAYER_WEBHOOKS_JSON": "[]"},
			[]string{"RELAYER_WEBHOOKS_JSON in the environment: contradicts RELAYER_WEBHOOK_URL in the environment; give one of them"},
		},
		{
			map[string]string{"RELAYER_WEBHOOKS_JSON": `[{"` + hookToken + `":1}]`},
			[]string{"RELAYER_WEBHOOKS_JSON in the environment: webhook target 1: it takes an object"},
		},
		{
			map[string]string{"RELAYER_WEBHOOKS_JSON_FILE": hooks},
			[]string{"RELAYER_WEBHOOKS_JSON_FILE in the environment: webhook target 1 (\"Big\"): a name has 1 to 64", "its URL must begin with https://", "key 1: signing key has 27 characters"},
		},
		{
			map[string]string{"RELAYER_WEBHOOK_SIGNING_KEY": someHookKey},
			[]string{"RELAYER_WEBHOOK_SIGNING_KEY in the environment: has no effect without a webhook URL; give RELAYER_WEBHOOK_URL"},
		},
		{
			map[string]string{
				"RELAYER_WEBHOOK_SIGNING_KEY_FILE": writeFile(t, "hook.key", someHookKey),
				"RELAYER_WEBHOOKS_JSON":            `[{"name":"a","url":"https://x.example","signingKeys":["` + someHookKey + `-a"]}]`,
			},
			[]string{"RELAYER_WEBHOOK_SIGNING_KEY_FILE in the environment: has no effect without a webhook URL; "},
		},
		{
			map[string]string{"RELAYER_ALLOWED_RECEIVERS": "0x742D35Cc6634C0532925a3b844Bc454e4438f44e"},
			[]string{"RELAYER_ALLOWED_RECEIVERS in the environment: the checksum of 0x742D35Cc6634C0532925a3b844Bc454e4438f44e is wrong"},
		},
		{map[string]string{"RELAYER_ALLOWED_RECEIVERS": "0x742d"}, []string{"RELAYER_ALLOWED_RECEIVERS in the environment: must be an address"}},
		{
			map[string]string{"ROLLCALL_CONFIG": writeFile(t, "relayer.yaml", "allowed-receivers: []\n")},
			[]string{"relayer.yaml:1: allowed-receivers: is an empty list: leave it out"},
		},
		{map[string]string{"RELAYER_POOL_ID": "Pool"}, []string{"RELAYER_POOL_ID in the environment: \"Pool\" is not a DNS label"}},
		{map[string]string{"RELAYER_POOL_ID": strings.Repeat("p", 64)}, []string{"has 64 bytes; a DNS label has at most 63"}},
		{map[string]string{"RELAYER_POOL_ID": "742d35cc6634c0532925a3b844bc454e4438f44e"}, []string{"would be taken for a key's address"}},
		{
			map[string]string{"DATABASE_URL": "postgres://user:" + hookToken + "/@host/x"},
			[]string{"DATABASE_URL in the environment: database URL: expected postgres://user:password@host"},
		},
		{
			map[string]string{"DATABASE_URL": "", "DATABASE_URL_FILE": writeFile(t, "db", "postgres://host/x?sslmode="+hookToken)},
			[]string{"DATABASE_URL_FILE in the environment: database URL: expected"},
		},
		{with(topUp, map[string]string{"RELAYER_TOPUP_KEY": key[:40]}), []string{"RELAYER_TOPUP_KEY in the environment: "}},
		{with(topUp, map[string]string{"RELAYER_TOPUP_KEY": key}), []string{"RELAYER_TOPUP_KEY in the environment: the funding key must not be a relayer's", "give a key of its own"}},
	} {
		_, err := parseCommand(t, with(own, c.env), "relayer")
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
		showsNothing(t, err.Error(), key)
	}
}

// The allow-list is about the funding key, too: it pays, whosever it is.
func TestRelayerSettings_FundingKeyNotAllowed_IsRefused(t *testing.T) {
	keys := signertest.Keys(t, "funding", 1)
	own := relayerSettings(t, map[string]string{
		"RELAYER_TOPUP_KEY": keys[0].Hex(), "RELAYER_TOPUP_THRESHOLD": "1", "RELAYER_TOPUP_TARGET": "2", "RELAYER_TOPUP_MAX_PER_DAY": "3",
	})
	relayers := signertest.Keys(t, "settings", 1)[0].Address.Hex()
	t.Setenv("RELAYER_ALLOWED_ADDRESSES", relayers)
	_, err := parseCommand(t, own, "relayer")
	require.ErrorContains(t, err, "RELAYER_TOPUP_KEY in the environment: its address "+keys[0].Address.Hex()+" is not in RELAYER_ALLOWED_ADDRESSES")
	t.Setenv("RELAYER_ALLOWED_ADDRESSES", keys[0].Address.Hex()+","+relayers)
	c, err := parseCommand(t, own, "relayer")
	require.NoError(t, err)
	require.Equal(t, keys[0].Address, c.Relayer.Guard.TopUp.signer.Address())
	t.Setenv("RELAYER_ALLOWED_ADDRESSES", "0x1")
	_, err = parseCommand(t, own, "relayer")
	require.ErrorContains(t, err, "RELAYER_ALLOWED_ADDRESSES[0]: is not an address")
	require.NotContains(t, err.Error(), "RELAYER_TOPUP_KEY", "it is the list that is wrong")
}

// with is env and more.
func with(env, more map[string]string) map[string]string {
	all := maps.Clone(env)
	maps.Copy(all, more)
	return all
}

func showsNothing(t *testing.T, text, key string) {
	t.Helper()
	for _, secret := range []string{someAPIKey[:31], someHookKey[:31], hookToken, key[2:34]} {
		require.NotContains(t, text, secret)
	}
}

// Settings that have no flag are documented elsewhere.
func TestHelp_Relayer_NamesTheKeyVariables(t *testing.T) {
	t.Parallel()
	help := succeed(t, "relayer", "--help")
	for _, name := range []string{
		"RELAYER_PRIVATE_KEYS_JSON ", "RELAYER_PRIVATE_KEYS_JSON_FILE", "RELAYER_PRIVATE_KEY_0,", "RELAYER_PRIVATE_KEY_0_FILE", "RELAYER_KEYSTORE_DIR",
		"RELAYER_KEYSTORE_PASSWORD", "RELAYER_KEYSTORE_PASSWORD_FILE", "RELAYER_ALLOWED_ADDRESSES",
	} {
		require.Contains(t, help, name)
	}
}

func TestRelayerSettings_ReceiverAddress_NeedsOneCaseOrChecksum(t *testing.T) {
	const mixed = "0x742d35Cc6634C0532925a3b844Bc454e4438f44e"
	for _, spelled := range []string{mixed, strings.ToLower(mixed), "0x" + strings.ToUpper(mixed[2:])} {
		got, err := parseCommand(t, relayerSettings(t, map[string]string{"RELAYER_ALLOWED_RECEIVERS": spelled}), "relayer")
		require.NoError(t, err, spelled)
		require.Equal(t, []common.Address{common.HexToAddress(mixed)}, got.Relayer.Gas.policies().Receivers)
	}
}

// An operator's command says that it cannot read the URL before it does anything, and shows none of it.
func TestOperatorCommands_InvalidDatabaseURL_IsReportedWithoutIt(t *testing.T) {
	env := map[string]string{"DATABASE_URL": "postgres://user:" + hookToken + "/@host/x", "RELAYER_CHAIN_ID": "1"}
	for _, command := range [][]string{{"migrate"}, {"tx", "list"}, {"keys", "list"}} {
		_, err := parseCommand(t, env, command...)
		require.ErrorContains(t, err, "DATABASE_URL in the environment: database URL: expected postgres://")
		require.NotContains(t, err.Error(), hookToken)
	}
}

// The relayer reports all wrong settings together, by the names of their variables, before it starts anything.
func TestRelayer_SeveralInvalidSettings_AreReportedTogether(t *testing.T) {
	for name, value := range relayerSettings(t, map[string]string{
		"RELAYER_API_KEYS": "me:short,me/read:" + someAPIKey, "RELAYER_CHAIN_ID": "0", "RELAYER_TOPUP_KEY": "x",
		"RELAYER_WEBHOOKS_JSON": `[{"name":"a","url":"https://x.example","signingKeys":[]}]`, "RELAYER_PRIVATE_KEY_2": "0x" + hookToken,
	}) {
		t.Setenv(name, value)
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUsage, run(t.Context(), []string{"relayer"}, &stdout, &stderr))
	for _, want := range []string{
		"  - RELAYER_API_KEYS in the environment: API key 1: has fewer than 32 characters; API keys 1 and 2 have the same name and different roles; give them",
		"  - RELAYER_CHAIN_ID in the environment: is missing",
		"  - RELAYER_PRIVATE_KEY_1: is missing, but there is RELAYER_PRIVATE_KEY_2",
		"  - RELAYER_PRIVATE_KEY_2: ",
		"  - RELAYER_TOPUP_KEY in the environment: ",
		"  - --topup-threshold: is missing",
		"  - RELAYER_WEBHOOKS_JSON in the environment: webhook target 1 (\"a\"): it needs a signing key",
	} {
		require.Contains(t, stderr.String(), want)
	}
	showsNothing(t, stderr.String(), os.Getenv("RELAYER_PRIVATE_KEY_0"))
	require.NotContains(t, stderr.String(), `"level"`, "nothing was started")
}

// Each process that calls nodes keeps the bound of calls a second.
func TestSettings_MaxRPS_OneOrOneForEachNode(t *testing.T) {
	roles := map[string]struct {
		args []string
		env  map[string]string
		open func(*commands) evm.Config
	}{
		"relayer": {[]string{"relayer"}, relayerSettings(t, nil), func(c *commands) evm.Config { return c.Relayer.Chain.config() }},
		"api": {
			[]string{"api"}, relayRole("api", map[string]string{"FORWARDER_ADDRESS": "0x9724499cEaee9c7C60f0eCd0E66984228E528369", "API_CHAIN_ID": "1"}),
			func(c *commands) evm.Config { return c.API.Forward.config() },
		},
		"keys resync": {[]string{"keys", "resync", "--all"}, map[string]string{"DATABASE_URL": "postgres://127.0.0.1/x", "RELAYER_CHAIN_ID": "1"}, nil},
	}
	for name, role := range roles {
		for text, want := range map[string]string{
			"": "", "25": "", "25,0": "",
			"1,2,3": "has 3 numbers for 2 nodes", "-1": "is negative", "many": "is not valid",
		} {
			env := maps.Clone(role.env)
			maps.Copy(env, map[string]string{"RELAYER_RPC_URLS": "http://127.0.0.1:1,http://127.0.0.1:2", "RPC_MAX_RPS": text})
			c, err := parseCommand(t, env, role.args...)
			if want != "" {
				require.ErrorContains(t, err, want, "%s: %s", name, text)
				continue
			}
			require.NoError(t, err, "%s: %s", name, text)
			if text == "25,0" && role.open != nil {
				require.Equal(t, []int{25, 0}, role.open(c).MaxRPS, name)
			}
		}
	}
}
