package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// relayers starts a Redis that lists a relayer of a chain.
func relayers(t *testing.T, o upstreamtest.Options) (redisURL string, r *upstreamtest.Relayer) {
	t.Helper()
	redis := testredis.Start(t)
	o.Key = relayerKey
	r = upstreamtest.Start(t, o)
	require.NoError(t, redis.Client().HSet(t.Context(), "relayer:status:0", "url", r.URL()).Err())
	require.NoError(t, redis.Client().SAdd(t.Context(), "relayer:active", "oz-relayer-0").Err())
	return redis.URL(), r
}

// The first process that has a chain gives it to the database. A process of another one does not start.
func TestRelayRoles_DatabaseOfAnotherChain_DoNotStart(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	consumer := func(redisURL string, more ...string) *background {
		return start(t, append([]string{"consumer", "--listen", "127.0.0.1:0", "--database-url", db.URL(), "--relayer-key", relayerKey, "--redis-url", redisURL}, more...)...)
	}
	api := func(more ...string) *background {
		return start(t, append([]string{"api", "--listen", "127.0.0.1:0", "--database-url", db.URL(), "--api-keys", "shop:" + clientKey, "--webhook-secret", inboundSecret}, more...)...)
	}
	first, _ := relayers(t, upstreamtest.Options{ChainID: 11155111, Network: "sepolia"})
	running := consumer(first)
	require.Eventually(t, func() bool {
		chain, err := store.New(db.Pool(t), store.Config{Enqueue: func(string) string { return "" }}).Chain(t.Context())
		return err == nil && chain == 11155111
	}, 2*time.Minute, 20*time.Millisecond, "%s", &running.log)

	other, _ := relayers(t, upstreamtest.Options{ChainID: 1, Scope: "scope"})
	b := consumer(other)
	<-b.done
	require.Contains(t, b.log.String(), "consumer failed")
	require.Contains(t, b.log.String(), "relayer oz-relayer-0: another chain: the transactions of this database are for chain 11155111, and the relayer has chain 1: give its consumers another database and queue")
	b = consumer(first, "--chain-id", "1")
	<-b.done
	require.Contains(t, b.log.String(), "the transactions of this database are for chain 11155111, and CONSUMER_CHAIN_ID is 1: correct it")
	b = api("--chain-id", "1")
	<-b.done
	require.Contains(t, b.log.String(), "the transactions of this database are for chain 11155111, and API_CHAIN_ID or RELAYER_CHAIN_ID is 1: correct it, or use the database of that chain")
	for _, fits := range []*background{api(), api("--chain-id", "11155111")} {
		require.Eventually(t, func() bool { return strings.Contains(fits.log.String(), "API started") }, 2*time.Minute, 20*time.Millisecond, "%s", &fits.log)
		require.Zero(t, fits.stop())
	}
	require.Zero(t, running.stop())
}

func TestConsumer_HostIsNotAllowed_SaysWhichRelayerIsRefused(t *testing.T) {
	t.Parallel()
	redisURL, r := relayers(t, upstreamtest.Options{})
	listen := freeAddress(t)
	b := start(t, "consumer", "--listen", listen, "--database-url", testpostgres.New(t).URL(), "--relayer-key", relayerKey, "--redis-url", redisURL,
		"--relayer-hosts", "oz-relayer-*,10.0.0.0/8")
	const refused = `1 relayers in Redis are refused: \"oz-relayer-0\" (its host is not in CONSUMER_RELAYER_HOSTS)`
	require.Eventually(t, func() bool {
		code, body := fetch(t, "http://"+listen+"/health")
		return code == http.StatusOK && strings.Contains(body, refused)
	}, 2*time.Minute, 20*time.Millisecond, "%s", &b.log)
	_, metrics := fetch(t, "http://"+listen+"/metrics")
	require.Contains(t, metrics, `rollcall_relay_relayer_refused{cause="host",service="oz-relayer-0"} 1`)
	require.Contains(t, b.log.String(), "relayer not usable")
	require.Zero(t, r.Calls(upstreamtest.Find)+r.Calls(upstreamtest.RPC)+r.Calls(upstreamtest.Status))
	require.Zero(t, b.stop())
}

// Without the setting, the hosts are those of the template, private networks and loopback.
func TestRelayersFlags_Hosts_Default(t *testing.T) {
	for template, hosts := range map[string][]string{
		"http://oz-relayer-{N}:3000":         {"oz-relayer-*"},
		"https://{id}.relayers.example/base": {"*.relayers.example"},
		"http://10.0.0.1:300{N}":             {"10.0.0.1"},
		"http://[fd00::1]:300{N}":            {"[fd00::1]"},
		"http://[fd00::{N}]:3000":            nil,
		"":                                   nil,
	} {
		require.Equal(t, hosts, templateHosts(template))
	}
	for _, template := range []string{"http://oz-relayer-{N}:3000", "http://[::1]:300{N}", "http://[fd00::{N}]:1", "http://127.0.0.1:300{N}", ""} {
		_, err := parseCommand(t, relayRole("consumer", map[string]string{"RELAYER_URL_TEMPLATE": template}), "consumer")
		require.NoError(t, err)
	}
}
