package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Settings of a gateway and of the operator's commands that need a separate process.

// services requests them under a host name.
func (a *agent) services(host string) (code int, answer string) {
	a.c.t.Helper()
	req, err := http.NewRequestWithContext(a.c.t.Context(), http.MethodGet, "http://"+a.http+"/v1/services", nil)
	require.NoError(a.c.t, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	require.NoError(a.c.t, err)
	defer closeBody(resp.Body)
	var body strings.Builder
	require.NoError(a.c.t, resp.Write(&body))
	return resp.StatusCode, body.String()
}

func TestGateway_ListenBeyondLoopback_MustBeAllowed(t *testing.T) {
	t.Parallel()
	c := planCluster(t, options{})
	a := c.defineAgent("edge-1")
	_, port, err := net.SplitHostPort(a.http)
	require.NoError(t, err)
	a.env["ROLLCALL_GATEWAY_LISTEN"] = "0.0.0.0:" + port
	a.run()
	require.Equal(t, 2, a.exit(patience))
	require.Contains(t, strings.Join(a.output(), "\n"), "is not a loopback address; listen at 127.0.0.1, or give --allow-remote")

	// Even then the gateway accepts only known host names, because a web page's own name could resolve to this address.
	a.env["ROLLCALL_GATEWAY_ALLOW_REMOTE"] = "true"
	a.start()
	for host, want := range map[string]int{"localhost": 200, "127.0.0.1:" + port: 200, "[::1]": 200, "relay-host": 403, "10.0.0.1": 403} {
		code, answer := a.services(host)
		require.Equal(t, want, code, "%s: %s", host, answer)
		if want == 403 {
			require.Contains(t, answer, "unknown host")
		}
	}
	require.Zero(t, a.stop())
	a.env["ROLLCALL_GATEWAY_HOSTS"] = "relay-host,10.0.0.1"
	a.start()
	for host, want := range map[string]int{"localhost": 200, "Relay-Host:" + port: 200, "10.0.0.1": 200, "other-host": 403} {
		code, answer := a.services(host)
		require.Equal(t, want, code, "%s: %s", host, answer)
	}
}

// A file accepts the settings of flags; an environment variable overrides it.
func TestGateway_ConfigFile_EnvironmentOverrides(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 1)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	settings := fmt.Sprintf("id: from-file\ncoordinators: [%s]\ndefinitions: %s\nlisten: %s\nstate-dir: %s\nhost: host-9\nlog-format: text\nstartup-wait: 0s\n",
		strings.ReplaceAll(c.addresses(), ",", ", "), a.definitions, a.http, a.memory)
	require.NoError(t, os.WriteFile(file, []byte(settings), 0o600))
	a.process = launch(t, "edge-1", []string{"ROLLCALL_CONFIG=" + file, "ROLLCALL_HOST=host-1"}, "gateway")
	a.await("/readyz", http.StatusOK)
	list := c.mustCLI("services", "get", ids[0])
	require.Contains(t, list, "gateway/from-file")
	require.Contains(t, list, "host-1")
	require.Contains(t, strings.Join(a.output(), "\n"), "level=INFO msg=")
	require.Zero(t, a.stop())

	require.NoError(t, os.WriteFile(file, []byte("id: UPPER\nlissten: x\nresync-interval: 1h\n"), 0o600))
	_, stderr, code := rollcall(t, []string{"ROLLCALL_CONFIG=" + file}, "gateway")
	require.Equal(t, 2, code)
	for _, want := range []string{`"UPPER" is not a DNS label`, "lissten", `"1h" is above 2m`, file} {
		require.Contains(t, stderr, want)
	}
	_, stderr, code = rollcall(t, []string{"ROLLCALL_CONFIG=" + file + ".none"}, "gateway")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "no such file")
}

