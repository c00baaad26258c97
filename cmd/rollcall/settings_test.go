package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/foreman"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// parseCommand reads a command line with an environment of its own.
func parseCommand(t *testing.T, env map[string]string, args ...string) (*commands, error) {
	t.Helper()
	c := new(commands)
	p, err := config.New(c, config.Options{
		Name:      "rollcall",
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Stdout:    new(bytes.Buffer), Stderr: new(bytes.Buffer),
	})
	require.NoError(t, err)
	_, err = p.Parse(args)
	return c, err
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// setting is one that a command has, and what it changes in the end.
type setting struct {
	flag, env, value string
	with             map[string]string // other variables it needs
	got              func(*commands) any
	want             any
}

// checkSettings sets each by flag, by variable and, where the command reads one, by file, and looks whether it
// arrives where it counts.
func checkSettings(t *testing.T, command []string, base map[string]string, settings []setting) {
	t.Helper()
	node := commandNode(t, command)
	hasFile := slices.ContainsFunc(node.Flags, func(f *kong.Flag) bool { return f.Name == "config" })
	seen := map[string]bool{"config": true}
	for _, s := range settings {
		seen[s.flag] = true
		t.Run(s.flag, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			maps.Copy(env, base)
			maps.Copy(env, s.with)
			without, err := parseCommand(t, env, command...)
			if err == nil {
				require.NotEqual(t, s.want, s.got(without), "the test must not ask for the default")
			}
			delete(env, s.env)
			c, err := parseCommand(t, env, append(slices.Clone(command), "--"+s.flag+"="+s.value)...)
			require.NoError(t, err)
			require.Equal(t, s.want, s.got(c), "by flag")

			if hasFile {
				file := writeFile(t, "settings.yaml", s.flag+": '"+s.value+"'\n")
				c, err = parseCommand(t, env, append(slices.Clone(command), "--config", file)...)
				require.NoError(t, err)
				require.Equal(t, s.want, s.got(c), "by file")
			}
			if s.env == "" {
				return
			}
			env[s.env] = s.value
			c, err = parseCommand(t, env, command...)
			require.NoError(t, err)
			require.Equal(t, s.want, s.got(c), "by environment")
		})
	}
	for _, flag := range node.Flags {
		require.True(t, seen[flag.Name], "no test sets --%s", flag.Name)
	}
}

func commandNode(t *testing.T, path []string) *kong.Node {
	t.Helper()
	p, err := config.New(new(commands), config.Options{Name: "rollcall", Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer)})
	require.NoError(t, err)
	node := p.Kong.Model.Node
	for _, name := range path {
		i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })
		require.GreaterOrEqual(t, i, 0, name)
		node = node.Children[i]
	}
	return node
}

var threePeers = []coordinator.Peer{{ID: "a", Address: "a:7400"}, {ID: "b", Address: "b:7400"}, {ID: "c", Address: "c:7400"}}

var coordinatorBase = map[string]string{"ROLLCALL_NODE_ID": "a", "ROLLCALL_PEERS": "a=a:7400,b=b:7400,c=c:7400"}

