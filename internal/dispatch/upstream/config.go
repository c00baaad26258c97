package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxBody bounds a response's body, in bytes.
	maxBody = 4 << 20
	// maxHeader bounds a response's header, in bytes.
	maxHeader = 64 << 10
	// maxURL bounds a base URL, in bytes.
	maxURL = 2048
	// maxText bounds a text of the relayer's, in bytes.
	maxText = 300
	// maxID bounds the ids of relayers and transactions, in bytes.
	maxID = 255
	// maxRetryAfter bounds the pause that a relayer may ask for.
	maxRetryAfter = 5 * time.Minute

	// idleTimeout is how long a connection without a request is kept. It is shorter than the keep-alive of usual servers
	// (5 s), because a request on a connection that its server closes at the same moment has an unknown outcome.
	idleTimeout = 2 * time.Second
	// maxIdle is how many idle connections are kept.
	maxIdle = 256
)

// Config configures a Client. It holds a secret, and prints only the URL.
type Config struct {
	// URL is the base of the relayer's API, such as http://relayer:3000; the client adds /api/v1. Required.
	URL string
	// Key is the API key. Required.
	Key string `json:"-"`
	// RelayerID is the relayer to use; default: the first usable one that the relayer lists.
	RelayerID string
	// Network is the network, by the relayer's name for it, that the relayer must have. Default: any that has the caller's chain.
	Network string
	// ChainID is the chain of Network: that of a relayer with this network that does not serve its node. Default: none, so that such a
	// relayer has no chain.
	ChainID uint64
	// SubmitTimeout bounds a submission. Default 30 s.
	SubmitTimeout time.Duration
	// ReadTimeout bounds every other call. Default 10 s.
	ReadTimeout time.Duration
	// ConnectTimeout bounds a connection's name resolution and dial, and then its TLS handshake. Default 3 s.
	ConnectTimeout time.Duration
	// CAs verify the relayer's certificate. Default: the system's.
	CAs *x509.CertPool
	// Dial opens connections. Its error is [hostlist.ErrRefused] if the key must not go to the host. Default: a [net.Dialer].
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Format prints the URL, whatever the verb.
func (c Config) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, c.URL) }

// LogValue returns the URL.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.URL) }

// Client calls one relayer. It is safe for concurrent use.
type Client struct {
	cfg  Config
	base string // without a trailing slash
	http *http.Client
	// clock is the relayer's, which is the same behind each connection.
	clock *clock
}

// New returns a Client. Close releases its idle connections.
func New(cfg Config) (*Client, error) {
	cfg.SubmitTimeout = cmp.Or(cfg.SubmitTimeout, 30*time.Second)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, 10*time.Second)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 3*time.Second)
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	base, err := CheckURL(cfg.URL)
	problems := []error{err}
	if cfg.Key == "" || !visible(cfg.Key) {
		problems = append(problems, errors.New("an API key has one or more visible ASCII characters"))
	}
	if cfg.RelayerID != "" && !ValidID(cfg.RelayerID) {
		problems = append(problems, fmt.Errorf("relayer id %q has more than %d characters, or others than visible ASCII", clip(cfg.RelayerID), maxID))
	}
	for name, d := range map[string]time.Duration{"submit": cfg.SubmitTimeout, "read": cfg.ReadTimeout, "connect": cfg.ConnectTimeout} {
		if d < 0 {
			problems = append(problems, fmt.Errorf("%s timeout %v is negative", name, d))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, base: base, http: newHTTP(cfg), clock: new(clock)}, nil
}

// newHTTP returns the HTTP client of a configuration with its defaults.
func newHTTP(cfg Config) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // alone: a connection's count of bytes belongs to one request
	return &http.Client{
		Transport: &http.Transport{
			Proxy: nil, // a proxy's errors could not be told from the relayer's
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
				defer cancel()
				c, err := cfg.Dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &conn{Conn: c}, nil
			},
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.CAs},
			TLSHandshakeTimeout:    cfg.ConnectTimeout,
			Protocols:              protocols,
			DisableCompression:     true,
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdle,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// errEnded means that the connection of a [Client.pinned] has ended.
var errEnded = errors.New("the connection on which its network was read has ended: " +
	"if that repeats, let the proxy before it keep connections open")

// pinned returns a Client whose calls, one after the other, use one connection, so that the same process answers them. When that has
// ended, they fail with errEnded before a byte is sent.
func (c *Client) pinned() *Client {
	cfg := c.cfg
	var dialed atomic.Bool
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errEnded
		}
		return c.cfg.Dial(ctx, network, address)
	}
	return &Client{cfg: cfg, base: c.base, http: newHTTP(cfg), clock: c.clock}
}

// URL returns the base URL, without a trailing slash.
func (c *Client) URL() string { return c.base }

// Close closes idle connections. Running calls go on.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// CheckURL returns a base URL without a trailing slash, or why it cannot be a relayer's.
func CheckURL(raw string) (string, error) {
	if len(raw) > maxURL {
		return "", fmt.Errorf("a relayer's URL has at most %d bytes", maxURL)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return "", errors.New("a relayer's URL is one like http://host:port")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("a relayer's URL begins with http:// or https://")
	case u.User != nil:
		return "", errors.New("a relayer's URL holds no user and password: its API key is a setting")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("a relayer's URL has no query and no fragment")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// visible reports whether s is visible ASCII, without blanks.
func visible(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// ValidID reports whether an id of a relayer or a transaction can be part of a path.
func ValidID(id string) bool {
	return id != "" && len(id) <= maxID && visible(id) && id != "." && id != ".."
}
