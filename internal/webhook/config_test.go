package webhook

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfig_Invalid_NamesProblem(t *testing.T) {
	t.Parallel()
	base := func(change func(*Config)) Config {
		c := Config{Targets: []Target{{Name: "here", URL: "https://example.com/token-of-the-path", SigningKeys: []string{secret}}}}
		change(&c)
		return c
	}
	url := func(u string) func(*Config) { return func(c *Config) { c.Targets[0].URL = u } }
	private := func(u string) func(*Config) { return func(c *Config) { c.Targets[0].URL, c.AllowPrivate = u, true } }
	for name, test := range map[string]struct {
		change func(*Config)
		want   string // "" for none
	}{
		"defaults":                   {func(*Config) {}, ""},
		"no targets":                 {func(c *Config) { c.Targets = nil }, ""},
		"two keys":                   {func(c *Config) { c.Targets[0].SigningKeys = []string{secret, secret + "2"} }, ""},
		"private":                    {private("http://127.0.0.1:8080/x"), ""},
		"private v6":                 {private("https://[::1]/x"), ""},
		"timeout too short":          {func(c *Config) { c.Timeout = time.Millisecond }, "webhook timeout 1ms"},
		"timeout too long":           {func(c *Config) { c.Timeout = time.Hour }, "webhook timeout 1h"},
		"concurrency":                {func(c *Config) { c.Concurrency = -1 }, "webhook concurrency -1"},
		"retried for too long":       {func(c *Config) { c.RetryFor = 1000 * time.Hour }, "not for 1000h"},
		"backoff beyond the retries": {func(c *Config) { c.MaxBackoff, c.RetryFor = time.Hour, time.Minute }, "webhook backoff 1h"},
		"kept for too long":          {func(c *Config) { c.Retention = 100_000 * time.Hour }, "not for 100000h"},
		"kept for less than nothing": {func(c *Config) { c.Retention = -time.Hour }, "not for -1h"},
		"none kept":                  {func(c *Config) { c.Retention = KeepNone }, ""},
		"no name":                    {func(c *Config) { c.Targets[0].Name = "" }, "a name has 1 to 64"},
		"name in capitals":           {func(c *Config) { c.Targets[0].Name = "Here" }, "a name has 1 to 64"},
		"name too long":              {func(c *Config) { c.Targets[0].Name = strings.Repeat("x", 65) }, "a name has 1 to 64"},
		"name with a line break":     {func(c *Config) { c.Targets[0].Name = "x\n" }, "a name has 1 to 64"},
		"name twice":                 {func(c *Config) { c.Targets = append(c.Targets, c.Targets[0]) }, "another target has this name"},
		"no URL":                     {url(""), "not one like https://host/path"},
		"URL without host":           {url("https:///token-of-the-path"), "not one like https://host/path"},
		"URL without slashes":        {url("https:token-of-the-path"), "not one like https://host/path"},
		"malformed URL":              {url("https://exa mple.com/token-of-the-path"), "not one like https://host/path"},
		"other scheme":               {url("ftp://example.com/token-of-the-path"), "must begin with https://"},
		"plain http":                 {url("http://example.com/token-of-the-path"), "plain http is for private networks"},
		"fragment":                   {url("https://example.com/token-of-the-path#x"), "fragment"},
		"private address":            {url("https://10.0.0.1/token-of-the-path"), "10.0.0.1 is a private address"},
		"loopback":                   {url("https://[::1]/token-of-the-path"), "::1 is a loopback address"},
		"metadata":                   {private("http://169.254.169.254/token-of-the-path"), "metadata"},
		"no key":                     {func(c *Config) { c.Targets[0].SigningKeys = nil }, "needs a signing key"},
		"second key too short":       {func(c *Config) { c.Targets[0].SigningKeys = []string{secret, "too-short-a-key"} }, "key 2: signing key has 15"},
		"target's concurrency":       {func(c *Config) { c.Targets[0].Concurrency = -1 }, "concurrency -1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := base(test.change).Validate()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "\n", "one problem")
			for _, hidden := range []string{"token-of-the-path", secret, "too-short-a-key"} {
				require.NotContains(t, err.Error(), hidden)
			}
		})
	}
}

func TestNew_SeveralProblems_ReportsAll(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Source{}, Config{Timeout: time.Hour, Targets: []Target{{Name: "A"}, {Name: "b", URL: "http://x", SigningKeys: []string{"short"}}}})
	require.Len(t, strings.Split(err.Error(), "\n"), 6)
}

func TestConfig_Concurrency_IsDividedAmongTargets(t *testing.T) {
	t.Parallel()
	target := func(name string, n int) Target {
		return Target{Name: name, URL: "https://example.com", SigningKeys: []string{secret}, Concurrency: n}
	}
	for name, test := range map[string]struct {
		all     int
		targets []Target
		want    []int
	}{
		"one":                    {0, []Target{target("a", 0)}, []int{64}},
		"three":                  {0, []Target{target("a", 0), target("b", 4), target("c", 99)}, []int{21, 4, 21}},
		"fewer than the targets": {1, []Target{target("a", 0), target("b", 0)}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, destinations, err := Config{Concurrency: test.all, Targets: test.targets}.complete()
			require.NoError(t, err)
			var limits []int
			for _, d := range destinations {
				limits = append(limits, d.limit)
			}
			require.Equal(t, test.want, limits)
		})
	}
}