func TestCoordinatorSettings_FlagsAndVariables_AreRead(t *testing.T) {
	t.Parallel()
	secret := writeFile(t, "secret", "hunter2\n")
	url := writeFile(t, "url", "redis://:pw@r:1\n")
	cas := caFile(t)
	header := writeFile(t, "header", "X-Key: k\n")
	node := func(f func(coordinator.Config) any) func(*commands) any {
		return func(c *commands) any { return f(c.Coordinator.config()) }
	}
	check := func(f func(health.Config) any) func(*commands) any {
		return func(c *commands) any { return f(c.Coordinator.directorConfig().Health) }
	}
	redisURL := func(c *commands) any { return c.Coordinator.Redis.Options().URL }
	checkSettings(t, []string{"coordinator"}, coordinatorBase, append(tlsSettings(t, func(c *commands) *cli.TLSFlags { return &c.Coordinator.TLS }), []setting{
		{"node-id", "ROLLCALL_NODE_ID", "b", nil, node(func(c coordinator.Config) any { return c.ID }), "b"},
		{"peers", "ROLLCALL_PEERS", "a=x:1", nil, node(func(c coordinator.Config) any { return c.Peers }), []coordinator.Peer{{ID: "a", Address: "x:1"}}},
		{"bootstrap-without", "ROLLCALL_BOOTSTRAP_WITHOUT", "c", nil, node(func(c coordinator.Config) any { return c.BootstrapWithout }), []string{"c"}},
		{"listen", "ROLLCALL_LISTEN", "127.0.0.1:7500", nil, node(func(c coordinator.Config) any { return c.Listen }), "127.0.0.1:7500"},
		{"advertise", "ROLLCALL_ADVERTISE", "me:7400", nil, node(func(c coordinator.Config) any { return c.Advertise }), "me:7400"},
		{"advertise-client", "ROLLCALL_ADVERTISE_CLIENT", "pub:7400", nil, node(func(c coordinator.Config) any { return c.AdvertiseClient }), "pub:7400"},
		{"http-listen", "ROLLCALL_HTTP_LISTEN", ":3002", nil, node(func(c coordinator.Config) any { return c.HTTPAddress }), "a:3002"},
		{"data-dir", "ROLLCALL_DATA_DIR", "/d", nil, node(func(c coordinator.Config) any { return c.DataDir }), "/d"},
		{"raft-timing", "ROLLCALL_RAFT_TIMING", "wan", nil, node(func(c coordinator.Config) any { return c.Timing }), coordinator.WAN},
		{"relayer-count", "RELAYER_COUNT", "5", nil, node(func(c coordinator.Config) any { return c.RelayerCount }), 5},
		{"relayer-url-template", "RELAYER_URL_TEMPLATE", "http://r{N}", nil, node(func(c coordinator.Config) any { return c.RelayerURLTemplate }), "http://r{N}"},
		{"health-check-interval-ms", "HEALTH_CHECK_INTERVAL_MS", "5000", nil, check(func(c health.Config) any { return c.Interval }), 5 * time.Second},
		{"health-check-timeout-ms", "HEALTH_CHECK_TIMEOUT_MS", "700", nil, check(func(c health.Config) any { return c.Timeout }), 700 * time.Millisecond},
		{"health-check-connect-timeout-ms", "HEALTH_CHECK_CONNECT_TIMEOUT_MS", "100", nil, check(func(c health.Config) any { return c.ConnectTimeout }), 100 * time.Millisecond},
		{"health-check-path", "HEALTH_CHECK_PATH", "/api/v1/health", nil, check(func(c health.Config) any { return c.Path }), "/api/v1/health"},
		{"health-check-expected-codes", "HEALTH_CHECK_EXPECTED_CODES", "200,204", nil, check(func(c health.Config) any { return c.Codes }), health.Codes{200, 204}},
		{"health-check-auth-header", "HEALTH_CHECK_AUTH_HEADER", "Authorization: Bearer x", map[string]string{"HEALTH_CHECK_AUTH_HOSTS": "oz-*"},
			check(func(c health.Config) any { return c.Auth }), health.Auth{Header: "Authorization", Value: "Bearer x", Hosts: []string{"oz-*"}}},
		{"health-check-auth-header-file", "HEALTH_CHECK_AUTH_HEADER_FILE", header, map[string]string{"HEALTH_CHECK_AUTH_HOSTS": "oz-*"},
			check(func(c health.Config) any { return c.Auth }), health.Auth{Header: "X-Key", Value: "k", Hosts: []string{"oz-*"}}},
		{"health-check-auth-hosts", "HEALTH_CHECK_AUTH_HOSTS", "a,b:1", map[string]string{"HEALTH_CHECK_AUTH_HEADER": "X: y", "HEALTH_CHECK_AUTH_HOSTS": "z"},
			check(func(c health.Config) any { return c.Auth.Hosts }), []string{"a", "b:1"}},
		{"health-check-ca-file", "HEALTH_CHECK_CA_FILE", cas, nil, check(func(c health.Config) any { return c.TLS != nil && c.TLS.RootCAs != nil }), true},
		{"health-check-rise", "HEALTH_CHECK_RISE", "2", nil, check(func(c health.Config) any { return c.Rise }), 2},
		{"health-check-fall", "HEALTH_CHECK_FALL", "3", nil, check(func(c health.Config) any { return c.Fall }), 3},
		{"min-live", "ROLLCALL_MIN_LIVE", "relayer=1,signer=2", nil, func(c *commands) any { return c.Coordinator.directorConfig().MinLive }, map[string]int{"relayer": 1, "signer": 2}},
		{"mass-failure-threshold", "ROLLCALL_MASS_FAILURE_THRESHOLD", "0.5", nil, func(c *commands) any { return c.Coordinator.directorConfig().MassFailureThreshold }, 0.5},
		{"mass-failure-hold", "ROLLCALL_MASS_FAILURE_HOLD", "30s", nil, func(c *commands) any { return c.Coordinator.directorConfig().MassFailureHold }, 30 * time.Second},
		{"redis-url", "REDIS_URL", "rediss://r:1/2", nil, redisURL, "rediss://r:1/2"},
		{"redis-url-file", "REDIS_URL_FILE", url, nil, redisURL, "redis://:pw@r:1"},
		{"redis-host", "REDIS_HOST", "r", nil, func(c *commands) any { return c.Coordinator.Redis.Options().Host }, "r"},
		{"redis-port", "REDIS_PORT", "6380", nil, func(c *commands) any { return c.Coordinator.Redis.Options().Port }, 6380},
		{"redis-username", "REDIS_USERNAME", "u", nil, func(c *commands) any { return c.Coordinator.Redis.Options().Username }, "u"},
		{"redis-password", "REDIS_PASSWORD", "pw", nil, func(c *commands) any { return c.Coordinator.Redis.Options().Password }, "pw"},
		{"redis-password-file", "REDIS_PASSWORD_FILE", secret, nil, func(c *commands) any { return c.Coordinator.Redis.Options().Password }, "hunter2"},
		{"redis-ca-file", "REDIS_CA_FILE", cas, map[string]string{"REDIS_URL": "rediss://r"}, func(c *commands) any { return c.Coordinator.Redis.Options().CAs != nil }, true},
		{"redis-key-prefix", "REDIS_KEY_PREFIX", "{r}:", nil, func(c *commands) any { return c.Coordinator.directorConfig().Mirror.Prefix }, "{r}:"},
		{"log-level", "ROLLCALL_LOG_LEVEL", "debug", nil, logged(func(c *commands) *process.LogFlags { return &c.Coordinator.Log }), "json debug"},
		{"log-format", "ROLLCALL_LOG_FORMAT", "text", nil, logged(func(c *commands) *process.LogFlags { return &c.Coordinator.Log }), "text info"},
	}...))
}

