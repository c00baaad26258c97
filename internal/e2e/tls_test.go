package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// files returns the environment variables for a party's certificate.
func files(dir, name string) map[string]string {
	return map[string]string{
		"ROLLCALL_TLS_CERT": filepath.Join(dir, name+".crt"), "ROLLCALL_TLS_KEY": filepath.Join(dir, name+".key"), "ROLLCALL_TLS_CA": filepath.Join(dir, "ca.crt"),
	}
}

// party loads a certificate for calling coordinators over a protocol.
func party(t *testing.T, dir, name, alpn string) *tls.Config {
	f := files(dir, name)
	loaded, err := clusterport.LoadTLS(clusterport.TLSConfig{CertFile: f["ROLLCALL_TLS_CERT"], KeyFile: f["ROLLCALL_TLS_KEY"], CAFile: f["ROLLCALL_TLS_CA"]})
	require.NoError(t, err)
	return loaded.ClientConfig(alpn)
}

// certificates makes certificates as the documentation describes; startSecureCluster uses them.
func certificates(t *testing.T) (dir string) {
	dir = filepath.Join(t.TempDir(), "certs")
	_, stderr, code := rollcall(t, nil, "tls", "init", "--dir", dir)
	require.Zero(t, code, stderr)
	return dir
}

func startSecureCluster(t *testing.T, dir string) *cluster {
	opts := options{env: steady, nodeEnv: map[string]map[string]string{}, creds: credentials.NewTLS(party(t, dir, "operator", clusterport.ALPNgRPC))}
	for _, id := range []string{"coordinator-1", "coordinator-2", "coordinator-3"} {
		opts.nodeEnv[id] = files(dir, id)
	}
	for k, v := range files(dir, "operator") {
		opts.cliEnv = append(opts.cliEnv, k+"="+v)
	}
	return startCluster(t, opts)
}

func TestTLS_Cluster(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	c := startSecureCluster(t, dir)
	relayers, ids := fleet(t, 2)

	// A gateway registers with its own certificate.
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: strings.Split(c.addresses(), ","), TLS: party(t, dir, "gateway", clusterport.ALPNgRPC)})
	require.NoError(t, err)
	t.Cleanup(func() { closeBody(client) })
	register := func(seq uint64, r *relayer) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := client.Register(ctx, &rollcallv1.RegisterServicesRequest{
			Writer:   &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "gateway"}, Incarnation: 1, Seq: seq},
			Services: []*rollcallv1.Service{service(r.id, r.url())},
		})
		return err
	}
	require.NoError(t, register(1, relayers[0]))
	c.awaitActive(patience, ids[0])

	// The operator's commands and a failover work.
	require.Contains(t, c.mustCLI("services", "list"), ids[0])
	stop := c.watchSet(ids[0])
	leader, epoch := c.leader()
	leader.kill()
	_, _ = c.leaderAfter(epoch)
	require.NoError(t, register(2, relayers[1]))
	c.awaitActive(patience, ids...)
	require.Contains(t, c.mustCLI("cluster", "status"), "does not answer")
	c.start(leader.id)
	c.awaitReady(leader)
	c.awaitWrites(2)
	stop()
}

