package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
)

// A gateway over real TCP: a file, an advertisement, a removed file, and what stays when it is gone.
func TestGateway_FilesAndAdvertisements_AreRegistered(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	relayer := freeAddress(t)
	folder, state, web := t.TempDir(), t.TempDir(), freeAddress(t)
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	definition := func(id string) string {
		return "id: " + id + "\nkind: relayer\nworker_ref:\n  url: http://" + relayer + "\n"
	}
	write("a.yaml", definition("oz-relayer-0"))
	write("b.yaml", definition("oz-relayer-1"))
	args := c.remote("gateway", "--id", "edge", "--definitions", folder, "--listen", web, "--state-dir", state, "--host", "host-1")
	g := start(t, args...)
	g.await(t, "http://"+web+"/healthz")

	ids := func() string {
		var d admin.Directory
		require.NoError(t, json.Unmarshal([]byte(succeed(t, c.remote("services", "list", "-o", "json")...)), &d))
		var all []string
		for _, s := range d.Services {
			require.Equal(t, "gateway/edge", s.Owner)
			require.Equal(t, "host-1", s.Node)
			all = append(all, s.ID)
		}
		return strings.Join(all, " ")
	}
	require.Empty(t, ids(), "nothing is offered before it has been well once")
	serveWell(t, relayer)
	require.Eventually(t, func() bool { return ids() == "oz-relayer-0 oz-relayer-1" }, 2*time.Minute, 50*time.Millisecond)
	g.await(t, "http://"+web+"/readyz")

	res, err := client.Post("http://"+web+"/v1/services", "application/yaml", strings.NewReader(definition("oz-relayer-2")))
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, res.StatusCode)
	require.NoError(t, res.Body.Close())
	require.Eventually(t, func() bool { return strings.HasSuffix(ids(), "oz-relayer-2") }, 2*time.Minute, 50*time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(folder, "b.yaml")))
	require.Eventually(t, func() bool { return ids() == "oz-relayer-0 oz-relayer-2" }, 2*time.Minute, 50*time.Millisecond)

	res, err = client.Get("http://" + web + "/metrics")
	require.NoError(t, err)
	metrics, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	for _, want := range []string{
		`rollcall_gateway_leader_changes_total 1`, `rollcall_gateway_writes_total{kind="full"} `, `rollcall_gateway_epoch `,
		`rollcall_gateway_errors_total 0`, `rollcall_gateway_refused_services 0`, `rollcall_foreman_services{state="offered"} 2`,
	} {
		require.Contains(t, string(metrics), want)
	}

	require.Zero(t, g.stop())
	require.Contains(t, g.log.String(), `"msg":"gateway stopped"`)
	require.Equal(t, "oz-relayer-0 oz-relayer-2", ids(), "what it registered stays")
	g = start(t, append(args, "--deregister-on-stop")...)
	g.await(t, "http://"+web+"/readyz")
	require.Equal(t, "oz-relayer-0 oz-relayer-2", ids(), "advertisements are remembered")
	require.Zero(t, g.stop())
	require.Empty(t, ids(), "it was told to leave")
}

func TestGateway_AddressInUse_Fails(t *testing.T) {
	t.Parallel()
	taken := freeAddress(t)
	serveWell(t, taken)
	r := rollcall(t, "gateway", "--id", "edge", "--definitions", t.TempDir(), "--listen", taken, "--state-dir", t.TempDir())
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, `"msg":"gateway failed"`)
	require.Contains(t, r.stderr, "address already in use")
}

func TestGateway_TLS_UsesItsOwnCertificate(t *testing.T) {
	t.Parallel()
	dir, folder := t.TempDir(), t.TempDir()
	succeed(t, "tls", "init", "--dir", dir)
	cert := func(name string) []string {
		return []string{"--tls-cert", filepath.Join(dir, name+".crt"), "--tls-key", filepath.Join(dir, name+".key"), "--tls-ca", filepath.Join(dir, "ca.crt")}
	}
	c := startCluster(t, 1, cert("coordinator-1")...)
	relayer, web := freeAddress(t), freeAddress(t)
	serveWell(t, relayer)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a.json"), []byte(`{"id":"a","kind":"relayer","worker_ref":{"url":"http://`+relayer+`"}}`), 0o600))
	g := start(t, append(c.remote("gateway", "--id", "edge", "--definitions", folder, "--listen", web, "--state-dir", t.TempDir()), cert("gateway")...)...)
	g.await(t, "http://"+web+"/readyz")
	require.Contains(t, succeed(t, append(c.remote("services", "list"), cert("operator")...)...), "1 service")
}