// tlsSettings are those of a party's certificate.
func tlsSettings(t *testing.T, flags func(*commands) *cli.TLSFlags) []setting {
	t.Helper()
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	succeed(t, "tls", "init", "--dir", dir)
	require.NoError(t, os.CopyFS(other, os.DirFS(dir)))
	all := map[string]string{
		"ROLLCALL_TLS_CERT": filepath.Join(dir, "operator.crt"), "ROLLCALL_TLS_KEY": filepath.Join(dir, "operator.key"),
		"ROLLCALL_TLS_CA": filepath.Join(dir, "ca.crt"),
	}
	cert, key, ca := filepath.Join(other, "operator.crt"), filepath.Join(other, "operator.key"), filepath.Join(other, "ca.crt")
	return []setting{
		{"tls-cert", "ROLLCALL_TLS_CERT", cert, all, func(c *commands) any { return flags(c).Cert }, cert},
		{"tls-key", "ROLLCALL_TLS_KEY", key, all, func(c *commands) any { return flags(c).Key }, key},
		{"tls-ca", "ROLLCALL_TLS_CA", ca, all, func(c *commands) any { return flags(c).CA }, ca},
	}
}

// caFile holds the certificate of a CA.
func caFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	succeed(t, "tls", "init", "--dir", dir)
	return filepath.Join(dir, "ca.crt")
}

// logged tells from what comes out how a command logs.
func logged(flags func(*commands) *process.LogFlags) func(*commands) any {
	return func(c *commands) any {
		var out bytes.Buffer
		log, _ := flags(c).Logger(&out)
		log.Debug("x")
		level := "info"
		if out.Len() > 0 {
			level = "debug"
		}
		log.Info("x")
		if bytes.HasPrefix(out.Bytes(), []byte("{")) {
			return "json " + level
		}
		return "text " + level
	}
}

