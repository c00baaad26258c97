package redisclient

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options configure the connection to Redis. Printed or logged, they contain no password.
type Options struct {
	// URL is redis://, rediss:// or unix://, or redis+cluster:// and rediss+cluster:// for a Redis Cluster:
	// [user:password@]host[:port][/database]. With redis+sentinel:// or rediss+sentinel:// it is the address of a
	// sentinel, whose port defaults to 26379. ?master_name=…&addr=host:port then names the master and more sentinels,
	// and user and password are the sentinels'. URL overrides Host and Port.
	URL string
	// Host defaults to localhost.
	Host string
	// Port defaults to 6379.
	Port int
	// Username and Password are used unless the URL has its own.
	Username, Password string
	// DialTimeout limits the start of a connection, with TLS, unless the URL has dial_timeout. Default 500 ms.
	DialTimeout time.Duration
	// CAs are the CAs that the certificate of a rediss server must chain to; nil for the system's.
	CAs *x509.CertPool
}

const (
	dialTimeout = 500 * time.Millisecond
	ioTimeout   = time.Second
	// The mirror uses one connection at a time, and a consumer two; the others are for the command line and probes.
	poolSize = 16
)

// New returns a client without retries of its own, because its callers decide on retries. It obeys the deadline
// of the context. It dials on first use. The caller closes it.
func New(o Options) (redis.UniversalClient, error) {
	// The package's own log duplicates its errors on standard error, once per dial.
	logging.Disable()
	quiet := func() *maintnotifications.Config {
		return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	}
	if sentinel, err := o.parseSentinel(); err != nil {
		return nil, err
	} else if sentinel != nil {
		sentinel.Username = cmp.Or(sentinel.Username, o.Username)
		sentinel.Password = cmp.Or(sentinel.Password, o.Password)
		sentinel.Protocol = 2
		sentinel.MaxRetries, sentinel.DialerRetries = -1, 1
		sentinel.DialTimeout = cmp.Or(sentinel.DialTimeout, o.DialTimeout, dialTimeout)
		sentinel.ReadTimeout = cmp.Or(sentinel.ReadTimeout, ioTimeout)
		sentinel.WriteTimeout = cmp.Or(sentinel.WriteTimeout, ioTimeout)
		sentinel.PoolSize = cmp.Or(sentinel.PoolSize, poolSize)
		sentinel.ContextTimeoutEnabled, sentinel.DisableIdentity = true, true
		o.trust(sentinel.TLSConfig)
		return redis.NewFailoverClient(sentinel), nil
	}
	single, cluster, err := o.parse()
	if err != nil {
		return nil, err
	}
	if cluster != nil {
		cluster.Username = cmp.Or(cluster.Username, o.Username)
		cluster.Password = cmp.Or(cluster.Password, o.Password)
		cluster.Protocol = 2
		cluster.MaxRetries, cluster.DialerRetries = -1, 1
		cluster.MaxRedirects = cmp.Or(cluster.MaxRedirects, 3)
		cluster.DialTimeout = cmp.Or(cluster.DialTimeout, o.DialTimeout, dialTimeout)
		cluster.ReadTimeout = cmp.Or(cluster.ReadTimeout, ioTimeout)
		cluster.WriteTimeout = cmp.Or(cluster.WriteTimeout, ioTimeout)
		cluster.PoolSize = cmp.Or(cluster.PoolSize, poolSize)
		cluster.ContextTimeoutEnabled, cluster.DisableIdentity = true, true
		cluster.MaintNotificationsConfig = quiet()
		o.trust(cluster.TLSConfig)
		return redis.NewClusterClient(cluster), nil
	}
	single.Username = cmp.Or(single.Username, o.Username)
	single.Password = cmp.Or(single.Password, o.Password)
	single.Protocol = 2
	single.MaxRetries, single.DialerRetries = -1, 1
	single.DialTimeout = cmp.Or(single.DialTimeout, o.DialTimeout, dialTimeout)
	single.ReadTimeout = cmp.Or(single.ReadTimeout, ioTimeout)
	single.WriteTimeout = cmp.Or(single.WriteTimeout, ioTimeout)
	single.PoolSize = cmp.Or(single.PoolSize, poolSize)
	single.ContextTimeoutEnabled, single.DisableIdentity = true, true
	single.MaintNotificationsConfig = quiet()
	o.trust(single.TLSConfig)
	return redis.NewClient(single), nil
}