func TestTLS_UnauthorizedPeer_IsRejected(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	c := startSecureCluster(t, dir)
	n, epoch := c.leader()

	foreign := certificates(t) // of another CA
	with := func(config *tls.Config, certs ...tls.Certificate) *tls.Config {
		config.GetClientCertificate = nil
		config.Certificates = certs
		return config
	}
	pair := func(dir, name string) tls.Certificate {
		f := files(dir, name)
		cert, err := tls.LoadX509KeyPair(f["ROLLCALL_TLS_CERT"], f["ROLLCALL_TLS_KEY"])
		require.NoError(t, err)
		return cert
	}
	ping := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient("passthrough:///"+n.address, grpc.WithTransportCredentials(creds))
		require.NoError(t, err)
		defer closeBody(conn)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err = rollcallv1.NewDiscoveryServiceClient(conn).Ping(ctx, &rollcallv1.PingRequest{})
		return err
	}
	ours := func() *tls.Config { return party(t, dir, "gateway", clusterport.ALPNgRPC) }
	require.NoError(t, ping(credentials.NewTLS(ours())))
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain text":     insecure.NewCredentials(),
		"no certificate": credentials.NewTLS(with(ours())),
		"another CA":     credentials.NewTLS(with(ours(), pair(foreign, "coordinator-1"))),
		"expired":        credentials.NewTLS(with(ours(), expired(t, dir, pki.RoleCoordinator))),
	} {
		require.Equal(t, codes.Unavailable, status.Code(ping(creds)), name)
	}
	// A client rejects a server of another CA, or one that is not a coordinator.
	require.Error(t, ping(credentials.NewTLS(party(t, foreign, "operator", clusterport.ALPNgRPC))))

	// Raft is for coordinators.
	raft := func(config *tls.Config) error {
		conn, err := tls.Dial("tcp", n.address, config)
		if err != nil {
			return err
		}
		defer closeBody(conn)
		// With TLS 1.3 a client detects its rejection when it reads.
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(3*time.Second)))
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	for _, name := range []string{"gateway", "operator"} {
		err := raft(party(t, dir, name, clusterport.ALPNRaft))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s was let in", name)
	}
	require.NotErrorIs(t, raft(with(party(t, dir, "coordinator-2", clusterport.ALPNRaft), pair(foreign, "coordinator-1"))), os.ErrDeadlineExceeded)
	require.NotErrorIs(t, raft(with(party(t, dir, "coordinator-2", clusterport.ALPNRaft), expired(t, dir, pki.RoleCoordinator))), os.ErrDeadlineExceeded)
	require.ErrorIs(t, raft(party(t, dir, "coordinator-2", clusterport.ALPNRaft)), os.ErrDeadlineExceeded, "a coordinator is let in")

	// Calls between coordinators are for coordinators, too; the administration is for operators.
	call := func(name string) (rollcallv1.PeerServiceClient, rollcallv1.ClusterServiceClient) {
		conn, err := grpc.NewClient("passthrough:///"+n.address, grpc.WithTransportCredentials(credentials.NewTLS(party(t, dir, name, clusterport.ALPNgRPC))))
		require.NoError(t, err)
		t.Cleanup(func() { closeBody(conn) })
		return rollcallv1.NewPeerServiceClient(conn), rollcallv1.NewClusterServiceClient(conn)
	}
	for name, allowed := range map[string]struct{ peer, cluster codes.Code }{
		"gateway":       {codes.PermissionDenied, codes.PermissionDenied},
		"operator":      {codes.PermissionDenied, codes.OK},
		"coordinator-2": {codes.OK, codes.OK},
	} {
		peers, admin := call(name)
		_, err := peers.Describe(t.Context(), &rollcallv1.DescribeRequest{})
		require.Equal(t, allowed.peer, status.Code(err), "%s: %v", name, err)
		_, err = peers.ConfirmTerm(t.Context(), &rollcallv1.ConfirmTermRequest{})
		require.Equal(t, allowed.peer, status.Code(err), "%s: %v", name, err)
		_, err = admin.ListMembers(t.Context(), &rollcallv1.ListMembersRequest{})
		require.Equal(t, allowed.cluster, status.Code(err), "%s: %v", name, err)
		if allowed.cluster != codes.OK {
			_, err = admin.RemoveMember(t.Context(), &rollcallv1.RemoveMemberRequest{Id: "coordinator-2"})
			require.Equal(t, allowed.cluster, status.Code(err))
			stream, err := admin.TakeSnapshot(t.Context(), &rollcallv1.TakeSnapshotRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, allowed.cluster, status.Code(err))
			services, err := admin.ImportServices(t.Context())
			require.NoError(t, err)
			_, err = services.CloseAndRecv()
			require.Equal(t, allowed.cluster, status.Code(err))
		}
	}
	// The command line prints the error with its remedy.
	c.opts.cliEnv = nil
	for k, v := range files(dir, "gateway") {
		c.opts.cliEnv = append(c.opts.cliEnv, k+"="+v)
	}
	_, output, code := c.cli("cluster", "remove", "coordinator-2")
	require.Equal(t, 1, code)
	require.Contains(t, output, "operator")

	_, now := c.leader()
	require.Equal(t, epoch, now)
	resp, err := n.admin().ListMembers(t.Context(), &rollcallv1.ListMembersRequest{})
	require.NoError(t, err)
	require.Len(t, resp.Members, 3)
}

// A certificate renewed on disk is used for the next connection, without a restart.
func TestTLS_CertificateRenewed_IsUsedWithoutRestart(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	c := startSecureCluster(t, dir)
	_, epoch := c.leader()
	serial := func(n *node) *big.Int {
		conn, err := tls.Dial("tcp", n.address, party(t, dir, "operator", clusterport.ALPNgRPC))
		require.NoError(t, err)
		defer closeBody(conn)
		return conn.ConnectionState().PeerCertificates[0].SerialNumber
	}
	before := map[string]*big.Int{}
	for id, n := range c.nodes {
		before[id] = serial(n)
	}
	_, stderr, code := rollcall(t, nil, "tls", "init", "--dir", dir, "--force")
	require.Zero(t, code, stderr)
	for id, n := range c.nodes {
		eventually(t, patience, func() bool { return serial(n).Cmp(before[id]) != 0 }, "the new certificate of %s", id)
		eventually(t, patience, func() bool { return len(n.logged("certificate reloaded")) > 0 }, "a word of it")
	}
	_, now := c.leader()
	require.Equal(t, epoch, now)
	require.Contains(t, c.mustCLI("cluster", "status"), "coordinator-1")
}

// expired is a certificate of our CA that was valid until a minute ago.
func expired(t *testing.T, dir string, role pki.Role) tls.Certificate {
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "coordinator-2"}, DNSNames: []string{string(role), "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	require.NoError(t, err)
	encoded, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}))
	require.NoError(t, err)
	return cert
}