func TestCoordinatorSettings_NoneGiven_HaveDefaults(t *testing.T) {
	t.Parallel()
	c, err := parseCommand(t, coordinatorBase, "coordinator")
	require.NoError(t, err)
	require.Equal(t, coordinator.Config{
		ID: "a", Listen: ":7400", HTTPAddress: "a:3001", Peers: threePeers, DataDir: "data", Timing: coordinator.LAN,
		RelayerCount: 3, RelayerURLTemplate: "http://oz-relayer-{N}:3000", Version: process.Version(),
	}, c.Coordinator.config())
	d := c.Coordinator.directorConfig()
	require.Equal(t, health.Config{
		Interval: 10 * time.Second, Timeout: 500 * time.Millisecond, ConnectTimeout: 200 * time.Millisecond,
		Path: "/health", Codes: health.Codes{200}, Rise: 1, Fall: 1,
	}, d.Health)
	require.Empty(t, d.MinLive)
	require.Zero(t, d.MassFailureThreshold)
	require.Equal(t, "redis://localhost:6379", c.Coordinator.Redis.Options().String())
}

func TestCoordinatorSettings_InvalidValues_AreReported(t *testing.T) {
	t.Parallel()
	empty := writeFile(t, "empty", "\n")
	certs := filepath.Dir(caFile(t))
	tlsEnv := func(cert, key, ca string) map[string]string {
		return map[string]string{"ROLLCALL_TLS_CERT": cert, "ROLLCALL_TLS_KEY": key, "ROLLCALL_TLS_CA": ca}
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"ROLLCALL_NODE_ID": ""}, "--node-id: is empty"},
		{map[string]string{"ROLLCALL_NODE_ID": "A B"}, `ROLLCALL_NODE_ID in the environment: "A B" is not a DNS label`},
		{map[string]string{"ROLLCALL_NODE_ID": "z"}, `ROLLCALL_PEERS in the environment: this node, "z", is not among them; add it, or give its address with --advertise`},
		{map[string]string{"ROLLCALL_PEERS": ""}, "--peers: is missing; give all coordinators as id=host:port"},
		{map[string]string{"ROLLCALL_PEERS": "a=a:7400,b=b:7400"}, "there are 2; name three or five"},
		{map[string]string{"ROLLCALL_PEERS": "a=a:7400,b,c=c:7400"}, `"b" is not id=host:port`},
		{map[string]string{"ROLLCALL_PEERS": "a=a:7400,b=b:0,c=c:7400"}, `"b=b:0" is not id=host:port`},
		{map[string]string{"ROLLCALL_PEERS": "a=a:7400,a=b:7400,c=c:7400"}, `"a=b:7400" is named twice`},
		{map[string]string{"ROLLCALL_LISTEN": "7400"}, `"7400" is not an address to listen at; give one such as :7400`},
		{map[string]string{"ROLLCALL_HTTP_LISTEN": ":http"}, `":http" is not an address to listen at`},
		{map[string]string{"ROLLCALL_ADVERTISE": ":7400"}, `":7400" is not host:port`},
		{map[string]string{"ROLLCALL_ADVERTISE_CLIENT": "x"}, `"x" is not host:port`},
		{map[string]string{"ROLLCALL_RAFT_TIMING": "moon"}, `"moon" is not one of lan, wan`},
		{map[string]string{"ROLLCALL_TLS_CERT": "x"}, "--tls-key: is missing; give certificate, key and CA, or none"},
		{tlsEnv("x", "x", "x"), "ROLLCALL_TLS_CERT in the environment: load certificate x with key x: open x: no such file or directory"},
		{tlsEnv("x", "x", "x"), "ROLLCALL_TLS_CA in the environment: open x: no such file or directory"},
		{tlsEnv(certs+"/gateway.crt", certs+"/operator.key", certs+"/ca.crt"), "private key does not match public key"},
		{tlsEnv(certs+"/gateway.crt", certs+"/gateway.key", empty), "ROLLCALL_TLS_CA in the environment: " + empty + " holds no certificates"},
		{map[string]string{"RELAYER_COUNT": "11"}, `RELAYER_COUNT in the environment: "11" is above 10; allowed: 0 to 10`},
		{map[string]string{"RELAYER_COUNT": "three"}, `"three" is not a whole number; allowed: 0 to 10`},
		{map[string]string{"RELAYER_URL_TEMPLATE": "http://relayer"}, "is the same URL for all 3 relayers; put {N}"},
		{map[string]string{"RELAYER_URL_TEMPLATE": "ftp://relayer-{N}"}, `has the scheme "ftp"`},
		{map[string]string{"RELAYER_URL_TEMPLATE": "http://relayer-{N}?x=1"}, "has a query, which a relayer's URL must not have"},
		{map[string]string{"RELAYER_URL_TEMPLATE": "http://relayer:6553{N}", "RELAYER_COUNT": "8"}, "has the port 65536; ports are 1 to 65535"},
		{map[string]string{"HEALTH_CHECK_INTERVAL_MS": "999"}, `"999" is below 1000; allowed: 1000 to 60000`},
		{map[string]string{"HEALTH_CHECK_INTERVAL_MS": "60001"}, `"60001" is above 60000`},
		{map[string]string{"HEALTH_CHECK_TIMEOUT_MS": "10000"}, "10000 is not less than the interval of 10000 ms"},
		{map[string]string{"HEALTH_CHECK_CONNECT_TIMEOUT_MS": "501"}, "501 is more than the timeout of 500 ms"},
		{map[string]string{"HEALTH_CHECK_PATH": "health"}, `"health" is not a path`},
		{map[string]string{"HEALTH_CHECK_PATH": "//health"}, `HEALTH_CHECK_PATH in the environment: "//health" is not a path`},
		{map[string]string{"HEALTH_CHECK_PATH": "/%zz"}, `"/%zz" is not a path`},
		{map[string]string{"HEALTH_CHECK_PATH": "/a b"}, `"/a b" is not a path`},
		{map[string]string{"HEALTH_CHECK_PATH": "/a#"}, `"/a#" is not a path`},
		{map[string]string{"HEALTH_CHECK_EXPECTED_CODES": "99"}, `"99" is not a list of HTTP status codes`},
		{map[string]string{"HEALTH_CHECK_AUTH_HEADER": "hunter2", "HEALTH_CHECK_AUTH_HOSTS": "x"}, "HEALTH_CHECK_AUTH_HEADER in the environment: is not an HTTP header; write it as Name: value"},
		{map[string]string{"HEALTH_CHECK_AUTH_HEADER": "A: hunter2"}, "--health-check-auth-hosts: is missing"},
		{map[string]string{"HEALTH_CHECK_AUTH_HEADER": "A: hunter2", "HEALTH_CHECK_AUTH_HOSTS": "["}, `"[" is not a pattern`},
		{map[string]string{"HEALTH_CHECK_AUTH_HOSTS": "x"}, "hosts for a header, but no header"},
		{map[string]string{"HEALTH_CHECK_AUTH_HEADER_FILE": "/nowhere/x", "HEALTH_CHECK_AUTH_HOSTS": "x"}, "open /nowhere/x: no such file or directory"},
		{map[string]string{"HEALTH_CHECK_CA_FILE": "/nowhere/x"}, "HEALTH_CHECK_CA_FILE in the environment: open /nowhere/x: no such file or directory"},
		{map[string]string{"HEALTH_CHECK_CA_FILE": empty}, "holds no certificates; give them in PEM"},
		{map[string]string{"REDIS_CA_FILE": empty, "REDIS_URL": "rediss://r"}, "REDIS_CA_FILE in the environment: " + empty + " holds no certificates"},
		{map[string]string{"REDIS_CA_FILE": caFile(t), "REDIS_URL": "redis://r"}, "goes with a Redis that speaks TLS; give REDIS_URL as rediss://"},
		{map[string]string{"REDIS_CA_FILE": caFile(t)}, "goes with a Redis that speaks TLS"},
		{map[string]string{"HEALTH_CHECK_RISE": "0"}, `"0" is below 1`},
		{map[string]string{"HEALTH_CHECK_FALL": "11"}, `"11" is above 10`},
		{map[string]string{"ROLLCALL_MIN_LIVE": "relayer"}, `"relayer" is not valid`},
		{map[string]string{"ROLLCALL_MIN_LIVE": "Relayer=1"}, "Relayer=1 is not a kind and a number"},
		{map[string]string{"ROLLCALL_MASS_FAILURE_THRESHOLD": "1.1"}, `"1.1" is above 1`},
		{map[string]string{"ROLLCALL_MASS_FAILURE_HOLD": "10"}, `"10" is not a duration such as "500ms" or "10s"`},
		{map[string]string{"REDIS_URL": "http://user:hunter2@r"}, "REDIS_URL in the environment: redis URL: the scheme must be"},
		{map[string]string{"REDIS_URL": "redis://r", "REDIS_HOST": "r"}, "REDIS_HOST in the environment: contradicts REDIS_URL in the environment"},
		{map[string]string{"REDIS_URL": "redis://r", "REDIS_PORT": "1"}, "REDIS_PORT in the environment: contradicts REDIS_URL"},
		{map[string]string{"REDIS_URL": "redis://r", "REDIS_URL_FILE": "x"}, "REDIS_URL_FILE in the environment: contradicts REDIS_URL"},
		{map[string]string{"REDIS_URL": "redis+cluster://r"}, "--redis-key-prefix: is empty; give one with a {hash tag}, such as {rollcall}:, so that all keys stand in one slot of the Redis Cluster"},
		{map[string]string{"REDIS_URL": "rediss+cluster://r", "REDIS_KEY_PREFIX": "r{}{x}:"}, `REDIS_KEY_PREFIX in the environment: "r{}{x}:" has no hash tag`},
		{map[string]string{"REDIS_URL": "rediss+cluster://r", "REDIS_KEY_PREFIX": "}r{:"}, `"}r{:" has no hash tag`},
		{map[string]string{"REDIS_PORT": "0"}, `"0" is not valid: a port is 1 to 65535`},
		{map[string]string{"REDIS_PASSWORD": "hunter2", "REDIS_PASSWORD_FILE": empty}, "REDIS_PASSWORD_FILE in the environment: contradicts REDIS_PASSWORD"},
		{map[string]string{"REDIS_PASSWORD_FILE": empty}, "is empty"},
		{map[string]string{"ROLLCALL_LOG_LEVEL": "loud"}, `"loud" is not one of debug, info, warn, error`},
		{map[string]string{"ROLLCALL_LOG_FORMAT": "xml"}, `"xml" is not one of json, text`},
	} {
		env := map[string]string{}
		maps.Copy(env, coordinatorBase)
		maps.Copy(env, c.env)
		_, err := parseCommand(t, env, "coordinator")
		require.ErrorContains(t, err, c.want, c.env)
		require.NotContains(t, err.Error(), "hunter2", "a secret shows")
		require.IsType(t, new(config.Error), err)
	}
}

