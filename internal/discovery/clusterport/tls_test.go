package clusterport_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

const (
	coordinator = pki.RoleCoordinator
	gateway     = pki.RoleGateway
	operator    = pki.RoleOperator
)

// authority issues certificates that the pki package would not.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key}
}

// write writes a certificate with the given validity, its key and the CA into dir.
func (a *authority) write(t *testing.T, dir string, valid time.Duration, names ...string) clusterport.TLSConfig {
	t.Helper()
	return a.writeFrom(t, dir, time.Now().Add(-48*time.Hour), valid, names...)
}

// writeFrom is like write, for a certificate that is valid only from the given time.
func (a *authority) writeFrom(t *testing.T, dir string, from time.Time, valid time.Duration, names ...string) clusterport.TLSConfig {
	t.Helper()
	cfg := clusterport.TLSConfig{
		CertFile: filepath.Join(dir, "node.crt"), KeyFile: filepath.Join(dir, "node.key"), CAFile: filepath.Join(dir, "ca.crt"),
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		NotBefore: from, NotAfter: time.Now().Add(valid),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    names,
	}, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for _, file := range []struct {
		path, kind string
		der        []byte
	}{{cfg.CertFile, "CERTIFICATE", der}, {cfg.KeyFile, "PRIVATE KEY", keyDER}, {cfg.CAFile, "CERTIFICATE", a.cert.Raw}} {
		require.NoError(t, os.WriteFile(file.path, pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: file.der}), 0o600))
	}
	return cfg
}

func load(t *testing.T, cfg clusterport.TLSConfig) *clusterport.TLS {
	t.Helper()
	loaded, err := clusterport.LoadTLS(cfg)
	require.NoError(t, err)
	return loaded
}

// load returns a fresh certificate with these roles.
func (a *authority) load(t *testing.T, roles ...pki.Role) *clusterport.TLS {
	t.Helper()
	names := []string{"node-1"}
	for _, role := range roles {
		names = append(names, string(role))
	}
	return load(t, a.write(t, t.TempDir(), 30*24*time.Hour, names...))
}

// clientOf returns a gRPC client like that of a gateway or the command line.
func clientOf(t *testing.T, cfg *tls.Config, to *node) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to.addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func TestRoles_ClientCertificates_GiveTheCallersRoles(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	n := start(t, clusterport.Config{TLS: ca.load(t, coordinator)})
	for _, roles := range [][]pki.Role{{coordinator}, {gateway}, {operator}, {gateway, operator}, nil} {
		require.NoError(t, call(t.Context(), clientOf(t, ca.load(t, roles...).ClientConfig(clusterport.ALPNgRPC), n)))
		require.ElementsMatch(t, roles, <-n.roles)
	}
	require.Empty(t, clusterport.Roles(t.Context()), "no peer at all")
	require.False(t, clusterport.HasRole(t.Context(), pki.AllRoles()...))
}

func TestTLS_Peers_ReachEachOther(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	a := start(t, clusterport.Config{TLS: ca.load(t, coordinator)})
	b := start(t, clusterport.Config{TLS: ca.load(t, coordinator)})
	require.NoError(t, call(t.Context(), newClient(t, a.Port, b)))
	require.Equal(t, []pki.Role{coordinator}, <-b.roles)
	require.NoError(t, echo(dialRaft(t, b.Port, a), "append entries"))
}

