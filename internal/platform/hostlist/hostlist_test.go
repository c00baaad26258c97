package hostlist

import (
	"context"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every gateway may register a target at a host of its own, which must not get the secret.
func TestMatches_Wildcard_MatchesWithinOneLabel(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, url string
		want         bool
	}{
		{"oz-relayer-*", "http://oz-relayer-1:3000", true},
		{"oz-relayer-*", "http://oz-relayer-1.evil.example", false},
		{"oz-relayer-*", "http://oz-relayer-1.evil.example:3000", false},
		{"oz-relayer-*", "http://oz-relayer-1.", false},
		{"oz-relayer-[^x]*", "http://oz-relayer-.evil", false},
		{"oz-relayer-?evil", "http://oz-relayer-.evil", false},
		{"oz-relayer-*", "http://oz-relayer-1\u3002evil\u3002example", false}, // IDNA makes dots of them
		{"oz-relayer-*", "http://oz-relayer-_\u3002evil\u3002example", false}, // a name that IDNA does not convert
		{"oz-*", "http://[fe80::1%25oz-1]:3000", false},
		{"*", "http://relayer", true},
		{"*", "http://evil.example", false},
		{"*", "http://[2001:db8::1]", false},
		{"*.relayers.example", "http://a.relayers.example:1", true},
		{"*.relayers.example", "http://a.b.relayers.example", false},
		{"*.relayers.example", "http://relayers.example", false},
		{"relayer-*:3000", "http://relayer-1:3000", true},
		{"relayer-*:3000", "http://relayer-1:3001", false},
		{"relayer-*:3000", "http://relayer-1.evil.example:3000", false},
		{"relayer.*", "http://relayer:3000", false},
		{"10.0.0.*", "http://10.0.0.7:3000", true},
		{"10.0.0.*", "http://10.0.0.example:3000", false},
		{"10.0.*.*:3000", "http://10.0.evil.example:3000", false},
		{"*", "http://134744072", false}, // some resolvers read 8.8.8.8
		{"*", "http://0x08080808:3000", false},
		{"*.*.*", "http://8.8.0x808", false},
		{"*.*.*", "http://8.8.2056.", false},
		{"134744072", "http://134744072", true},
		{"relayer-*", "http://relayer-0x1", true},
		{"[::1]:3000", "http://[::1]:3000", true},
		{"::1", "http://[::1]:3000", true},
		{"OZ-relayer-*", "http://oz-Relayer-1", true},
		{"b\u00fccher.example", "http://b\u00fccher.example", true},
		{"xn--*.example", "http://b\u00fccher.example", true},
	} {
		u, err := url.Parse(test.url)
		require.NoError(t, err)
		require.NoError(t, CheckPattern(test.pattern))
		require.Equal(t, test.want, Matches([]string{test.pattern}, u), "%s %s", test.pattern, test.url)
	}
}

func TestParse_Entries_AreNetworksAndPatterns(t *testing.T) {
	t.Parallel()
	l, err := Parse([]string{"10.0.0.0/8", "192.0.2.7", "[2001:db8::1]", "oz-relayer-*", "relayer:3000"})
	require.NoError(t, err)
	for address, want := range map[string]bool{
		"10.255.0.1:3000": true, "11.0.0.1:3000": false, "192.0.2.7:1": true, "192.0.2.8:1": false, "[::ffff:10.1.2.3]:1": true,
		"[2001:db8::1]:443": true, "[2001:db8::2]:443": false, "[fe80::1%eth0]:1": false, "oz-relayer-1:3000": false,
	} {
		require.Equal(t, want, l.contains(address), address)
	}
	require.Equal(t, []string{"oz-relayer-*", "relayer:3000"}, l.patterns)
	for _, invalid := range []string{"10.0.0.0/33", "10.0.0.1/8", "a/8", "[", ""} {
		_, err := Parse([]string{invalid})
		require.ErrorContains(t, err, invalid)
	}
}

// A name that no pattern has is judged by each address that it resolves to, before a packet is sent there.
func TestDial_HostOutside_IsRefusedBeforeTheConnection(t *testing.T) {
	t.Parallel()
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	_, port, err := net.SplitHostPort(server.Addr().String())
	require.NoError(t, err)
	dial := func(host string, entries ...string) error {
		l, err := Parse(entries)
		require.NoError(t, err)
		c, err := l.Dial(context.WithoutCancel(t.Context()), "tcp4", net.JoinHostPort(host, port))
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	require.NoError(t, dial("127.0.0.1", "127.0.0.0/8"))
	require.NoError(t, dial("localhost", "127.0.0.0/8"), "a name of an allowed network")
	require.NoError(t, dial("localhost", "local*"), "an allowed name, whatever its address")
	require.ErrorIs(t, dial("127.0.0.1", "10.0.0.0/8", "*"), ErrRefused)
	require.ErrorIs(t, dial("localhost", "10.0.0.0/8", "relayer"), ErrRefused)
	require.ErrorIs(t, dial("localhost"), ErrRefused)
}
