package crashtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

const (
	clientKey  = "client-client-client-client-client-client"
	secret     = "secret-secret-secret-secret-secret-secret"
	relayerKey = "relayer-relayer-relayer-relayer-relayer"

	// timeout is the consumers' limit of a request to a relayer, and lease is what follows from it.
	timeout = 4 * time.Second
	lease   = timeout * 3 / 2
	// patience limits waits for operations that take a loaded machine a few seconds at most.
	patience = 2 * time.Minute
)

// world is a relay path with one API, and a stand-in for a relayer.
type world struct {
	t        *testing.T
	env      []string
	redis    *testredis.Server
	postgres *testpostgres.Server
	relayer  *upstreamtest.Relayer
	api      string
	client   http.Client
}

// setup starts an API, in parallel with other tests. env is for it and for all consumers.
func setup(t *testing.T, env ...string) *world {
	t.Helper()
	t.Parallel()
	// The kernel kills the children of a thread when the thread ends. Threads on which package pgserver ran a server may end.
	// This goroutine is the only one on its thread.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	w := &world{t: t, env: env, redis: testredis.Start(t), postgres: testpostgres.Own(t)}
	w.client = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	w.relayer = upstreamtest.Start(t, upstreamtest.Options{Key: relayerKey, Scope: "0123456789abcdef"})
	c := w.redis.Client()
	require.NoError(t, c.HSet(t.Context(), "relayer:status:0", "url", w.relayer.URL(), "status", "healthy").Err())
	require.NoError(t, c.SAdd(t.Context(), "relayer:active", "oz-relayer-0").Err())
	_, w.api = w.start("api", "API started", "API_LISTEN=127.0.0.1:0", "API_KEYS=shop:"+clientKey, "WEBHOOK_SECRET="+secret)
	return w
}

// start starts a role and returns its process and its URL when it has logged a message. env overrides the defaults.
func (w *world) start(role, ready string, env ...string) (p *testproc.Process, url string) {
	w.t.Helper()
	cmd := exec.Command(product, role)
	cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.t.TempDir(), "DATABASE_URL=" + w.postgres.URL(), "REDIS_URL=" + w.redis.URL()}, w.env...), env...)
	p, err := testproc.Start(cmd, func(line string) bool {
		var entry struct{ Msg, HTTP string }
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != ready {
			return false
		}
		url = "http://" + entry.HTTP
		return true
	})
	require.NoError(w.t, err)
	w.t.Cleanup(p.Kill)
	return p, url
}

// consumer starts a consumer. env overrides the defaults.
func (w *world) consumer(env ...string) *testproc.Process {
	w.t.Helper()
	p, _ := w.start("consumer", "consumer started", append([]string{
		"CONSUMER_LISTEN=127.0.0.1:0", "CONSUMER_RELAYER_KEY=" + relayerKey, "CONSUMER_RELAYER_TIMEOUT=" + timeout.String(),
	}, env...)...)
	return p
}

// call sends a request to the API, and returns the answer's status code; 0 if there is none.
func (w *world) call(method, path string, body, into any) int {
	w.t.Helper()
	content, err := json.Marshal(body)
	require.NoError(w.t, err)
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.api+path, bytes.NewReader(content))
	require.NoError(w.t, err)
	req.Header.Set("X-Api-Key", clientKey)
	resp, err := w.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		require.NoError(w.t, json.NewDecoder(resp.Body).Decode(into))
	}
	return resp.StatusCode
}

// transaction is a transaction in the API's answers.
type transaction struct {
	TransactionID, Status, Reason, Value string
}

// post posts a transaction with an id of the client.
func (w *world) post(id, value string) {
	w.t.Helper()
	var tx transaction
	body := map[string]any{"transactionId": id, "to": "0x00000000000000000000000000000000000000aa", "value": value}
	require.Equal(w.t, http.StatusAccepted, w.call(http.MethodPost, "/api/v1/relay/direct", body, &tx))
}

// submitted waits until a relayer's acceptance of a transaction is stored.
func (w *world) submitted(id string, within time.Duration) {
	w.t.Helper()
	var tx transaction
	require.Eventually(w.t, func() bool {
		code := w.call(http.MethodGet, "/api/v1/relay/status/"+id, nil, &tx)
		return code == http.StatusOK && tx.Status == "submitted"
	}, within, 50*time.Millisecond, "transaction %s", id)
}

// acceptAndWait makes the relayer accept the next submission, and answer when release is closed. accepted gets a value then. Later
// submissions are answered at once.
func (w *world) acceptAndWait() (accepted <-chan struct{}, release chan struct{}) {
	signal, release := make(chan struct{}, 1), make(chan struct{})
	var first sync.Once
	w.relayer.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
		waits := false
		first.Do(func() { waits = true })
		if !waits {
			c.Do(c.ResponseWriter)
			return
		}
		answer := &held{header: http.Header{}}
		c.Do(answer)
		signal <- struct{}{}
		select {
		case <-release:
			maps.Copy(c.Header(), answer.header)
			c.WriteHeader(answer.code)
			_, _ = c.Write(answer.body.Bytes())
		case <-c.Request.Context().Done():
		}
	})
	return signal, release
}

// inFlight starts a consumer, and returns when the relayer has accepted its submission of "tx". The relayer answers when release is
// closed.
func (w *world) inFlight(env ...string) (consumer *testproc.Process, release chan struct{}) {
	w.t.Helper()
	accepted, release := w.acceptAndWait()
	consumer = w.consumer(env...)
	w.post("tx", "1")
	w.await(accepted, "no submission")
	return consumer, release
}

// held is an answer that is not sent yet.
type held struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (h *held) Header() http.Header         { return h.header }
func (h *held) WriteHeader(code int)        { h.code = code }
func (h *held) Write(b []byte) (int, error) { return h.body.Write(b) }

// await waits for a signal.
func (w *world) await(signal <-chan struct{}, what string) {
	w.t.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		require.FailNow(w.t, what)
	}
}

// isOne checks that the relayer has one transaction.
func (w *world) isOne(why string) {
	w.t.Helper()
	require.Len(w.t, w.relayer.Transactions(), 1, why)
}

func number(i int) string { return fmt.Sprintf("tx-%d", i) }
