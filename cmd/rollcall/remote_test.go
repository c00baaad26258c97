package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
)

// clusterPort is the port of a coordinator that nothing is behind.
func clusterPort(t *testing.T, tls *clusterport.TLS) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port, err := clusterport.New(clusterport.Config{Listener: listener, TLS: tls})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- port.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return listener.Addr().String()
}

// An operator who uses TLS where the cluster does not, or the other way round, is told that this is the likely cause.
func TestCluster_TLSMismatch(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	succeed(t, "tls", "init", "--dir", folder)
	file := func(name string) string { return filepath.Join(folder, name) }
	tls, err := clusterport.LoadTLS(clusterport.TLSConfig{CertFile: file("coordinator-1.crt"), KeyFile: file("coordinator-1.key"), CAFile: file("ca.crt")})
	require.NoError(t, err)
	operator := []string{"--tls-ca", file("ca.crt"), "--tls-cert", file("operator.crt"), "--tls-key", file("operator.key")}
	for name, tc := range map[string]struct {
		address, want string
		flags         []string
	}{
		"plain to TLS": {address: clusterPort(t, tls), want: "likely expects TLS, which this client does not use"},
		"TLS to plain": {address: clusterPort(t, nil), want: "likely does not use TLS, which this client does", flags: operator},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, command := range [][]string{{"cluster", "status"}, {"services", "list"}, {"status"}} {
				r := rollcall(t, append(append(command, "--coordinators", tc.address, "--timeout", "5s"), tc.flags...)...)
				require.Equal(t, cli.ExitNotDone, r.code)
				require.Contains(t, r.stderr, tc.address+": ")
				require.Contains(t, r.stderr, tc.want)
				require.Contains(t, r.stderr, "Give --tls-cert, --tls-key and --tls-ca")
				require.NotContains(t, r.stderr, "rpc error")
			}
		})
	}
}

// Each coordinator that does not answer is listed with a plain cause.
func TestCluster_NoLeader(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	r := rollcall(t, "services", "list", "--coordinators", address+",coordinator.invalid:7400", "--timeout", "5s")
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "no coordinator leads: "+address+": connection refused; coordinator.invalid:7400: lookup coordinator.invalid")
	require.Contains(t, r.stderr, "Check --coordinators (ROLLCALL_COORDINATORS)")
	for _, raw := range []string{"rpc error", "desc =", "ping "} {
		require.NotContains(t, r.stderr, raw)
	}
}
