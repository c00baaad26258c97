package pki

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

const (
	caName = "ca"
	caDays = 3650
	// backdated makes a certificate valid at once on hosts whose clocks are behind.
	backdated = time.Hour
)

// Config configures the certificates to issue.
type Config struct {
	// Dir holds ca.crt and ca.key, and gets NAME.crt and NAME.key for each certificate. It is created if missing. A CA
	// in it is used; otherwise Issue makes one that is valid for ten years.
	Dir string
	// Days is how long certificates are valid, at most as long as the CA: 1 to 3650, 365 by default.
	Days int
	// Certificates are the certificates to issue.
	Certificates []Certificate
	// Force replaces certificates and keys of the same names. A CA is never replaced.
	Force bool
}

// Certificate describes one certificate to issue.
type Certificate struct {
	// Name is the node's id, a DNS label; it names the files too.
	Name string
	Role Role
	// Hosts are names and IP addresses it is valid for besides Name, localhost, 127.0.0.1 and ::1.
	Hosts []string
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (c *Config) withDefaults() error {
	c.Days = cmp.Or(c.Days, 365)
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Dir == "" {
		complain("no folder")
	}
	if c.Days < 1 || c.Days > caDays {
		complain("%d days: 1 to %d are possible", c.Days, caDays)
	}
	names := make(map[string]bool)
	for _, cert := range c.Certificates {
		switch {
		case !label.MatchString(cert.Name):
			complain("name %q is not a DNS label", cert.Name)
		case cert.Name == caName:
			complain("name %q is taken by the CA", caName)
		case names[cert.Name]:
			complain("name %q appears twice", cert.Name)
		}
		names[cert.Name] = true
		if !slices.Contains(AllRoles(), cert.Role) {
			complain("%s: role %q: use one of %v", cert.Name, cert.Role, AllRoles())
		}
		if slices.Contains(cert.Hosts, "") {
			complain("%s: an empty host", cert.Name)
		}
	}
	return errors.Join(problems...)
}

// Issue makes the CA if there is none, and the certificates. It returns the written files, in order. Unless cfg.Force
// is set it writes nothing if a file of one of the certificates exists.
func Issue(cfg Config) (written []string, err error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("issue certificates: %w", err)
	}
	var pairs []pair
	ca, err := loadCA(cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		ca, err = newCA()
		pairs = append(pairs, ca)
	}
	if err != nil {
		return nil, fmt.Errorf("issue certificates: %w", err)
	}
	for _, wanted := range cfg.Certificates {
		if err := free(cfg.Dir, wanted.Name); err != nil && !cfg.Force {
			return nil, fmt.Errorf("issue certificates: %w", err)
		}
		issued, err := issue(ca, wanted, cfg.Days)
		if err != nil {
			return nil, fmt.Errorf("issue certificate %s: %w", wanted.Name, err)
		}
		pairs = append(pairs, issued)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("issue certificates: %w", err)
	}
	for _, p := range pairs {
		files, err := p.write(cfg.Dir)
		if written = append(written, files...); err != nil {
			return written, fmt.Errorf("issue certificate %s: %w", p.name, err)
		}
	}
	return written, nil
}

// pair is a certificate with its key.
type pair struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// loadCA loads the CA. It returns fs.ErrNotExist only if neither file exists.
func loadCA(dir string) (pair, error) {
	certFile, keyFile := files(dir, caName)
	if free(dir, caName) == nil {
		return pair{}, fs.ErrNotExist
	}
	loaded, err := tls.LoadX509KeyPair(certFile, keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return pair{}, fmt.Errorf("half of the CA is missing: %s", err) //nolint:errorlint // must not match fs.ErrNotExist
	}
	if err != nil {
		return pair{}, fmt.Errorf("load CA %s: %w", certFile, err)
	}
	key, ok := loaded.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !loaded.Leaf.IsCA {
		return pair{}, fmt.Errorf("load CA %s: not an ECDSA certificate authority", certFile)
	}
	if time.Now().After(loaded.Leaf.NotAfter) {
		return pair{}, fmt.Errorf("CA %s ended on %s", certFile, loaded.Leaf.NotAfter.Format(time.DateOnly))
	}
	return pair{name: caName, cert: loaded.Leaf, key: key}, nil
}

func newCA() (pair, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Rollcall"}, CommonName: "Rollcall development CA " + rand.Text()[:8]},
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.AddDate(0, 0, caDays),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(caName, template, nil)
}

func issue(ca pair, wanted Certificate, days int) (pair, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Rollcall"}, CommonName: wanted.Name},
		NotBefore:   now.Add(-backdated),
		NotAfter:    now.AddDate(0, 0, days),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{string(wanted.Role), wanted.Name, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	if wanted.Role == RoleCoordinator {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range wanted.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(wanted.Name, template, &ca)
}

// sign makes a new key and a certificate signed by by; nil makes it self-signed.
func sign(name string, template *x509.Certificate, by *pair) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	if by == nil {
		by = &pair{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		return pair{}, err
	}
	cert, err := x509.ParseCertificate(der)
	return pair{name: name, cert: cert, key: key}, err
}

func files(dir, name string) (certFile, keyFile string) {
	return filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
}

// free returns an error if one of the files exists.
func free(dir, name string) error {
	certFile, keyFile := files(dir, name)
	for _, path := range []string{certFile, keyFile} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return cmp.Or(err, fmt.Errorf("%s: %w", path, fs.ErrExist))
		}
	}
	return nil
}

func (p pair) write(dir string) (written []string, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, err
	}
	certFile, keyFile := files(dir, p.name)
	// The key is written first. A node that reads the files in between finds a pair that doesn't match, and waits.
	if err := replace(keyFile, "PRIVATE KEY", der, 0o600); err != nil {
		return nil, err
	}
	if err := replace(certFile, "CERTIFICATE", p.cert.Raw, 0o644); err != nil {
		return []string{keyFile}, err
	}
	return []string{certFile, keyFile}, nil
}

// replace writes a file atomically.
func replace(path, kind string, der []byte, mode os.FileMode) error {
	// CreateTemp makes the file readable for the owner only, before it has content.
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	err = errors.Join(
		pem.Encode(file, &pem.Block{Type: kind, Bytes: der}),
		file.Chmod(mode),
		file.Sync(),
		file.Close(),
	)
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
