package evm

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config lists the nodes of one chain and how to call them.
type Config struct {
	// ChainID is the id that every endpoint must report; an endpoint that reports another is never used. Required.
	ChainID uint64
	// Endpoints are http, https, ws or wss URLs, the preferred one first. At least one. They may hold keys in their
	// path, query or user info: only the host is ever shown.
	Endpoints []string
	// Subscribe is a ws or wss URL to receive new heads from. Default: the first such URL of Endpoints, if any;
	// otherwise the chain is polled.
	Subscribe string
	// Timeout is the limit of one request to one endpoint. Default 5 s.
	Timeout time.Duration
	// PollInterval is how often the preferred endpoint is asked for its head while no subscription is live. Default 1
	// s.
	PollInterval time.Duration
	// HealthInterval is how often each other endpoint is asked for its head. Default 5 s, or PollInterval if that is
	// longer.
	HealthInterval time.Duration
	// Silence is how long a subscription may bring no head before the chain is polled as well. Default 10 s.
	Silence time.Duration
	// Lazy makes Run ask an endpoint for its head only while no other brings heads: the preferred one while no subscription does,
	// and all of them at the start and while no head has come for Silence and the time between heads. An endpoint that failed
	// a call or lags is asked until it has recovered. It is for a client that compares endpoints itself, and pays for each call.
	Lazy bool
	// BroadcastAll makes Send send transactions to every endpoint instead of the first that accepts them.
	BroadcastAll bool
	// MaxLag is how much older than the best endpoint's newest block that of an endpoint may be before others are preferred to
	// it. Default 5 s. An endpoint that is not more than MaxLagBlocks behind comes after others only if it shows the same block
	// for six times as long while others have a later one. Default of MaxLagBlocks 3.
	MaxLag       time.Duration
	MaxLagBlocks uint64
	// MaxHeadAge is how old the newest block may be before an endpoint is reported as stuck. Default 0, which allows
	// any age, because a chain without traffic may make no blocks.
	MaxHeadAge time.Duration
	// MaxTransferGas bounds the gas limit of a transfer without data. Default 0: the newest block's gas limit does.
	MaxTransferGas uint64
	// BatchSize bounds the calls of one batch, 1 to 1000. Default 100. An endpoint that fails larger batches gets smaller ones.
	BatchSize int
	// MaxRPS bounds the calls that an endpoint is sent in any second, each item of a batch counted: one number for each of
	// Endpoints, or one for all. 0 is no bound, the default. A lower limit is learned from an endpoint's refusals.
	MaxRPS []int
	// Beside is a Client of the same Endpoints. Both share the bound of MaxRPS and the learned limits, and this one uses
	// half of them at most. Default: it shares them with no other.
	Beside *Client
	// MaxResponse limits an answer, in bytes. Default 64 MiB.
	MaxResponse int64

	Logger  *slog.Logger // default: discard
	Metrics *Metrics     // default: unregistered
}

func (cfg Config) withDefaults() (Config, error) {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if cfg.ChainID == 0 {
		complain("the chain id is missing")
	}
	if len(cfg.Endpoints) == 0 {
		complain("at least one endpoint is needed")
	}
	for i, raw := range cfg.Endpoints {
		if _, err := parseEndpoint(raw, "http", "https", "ws", "wss"); err != nil {
			complain("endpoint %d: %w", i+1, err)
		}
	}
	if cfg.Subscribe != "" {
		if _, err := parseEndpoint(cfg.Subscribe, "ws", "wss"); err != nil {
			complain("endpoint to subscribe to: %w", err)
		}
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"timeout", &cfg.Timeout, 5 * time.Second},
		{"poll interval", &cfg.PollInterval, time.Second},
		{"health interval", &cfg.HealthInterval, max(5*time.Second, cfg.PollInterval)},
		{"silence", &cfg.Silence, 10 * time.Second},
		{"maximal age of the head", &cfg.MaxHeadAge, 0},
		{"maximal lag", &cfg.MaxLag, 5 * time.Second},
	} {
		if *d.value < 0 {
			complain("%s: %s is negative", d.name, *d.value)
		}
		*d.value = cmp.Or(*d.value, d.def)
	}
	cfg.MaxLagBlocks = cmp.Or(cfg.MaxLagBlocks, 3)
	cfg.BatchSize = cmp.Or(cfg.BatchSize, 100)
	if cfg.BatchSize < 1 || cfg.BatchSize > 1000 {
		complain("batch size: %d is not 1 to 1000", cfg.BatchSize)
	}
	if n := len(cfg.MaxRPS); n > 1 && n != len(cfg.Endpoints) {
		complain("calls a second: %d numbers for %d endpoints; give one, or one for each", n, len(cfg.Endpoints))
	}
	for _, most := range cfg.MaxRPS {
		if most < 0 {
			complain("calls a second: %d is negative", most)
		}
	}
	if cfg.Beside != nil && !slices.Equal(cfg.Beside.cfg.Endpoints, cfg.Endpoints) {
		complain("limits can be shared by clients of the same endpoints only")
	}
	cfg.MaxResponse = cmp.Or(cfg.MaxResponse, 64<<20)
	if cfg.MaxResponse < 0 {
		complain("maximal response: %d is negative", cfg.MaxResponse)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Subscribe == "" {
		for _, raw := range cfg.Endpoints {
			if strings.HasPrefix(raw, "ws") {
				cfg.Subscribe = raw
				break
			}
		}
	}
	return cfg, errors.Join(problems...)
}

// maxRPS returns the bound of an endpoint, 0 for none.
func (cfg *Config) maxRPS(endpoint int) int {
	switch len(cfg.MaxRPS) {
	case 0:
		return 0
	case 1:
		return cfg.MaxRPS[0]
	default:
		return cfg.MaxRPS[endpoint]
	}
}

// portion returns the part of the limits that the client may use.
func (cfg *Config) portion() portion {
	if cfg.Beside != nil {
		return halfLimit
	}
	return wholeLimit
}

// parseEndpoint parses a URL of one of the schemes. Its errors do not contain the text, because a malformed URL may
// hold a key anywhere.
func parseEndpoint(raw string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return nil, errors.New("not a URL")
	}
	if slices.Contains(schemes, u.Scheme) {
		return u, nil
	}
	return nil, fmt.Errorf("its scheme is none of %s", strings.Join(schemes, ", "))
}

// isLocal reports whether the host is this machine. There, compressing answers costs more than sending them
// uncompressed.
func isLocal(u *url.URL) bool {
	host := u.Hostname()
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// redactor returns a replacer that hides possible keys in texts from an endpoint, because providers repeat keys in
// errors.
func redactor(u *url.URL) *strings.Replacer {
	var pairs []string
	hide := func(s string) {
		if len(s) >= 6 {
			pairs = append(pairs, s, "(hidden)")
		}
	}
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		hide(part)
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		hide(part)
	}
	for _, values := range u.Query() {
		for _, v := range values {
			hide(v)
		}
	}
	if u.User != nil {
		password, _ := u.User.Password()
		hide(password)
		hide(u.User.Username())
	}
	return strings.NewReplacer(pairs...)
}