// A timeout below the usual connect timeout needs no second setting.
func TestCoordinatorSettings_ShortTimeout_LimitsTheConnectTimeout(t *testing.T) {
	t.Parallel()
	env := map[string]string{"HEALTH_CHECK_TIMEOUT_MS": "100"}
	maps.Copy(env, coordinatorBase)
	c, err := parseCommand(t, env, "coordinator")
	require.NoError(t, err)
	require.Equal(t, 100*time.Millisecond, c.Coordinator.directorConfig().Health.ConnectTimeout)
}

func TestCoordinatorSettings_RedisClusterWithHashTag_IsAccepted(t *testing.T) {
	t.Parallel()
	env := map[string]string{"REDIS_URL": "redis+cluster://r", "REDIS_KEY_PREFIX": "my{tag}:"}
	maps.Copy(env, coordinatorBase)
	_, err := parseCommand(t, env, "coordinator")
	require.NoError(t, err)
}

// Kubernetes sets REDIS_PORT for a service called redis, and that must not keep us from starting.
func TestCoordinatorSettings_KubernetesServiceLink_IsNoPort(t *testing.T) {
	t.Parallel()
	env := map[string]string{"REDIS_PORT": "tcp://10.0.0.11:6379", "REDIS_URL": "redis://r:6379"}
	maps.Copy(env, coordinatorBase)
	c, err := parseCommand(t, env, "coordinator")
	require.NoError(t, err)
	require.Zero(t, c.Coordinator.Redis.Options().Port)
}