// Each client must be refused with an error at once, and the log must contain the reason.
func TestTLS_ClientRefused_GetsTheReasonAtOnce(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	other := newCA(t)
	expired := func(t *testing.T) *tls.Config {
		cfg := ca.write(t, t.TempDir(), -time.Hour, string(coordinator))
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		require.NoError(t, err)
		config := ca.load(t, coordinator).ClientConfig(clusterport.ALPNRaft)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		return config
	}
	for name, tc := range map[string]struct {
		config func(t *testing.T) *tls.Config
		want   string // error of the client
		logs   string
	}{
		"gateway speaks raft": {
			func(t *testing.T) *tls.Config { return ca.load(t, gateway).ClientConfig(clusterport.ALPNRaft) },
			"bad certificate", "raft needs the role coordinator.rollcall.internal",
		},
		"operator speaks raft": {
			func(t *testing.T) *tls.Config { return ca.load(t, operator).ClientConfig(clusterport.ALPNRaft) },
			"bad certificate", "raft needs the role",
		},
		"no certificate": {
			func(t *testing.T) *tls.Config {
				config := ca.load(t, coordinator).ClientConfig(clusterport.ALPNgRPC)
				config.GetClientCertificate = nil
				return config
			}, "certificate required", "didn't provide a certificate",
		},
		"another CA": {
			func(t *testing.T) *tls.Config {
				config := other.load(t, coordinator).ClientConfig(clusterport.ALPNRaft)
				config.VerifyConnection = nil // otherwise the client refuses first
				return config
			}, "unknown certificate authority", "signed by unknown authority",
		},
		"expired": {expired, "expired certificate", "expired"},
		"old TLS": {
			func(t *testing.T) *tls.Config {
				config := ca.load(t, coordinator).ClientConfig(clusterport.ALPNgRPC)
				config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
				return config
			}, "protocol version not supported", "unsupported versions",
		},
		"another protocol": {
			func(t *testing.T) *tls.Config { return ca.load(t, coordinator).ClientConfig("rollcall-raft/2") },
			"no application protocol", "unsupported application protocols",
		},
		"no protocol": {
			func(t *testing.T) *tls.Config {
				config := ca.load(t, coordinator).ClientConfig("")
				config.NextProtos = nil
				return config
			}, "EOF", "no application protocol",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, clusterport.Config{TLS: ca.load(t, coordinator), SniffTimeout: time.Minute})
			conn, err := tls.Dial("tcp", n.addr, tc.config(t))
			if err == nil { // a TLS 1.3 client finishes before the server has checked its certificate
				_, err = conn.Read(make([]byte, 1))
				require.NoError(t, conn.Close())
			}
			require.ErrorContains(t, err, tc.want)
			n.requireRefused(t, map[string]int{"tls": 1})
			require.NoError(t, n.stop())
			lines := n.logs.lines(t, "connection refused")
			require.Len(t, lines, 1)
			require.Equal(t, "WARN", lines[0]["level"])
			require.Contains(t, lines[0]["err"], tc.logs)
			require.Empty(t, n.roles)
		})
	}
}

// The Raft transport must get an error for a refusal, not a timeout.
func TestRaftDial_CertificateRefused_Fails(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{TLS: newCA(t).load(t, coordinator)})
	stranger := start(t, clusterport.Config{TLS: newCA(t).load(t, coordinator)})
	_, err := stranger.raft.Dial(raft.ServerAddress(n.addr), time.Minute)
	require.ErrorContains(t, err, "unknown authority", "and the other way round")
}

func TestTLS_PlainPeer_IsRefused(t *testing.T) {
	t.Parallel()
	secured := start(t, clusterport.Config{TLS: newCA(t).load(t, coordinator), SniffTimeout: time.Minute})
	plain := start(t, clusterport.Config{SniffTimeout: time.Minute})

	stream := dialRaft(t, plain.Port, secured)
	require.Error(t, echo(stream, "x"))
	conn, err := grpc.NewClient("passthrough:///"+secured.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, codes.Unavailable, status.Code(call(t.Context(), grpc_health_v1.NewHealthClient(conn))))
	require.Empty(t, secured.roles)

	_, err = secured.raft.Dial(raft.ServerAddress(plain.addr), time.Minute)
	require.Error(t, err)
	plain.requireRefused(t, map[string]int{"tls": 1})
}

func TestTLS_ServerIsNoCoordinator_IsRefused(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	_, err := clusterport.New(clusterport.Config{Listener: listen(t), TLS: ca.load(t, gateway)})
	require.ErrorContains(t, err, "has the roles [gateway.rollcall.internal], not coordinator.rollcall.internal")

	// A server with a gateway's certificate must not pass as a coordinator.
	impostor, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return ca.load(t, gateway).ClientConfig("").GetClientCertificate(nil)
		},
		NextProtos: []string{clusterport.ALPNgRPC},
	})
	require.NoError(t, err)
	defer impostor.Close()
	go func() {
		conn, err := impostor.Accept()
		if err == nil {
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	_, err = tls.Dial("tcp", impostor.Addr().String(), ca.load(t, gateway).ClientConfig(clusterport.ALPNgRPC))
	require.ErrorContains(t, err, "not coordinator.rollcall.internal")
}

func TestTLS_SilentHandshake_LogsNoWarning(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{TLS: newCA(t).load(t, coordinator), SniffTimeout: 50 * time.Millisecond})
	requireClosed(t, dial(t, n))
	probe := dial(t, n) // like a load balancer that only connects
	require.NoError(t, probe.Close())
	require.Eventually(t, func() bool { return n.refused(t)["silent"] == 2 }, 2*time.Minute, time.Millisecond)
	require.NoError(t, n.stop())
	for _, line := range n.logs.lines(t, "connection refused") {
		require.Equal(t, "DEBUG", line["level"])
	}
}

