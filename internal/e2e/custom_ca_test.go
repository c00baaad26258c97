package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Relayers with https:// and a Redis with rediss://, whose certificates are from a custom CA.
func TestCustomCA_RelayersAndRedis(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, stderr, code := rollcall(t, nil, "tls", "init", "--dir", dir, "--coordinator", "server", "--host", "127.0.0.1")
	require.Zero(t, code, stderr)
	file := func(name string) string { return filepath.Join(dir, name) }

	well := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	cert, err := tls.LoadX509KeyPair(file("server.crt"), file("server.key"))
	require.NoError(t, err)
	ours := httptest.NewUnstartedServer(well)
	ours.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	ours.StartTLS()
	t.Cleanup(ours.Close)
	stranger := httptest.NewTLSServer(well) // with a certificate of the test library
	t.Cleanup(stranger.Close)

	port := freePort(t)
	redis := testredis.Start(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", file("server.crt"), "--tls-key-file", file("server.key"),
		"--tls-ca-cert-file", file("ca.crt"), "--tls-auth-clients", "no")
	url := fmt.Sprintf("rediss://127.0.0.1:%d", port)
	c := startCluster(t, options{redis: redis, env: map[string]string{
		"REDIS_URL": url, "REDIS_CA_FILE": file("ca.crt"), "HEALTH_CHECK_CA_FILE": file("ca.crt"),
	}})
	c.write(&rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{
		service("ours", ours.URL), service("stranger", stranger.URL),
	}})
	c.awaitActive(patience, "ours")
	leader, _ := c.leader()
	eventually(t, patience, func() bool {
		_, page := leader.page(t, "/status")
		return strings.Contains(page, "certificate signed by unknown authority")
	}, "the stranger is refused, and the page says why")

	stdout, stderr, code := rollcall(t, []string{"REDIS_URL=" + url, "REDIS_CA_FILE=" + file("ca.crt")}, "mirror", "show")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "active   relayer: ours\n")
	_, stderr, code = rollcall(t, []string{"REDIS_URL=" + url}, "mirror", "show")
	require.NotZero(t, code)
	require.Contains(t, stderr, "certificate signed by unknown authority")
}
