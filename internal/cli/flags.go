package cli

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
)

// Groups of flags that more than one command has, or that are better read apart.

// RedisFlags are where Redis is.
type RedisFlags struct {
	URL          string    `name:"redis-url" env:"REDIS_URL" placeholder:"URL" secret:"" help:"Redis: redis://, rediss://, unix://, or redis+cluster:// with [user:password@]host[:port][/database]; or sentinels, redis+sentinel://host[:port][/database]?master_name=NAME&addr=HOST:PORT."`
	URLFile      string    `name:"redis-url-file" env:"REDIS_URL_FILE" placeholder:"FILE" help:"File that holds the URL."`
	Host         string    `name:"redis-host" env:"REDIS_HOST" help:"Redis's host, instead of a URL; localhost by default."`
	Port         redisPort `name:"redis-port" env:"REDIS_PORT" help:"Redis's port; 6379 by default."`
	Username     string    `name:"redis-username" env:"REDIS_USERNAME" help:"Redis's user."`
	Password     string    `name:"redis-password" env:"REDIS_PASSWORD" secret:"" help:"Redis's password; better in a file."`
	PasswordFile string    `name:"redis-password-file" env:"REDIS_PASSWORD_FILE" placeholder:"FILE" help:"File that holds the password."`
	CAFile       string    `name:"redis-ca-file" env:"REDIS_CA_FILE" placeholder:"FILE" help:"Certificates of the CAs that a rediss:// server's must lead to, PEM; by default the system's."`
	KeyPrefix    string    `name:"redis-key-prefix" env:"REDIS_KEY_PREFIX" help:"Put before every key and channel; a Redis Cluster needs one with a {hash tag}."`
}

// redisPort also reads what Kubernetes puts into REDIS_PORT where a service is called redis
// ("tcp://10.0.0.11:6379"): that was not meant for us and counts as not set.
type redisPort int

func (r *redisPort) UnmarshalText(text []byte) error {
	if strings.HasPrefix(string(text), "tcp://") {
		*r = 0
		return nil
	}
	port, err := strconv.Atoi(string(text))
	if err != nil || port < 1 || port > 65535 {
		return fmt.Errorf("a port is 1 to 65535")
	}
	*r = redisPort(port)
	return nil
}

// CheckFlags reports problems of the flags.
func (r *RedisFlags) CheckFlags(p *config.Problems) {
	ReadSecret(p, &r.URL, &r.URLFile)
	ReadSecret(p, &r.Password, &r.PasswordFile)
	url := &r.URL
	if r.URLFile != "" {
		url = &r.URLFile
	}
	CheckCAs(p, &r.CAFile)
	if r.CAFile != "" && !strings.HasPrefix(r.URL, "rediss") {
		p.Addf(&r.CAFile, "give REDIS_URL as rediss://…", "goes with a Redis that speaks TLS")
	}
	if r.URL == "" {
		return
	}
	if r.Host != "" {
		p.Addf(&r.Host, "give one of them", "contradicts %s", p.Where(url))
	}
	if r.Port != 0 {
		p.Addf(&r.Port, "give one of them", "contradicts %s", p.Where(url))
	}
	client, err := redisclient.New(r.Options())
	if err != nil {
		p.Addf(url, "", "%v", err)
		return
	}
	_ = client.Close() // it has not been used
	if err := r.Options().CheckPrefix(r.KeyPrefix); err != nil {
		p.Addf(&r.KeyPrefix, "", "%v", err)
	}
}

// Options returns the options of a Redis client.
func (r *RedisFlags) Options() redisclient.Options {
	return redisclient.Options{
		URL: r.URL, Host: r.Host, Port: int(r.Port), Username: r.Username, Password: r.Password, CAs: ReadCAs(r.CAFile),
	}
}

// CheckCAs reports a file that holds no certificates.
func CheckCAs(p *config.Problems, file *string) {
	if *file == "" {
		return
	}
	if _, err := os.ReadFile(*file); err != nil {
		p.Addf(file, "name a file this process may read", "%v", err)
	} else if ReadCAs(*file) == nil {
		p.Addf(file, "give them in PEM", "%s holds no certificates", *file)
	}
}

// ReadCAs reads a file that checkCAs has accepted; it returns nil if none is given. If the file has become unreadable
// since, it returns an empty pool: no certificate is trusted then.
func ReadCAs(file string) *x509.CertPool {
	if file == "" {
		return nil
	}
	pool := x509.NewCertPool()
	content, err := os.ReadFile(file)
	if err == nil && !pool.AppendCertsFromPEM(content) {
		return nil
	}
	return pool
}

// maxSecretBytes bounds a file that holds one line.
const maxSecretBytes = 64 << 10

// ReadSecret fills value in from the file, if one is given, without the line's end.
func ReadSecret(p *config.Problems, value, file *string) {
	if *file == "" {
		return
	}
	if *value != "" {
		p.Addf(file, "give one of them", "contradicts %s", p.Where(value))
		return
	}
	content, err := os.ReadFile(*file)
	secret := strings.TrimRight(string(content), "\r\n")
	switch {
	case err != nil:
		p.Addf(file, "name a file this process may read", "%v", err)
	case secret == "":
		p.Addf(file, "", "%s is empty", *file)
	case len(content) > maxSecretBytes:
		p.Addf(file, "", "%s is larger than %d bytes", *file, maxSecretBytes)
	default:
		*value = secret
	}
}

// ReadSecrets is readSecret for a list, which the file separates by commas.
func ReadSecrets(p *config.Problems, values *[]string, file *string) {
	if *file != "" && len(*values) > 0 {
		p.Addf(file, "give one of them", "contradicts %s", p.Where(values))
		return
	}
	var all string
	if ReadSecret(p, &all, file); all != "" {
		*values = strings.Split(all, ",")
	}
}

// From is the field that a secret came from: a problem with it is told there.
func From(value, file *string) *string {
	if *file != "" {
		return file
	}
	return value
}

// OneLine is what joined errors say.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// CheckAddresses reports addresses that are not host:port.
func CheckAddresses(p *config.Problems, field *[]string) {
	for _, address := range *field {
		if host, _, err := SplitHostPort(address); err != nil || host == "" {
			p.Addf(field, "give addresses such as coordinator-1:7400", "%q is not host:port", address)
		}
	}
}

// CheckMaxRPS reports bounds of the calls a second that do not fit the number of nodes.
func CheckMaxRPS(p *config.Problems, field *[]int, nodes int) (ok bool) {
	switch n := len(*field); {
	case n > 1 && n != nodes:
		p.Addf(field, "give one number, or one for each node", "has %d numbers for %d nodes", n, nodes)
	case slices.ContainsFunc(*field, func(n int) bool { return n < 0 }):
		p.Addf(field, "give the calls that the provider allows in a second, or 0 for any", "is negative")
	default:
		return true
	}
	return false
}

// CheckListen reports an address that is not [host]:port.
func CheckListen(p *config.Problems, field *string, example string) {
	if _, _, err := SplitHostPort(*field); err != nil {
		p.Addf(field, "give one such as "+example, "%q is not an address to listen at", *field)
	}
}

// SplitHostPort splits an address into its host and its port.
func SplitHostPort(address string) (host string, port int, err error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(service); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q is not a port", service)
	}
	return host, port, nil
}