func TestRemoteSettings_FlagsAndVariables_AreRead(t *testing.T) {
	t.Parallel()
	remote := func(f func(cli.RemoteFlags) any) func(*commands) any {
		return func(c *commands) any { return f(c.Cluster.Status.RemoteFlags) }
	}
	checkSettings(t, []string{"cluster", "status"}, nil, append(tlsSettings(t, func(c *commands) *cli.TLSFlags { return &c.Cluster.Status.TLS }), []setting{
		{"coordinators", "ROLLCALL_COORDINATORS", "a:1,b:2", nil, remote(func(r cli.RemoteFlags) any { return r.Addresses() }), []string{"a:1", "b:2"}},
		{"timeout", "ROLLCALL_TIMEOUT", "3s", nil, remote(func(r cli.RemoteFlags) any { return r.Timeout }), 3 * time.Second},
		{"output", "", "json", nil, func(c *commands) any { return c.Cluster.Status.Output }, "json"},
	}...))
	require.Equal(t, []string{"127.0.0.1:7400"}, (&cli.RemoteFlags{}).Addresses(), "when no cluster runs in build/dev")
}

func TestGatewaySettings_FlagsAndVariables_AreRead(t *testing.T) {
	t.Parallel()
	gw := func(f func(gateway.Config) any) func(*commands) any {
		return func(c *commands) any { return f(c.Gateway.config()) }
	}
	check := func(f func(health.Config) any) func(*commands) any {
		return func(c *commands) any { return f(c.Gateway.Health.config()) }
	}
	source := func(f func(foreman.Config) any) func(*commands) any {
		return func(c *commands) any {
			cfg, err := c.Gateway.foremanConfig()
			require.NoError(t, err)
			return f(cfg)
		}
	}
	checkSettings(t, []string{"gateway"}, map[string]string{"ROLLCALL_GATEWAY_ID": "edge"}, append(tlsSettings(t, func(c *commands) *cli.TLSFlags { return &c.Gateway.TLS }), []setting{
		{"id", "ROLLCALL_GATEWAY_ID", "edge-2", nil, gw(func(c gateway.Config) any { return c.ID }), "edge-2"},
		{"coordinators", "ROLLCALL_COORDINATORS", "a:1,b:2", nil, gw(func(c gateway.Config) any { return c.Coordinators }), []string{"a:1", "b:2"}},
		{"ping-interval", "ROLLCALL_PING_INTERVAL", "1s", nil, gw(func(c gateway.Config) any { return c.PingInterval }), time.Second},
		{"discovery-interval", "ROLLCALL_DISCOVERY_INTERVAL", "20ms", nil, gw(func(c gateway.Config) any { return c.DiscoveryInterval }), 20 * time.Millisecond},
		{"ping-timeout", "ROLLCALL_PING_TIMEOUT", "100ms", nil, gw(func(c gateway.Config) any { return c.PingTimeout }), 100 * time.Millisecond},
		{"resync-interval", "ROLLCALL_RESYNC_INTERVAL", "30s", nil, gw(func(c gateway.Config) any { return c.ResyncInterval }), 30 * time.Second},
		{"definitions", "ROLLCALL_DEFINITIONS", "/d", nil, source(func(c foreman.Config) any { return c.Folder }), "/d"},
		{"missing-files-grace", "ROLLCALL_MISSING_FILES_GRACE", "2m", nil, source(func(c foreman.Config) any { return c.MissingFilesGrace }), 2 * time.Minute},
		{"missing-files-grace", "ROLLCALL_MISSING_FILES_GRACE", "0s", nil, source(func(c foreman.Config) any { return c.MissingFilesGrace < 0 }), true},
		{"startup-wait", "ROLLCALL_STARTUP_WAIT", "0s", nil, source(func(c foreman.Config) any { return c.StartupWait < 0 }), true},
		{"listen", "ROLLCALL_GATEWAY_LISTEN", "127.0.0.1:1", nil, func(c *commands) any { return c.Gateway.Listen }, "127.0.0.1:1"},
		{"state-dir", "ROLLCALL_GATEWAY_STATE_DIR", "/s", nil, source(func(c foreman.Config) any { return c.StateDir }), "/s"},
		{"host", "ROLLCALL_HOST", "host-1", nil, source(func(c foreman.Config) any { return c.Node }), "host-1"},
		{"allow-remote", "ROLLCALL_GATEWAY_ALLOW_REMOTE", "true", nil, func(c *commands) any { return c.Gateway.AllowRemote }, true},
		{"hosts", "ROLLCALL_GATEWAY_HOSTS", "a,b", nil, func(c *commands) any { return c.Gateway.Hosts }, []string{"a", "b"}},
		{"deregister-on-stop", "ROLLCALL_DEREGISTER_ON_STOP", "true", nil, gw(func(c gateway.Config) any { return c.DeregisterOnStop }), true},
		{"health-check-timeout-ms", "HEALTH_CHECK_TIMEOUT_MS", "700", nil, check(func(c health.Config) any { return c.Timeout }), 700 * time.Millisecond},
		{"health-check-connect-timeout-ms", "HEALTH_CHECK_CONNECT_TIMEOUT_MS", "100", nil, check(func(c health.Config) any { return c.ConnectTimeout }), 100 * time.Millisecond},
		{"health-check-path", "HEALTH_CHECK_PATH", "/x", nil, check(func(c health.Config) any { return c.Path }), "/x"},
		{"health-check-expected-codes", "HEALTH_CHECK_EXPECTED_CODES", "204", nil, check(func(c health.Config) any { return c.Codes }), health.Codes{204}},
		{"health-check-auth-header", "HEALTH_CHECK_AUTH_HEADER", "A: b", map[string]string{"HEALTH_CHECK_AUTH_HOSTS": "oz-*"},
			check(func(c health.Config) any { return c.Auth }), health.Auth{Header: "A", Value: "b", Hosts: []string{"oz-*"}}},
		{"health-check-auth-header-file", "HEALTH_CHECK_AUTH_HEADER_FILE", writeFile(t, "header", "X-Key: k\n"), map[string]string{"HEALTH_CHECK_AUTH_HOSTS": "oz-*"},
			check(func(c health.Config) any { return c.Auth }), health.Auth{Header: "X-Key", Value: "k", Hosts: []string{"oz-*"}}},
		{"health-check-auth-hosts", "HEALTH_CHECK_AUTH_HOSTS", "a", map[string]string{"HEALTH_CHECK_AUTH_HEADER": "X: y", "HEALTH_CHECK_AUTH_HOSTS": "z"},
			check(func(c health.Config) any { return c.Auth.Hosts }), []string{"a"}},
		{"health-check-ca-file", "HEALTH_CHECK_CA_FILE", caFile(t), nil, check(func(c health.Config) any { return c.TLS != nil && c.TLS.RootCAs != nil }), true},
		{"log-level", "ROLLCALL_LOG_LEVEL", "debug", nil, logged(func(c *commands) *process.LogFlags { return &c.Gateway.Log }), "json debug"},
		{"log-format", "ROLLCALL_LOG_FORMAT", "text", nil, logged(func(c *commands) *process.LogFlags { return &c.Gateway.Log }), "text info"},
	}...))
	for want, env := range map[string]map[string]string{
		"--id: is empty": {},
		`ROLLCALL_GATEWAY_ID in the environment: "a b" is not a DNS label`:                      {"ROLLCALL_GATEWAY_ID": "a b"},
		`ROLLCALL_COORDINATORS in the environment: "a" is not host:port`:                        {"ROLLCALL_COORDINATORS": "a"},
		`ROLLCALL_GATEWAY_LISTEN in the environment: "x" is not an address`:                     {"ROLLCALL_GATEWAY_LISTEN": "x"},
		`"0.0.0.0:7401" is not a loopback address; listen at 127.0.0.1, or give --allow-remote`: {"ROLLCALL_GATEWAY_LISTEN": "0.0.0.0:7401"},
		`"1h" is above 2m`: {"ROLLCALL_RESYNC_INTERVAL": "1h"},
		`HEALTH_CHECK_PATH in the environment: "//health" is not a path`: {"HEALTH_CHECK_PATH": "//health"},
		"ROLLCALL_HOST in the environment: has 254 bytes":                {"ROLLCALL_HOST": strings.Repeat("n", 254)},
	} {
		_, err := parseCommand(t, env, "gateway")
		require.ErrorContains(t, err, want)
	}
}
