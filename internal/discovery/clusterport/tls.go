package clusterport

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

// Application protocols of the port, as agreed on by ALPN.
const (
	ALPNgRPC = "h2"
	ALPNRaft = "rollcall-raft/1"
)

const (
	// recheck is how long a look at the certificate files is trusted: long enough that a burst of handshakes
	// costs one look, short enough that nobody waits for a new certificate.
	recheck = time.Second
	// expiryWarning is how long before its end a certificate is warned about, once an hour.
	expiryWarning     = 7 * 24 * time.Hour
	expiryWarnedEvery = time.Hour
)

// TLSConfig names the PEM files of one party.
type TLSConfig struct {
	// CertFile holds the certificate, followed by intermediate ones if any.
	CertFile string
	KeyFile  string
	// CAFile holds the certificates that peers' ones must lead to.
	CAFile string
	// Logger is silent by default.
	Logger *slog.Logger
}

// TLS is a certificate, its key and the trusted CAs, read again when the files change. Safe for concurrent use.
type TLS struct {
	TLSConfig

	mu      sync.Mutex
	current *material
	seen    [3]fileState // the files as last looked at, whether they could be used or not
	problem string       // why they could not be used, empty if they could
	looked  time.Time
	warned  time.Time // of the coming expiry
}

type material struct {
	certificate tls.Certificate
	roots       *x509.CertPool
}

type fileState struct {
	modified time.Time
	size     int64
}

// LoadTLS reads the files. Their certificate must be valid now.
func LoadTLS(cfg TLSConfig) (*TLS, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "tls")
	t := &TLS{TLSConfig: cfg}
	t.seen, t.looked = t.look(), time.Now()
	loaded, err := t.load()
	if err != nil {
		return nil, err
	}
	t.current = loaded
	t.warnOfExpiry()
	return t, nil
}

// ClientConfig returns a configuration for dialing a coordinator's port and speaking alpn there. It follows
// changes of the files, and accepts a server only with a coordinator's certificate, whatever name or address
// was dialed.
func (t *TLS) ClientConfig(alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		ServerName: string(pki.RoleCoordinator),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &t.fresh().certificate, nil
		},
		// The check below replaces the standard one, which knows one fixed set of CAs, and which gRPC points
		// at the name that was dialed.
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

// serverConfig is for one connection.
func (t *TLS) serverConfig() *tls.Config {
	m := t.fresh()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.certificate},
		ClientCAs:    m.roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{ALPNgRPC, ALPNRaft},
		// Connections are few and live long; without tickets each one is judged by today's CAs.
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

// Expiry is when the certificate in use ends.
func (t *TLS) Expiry() time.Time { return t.fresh().certificate.Leaf.NotAfter }

func (t *TLS) requireRole(role pki.Role) error {
	if roles := leafRoles(t.fresh().certificate.Leaf); !slices.Contains(roles, role) {
		return fmt.Errorf("certificate %s has the roles %v, not %s", t.CertFile, roles, role)
	}
	return nil
}

// fresh returns what the files hold, or held when they were last good.
func (t *TLS) fresh() *material {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < recheck {
		return t.current
	}
	t.looked = time.Now()
	t.warnOfExpiry()
	seen := t.look()
	if seen == t.seen && t.problem == "" {
		return t.current
	}
	// Files that can't be used are tried again until they can: replaced one after the other they don't fit together
	// for a moment, and a certificate may be valid from a moment ahead of our clock.
	loaded, err := t.load()
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

func (t *TLS) look() (states [3]fileState) {
	for i, path := range []string{t.CertFile, t.KeyFile, t.CAFile} {
		if info, err := os.Stat(path); err == nil {
			states[i] = fileState{modified: info.ModTime(), size: info.Size()}
		}
	}
	return states
}

// LoadCertificate reads a certificate, which must be valid now, and its key, both PEM.
func LoadCertificate(certFile, keyFile string) (tls.Certificate, error) {
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
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

func (t *TLS) load() (*material, error) {
	certificate, err := LoadCertificate(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load CA %s: %w", t.CAFile, errors.New("no certificate in it"))
	}
	return &material{certificate: certificate, roots: roots}, nil
}