func TestGateway_LogVariables(t *testing.T) {
	t.Parallel()
	c := planCluster(t, options{})
	for variables, want := range map[string]string{
		"debug,json": `"level":"DEBUG"`, "info,text": "level=INFO", "error,json": "",
	} {
		level, format, _ := strings.Cut(variables, ",")
		a := c.defineAgent("edge-1")
		a.env = map[string]string{"ROLLCALL_LOG_LEVEL": level, "ROLLCALL_LOG_FORMAT": format, "ROLLCALL_STARTUP_WAIT": "0s"}
		a.write("a.json", definition("a", "http://127.0.0.1:1"))
		a.start()
		a.advertise("b", "http://127.0.0.1:1") // which is logged at level debug
		require.Zero(t, a.stop())
		all := strings.Join(a.output(), "\n")
		if want == "" {
			require.Empty(t, all)
			continue
		}
		require.Contains(t, all, want)
		if level == "info" {
			require.NotContains(t, all, "DEBUG")
		}
	}
}

// demanding starts a relayer that is healthy only with the configured path, header, status code and timeout.
func demanding(t *testing.T) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/health", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		select { // answers slower than the default check timeout
		case <-time.After(700 * time.Millisecond):
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + l.Addr().String()
}

// deaf returns an address at which connects neither succeed nor fail: nothing accepts, and the backlog is full.
func deaf(t *testing.T) (url string) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for {
		conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			return "http://" + address
		}
		t.Cleanup(func() { closeBody(conn) })
	}
}

// Each variable of the first check is needed for this relayer: without it the service is held, and the reason is
// reported.
func TestGateway_CheckVariables_AreApplied(t *testing.T) {
	t.Parallel()
	relayer := demanding(t)
	header := filepath.Join(t.TempDir(), "header")
	require.NoError(t, os.WriteFile(header, []byte("X-Key: secret\n"), 0o600))
	all := map[string]string{
		"HEALTH_CHECK_PATH": "/api/v1/health", "HEALTH_CHECK_EXPECTED_CODES": "204", "HEALTH_CHECK_TIMEOUT_MS": "20000",
		"HEALTH_CHECK_AUTH_HEADER": "X-Key: secret", "HEALTH_CHECK_AUTH_HOSTS": "127.0.0.1", "ROLLCALL_STARTUP_WAIT": "0s",
	}
	without := func(name string, instead ...string) map[string]string {
		env := maps.Clone(all)
		delete(env, name)
		for _, variable := range instead {
			k, v, _ := strings.Cut(variable, "=")
			env[k] = v
		}
		return env
	}
	deafURL := deaf(t)
	c := planCluster(t, options{})
	for name, try := range map[string]struct {
		env         map[string]string
		url, reason string // "" for a service that is offered
	}{
		"all":     {all, relayer, ""},
		"file":    {without("HEALTH_CHECK_AUTH_HEADER", "HEALTH_CHECK_AUTH_HEADER_FILE="+header), relayer, ""},
		"path":    {without("HEALTH_CHECK_PATH"), relayer, "404"},
		"codes":   {without("HEALTH_CHECK_EXPECTED_CODES"), relayer, "204"},
		"timeout": {without("HEALTH_CHECK_TIMEOUT_MS"), relayer, "no answer within 500ms"},
		"header":  {without("HEALTH_CHECK_AUTH_HEADER", "HEALTH_CHECK_AUTH_HOSTS="), relayer, "401"},
		"hosts":   {without("HEALTH_CHECK_AUTH_HOSTS", "HEALTH_CHECK_AUTH_HOSTS=10.0.0.1"), relayer, "401"},
		"connect": {without("", "HEALTH_CHECK_CONNECT_TIMEOUT_MS=321"), deafURL, "connect: no answer within 321ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := c.defineAgent("edge-1")
			maps.Copy(a.env, try.env)
			a.write("a.json", definition("a", try.url))
			a.start()
			eventually(t, patience, func() bool {
				s := a.page().Services
				return len(s) == 1 && (s[0].State == "offered") == (try.reason == "") && strings.Contains(s[0].Reason, try.reason)
			}, "%q is the verdict", try.reason)
		})
	}
}

