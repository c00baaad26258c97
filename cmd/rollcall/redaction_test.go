package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// secret is a value that no output may contain, with a name that a failure may show.
type secret struct {
	name string
	raw  []byte
}

// forms are how it could look: written, encoded, printed by fmt, in the words of a stack trace; whole, and in halves.
func (s secret) forms() (forms []string) {
	for _, part := range [][]byte{s.raw, s.raw[:len(s.raw)/2], s.raw[len(s.raw)/2:]} {
		digits := hex.EncodeToString(part)
		forms = append(forms, digits, strings.ToUpper(digits), fmt.Sprintf("%v", part), strings.Trim(fmt.Sprintf("%v", part), "[]"),
			strings.Trim(fmt.Sprintf("%#v", part)[7:], "{}"), url.QueryEscape(string(part)), url.PathEscape(string(part)),
			strings.Trim(fmt.Sprintf("%q", part), `"`), string(part))
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			encoded := strings.TrimRight(encoding.EncodeToString(part), "=")
			forms = append(forms, encoded[:len(encoded)-1]) // the last digit depends on what follows
		}
	}
	for at := 0; at+8 <= len(s.raw); at += 8 {
		forms = append(forms, fmt.Sprintf("%#x", binary.LittleEndian.Uint64(s.raw[at:])), fmt.Sprintf("%#x", binary.BigEndian.Uint64(s.raw[at:])))
	}
	return forms
}

// showing names the secret that a text shows, and how.
func showing(text string, secrets []secret) string {
	lower := strings.ToLower(text)
	for _, s := range secrets {
		for _, form := range s.forms() {
			if strings.Contains(text, form) || strings.Contains(lower, strings.ToLower(form)) {
				return fmt.Sprintf("%s as %.12q…", s.name, form)
			}
		}
	}
	return ""
}

// evidence is all that a process and its API have said.
type evidence struct {
	t       *testing.T
	secrets []secret

	mu    sync.Mutex
	found map[string]string
}

func (e *evidence) add(where, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found[where] += text
}

func (e *evidence) judge() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for where, text := range e.found {
		if shown := showing(text, e.secrets); shown != "" {
			e.t.Errorf("%s shows %s", where, shown)
		}
	}
}

// node is a chain's endpoint as providers have it: a key in its path, and in what it complains about.
type node struct {
	server *httptest.Server
	key    string
	mood   atomic.Int64 // a status code that it answers with; 0: it works
}

func startNode(t *testing.T, chain *testchain.Chain, key string) *node {
	t.Helper()
	target, err := url.Parse(chain.URL())
	require.NoError(t, err)
	n := &node{key: key}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.URL.Path = "/" }}
	n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch code := int(n.mood.Load()); {
		case !strings.Contains(r.URL.Path, key):
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case code == http.StatusOK:
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"project %s at %s is over its limit","data":"%s"}}`, key, r.URL, key)
		case code != 0:
			http.Error(w, "no such project: "+key+" at "+r.URL.String(), code)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(n.server.Close)
	return n
}

func (n *node) url(user *url.Userinfo) string {
	u, _ := url.Parse(n.server.URL)
	u.User, u.Path, u.RawQuery = user, "/v3/"+n.key, "apikey="+n.key
	return u.String()
}

// program is this binary as a process of its own.
func program(t *testing.T, env []string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	out := new(lockedBuffer)
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append([]string{"ROLLCALL_TEST_MAIN=1", "GOTRACEBACK=all", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

var listening = regexp.MustCompile(`"http":"(127\.0\.0\.1:\d+)"`)

// A relayer with every secret that it can have goes through good and bad days, and is then made to dump its stacks. Nothing
// of what it has said, on any way out, holds any of them.
func TestRelayer_EverySecret_IsNotShown(t *testing.T) {
	t.Parallel()
	const (
		password = "Postgres-Pass+word/7Qz9Lm2Kx4Rt8"
		apiKey   = "api-key-Zx81kQpW3vN6tB0yH5sD2fGjL"
		hookKey  = "signing-key-Vb72nXcM4aQ9eR1uT6iOpS"
		hookPath = "hook-token-Hn53jKdF8gL0wZqY2xCvBm"
		nodeKey  = "node-key-Ue94rTyP7oI1aSdF3hJkLz5X"
		nodePass = "node-Pass-Gm28bVnC6xZlK9jHfD4sAqWe"
	)
	chain := testchain.Simulated(t, testchain.SimulatedOptions{BlockTime: 100 * time.Millisecond})
	keys := signertest.Keys(t, t.Name(), 3)
	for _, k := range keys {
		chain.Fund(testchain.Ether(10), k.Address)
	}
	secrets := []secret{
		{"the database's password", []byte(password)}, {"an API key", []byte(apiKey)}, {"the webhooks' signing key", []byte(hookKey)},
		{"the webhooks' URL", []byte(hookPath)}, {"a node's key", []byte(nodeKey)}, {"a node's password", []byte(nodePass)},
	}
	for i, k := range keys {
		secrets = append(secrets, secret{fmt.Sprintf("private key %d", i), k.Bytes})
	}
	e := &evidence{t: t, secrets: secrets, found: map[string]string{}}
	for _, s := range secrets { // the search finds what it is for
		for _, text := range []string{"x" + string(s.raw) + "x", hex.EncodeToString(s.raw), fmt.Sprintf("%d", s.raw), "0x" + strings.ToUpper(hex.EncodeToString(s.raw[1:]))} {
			require.NotEmpty(t, showing(text, secrets), s.name)
		}
	}

	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	database, err := url.Parse(db.URL())
	require.NoError(t, err)
	actual, ok := database.User.Password()
	require.True(t, ok)
	require.Greater(t, len(actual), 16)
	e.secrets = append(e.secrets, secret{"the real database's password", []byte(actual)})
	n := startNode(t, chain, nodeKey)
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no such hook: "+r.URL.String(), http.StatusInternalServerError)
	}))
	t.Cleanup(hooks.Close)
	env := []string{
		"RELAYER_LISTEN=127.0.0.1:0", "DATABASE_URL=" + database.String(), "RELAYER_CHAIN_ID=1337",
		"RELAYER_RPC_URLS=" + n.url(url.UserPassword("me", nodePass)) + ",http://127.0.0.1:1/v3/" + nodeKey, "RELAYER_CONFIRMATIONS=2",
		"RELAYER_RPC_TIMEOUT=2s", "RELAYER_POLL_INTERVAL=100ms", "RELAYER_API_KEYS=me:" + apiKey,
		"RELAYER_PRIVATE_KEY_0=" + keys[0].Hex(), "RELAYER_PRIVATE_KEY_1=" + keys[1].Hex(),
		"RELAYER_TOPUP_KEY=" + keys[2].Hex(), "RELAYER_TOPUP_THRESHOLD=20000000000000000000", "RELAYER_TOPUP_TARGET=20000000000000000001",
		"RELAYER_TOPUP_MAX_PER_DAY=1000000000000000000", "RELAYER_WEBHOOK_URL=" + hooks.URL + "/" + hookPath + "?token=" + hookPath,
		"RELAYER_WEBHOOK_SIGNING_KEY=" + hookKey, "RELAYER_WEBHOOK_ALLOW_PRIVATE=true", "RELAYER_BALANCE_INTERVAL=100ms",
		"RELAYER_BUDGET_PER_API_KEY=1000000000000000000", "RELAYER_MIN_BALANCE=1",
	}
	cmd, out := program(t, env, "relayer", "--log-level", "debug")
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var base string
	require.Eventually(t, func() bool {
		if m := listening.FindStringSubmatch(out.String()); m != nil {
			base = "http://" + m[1]
		}
		return base != ""
	}, 2*time.Minute, 20*time.Millisecond, "relayer did not start: %v", out)

	ask := func(method, path, key, body string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		var all bytes.Buffer
		_ = answer.Header.Write(&all)
		_, _ = io.Copy(&all, answer.Body)
		e.add("the answer to "+method+" "+path, all.String())
		return answer.StatusCode
	}
	require.Eventually(t, func() bool { return ask("GET", "/health", "", "") == 200 }, 2*time.Minute, 50*time.Millisecond, "not healthy: %v", out)

	// everything asks for whatever can be asked for, in good and bad forms.
	address := strings.ToLower(keys[0].Address.Hex())
	good := `{"to":"` + chain.Accounts[0].Address.Hex() + `","value":1,"data":"0x","speed":"fast","gas_limit":21000}`
	everything := func() {
		for _, key := range []string{apiKey, apiKey + "x", apiKey[:31], ""} {
			for _, id := range []string{"pool", address} {
				at := "/api/v1/relayers/" + id
				for _, path := range []string{"", "/status", "/balance", "/transactions", "/transactions/by-nonce/0", "/transactions/" + nodeless} {
					ask("GET", at+path, key, "")
				}
				for path, body := range map[string]string{
					"/transactions": good, "/transactions?": `{"to":"x"}`, "/transactions??": `{"value":`, "/sign": `{"message":"x"}`,
					"/sign-typed-data": `{"domain_separator":"` + strings.Repeat("00", 32) + `","hash_struct_message":"` + strings.Repeat("00", 32) + `"}`,
					"/rpc":             `{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}`, "/rpc?": `{"jsonrpc":"2.0","id":1,"method":"eth_x","params":[]}`,
					// No gas limit: the node is asked.
					"/transactions???": `{"to":"` + chain.Accounts[0].Address.Hex() + `","value":1,"data":"0x01","speed":"fast"}`,
				} {
					ask("POST", at+path, key, body)
				}
				ask("PATCH", at, key, `{"policies":{"min_balance":2}}`)
				ask("DELETE", at+"/transactions/"+nodeless, key, "")
			}
			for _, path := range []string{"/api/v1/relayers", "/api/v1/health", "/api/v1/ready", "/health", "/metrics", "/openapi.json", "/nowhere", "/debug/pprof/"} {
				ask("GET", path, key, "")
			}
		}
	}
	everything()
	for _, mood := range []int{http.StatusOK, 401, 429, 500} {
		n.mood.Store(int64(mood))
		everything()
	}
	require.Eventually(t, func() bool { return ask("GET", "/health", "", "") == 503 }, 2*time.Minute, 50*time.Millisecond)
	n.mood.Store(0)
	require.Eventually(t, func() bool { return ask("GET", "/health", "", "") == 200 }, 2*time.Minute, 50*time.Millisecond)
	// The database breaks its connections.
	_, err = db.Pool(t).Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
	require.NoError(t, err)
	everything()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "key is topped up") }, 2*time.Minute, 50*time.Millisecond, "%v", out)
	ask("GET", "/metrics", "", "")

	require.NoError(t, cmd.Process.Signal(syscall.SIGQUIT))
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "it did not end")
	}
	require.Regexp(t, `(?m)^goroutine \d+ `, out.String(), "the stacks are there")
	e.add("the process", out.String())

	// An error at start does not show the secret.
	half := keys[0].Hex()[:40]
	for name, change := range map[string][]string{
		"a key that is too short":    {"RELAYER_PRIVATE_KEY_0=" + half},
		"a key with a typo":          {"RELAYER_PRIVATE_KEY_0=" + keys[0].Hex()[:65] + "x"},
		"the same key twice":         {"RELAYER_PRIVATE_KEY_1=" + keys[0].Hex()},
		"a relayer's key that funds": {"RELAYER_TOPUP_KEY=" + keys[0].Hex()},
		"a funding key with a typo":  {"RELAYER_TOPUP_KEY=" + keys[2].Hex()[:65] + "x"},
		"an API key twice":           {"RELAYER_API_KEYS=me:" + apiKey + ",you:" + apiKey},
		"an API key without a name":  {"RELAYER_API_KEYS=" + apiKey},
		"an API key, too short":      {"RELAYER_API_KEYS=me:" + apiKey[:31]},
		"a signing key, too short":   {"RELAYER_WEBHOOK_SIGNING_KEY=" + hookKey[:20]},
		"a webhook's URL":            {"RELAYER_WEBHOOK_URL=ftp://me:" + nodePass + "@x/" + hookPath},
		"a webhook's URL, broken":    {"RELAYER_WEBHOOK_URL=http://x y/" + hookPath + "%zz"},
		"a node's URL":               {"RELAYER_RPC_URLS=gopher://me:" + nodePass + "@x/" + nodeKey},
		"a node's URL, broken":       {"RELAYER_RPC_URLS=http://me:" + nodePass + "@x:port/" + nodeKey + "%zz"},
		"a database's URL, broken":   {"DATABASE_URL=postgres://me:" + password + "%zz@127.0.0.1:x/y"},
		"a database that is away":    {"DATABASE_URL=postgres://me:" + url.QueryEscape(password) + "@127.0.0.1:1/y?connect_timeout=1"},
		"a database in words":        {"DATABASE_URL=host=127.0.0.1 port=1 user=me password=" + password + " dbname=y connect_timeout=x"},
		"another chain":              {"RELAYER_CHAIN_ID=0"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, out := program(t, append(append([]string(nil), env...), change...), "relayer")
			require.NoError(t, cmd.Start())
			timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
			defer timer.Stop()
			err := cmd.Wait()
			if name == "a database that is away" { // it waits, until it is stopped
				require.NoError(t, err, "%v", out)
			} else {
				var failed *exec.ExitError
				require.ErrorAs(t, err, &failed, "%v", out)
			}
			require.NotEmpty(t, out.String())
			e.add("the start with "+name, out.String())
		})
	}
	e.judge()
}

// nodeless is the id of a transaction that no store holds.
const nodeless = "01890a5d-ac96-774b-bcce-b302099a8057"
