package clusterport

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

// The application protocols of the port, negotiated by ALPN.
const (
	ALPNgRPC = "h2"
	ALPNRaft = "rollcall-raft/1"
)

const (
	// recheck is how long a check of the certificate files is valid: long enough that a burst of handshakes costs one
	// check, short enough that a new certificate is used without noticeable delay.
	recheck = time.Second
	// expiryWarning is how long before its expiry a certificate is warned about, once an hour.
	expiryWarning     = 7 * 24 * time.Hour
	expiryWarnedEvery = time.Hour
)

// TLSConfig configures the PEM files of one party.
type TLSConfig struct {
	// CertFile holds the certificate, followed by any intermediate ones.
	CertFile string
	KeyFile  string
	// CAFile holds the CA certificates that peers' certificates must chain to.
	CAFile string
	// Logger receives the log; by default there is none.
	Logger *slog.Logger
}

// TLS is a certificate, its key and the trusted CAs, reloaded when the files change. It is safe for concurrent use.
type TLS struct {
	TLSConfig

	mu      sync.Mutex
	current *material
	seen    pemFiles // the files at the last check, valid or not
	problem string   // why they could not be used, empty if they could
	looked  time.Time
	warned  time.Time // time of the last expiry warning
}

type material struct {
	certificate tls.Certificate
	roots       *x509.CertPool
}

// pemFiles are the contents of the certificate's, the key's and the CA's file. Contents are compared, because a size and a
// time do not tell versions apart: renewed certificates have equal sizes, and cp -p and images set or keep no times.
type pemFiles [3]string

// maxPEMFile is the largest size of a file in bytes; a bundle of all public CAs has a quarter of it.
const maxPEMFile = 1 << 20

// LoadTLS loads the files. The certificate must be valid now.
func LoadTLS(cfg TLSConfig) (*TLS, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "tls")
	t := &TLS{TLSConfig: cfg}
	t.looked = time.Now()
	seen, err := t.read()
	if err != nil {
		return nil, err
	}
	loaded, err := t.parse(seen)
	if err != nil {
		return nil, err
	}
	t.seen, t.current = seen, loaded
	t.warnOfExpiry()
	return t, nil
}

// ClientConfig returns a configuration for dialing a coordinator's port with the protocol alpn. It follows changes of
// the files. It accepts only a server with a coordinator's certificate, whatever name or address was dialed.
func (t *TLS) ClientConfig(alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		ServerName: string(pki.RoleCoordinator),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &t.fresh().certificate, nil
		},
		// verifyServer replaces the standard check, which uses one fixed set of CAs and which gRPC gives the dialed
		// name.
		InsecureSkipVerify: true,
		VerifyConnection:   t.verifyServer,
	}
}

func (t *TLS) verifyServer(state tls.ConnectionState) error {
	intermediates := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots:         t.fresh().roots,
		Intermediates: intermediates,
		DNSName:       string(pki.RoleCoordinator),
	})
	return err
}

// serverConfig returns the configuration for one connection.
func (t *TLS) serverConfig() *tls.Config {
	m := t.fresh()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.certificate},
		ClientCAs:    m.roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{ALPNgRPC, ALPNRaft},
		// Connections are few and long-lived. Without tickets each one is checked against the current CAs.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			roles := certificateRoles(state)
			if state.NegotiatedProtocol == ALPNRaft && !slices.Contains(roles, pki.RoleCoordinator) {
				return fmt.Errorf("raft needs the role %s, the certificate has %v", pki.RoleCoordinator, roles)
			}
			return nil
		},
	}
}

// Expiry returns when the current certificate expires.
func (t *TLS) Expiry() time.Time { return t.fresh().certificate.Leaf.NotAfter }

func (t *TLS) requireRole(role pki.Role) error {
	if roles := leafRoles(t.fresh().certificate.Leaf); !slices.Contains(roles, role) {
		return fmt.Errorf("certificate %s has the roles %v, not %s", t.CertFile, roles, role)
	}
	return nil
}

// fresh returns the content of the files, or their last valid content.
func (t *TLS) fresh() *material {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < recheck {
		return t.current
	}
	t.looked = time.Now()
	t.warnOfExpiry()
	seen, err := t.read()
	if err == nil && seen == t.seen && t.problem == "" {
		return t.current
	}
	// Invalid files are retried until they are valid. Files replaced one after the other do not match for a moment,
	// and a certificate's validity may begin a moment later by our clock.
	var loaded *material
	if err == nil {
		loaded, err = t.parse(seen)
	}
	if err != nil {
		if seen != t.seen || err.Error() != t.problem {
			t.Logger.Error("new certificate files can't be used, keeping the old ones", "err", err)
		}
		t.seen, t.problem = seen, err.Error()
		return t.current
	}
	t.seen, t.problem = seen, ""
	t.current, t.warned = loaded, time.Time{}
	t.Logger.Info("certificate reloaded", "file", t.CertFile, "expires", loaded.certificate.Leaf.NotAfter)
	t.warnOfExpiry()
	return t.current
}

func (t *TLS) warnOfExpiry() {
	expires := t.current.certificate.Leaf.NotAfter
	if time.Until(expires) > expiryWarning || time.Since(t.warned) < expiryWarnedEvery {
		return
	}
	t.warned = time.Now()
	t.Logger.Warn("certificate expires soon", "file", t.CertFile, "expires", expires)
}

// read returns the contents of the files.
func (t *TLS) read() (contents pemFiles, err error) {
	for i, path := range []string{t.CertFile, t.KeyFile, t.CAFile} {
		if contents[i], err = readPEM(path); err != nil {
			return pemFiles{}, fmt.Errorf("load %s: %w", [...]string{"certificate", "key", "CA"}[i], err)
		}
	}
	return contents, nil
}

func readPEM(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxPEMFile+1))
	if err == nil && len(content) > maxPEMFile {
		err = fmt.Errorf("%s: more than %d bytes", path, maxPEMFile)
	}
	return string(content), err
}

func (t *TLS) parse(contents pemFiles) (*material, error) {
	certificate, err := parseCertificate(t.CertFile, t.KeyFile, contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(contents[2])) {
		return nil, fmt.Errorf("load CA %s: %w", t.CAFile, errors.New("no certificate in it"))
	}
	return &material{certificate: certificate, roots: roots}, nil
}

// LoadCertificate loads a certificate, which must be valid now, and its key, both PEM.
func LoadCertificate(certFile, keyFile string) (tls.Certificate, error) {
	cert, certErr := readPEM(certFile)
	key, keyErr := readPEM(keyFile)
	if err := cmp.Or(certErr, keyErr); err != nil {
		return tls.Certificate{}, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return parseCertificate(certFile, keyFile, cert, key)
}

func parseCertificate(certFile, keyFile, cert, key string) (tls.Certificate, error) {
	certificate, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
	}
	leaf := certificate.Leaf
	if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return tls.Certificate{}, fmt.Errorf("certificate %s is valid from %s to %s only", certFile,
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
	}
	return certificate, nil
}