// The first set waits for the configured time; an emptied folder takes effect at the end of its grace period.
func TestGateway_StartupWaitAndGracePeriod_AreApplied(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.env["ROLLCALL_STARTUP_WAIT"] = "10m"
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.write("b.json", definition(ids[1], relayers[1].url()))
	a.start()
	eventually(t, patience, func() bool { return len(a.logged("service offered")) == 2 && len(a.logged("leader found")) > 0 }, "all could be said")
	require.Equal(t, http.StatusServiceUnavailable, first(a.call(http.MethodGet, "/readyz", "")))
	require.Empty(t, c.directory())
	require.Zero(t, a.stop())

	a.env = map[string]string{"ROLLCALL_STARTUP_WAIT": "0s", "ROLLCALL_MISSING_FILES_GRACE": "24h"}
	a.start()
	c.awaitDirectory(ids...)
	empty := func() {
		for _, name := range []string{"a.json", "b.json"} {
			require.NoError(t, os.Rename(filepath.Join(a.definitions, name), filepath.Join(a.memory, name)))
		}
	}
	folderError := func() (page struct {
		FolderError string `json:"folder_error"`
	}) {
		code, body := a.call(http.MethodGet, "/v1/services", "")
		require.Equal(t, http.StatusOK, code)
		require.NoError(t, json.Unmarshal([]byte(body), &page))
		return page
	}
	empty()
	eventually(t, patience, func() bool { return strings.Contains(folderError().FolderError, "stay for 24h") }, "it is reported")
	require.Equal(t, ids, c.directory())
	for _, name := range []string{"a.json", "b.json"} {
		require.NoError(t, os.Rename(filepath.Join(a.memory, name), filepath.Join(a.definitions, name)))
	}
	eventually(t, patience, func() bool { return folderError().FolderError == "" }, "they are back")
	require.Zero(t, a.stop())

	a.env["ROLLCALL_MISSING_FILES_GRACE"] = "0s"
	a.start()
	a.await("/readyz", http.StatusOK)
	empty()
	c.awaitDirectory()
}

func first(code int, _ string) int { return code }

// An operator's command times out as configured, and its error describes how to extend the time.
func TestCommands_Timeout_IsApplied(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { closeBody(silent) })
	took := func(timeout string) time.Duration {
		began := time.Now()
		_, stderr, code := rollcall(t, []string{"ROLLCALL_TIMEOUT=" + timeout, "ROLLCALL_COORDINATORS=" + silent.Addr().String()}, "services", "list", "--stale")
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "give it longer with --timeout")
		return time.Since(began)
	}
	require.Greater(t, took("11s"), 11*time.Second, "it is 10 s by default")
	require.Less(t, took("100ms"), 10*time.Second)
	_, stderr, code := rollcall(t, []string{"ROLLCALL_TIMEOUT=1ms"}, "services", "list")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, `ROLLCALL_TIMEOUT in the environment: "1ms" is below 100ms`)
}

// A gateway process with TLS: its certificate comes from the environment, and it needs one.
func TestGateway_TLS(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	c := startSecureCluster(t, dir)
	relayers, ids := fleet(t, 1)
	a := c.defineAgent("gateway")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.start()
	eventually(t, patience, func() bool {
		code, body := a.call(http.MethodGet, "/readyz", "")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "not ready")
	}, "the coordinators reject it without a certificate")
	require.Zero(t, a.stop())
	maps.Copy(a.env, files(dir, "gateway"))
	a.start()
	c.awaitActive(patience, ids...)
	require.Zero(t, a.stop())
	for _, name := range slices.Sorted(maps.Keys(files(dir, "gateway"))) {
		env := []string{"ROLLCALL_GATEWAY_ID=gateway", "ROLLCALL_GATEWAY_STATE_DIR=" + t.TempDir()}
		for k, v := range files(dir, "gateway") {
			if k != name {
				env = append(env, k+"="+v)
			}
		}
		_, stderr, code := rollcall(t, env, "gateway")
		require.Equal(t, 2, code, name)
		require.Contains(t, stderr, "give certificate, key and CA, or none of them")
	}
}