// trust adds the CAs to the configuration of a TLS connection.
func (o Options) trust(c *tls.Config) {
	if c != nil && o.CAs != nil {
		c.RootCAs = o.CAs
	}
}

// parseSentinel returns the options of a master found through sentinels; nil if o has no sentinels.
func (o Options) parseSentinel() (*redis.FailoverOptions, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, nil // parse reports the error
	}
	scheme, ok := strings.CutSuffix(u.Scheme, "+sentinel")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return nil, nil
	}
	if strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return nil, errors.New("redis URL: special characters of a password are written %XX")
	}
	u.Scheme = scheme
	if u.Port() == "" {
		u.Host = net.JoinHostPort(cmp.Or(u.Hostname(), "localhost"), "26379") // the port of a sentinel, not of Redis
	}
	s, err := redis.ParseFailoverURL(u.String())
	switch {
	case err != nil:
		return nil, err
	case s.MasterName == "":
		return nil, errors.New("redis URL: sentinels are asked for a master by its name: add ?master_name=…")
	case s.ReplicaOnly, s.RouteByLatency, s.RouteRandomly:
		return nil, errors.New("redis URL: only a master can be written to")
	}
	if s.TLSConfig != nil {
		s.TLSConfig.ServerName = "" // each server's name, not the first sentinel's
	}
	return s, nil
}

// parse returns the options of a single server or of a cluster. No error contains a password, not even one whose
// special characters break the URL apart.
func (o Options) parse() (*redis.Options, *redis.ClusterOptions, error) {
	if o.URL == "" {
		if o.Port < 0 || o.Port > 65535 {
			return nil, nil, fmt.Errorf("redis port %d is not between 1 and 65535", o.Port)
		}
		return &redis.Options{Addr: o.hostPort()}, nil, nil
	}
	const form = "redis URL is not of the form redis://[user:password@]host[:port][/database]; " +
		"special characters of a password are written %XX"
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, nil, errors.New(form)
	}
	cut := strings.Contains(u.Path+u.RawQuery+u.Fragment, "@")
	scheme, clustered := strings.CutSuffix(u.Scheme, "+cluster")
	plain := *u
	plain.Scheme = scheme
	var single *redis.Options
	var cluster *redis.ClusterOptions
	switch {
	case cut && scheme != "unix":
		err = errors.New(form)
	case clustered && strings.Trim(u.Path, "/0") != "":
		err = errors.New("redis URL: a Redis Cluster has no numbered databases")
	case clustered && (scheme == "redis" || scheme == "rediss"):
		cluster, err = redis.ParseClusterURL(plain.String())
	case !clustered && (scheme == "redis" || scheme == "rediss" || scheme == "unix"):
		single, err = redis.ParseURL(plain.String())
	default:
		err = errors.New("redis URL: the scheme must be redis, rediss or unix, or redis or rediss with +cluster or +sentinel")
	}
	return single, cluster, err
}

// CheckPrefix returns an error if the mirror cannot use a key prefix. In a Redis Cluster a script can access the keys of
// only one slot, which a {hash tag} ensures.
func (o Options) CheckPrefix(prefix string) error {
	if _, cluster, _ := o.parse(); cluster == nil {
		return nil
	}
	const remedy = "; give one with a {hash tag}, such as {rollcall}:, so that all keys stand in one slot of the Redis Cluster"
	if prefix == "" {
		return errors.New("is empty" + remedy)
	}
	_, rest, _ := strings.Cut(prefix, "{")
	if tag, _, closed := strings.Cut(rest, "}"); tag == "" || !closed {
		return fmt.Errorf("%q has no hash tag%s", prefix, remedy)
	}
	return nil
}

func (o Options) hostPort() string {
	return net.JoinHostPort(cmp.Or(o.Host, "localhost"), strconv.Itoa(cmp.Or(o.Port, 6379)))
}

// String returns the address of Redis, as a URL without credentials.
func (o Options) String() string {
	if o.URL == "" {
		return "redis://" + o.hostPort()
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "unix" && strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return "(invalid redis URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// GoString prevents %#v from printing the password.
func (o Options) GoString() string { return o.String() }

// LogValue returns String.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }
