package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
)

// Config configures the checks. The zero value checks GET /health every 10 s.
type Config struct {
	// Interval is the time between two checks of a target, 1 s to 60 s. Default 10 s.
	Interval time.Duration
	// Timeout is the time limit of a whole check, counted from the dial; below Interval. Default 500 ms.
	Timeout time.Duration
	// ConnectTimeout limits name resolution and connect within Timeout. Default 200 ms, or Timeout if that is less.
	ConnectTimeout time.Duration
	// Path is the path of HTTP checks, appended to the target's URL; it may contain a query. Default "/health".
	Path string
	// Codes are the HTTP status codes of a healthy service. Default 200.
	Codes Codes
	// Auth is sent with HTTP and gRPC checks of the hosts it names. Default none.
	Auth Auth
	// Rise is how many successes in a row bring a target from down to up, 1 to 10. Default 1.
	Rise int
	// Fall is how many failures in a row make a target down, 1 to 10. Default 1.
	Fall int
	// MaxInFlight is the maximum number of concurrent checks. Default 2,048 per core, or less if the process may not
	// open enough files.
	MaxInFlight int
	// TLS configures https and grpcs checks. Default: the system's certificate authorities.
	TLS *tls.Config

	// Dial opens connections instead of a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Probe replaces the network in tests. It must return soon after ctx ends.
	Probe func(ctx context.Context, t Target) error
	// Lateness receives how late each scheduled check began. It must be quick and safe for concurrent use.
	Lateness func(id string, late time.Duration)

	Logger  *slog.Logger // default: discard
	Metrics *Metrics     // default: unregistered

	clock                 func() time.Time // for tests of a frozen checker
	newConcurrencyLimiter func() waits     // for tests with a fake clock
}

// Auth is a header for the checks of certain hosts. Logs never contain its value.
type Auth struct {
	// Header is the header's name, such as "Authorization". Empty: no header.
	Header string
	Value  string `json:"-"`
	// Hosts are patterns for the host, or host:port, of targets that get the header, in the syntax of path.Match. Each
	// wildcard matches within one label: *.example matches a.example, but neither example nor a.b.example. At least one
	// pattern is needed, because every gateway may register targets, and the secret must not go to all of them.
	Hosts []string
}

// allows reports whether checks of a URL send the header.
func (a Auth) allows(u *url.URL) bool { return a.Header != "" && hostlist.Matches(a.Hosts, u) }

// String returns all but the value.
func (a Auth) String() string {
	if a.Header == "" {
		return "none"
	}
	return fmt.Sprintf("%s: (hidden) for %s", a.Header, strings.Join(a.Hosts, ", "))
}

// GoString returns all but the value.
func (a Auth) GoString() string { return strconv.Quote(a.String()) }

// LogValue returns all but the value.
func (a Auth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// Codes is a set of HTTP status codes, written like "200,204" or "200-299,401".
type Codes []int

// UnmarshalText reads a comma-separated list of codes and ranges.
func (c *Codes) UnmarshalText(text []byte) error {
	var codes Codes
	for part := range strings.SplitSeq(string(text), ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo > hi || !validCode(lo) || !validCode(hi) {
			return fmt.Errorf("%q is not a list of HTTP status codes such as 200,204 or 200-299", text)
		}
		for code := lo; code <= hi; code++ {
			codes = append(codes, code)
		}
	}
	*c = codes
	return nil
}

// validCode excludes informational codes, which never end a response.
func validCode(code int) bool { return code >= 200 && code <= 599 }

// CheckPath returns an error if HTTP checks cannot use a path.
func CheckPath(path string) error {
	u, err := url.Parse(path)
	if err != nil || !strings.HasPrefix(path, "/") || u.Host != "" || strings.ContainsAny(path, "# \t\r\n") {
		return fmt.Errorf("%q is not a path such as /health", path)
	}
	return nil
}

// withDefaults returns a copy with defaults, or an error that lists all faults.
func (c Config) withDefaults() (Config, error) {
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 500*time.Millisecond)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, min(200*time.Millisecond, c.Timeout))
	c.Path = cmp.Or(c.Path, "/health")
	c.Rise = cmp.Or(c.Rise, 1)
	c.Fall = cmp.Or(c.Fall, 1)
	if len(c.Codes) == 0 {
		c.Codes = Codes{http.StatusOK}
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = max(1, min(2048*runtime.GOMAXPROCS(0), maxOpenFiles()/4))
	}
	if c.Dial == nil {
		// Keep-alive probes are not needed, because the next check detects a dead connection soon enough.
		c.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	if c.clock == nil {
		c.clock = time.Now
	}
	if c.newConcurrencyLimiter == nil {
		c.newConcurrencyLimiter = new(concurrencyLimiter).measure
	}
	return c, c.validate()
}

func (c Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Interval >= time.Second && c.Interval <= time.Minute, "health check interval %v must be 1s to 60s", c.Interval)
	check(c.Timeout > 0 && c.Timeout < c.Interval, "health check timeout %v must be above 0 and below the interval of %v", c.Timeout, c.Interval)
	check(c.ConnectTimeout > 0 && c.ConnectTimeout <= c.Timeout, "connect timeout %v must be above 0 and at most the health check timeout of %v", c.ConnectTimeout, c.Timeout)
	check(c.Rise >= 1 && c.Rise <= 10, "rise %d must be 1 to 10", c.Rise)
	check(c.Fall >= 1 && c.Fall <= 10, "fall %d must be 1 to 10", c.Fall)
	check(c.MaxInFlight >= 1, "checks in flight %d must be at least 1", c.MaxInFlight)
	for _, code := range c.Codes {
		check(validCode(code), "expected status code %d must be 200 to 599", code)
	}
	if err := CheckPath(c.Path); err != nil {
		errs = append(errs, fmt.Errorf("health check path %w", err))
	}
	if c.Auth.Header != "" || c.Auth.Value != "" {
		check(httpguts.ValidHeaderFieldName(c.Auth.Header), "auth header name %q is not one of HTTP", c.Auth.Header)
		check(c.Auth.Value != "" && httpguts.ValidHeaderFieldValue(c.Auth.Value), "auth header value is empty or holds control characters")
		check(len(c.Auth.Hosts) > 0, "auth header needs the hosts it may be sent to")
	}
	for _, pattern := range c.Auth.Hosts {
		if err := hostlist.CheckPattern(pattern); err != nil {
			errs = append(errs, fmt.Errorf("auth header: %w", err))
		}
	}
	return errors.Join(errs...)
}
