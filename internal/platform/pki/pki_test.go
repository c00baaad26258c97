package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	require.NoError(t, err)
	block, rest := pem.Decode(content)
	require.Empty(t, rest)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

func node(name string, hosts ...string) pki.Certificate {
	return pki.Certificate{Name: name, Role: pki.RoleCoordinator, Hosts: hosts}
}

func TestIssue(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	written, err := pki.Issue(pki.Config{Dir: dir, Days: 30, Certificates: []pki.Certificate{
		node("node-1", "node-1.example.org", "192.0.2.1"),
		{Name: "edge-1", Role: pki.RoleGateway},
	}})
	require.NoError(t, err)
	var names []string
	for _, path := range written {
		names = append(names, filepath.Base(path))
		info, err := os.Stat(path)
		require.NoError(t, err)
		want := os.FileMode(0o644)
		if filepath.Ext(path) == ".key" {
			want = 0o600
		}
		require.Equal(t, want, info.Mode().Perm(), path)
	}
	require.Equal(t, []string{"ca.crt", "ca.key", "node-1.crt", "node-1.key", "edge-1.crt", "edge-1.key"}, names)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, len(written), "nothing else is left in the folder")

	cert := certificate(t, dir, "node-1")
	require.Equal(t, []string{"coordinator.rollcall.internal", "node-1", "localhost", "node-1.example.org"}, cert.DNSNames)
	for _, ip := range []string{"127.0.0.1", "::1", "192.0.2.1"} {
		require.NoError(t, cert.VerifyHostname(ip))
	}
	require.WithinDuration(t, time.Now().AddDate(0, 0, 30), cert.NotAfter, time.Minute)
	require.True(t, cert.NotBefore.Before(time.Now()))

	roots := x509.NewCertPool()
	roots.AddCert(certificate(t, dir, "ca"))
	verify := func(name string, usage x509.ExtKeyUsage) error {
		_, err := certificate(t, dir, name).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	require.NoError(t, verify("node-1", x509.ExtKeyUsageServerAuth))
	require.NoError(t, verify("node-1", x509.ExtKeyUsageClientAuth))
	require.NoError(t, verify("edge-1", x509.ExtKeyUsageClientAuth))
	require.Error(t, verify("edge-1", x509.ExtKeyUsageServerAuth), "a gateway is no server")
}

func TestIssue_Again_UsesTheSameCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := pki.Issue(pki.Config{Dir: dir, Certificates: []pki.Certificate{node("node-1")}})
	require.NoError(t, err)
	ca, first := certificate(t, dir, "ca"), certificate(t, dir, "node-1")

	written, err := pki.Issue(pki.Config{Dir: dir, Certificates: []pki.Certificate{node("node-2")}})
	require.NoError(t, err)
	require.Len(t, written, 2)
	require.True(t, ca.Equal(certificate(t, dir, "ca")))
	require.NoError(t, certificate(t, dir, "node-2").CheckSignatureFrom(ca))

	written, err = pki.Issue(pki.Config{Dir: dir, Certificates: []pki.Certificate{node("node-3"), node("node-1")}})
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, "node-1.crt")
	require.Empty(t, written)
	require.NoFileExists(t, filepath.Join(dir, "node-3.crt"))

	_, err = pki.Issue(pki.Config{Dir: dir, Force: true, Certificates: []pki.Certificate{node("node-1")}})
	require.NoError(t, err)
	require.False(t, first.Equal(certificate(t, dir, "node-1")))
	require.True(t, ca.Equal(certificate(t, dir, "ca")), "force never replaces the CA")
	_, err = tls.LoadX509KeyPair(filepath.Join(dir, "node-1.crt"), filepath.Join(dir, "node-1.key"))
	require.NoError(t, err)
}

func TestIssue_BrokenCA_IsNotReplaced(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"no key":  func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
		"no cert": func(dir string) error { return os.Remove(filepath.Join(dir, "ca.crt")) },
		"garbage": func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600) },
		"no CA": func(dir string) error {
			return errors.Join(
				os.Rename(filepath.Join(dir, "node-1.crt"), filepath.Join(dir, "ca.crt")),
				os.Rename(filepath.Join(dir, "node-1.key"), filepath.Join(dir, "ca.key")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := pki.Issue(pki.Config{Dir: dir, Certificates: []pki.Certificate{node("node-1")}})
			require.NoError(t, err)
			require.NoError(t, damage(dir))
			written, err := pki.Issue(pki.Config{Dir: dir, Force: true, Certificates: []pki.Certificate{node("node-2")}})
			require.ErrorContains(t, err, "CA")
			require.Empty(t, written)
		})
	}
}

func TestIssue_InvalidConfig_Fails(t *testing.T) {
	t.Parallel()
	_, err := pki.Issue(pki.Config{Days: 4000, Certificates: []pki.Certificate{
		{Name: "../evil", Role: pki.RoleGateway},
		{Name: "ca", Role: "boss"},
		node("twice"), node("twice", ""),
	}})
	for _, complaint := range []string{
		"no folder", "4000 days", `"../evil" is not a DNS label`, "taken by the CA", `role "boss"`, `"twice" appears twice`, "an empty host",
	} {
		require.ErrorContains(t, err, complaint)
	}
}

// TestIssue_Files_SufficeForEachRole checks that the files are sufficient for a coordinator, a gateway and an operator.
func TestIssue_Files_SufficeForEachRole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := pki.Issue(pki.Config{Dir: dir, Certificates: []pki.Certificate{
		node("node-1"),
		{Name: "edge-1", Role: pki.RoleGateway},
		{Name: "ops", Role: pki.RoleOperator},
	}})
	require.NoError(t, err)
	load := func(name string) *clusterport.TLS {
		loaded, err := clusterport.LoadTLS(clusterport.TLSConfig{
			CertFile: filepath.Join(dir, name+".crt"),
			KeyFile:  filepath.Join(dir, name+".key"),
			CAFile:   filepath.Join(dir, "ca.crt"),
		})
		require.NoError(t, err)
		return loaded
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port, err := clusterport.New(clusterport.Config{Listener: listener, TLS: load("node-1"), SniffTimeout: time.Minute})
	require.NoError(t, err)
	ran := make(chan error, 1)
	go func() { ran <- port.Run(t.Context()) }()
	for _, name := range []string{"node-1", "edge-1", "ops"} {
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, err := port.GRPC().Accept()
			if err == nil {
				accepted <- conn
			}
		}()
		conn, err := tls.Dial("tcp", listener.Addr().String(), load(name).ClientConfig(clusterport.ALPNgRPC))
		require.NoError(t, err)
		require.NoError(t, (<-accepted).Close())
		require.NoError(t, conn.Close())
	}
	require.NoError(t, port.Close())
	require.NoError(t, <-ran)
}