func TestTLS_ManyRefusals_LogFewWarnings(t *testing.T) {
	t.Parallel()
	n := start(t, clusterport.Config{TLS: newCA(t).load(t, coordinator)})
	began := time.Now()
	for range 20 {
		conn := dial(t, n)
		_, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		require.NoError(t, err)
		requireClosedAfterAlert(t, conn)
	}
	n.requireRefused(t, map[string]int{"tls": 20})
	seconds := int(time.Since(began)/time.Second) + 1
	require.NoError(t, n.stop())
	warnings := 0
	for _, line := range n.logs.lines(t, "connection refused") {
		if line["level"] == "WARN" {
			warnings++
		}
	}
	require.Positive(t, warnings)
	require.LessOrEqual(t, warnings, seconds)
}

func requireClosedAfterAlert(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		if _, err := conn.Read(make([]byte, 64)); err != nil {
			require.True(t, closedByPeer(err), "%v", err)
			return
		}
	}
}

// serial connects and returns the serial number of the server's certificate.
func serial(t *testing.T, n *node, client *clusterport.TLS) string {
	t.Helper()
	conn, err := tls.Dial("tcp", n.addr, client.ClientConfig(clusterport.ALPNgRPC))
	require.NoError(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestTLSReload_FilesChange_UsesTheNewCertificate(t *testing.T) {
	t.Parallel()
	ca, dir, log := newCA(t), t.TempDir(), new(logs)
	cfg := ca.write(t, dir, 30*24*time.Hour, string(coordinator))
	cfg.Logger = slog.New(slog.NewJSONHandler(log, nil))
	own, client := load(t, cfg), ca.load(t, gateway)
	n := start(t, clusterport.Config{TLS: own})
	first := serial(t, n, client)
	standing := newClient(t, n.Port, n)
	require.NoError(t, call(t.Context(), standing))

	ca.write(t, dir, 60*24*time.Hour, string(coordinator))
	own.LookAgain()
	second := serial(t, n, client)
	require.NotEqual(t, first, second)
	require.WithinDuration(t, time.Now().Add(60*24*time.Hour), own.Expiry(), time.Hour)
	require.Len(t, log.lines(t, "certificate reloaded"), 1)
	require.NoError(t, call(t.Context(), standing), "open connections are kept")

	for name, spoil := range map[string]func(){
		"key of another": func() {
			require.NoError(t, os.Rename(ca.write(t, t.TempDir(), time.Hour, "x").KeyFile, cfg.KeyFile))
		},
		"half a certificate": func() { require.NoError(t, os.Truncate(cfg.CertFile, 100)) },
		"empty CA":           func() { require.NoError(t, os.Truncate(cfg.CAFile, 0)) },
		"no certificate":     func() { require.NoError(t, os.Remove(cfg.CertFile)) },
		"expired":            func() { ca.write(t, dir, -time.Hour, string(coordinator)) },
	} {
		spoil()
		before := len(log.lines(t, "new certificate files can't be used, keeping the old ones"))
		for range 2 {
			own.LookAgain()
			require.Equal(t, second, serial(t, n, client), name)
		}
		require.Len(t, log.lines(t, "new certificate files can't be used, keeping the old ones"), before+1, name)
	}

	ca.write(t, dir, 90*24*time.Hour, string(coordinator))
	own.LookAgain()
	require.NotEqual(t, second, serial(t, n, client))
}

// Certificate renewals keep the sizes of files, and cp -p, images and link farms keep or set their times.
func TestTLSReload_FilesReplacedWithSameSizeAndTime_UsesTheNewCertificate(t *testing.T) {
	t.Parallel()
	ca, dir, other := newCA(t), t.TempDir(), t.TempDir()
	cfg := ca.write(t, dir, 30*24*time.Hour, string(coordinator))
	own := load(t, cfg)
	sizes := func(cfg clusterport.TLSConfig) (all []int64) {
		for _, path := range []string{cfg.CertFile, cfg.KeyFile, cfg.CAFile} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			all = append(all, info.Size())
		}
		return all
	}
	renewed := ca.write(t, other, 60*24*time.Hour, string(coordinator))
	for try := 0; !slices.Equal(sizes(renewed), sizes(cfg)); try++ { // a signature's length varies by two bytes
		require.Less(t, try, 1000)
		renewed = ca.write(t, other, 60*24*time.Hour, string(coordinator))
	}
	for from, to := range map[string]string{renewed.CertFile: cfg.CertFile, renewed.KeyFile: cfg.KeyFile} {
		info, err := os.Stat(to)
		require.NoError(t, err)
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
		require.NoError(t, os.Chtimes(to, info.ModTime(), info.ModTime()))
	}
	own.LookAgain()
	require.WithinDuration(t, time.Now().Add(60*24*time.Hour), own.Expiry(), time.Hour)
}

// A certificate from a clock ahead of ours must be loaded once it is valid, although its file does not change.
func TestTLSReload_CertificateNotValidYet_IsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, dir, log := newCA(t), t.TempDir(), new(logs)
		cfg := ca.write(t, dir, 30*24*time.Hour, string(coordinator))
		cfg.Logger = slog.New(slog.NewJSONHandler(log, nil))
		own := load(t, cfg)
		first := own.Expiry()

		ca.writeFrom(t, dir, time.Now().Add(10*time.Second), 60*24*time.Hour, string(coordinator))
		for range 4 {
			<-time.After(2 * time.Second)
			require.Equal(t, first, own.Expiry())
		}
		require.Len(t, log.lines(t, "new certificate files can't be used, keeping the old ones"), 1)
		<-time.After(3 * time.Second)
		require.True(t, own.Expiry().After(first))
		require.Len(t, log.lines(t, "certificate reloaded"), 1)
	})
}

