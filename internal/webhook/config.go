package webhook

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"time"

	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// Config configures the targets and the delivery. It holds secrets, which are never printed.
type Config struct {
	// Targets may be empty. Then nothing is delivered, and deliveries of earlier configurations become dead letters
	// after RetryFor.
	Targets []Target
	// AllowPrivate allows targets at loopback, private and carrier-grade NAT addresses, and plain http.
	// Link-local addresses, metadata services and multicast groups are never allowed.
	AllowPrivate bool
	// Timeout is the limit of one attempt, from the name resolution to the response header, 100 ms to 1 min. Default 10
	// s.
	Timeout time.Duration
	// Concurrency is how many attempts run concurrently, divided among the targets; at least one for each. Default 64.
	Concurrency int
	// RetryFor is how long after its first failure a delivery is tried before it becomes a dead letter, 1 min to 30 days. Default
	// a day.
	RetryFor time.Duration
	// MaxBackoff limits the pause between two attempts, also the one that a target asks for. 1 s to RetryFor. Default
	// 10 min.
	MaxBackoff time.Duration
	// Retention is how long delivered rows are kept, for an operator who replays them: up to 10 years, or [KeepNone]. Default 3
	// days. The owner of the deliveries may delete delivered rows earlier. Dead letters stay until an operator replays
	// them.
	Retention time.Duration
	// DrainTimeout is how long running attempts may continue after the end of Run's context. Default 5 s.
	DrainTimeout time.Duration
	// CAs verify targets' certificates. Default: the system's.
	CAs *x509.CertPool

	Logger  *slog.Logger // default: discard
	Metrics *Metrics     // default: unregistered

	tuning tuning
}

// KeepNone as Config.Retention deletes each delivery when it is delivered.
const KeepNone time.Duration = -1

// maxRetention limits Config.Retention.
const maxRetention = 10 * 365 * 24 * time.Hour

// tuning holds values that only tests change.
type tuning struct {
	lease    time.Duration // of a claim
	backoff  time.Duration // the first one
	pause    time.Duration // the first one of a target that is down
	maxPause time.Duration
	resolver *net.Resolver
}

// Target is one receiver.
type Target struct {
	// Name identifies the target in the tables, logs and metrics: 1 to 64 of a-z, 0-9, '-', '_' and '.'. Deliveries
	// belong to names: a renamed target does not receive deliveries that were written for the old name.
	Name string
	// URL may hold a token. It is never shown; errors and logs may contain its host.
	URL string `json:"-"`
	// SigningKeys are one or more keys, the newest first; see package signature about rotation.
	SigningKeys []string `json:"-"`
	// Concurrency limits concurrent attempts to this target, below its share. Default: its share.
	Concurrency int
}

// String returns the name only.
func (t Target) String() string { return t.Name }

// GoString returns the name only.
func (t Target) GoString() string { return t.Name }

// Format writes the name only, whatever the verb.
func (t Target) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.Name)) }

// LogValue returns the name only.
func (t Target) LogValue() slog.Value { return slog.StringValue(t.Name) }

// Names returns the names of the targets, in the form that the owner of the deliveries takes.
func (c Config) Names() []string {
	names := make([]string, len(c.Targets))
	for i, t := range c.Targets {
		names[i] = t.Name
	}
	return names
}

// Validate returns all problems of the configuration, joined.
func (c Config) Validate() error {
	_, _, err := c.complete()
	return err
}

// destination is a validated target.
type destination struct {
	name  string
	url   *url.URL
	keys  []signature.Key
	limit int
}

const maxName = 64

var validName = regexp.MustCompile(`^[a-z0-9._-]+$`)

// complete returns a copy with defaults and the validated targets, or all problems, joined.
func (c Config) complete() (Config, []destination, error) {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.RetryFor = cmp.Or(c.RetryFor, 24*time.Hour)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, min(10*time.Minute, c.RetryFor))
	c.Retention = cmp.Or(c.Retention, 3*24*time.Hour)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	c.tuning = c.tuning.withDefaults(c.Timeout)

	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Timeout >= 100*time.Millisecond && c.Timeout <= time.Minute, "webhook timeout %v must be 100ms to 1m", c.Timeout)
	check(c.Concurrency >= 1, "webhook concurrency %d must be at least 1", c.Concurrency)
	check(c.RetryFor >= time.Minute && c.RetryFor <= 30*24*time.Hour, "webhooks can be retried for 1m to 720h, not for %v", c.RetryFor)
	check(c.MaxBackoff >= time.Second && c.MaxBackoff <= c.RetryFor, "webhook backoff %v must be at least 1s and at most the %v that webhooks are retried for", c.MaxBackoff, c.RetryFor)

	check(c.Retention == KeepNone || c.Retention > 0 && c.Retention <= maxRetention, "delivered webhooks can be kept for up to %v, not for %v", maxRetention, c.Retention)

	var targets []destination
	seen := map[string]bool{}
	for i, t := range c.Targets {
		problem := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("webhook target %d (%q): %w", i+1, t.Name, fmt.Errorf(format, args...)))
		}
		switch {
		case len(t.Name) > maxName || !validName.MatchString(t.Name):
			problem("a name has 1 to %d of a-z, 0-9, '-', '_' and '.'", maxName)
		case seen[t.Name]:
			problem("another target has this name")
		}
		seen[t.Name] = true
		d := destination{name: t.Name}
		var err error
		if d.url, err = checkURL(t.URL, c.AllowPrivate); err != nil {
			problem("%w", err)
		}
		if len(t.SigningKeys) == 0 {
			problem("it needs a signing key")
		}
		for n, secret := range t.SigningKeys {
			key, err := signature.NewKey(secret)
			if err != nil {
				problem("key %d: %w", n+1, err)
			}
			d.keys = append(d.keys, key)
		}
		if t.Concurrency < 0 {
			problem("concurrency %d must not be below 0", t.Concurrency)
		}
		share := max(1, c.Concurrency/len(c.Targets))
		d.limit = min(share, cmp.Or(t.Concurrency, share))
		targets = append(targets, d)
	}
	return c, targets, errors.Join(errs...)
}

// CheckURL returns an error if a URL cannot be a target's. The error contains only its host.
func CheckURL(raw string, allowPrivate bool) error {
	_, err := checkURL(raw, allowPrivate)
	return err
}

// checkURL parses a target's URL. Its errors contain only the host.
func checkURL(raw string, allowPrivate bool) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, errors.New("its URL is not one like https://host/path")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("its URL must begin with https://")
	case u.Scheme == "http" && !allowPrivate:
		return nil, errors.New("its URL must begin with https://; plain http is for private networks, which are not allowed")
	case u.Fragment != "":
		return nil, errors.New("its URL has a fragment, which is never sent: remove what comes after #")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := checkAddress(addr, allowPrivate); err != nil {
			return nil, err
		}
	}
	return u, nil
}
