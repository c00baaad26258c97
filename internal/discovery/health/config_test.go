package health

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfig_ZeroValue_HasDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := Config{}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, cfg.Interval)
	require.Equal(t, 500*time.Millisecond, cfg.Timeout)
	require.Equal(t, 200*time.Millisecond, cfg.ConnectTimeout)
	require.Equal(t, "/health", cfg.Path)
	require.Equal(t, Codes{200}, cfg.Codes)
	require.Equal(t, 1, cfg.Rise)
	require.Equal(t, 1, cfg.Fall)
	require.Positive(t, cfg.MaxInFlight)
	cfg, err = Config{Timeout: 100 * time.Millisecond}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, 100*time.Millisecond, cfg.ConnectTimeout, "connecting is part of the check")
}

func TestNew_InvalidConfig_NamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := New(Config{
		Interval: 999 * time.Millisecond, Timeout: time.Second, ConnectTimeout: 2 * time.Second, Path: "health",
		Codes: Codes{200, 700}, Rise: 11, Fall: -1, MaxInFlight: -1,
		Auth: Auth{Header: "X Y", Value: "a\nb", Hosts: []string{"[", "", "a.[b"}},
	})
	require.Error(t, err)
	for _, part := range []string{
		"interval 999ms", "health check timeout 1s", "connect timeout 2s", `path "health"`, "code 700", "rise 11", "fall -1",
		"in flight -1", `name "X Y"`, "value is empty or", `host "["`, `host ""`, `host "a.[b"`,
	} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "a\nb")
	_, err = New(Config{Auth: Auth{Header: "Authorization", Value: "Bearer x"}})
	require.ErrorContains(t, err, "needs the hosts")
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		_, err = New(Config{Interval: interval})
		require.NoError(t, err)
	}
	_, err = New(Config{Interval: time.Minute + 1})
	require.Error(t, err)
}

func TestCodes_UnmarshalText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Codes{
		"200":             {200},
		"200,204":         {200, 204},
		"200, 401":        {200, 401},
		"200-202,401-401": {200, 201, 202, 401},
	} {
		var got Codes
		require.NoError(t, got.UnmarshalText([]byte(in)), in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "x", "200-", "-200", "204-200", "199", "600", "200-600", "200,,204", "1-2-3"} {
		var got Codes
		require.Error(t, got.UnmarshalText([]byte(in)), in)
		require.Empty(t, got)
	}
}

func TestAuth_Printed_HidesItsValue(t *testing.T) {
	t.Parallel()
	cfg := Config{Auth: Auth{Header: "Authorization", Value: "s3cret", Hosts: []string{"a"}}}
	var out bytes.Buffer
	for _, a := range []any{cfg, &cfg, cfg.Auth, &cfg.Auth} {
		_, _ = fmt.Fprintf(&out, "%v %+v %#v %s\n", a, a, a, a)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("start", "config", cfg.Auth)
	}
	text, err := json.Marshal(cfg.Auth)
	require.NoError(t, err)
	out.Write(text)
	require.NotContains(t, out.String(), "s3cret")
	require.Contains(t, out.String(), "Authorization")
}

func TestAuth_HostPatterns_AllowOnlyMatches(t *testing.T) {
	t.Parallel()
	auth := Auth{Header: "X-Key", Value: "x", Hosts: []string{"relayer.example", "oz-relayer-*", "10.0.0.1:3000"}}
	for raw, want := range map[string]bool{
		"http://relayer.example":             true,
		"http://relayer.example:8080/base":   true,
		"https://oz-relayer-17:3000":         true,
		"http://10.0.0.1:3000":               true,
		"http://10.0.0.1:3001":               false,
		"http://evil.example":                false,
		"http://relayer.example.evil.com":    false,
		"http://not-oz-relayer-1":            false,
		"http://evil.com/relayer.example":    false,
		"http://relayer.example@evil.com":    false,
		"http://evil.com?relayer.example":    false,
		"http://xrelayer.example":            false,
		"http://evil.com#http://oz-relayer-": false,
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		require.Equal(t, want, auth.allows(u), raw)
	}
	require.False(t, Auth{Hosts: []string{"*"}}.allows(&url.URL{Host: "a"}))
}
