package upstream_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
)

// onNetwork returns a submission for a relayer with a network and no scope.
func onNetwork(network string) upstream.Submission {
	s := submission()
	s.Network = network
	return s
}

func TestSubmit_RelayerMovedToAnotherNetwork_GetsNothing(t *testing.T) {
	t.Parallel()
	r := upstreamtest.Start(t, upstreamtest.Options{Network: "sepolia"})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	require.Equal(t, upstream.Accepted, client.Submit(t.Context(), onNetwork("sepolia")).Outcome)
	for name, change := range map[string]func(){
		"another network": func() { r.Move("mainnet", 1) },
		"a scope":         func() { r.Move("sepolia", 1337); r.Rescope("scope") },
		"another id":      func() { r.Move("sepolia", 1337); r.Rescope(""); r.Rename("relayer-2") },
	} {
		change()
		result := client.Submit(t.Context(), onNetwork("sepolia"))
		require.Equal(t, upstream.NotDone, result.Outcome, name)
		require.True(t, result.Stale, name)
		require.True(t, result.Fault, name)
		r.Rescope("")
		r.Rename("relayer-1")
	}
	require.Len(t, r.Transactions(), 1)
}

// Another connection may lead to another process, with another network.
func TestSubmit_ConnectionEndsAfterTheNetworkWasRead_IsNotSent(t *testing.T) {
	t.Parallel()
	s := serve(t, respond("200 OK", `{"success":true,"data":{"id":"relayer-1","network":"sepolia","network_type":"evm"},"error":null}`))
	result := open(t, s.url).Submit(t.Context(), onNetwork("sepolia"))
	require.Equal(t, upstream.NotDone, result.Outcome)
	require.Contains(t, result.Reason, "has ended: if that repeats, let the proxy before it keep connections open")
	require.Equal(t, 1, s.count())
	require.Equal(t, http.MethodGet, s.requests[0].Method)
}

func TestSubmit_NetworkUnreadable_IsNotSent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault       upstreamtest.Fault
		code        int
		faulty, bsy bool
	}{
		"limited": {upstreamtest.Respond(429, `{"success":false,"error":"TooManyRequests"}`), 429, false, true},
		"fails":   {upstreamtest.Respond(500, `{"success":false,"error":"x"}`), 500, true, false},
		"drops":   {upstreamtest.Drop, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, upstreamtest.Options{})
			r.Fail(upstreamtest.Find, c.fault)
			result := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key }).Submit(t.Context(), onNetwork("dev"))
			require.Equal(t, []any{upstream.NotDone, c.code, c.faulty, c.bsy}, []any{result.Outcome, result.Code, result.Fault, result.Busy})
			require.False(t, result.Stale)
			require.Empty(t, r.Transactions())
		})
	}
}

func TestChain_Responses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status, body string
		want         uint64
	}{
		"JSON-RPC":         {"200 OK", `{"jsonrpc":"2.0","id":1,"result":"0xaa36a7","error":null}`, 11155111},
		"in an envelope":   {"200 OK", `{"success":true,"data":{"jsonrpc":"2.0","id":1,"result":"0x1"},"error":null}`, 1},
		"an error":         {"200 OK", `{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-32601,"message":"no such method"}}`, 0},
		"zero":             {"200 OK", `{"jsonrpc":"2.0","id":1,"result":"0x0"}`, 0},
		"above an integer": {"200 OK", `{"jsonrpc":"2.0","id":1,"result":"0xffffffffffffffff"}`, 0},
		"paused":           {"403 Forbidden", refusedBody, 0},
		"a page":           {"200 OK", page, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := open(t, serve(t, respond(c.status, c.body)).url).Chain(t.Context(), upstream.Info{RelayerID: "relayer-1"})
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == 0, err != nil, "%v", err)
		})
	}
}

// The operator's statement about a network counts only for a relayer that cannot tell.
func TestChain_NodeIsNotServed_IsTheConfiguredOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status, network string
		want            uint64
	}{
		"not served":       {"404 Not Found", "sepolia", 11155111},
		"not implemented":  {"501 Not Implemented", "sepolia", 11155111},
		"without the name": {"404 Not Found", "", 0},
		"limited":          {"429 Too Many Requests", "sepolia", 0},
		"fails":            {"502 Bad Gateway", "sepolia", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := open(t, serve(t, respond(c.status, refusedBody)).url, func(cfg *upstream.Config) { cfg.Network, cfg.ChainID = c.network, 11155111 })
			got, err := client.Chain(t.Context(), upstream.Info{RelayerID: "relayer-1"})
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == 0, err != nil, "%v", err)
		})
	}
	r := upstreamtest.Start(t, upstreamtest.Options{ChainID: 1, Network: "sepolia"})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key, c.Network, c.ChainID = upstreamtest.Key, "sepolia", 11155111 })
	got, err := client.Chain(t.Context(), upstream.Info{RelayerID: "relayer-1"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), got, "its node tells another one")
}

// A name such as evm:1 is a statement about the chain only by this project's relayer.
func TestDiscover_NetworkOfAnotherProject_TellsNoChain(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]uint64{"": 0, "scope": 10} {
		r := upstreamtest.Start(t, upstreamtest.Options{Scope: scope, Network: "evm:10"})
		info, err := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key }).Discover(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, info.ChainID)
	}
}

func TestCalls_HostIsNotAllowed_GetsNoRequest(t *testing.T) {
	t.Parallel()
	r := upstreamtest.Start(t, upstreamtest.Options{})
	hosts, err := hostlist.Parse([]string{"10.0.0.0/8"})
	require.NoError(t, err)
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key, c.Dial = upstreamtest.Key, hosts.Dial })
	_, err = client.Discover(t.Context())
	require.ErrorIs(t, err, upstream.ErrOtherHost)
	_, err = client.Chain(t.Context(), upstream.Info{RelayerID: "relayer-1"})
	require.ErrorIs(t, err, upstream.ErrOtherHost)
	require.Equal(t, upstream.NotDone, client.Submit(t.Context(), submission()).Outcome)
	result := client.Submit(t.Context(), onNetwork("dev"))
	require.Equal(t, upstream.NotDone, result.Outcome)
	require.True(t, result.Stale)
	require.Zero(t, r.Calls(upstreamtest.Find)+r.Calls(upstreamtest.RPC)+r.Calls(upstreamtest.Submit))
}