// Both sides must change to another CA without a restart, including a client with one tls.Config.
func TestTLSReload_CAReplaced_NeedsNoRestart(t *testing.T) {
	t.Parallel()
	before, after := newCA(t), newCA(t)
	serverDir, clientDir := t.TempDir(), t.TempDir()
	server := load(t, before.write(t, serverDir, time.Hour*24*30, string(coordinator)))
	client := load(t, before.write(t, clientDir, time.Hour*24*30, string(gateway)))
	n := start(t, clusterport.Config{TLS: server})
	config := client.ClientConfig(clusterport.ALPNgRPC)
	require.NoError(t, call(t.Context(), clientOf(t, config, n)))

	after.write(t, serverDir, time.Hour*24*30, string(coordinator))
	server.LookAgain()
	require.Error(t, call(t.Context(), clientOf(t, config, n)))
	after.write(t, clientDir, time.Hour*24*30, string(gateway))
	client.LookAgain()
	require.NoError(t, call(t.Context(), clientOf(t, config, n)))
}

func TestTLS_CertificateExpiresSoon_IsLogged(t *testing.T) {
	t.Parallel()
	ca, dir, log := newCA(t), t.TempDir(), new(logs)
	cfg := ca.write(t, dir, 3*24*time.Hour, string(coordinator))
	cfg.Logger = slog.New(slog.NewJSONHandler(log, nil))
	own := load(t, cfg)
	for range 3 {
		own.LookAgain()
		require.WithinDuration(t, time.Now().Add(3*24*time.Hour), own.Expiry(), time.Hour)
	}
	require.Len(t, log.lines(t, "certificate expires soon"), 1, "once an hour")

	n := start(t, clusterport.Config{TLS: own})
	require.Eventually(t, func() bool {
		families, err := n.metrics.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "rollcall_tls_certificate_expiry_timestamp_seconds" {
				return int64(family.GetMetric()[0].GetGauge().GetValue()) == own.Expiry().Unix()
			}
		}
		return false
	}, 2*time.Minute, time.Millisecond)

	ca.write(t, dir, 8*24*time.Hour, string(coordinator))
	own.LookAgain()
	_ = own.Expiry()
	require.Len(t, log.lines(t, "certificate expires soon"), 1)
}

func TestLoadTLS_UnusableFiles_Fails(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, cfg *clusterport.TLSConfig)
		want  string
	}{
		"no files":    {func(_ *testing.T, cfg *clusterport.TLSConfig) { *cfg = clusterport.TLSConfig{} }, "load certificate"},
		"no CA":       {func(_ *testing.T, cfg *clusterport.TLSConfig) { cfg.CAFile += ".gone" }, "load CA"},
		"CA is a key": {func(_ *testing.T, cfg *clusterport.TLSConfig) { cfg.CAFile = cfg.KeyFile }, "no certificate in it"},
		"expired": {func(t *testing.T, cfg *clusterport.TLSConfig) {
			*cfg = ca.write(t, t.TempDir(), -time.Hour, string(coordinator))
		}, "is valid from"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := ca.write(t, t.TempDir(), time.Hour, string(coordinator))
			tc.spoil(t, &cfg)
			_, err := clusterport.LoadTLS(cfg)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// The credentials must accept only connections of the port's own listener.
func TestServerCredentials_ForeignConnection_IsRefused(t *testing.T) {
	t.Parallel()
	port, err := clusterport.New(clusterport.Config{Listener: listen(t), TLS: newCA(t).load(t, coordinator)})
	require.NoError(t, err)
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_, _, err = port.ServerCredentials().ServerHandshake(a)
	require.Error(t, err)
	_, _, err = port.ServerCredentials().ClientHandshake(context.Background(), "x", a)
	require.Error(t, err)
	require.NoError(t, port.Close())
}
