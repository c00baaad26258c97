package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// relayPath is a development cluster with the relay path, with a Redis of its own.
type relayPath struct {
	*cluster
	data    []string // the flag that names its folder
	folder  string
	webhook []string // where the relayers send webhooks to, in place of the APIs; may be empty
	info    *devinfo.Info
	chain   *ethclient.Client
}

// relayPathLease is the lease that follows from the consumers' limit of a request, 4 s.
const relayPathLease = 6 * time.Second

// startRelayPath starts the cluster. Relayers that are silent for some seconds are asked, so that lost webhooks cost no minute.
func startRelayPath(t *testing.T, webhooks ...string) *relayPath {
	t.Helper()
	p := &relayPath{cluster: &cluster{t: t, redis: testredis.Start(t)}, folder: filepath.Join(t.TempDir(), "dev"), webhook: webhooks}
	p.data = []string{"--data", p.folder}
	testpostgres.Folder(t, filepath.Join(p.folder, "postgres"))
	args := append([]string{"--health-check-interval-ms", "1000"}, p.data...)
	if len(webhooks) > 0 {
		args = append(args, "--webhook-urls", strings.Join(webhooks, ","))
	}
	run := launchProgram(t, "dev", []string{"REDIS_URL=" + p.redis.URL(), "CONSUMER_WEBHOOK_SILENCE=3s", "CONSUMER_RELAYER_TIMEOUT=4s", devPorts()}, devBinary, args...)
	p.info = awaitUp(t, run, p.folder)
	var err error
	p.chain, err = ethclient.Dial(p.info.Chain.RPCURL)
	require.NoError(t, err)
	t.Cleanup(p.chain.Close)
	t.Cleanup(func() { require.Zero(t, run.stop()) })
	return p
}

// dev runs a command of rollcall-dev on the cluster.
func (p *relayPath) dev(args ...string) string {
	p.t.Helper()
	stdout, stderr, code := runProgram(p.t, nil, devBinary, append(args, p.data...)...)
	require.Zero(p.t, code, stderr)
	return stdout
}

// restart kills a member, does something, and starts it again.
func (p *relayPath) restart(member string, between func()) {
	killed, _, _ := strings.Cut(p.dev("kill", member), " is killed")
	between()
	p.dev("start", killed)
}

// freeze stops a consumer for longer than its lease.
func (p *relayPath) freeze(consumer int) {
	pid := devinfo.Running(p.folder).Consumers[consumer].PID
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGSTOP))
	defer func() { require.NoError(p.t, syscall.Kill(pid, syscall.SIGCONT)) }()
	select {
	case <-time.After(relayPathLease * 3 / 2):
	case <-p.t.Context().Done():
	}
}

// call sends a request to an API, and returns the status and the body; 0 without an answer.
func (p *relayPath) call(api int, method, path string, body any, header ...string) (int, []byte) {
	content, err := json.Marshal(body)
	require.NoError(p.t, err)
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.info.APIs[api].URL+path, bytes.NewReader(content))
	require.NoError(p.t, err)
	req.Header.Set("X-Api-Key", p.info.APIs[api].APIKey)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: postTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}

// postTimeout is how long a client waits for an answer.
const postTimeout = 10 * time.Second

// post posts a call of the Recipient until an API answers 202, each time with the same key.
func (p *relayPath) post(id common.Hash, api int) {
	body := map[string]any{"to": p.info.Chain.Recipient, "data": hexutil.Encode(erc2771.Record(id)), "gasLimit": 150_000}
	for deadline := time.Now().Add(2 * patience); ; api = 1 - api {
		status, answer := p.call(api, http.MethodPost, "/api/v1/relay/direct", body, "Idempotency-Key", id.Hex())
		switch {
		case status == http.StatusAccepted:
			return
		case status != 0 && status < 500 || time.Now().After(deadline):
			p.t.Errorf("POST answered %d: %s", status, answer)
			return
		}
		testproc.Pause(p.t.Context())
	}
}

// transaction is a transaction in the API's answers.
type transaction struct {
	ID     string `json:"transactionId"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	Hash   string `json:"hash"`
}

// list returns all transactions of the client, from one API.
func (p *relayPath) list(api int) (all []transaction) {
	p.t.Helper()
	next := ""
	for {
		var page struct {
			Transactions []transaction `json:"transactions"`
			Next         *string       `json:"next"`
		}
		status, answer := p.call(api, http.MethodGet, "/api/v1/relay/transactions?limit=100"+next, nil)
		require.Equal(p.t, http.StatusOK, status, "%s", answer)
		require.NoError(p.t, json.Unmarshal(answer, &page))
		if all = append(all, page.Transactions...); page.Next == nil {
			return all
		}
		next = "&before=" + *page.Next
	}
}

// counts returns how often the Recipient was called with each id, and in all.
func (p *relayPath) counts(ids []common.Hash) (each []uint64, total uint64) {
	p.t.Helper()
	recipient := common.HexToAddress(p.info.Chain.Recipient)
	each, err := erc2771.Counts(p.t.Context(), p.chain, recipient, nil, ids...)
	require.NoError(p.t, err)
	total, err = erc2771.Total(p.t.Context(), p.chain, recipient, nil)
	require.NoError(p.t, err)
	return each, total
}

// lossyNetwork is the proxies between relayers and APIs, one to each API. It drops, repeats or delays one of ten changes, the same
// in all proxies: each relayer sends a change to each API, so a change that one proxy alone drops still arrives.
type lossyNetwork struct {
	proxies []*lossyProxy

	mu    sync.Mutex
	fates map[fate]map[string]bool // the affected changes
	lost  map[string]bool          // dropped changes to confirmed
	found map[string]bool          // changes to confirmed that an API has received
}

// lossyProxy is a proxy to an API.
type lossyProxy struct {
	*httptest.Server
	target atomic.Pointer[url.URL]
}

// fate is what happens to a webhook on its way.
type fate int

const (
	arrives  fate = iota
	dropped       // lost, although the relayer believes that it was received
	repeated      // forwarded twice
	delayed       // forwarded after others of the transaction
)

// change returns the change that a webhook reports, and whether its status is confirmed; "" if it reports something else.
func change(body []byte) (subject string, confirmed bool) {
	var report struct {
		Payload struct {
			ID       string `json:"id"`
			Revision int    `json:"revision"`
			Status   string `json:"status"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(body, &report); err != nil || report.Payload.ID == "" {
		return "", false
	}
	return fmt.Sprint(report.Payload.ID, " ", report.Payload.Revision, " ", report.Payload.Status), report.Payload.Status == "confirmed"
}

// fateOf decides by a hash of the change, so that all proxies and all attempts agree.
func fateOf(subject string) fate {
	if subject == "" {
		return arrives
	}
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, subject)
	switch f := fate(sum.Sum32() % 30); f {
	case dropped, repeated, delayed:
		return f
	}
	return arrives
}

// startLossyNetwork starts a number of proxies.
func startLossyNetwork(t *testing.T, n int) *lossyNetwork {
	t.Helper()
	l := &lossyNetwork{fates: map[fate]map[string]bool{dropped: {}, repeated: {}, delayed: {}}, lost: map[string]bool{}, found: map[string]bool{}}
	for range n {
		l.proxies = append(l.proxies, l.proxy(t))
	}
	return l
}

// urls returns the URLs of the proxies.
func (l *lossyNetwork) urls() (all []string) {
	for _, p := range l.proxies {
		all = append(all, p.URL)
	}
	return all
}

// record records what happens to a change.
func (l *lossyNetwork) record(subject string, confirmed bool, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f != arrives {
		l.fates[f][subject] = true
	}
	if confirmed && f == dropped {
		l.lost[subject] = true
	}
	if confirmed && f != dropped {
		l.found[subject] = true
	}
}

func (l *lossyNetwork) proxy(t *testing.T) *lossyProxy {
	p := &lossyProxy{}
	forward := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(p.target.Load()) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.target.Load() == nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		again := func() *http.Request {
			c := r.Clone(context.WithoutCancel(r.Context()))
			c.Body = io.NopCloser(bytes.NewReader(body))
			return c
		}
		subject, confirmed := change(body)
		f := fateOf(subject)
		l.record(subject, confirmed, f)
		switch f {
		case dropped:
			return
		case repeated:
			forward.ServeHTTP(httptest.NewRecorder(), again())
		case delayed:
			time.AfterFunc(2*time.Second, func() { forward.ServeHTTP(httptest.NewRecorder(), again()) })
			return
		case arrives:
		}
		forward.ServeHTTP(w, again())
	}))
	t.Cleanup(p.Close)
	return p
}

// requireLosses fails unless changes were dropped, repeated and delayed, and a change to confirmed reached no API.
func (l *lossyNetwork) requireLosses(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("changes dropped: %d, repeated: %d, delayed: %d; changes to confirmed that reached no API: %d",
		len(l.fates[dropped]), len(l.fates[repeated]), len(l.fates[delayed]), len(l.lost))
	for f, changes := range l.fates {
		require.NotEmpty(t, changes, "fate %d", f)
	}
	require.NotEmpty(t, l.lost)
	for subject := range l.lost {
		require.NotContains(t, l.found, subject)
	}
}

// reconciled returns how many changes the running consumers have found by asking relayers.
func (p *relayPath) reconciled() (n float64) {
	p.t.Helper()
	for _, c := range devinfo.Running(p.folder).Consumers {
		_, body := readPage(p.t, c.HTTP+"/metrics") // empty while it starts
		for line := range strings.Lines(body) {
			if value, ok := strings.CutPrefix(line, `rollcall_relay_reconciled_total{result="changed"} `); ok {
				count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				require.NoError(p.t, err)
				n += count
			}
		}
	}
	return n
}

// TestRelayPath_EverythingIsKilledInTurn_ExecutesEachTransactionOnce posts transactions while a relayer, a consumer, an API, the
// leading coordinator, Redis and Postgres go away in turn, and one of ten changes is lost, repeated or late at both APIs.
func TestRelayPath_EverythingIsKilledInTurn_ExecutesEachTransactionOnce(t *testing.T) {
	t.Parallel()
	network := startLossyNetwork(t, 2)
	p := startRelayPath(t, network.urls()...)
	for i, proxy := range network.proxies {
		to, err := url.Parse(p.info.APIs[i].URL)
		require.NoError(t, err)
		proxy.target.Store(to)
	}
	var away time.Duration // of Postgres
	var reconciled float64 // by consumers that end
	faults := []func(){
		func() { p.restart("oz-relayer-1", func() {}) },
		func() { reconciled += p.reconciled(); p.restart("consumer-1", func() {}) },
		func() { p.freeze(1) },
		func() { p.restart("leader", func() {}) },
		func() { p.redis.Kill(); p.redis.RestartEmpty() },
		func() { p.restart("api-1", func() {}) },
		func() {
			began := time.Now()
			p.restart("postgres", func() {})
			away = time.Since(began)
		},
		func() {
			p.restart("oz-relayer-0", func() { reconciled += p.reconciled(); p.restart("consumer-2", func() {}) })
		},
	}
	ids := make([]common.Hash, relayPathTransactions)
	var accepted, longest atomic.Int64
	work := make(chan int)
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for i := range work {
				began := time.Now()
				p.post(ids[i], (c+i)%2)
				accepted.Add(1)
				for took, most := int64(time.Since(began)), longest.Load(); took > most && !longest.CompareAndSwap(most, took); {
					most = longest.Load()
				}
			}
		})
	}
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for n, fault := range faults { // each after its share of the transactions
			for accepted.Load() < int64((n+1)*len(ids)/(len(faults)+2)) && t.Context().Err() == nil {
				testproc.Pause(t.Context())
			}
			fault()
		}
	})
	pace := time.NewTicker(time.Second / relayPathPerSecond)
	for i := range ids {
		ids[i] = crypto.Keccak256Hash(fmt.Append(nil, i))
		<-pace.C
		work <- i
	}
	pace.Stop()
	close(work)
	clients.Wait()
	chaos.Wait()
	// The last attempt may have waited for an answer when Postgres was back.
	t.Logf("the longest refusal took %v, Postgres was away for %v", time.Duration(longest.Load()), away)
	require.Less(t, time.Duration(longest.Load()), away+postTimeout)

	eventually(t, 5*patience, func() bool {
		open := 0
		for _, tx := range p.list(0) {
			if tx.Status != "confirmed" {
				open++
			}
		}
		return open == 0
	}, "all are confirmed")
	require.Len(t, p.list(1), len(ids))
	each, total := p.counts(ids)
	for i, n := range each {
		require.EqualValues(t, 1, n, "transaction %d", i)
	}
	require.EqualValues(t, len(ids), total)
	network.requireLosses(t)
	require.Positive(t, reconciled+p.reconciled(), "what no webhook brought, consumers found at the relayers")
	p.requireNoSecrets()
}

// A value above 2^53 arrives on the chain as it was posted, and a signed request arrives with its signer as the sender.
func TestRelayPath_ClientsRequests_ArriveUnchanged(t *testing.T) {
	t.Parallel()
	p := startRelayPath(t)
	t.Run("large value", p.largeValue)
	t.Run("gasless", p.gasless)
}

func (p *relayPath) largeValue(t *testing.T) {
	to := common.HexToAddress("0x00000000000000000000000000000000000000aa")
	status, answer := p.call(0, http.MethodPost, "/api/v1/relay/direct", map[string]any{"transactionId": "large", "to": to.Hex(), "value": "9007199254740993"})
	require.Equal(t, http.StatusAccepted, status, "%s", answer)
	// No key can pay this one: it waits, and nothing rounds it.
	most := "115792089237316195423570985008687907853269984665640564039457584007913129639935"
	status, answer = p.call(0, http.MethodPost, "/api/v1/relay/direct", map[string]any{"transactionId": "most", "to": to.Hex(), "value": most})
	require.Equal(t, http.StatusAccepted, status, "%s", answer)
	eventually(t, 2*patience, func() bool {
		balance, err := p.chain.BalanceAt(t.Context(), to, nil)
		return err == nil && balance.String() == "9007199254740993"
	}, "the value is on the chain")
	status, answer = p.call(1, http.MethodGet, "/api/v1/relay/status/most", nil)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(answer), `"value":"`+most+`"`)
	require.NotContains(t, string(answer), "confirmed")
}

// gasless posts a request that a wallet library has signed, of a signer without ether.
func (p *relayPath) gasless(t *testing.T) {
	wallet := testchain.NewAccount(t)
	status, answer := p.call(0, http.MethodGet, "/api/v1/relay/gasless/nonce/"+wallet.Address.Hex(), nil)
	require.Equal(t, http.StatusOK, status, "%s", answer)
	var next struct {
		Nonce  string
		Domain struct {
			Name, Version, VerifyingContract string
			ChainID                          int64
		}
	}
	require.NoError(t, json.Unmarshal(answer, &next))
	require.Equal(t, p.info.Chain.Forwarder, next.Domain.VerifyingContract)

	id, deadline := common.Hash{9}, time.Now().Add(time.Hour).Unix()
	data := apitypes.TypedData{
		Types: apitypes.Types{
			"EIP712Domain": {{Name: "name", Type: "string"}, {Name: "version", Type: "string"}, {Name: "chainId", Type: "uint256"}, {Name: "verifyingContract", Type: "address"}},
			"ForwardRequest": {
				{Name: "from", Type: "address"}, {Name: "to", Type: "address"}, {Name: "value", Type: "uint256"}, {Name: "gas", Type: "uint256"},
				{Name: "nonce", Type: "uint256"}, {Name: "deadline", Type: "uint48"}, {Name: "data", Type: "bytes"},
			},
		},
		PrimaryType: "ForwardRequest",
		Domain: apitypes.TypedDataDomain{
			Name: next.Domain.Name, Version: next.Domain.Version, ChainId: math.NewHexOrDecimal256(next.Domain.ChainID), VerifyingContract: next.Domain.VerifyingContract,
		},
		Message: apitypes.TypedDataMessage{
			"from": wallet.Address.Hex(), "to": p.info.Chain.Recipient, "value": "0", "gas": "500000", "nonce": next.Nonce,
			"deadline": fmt.Sprint(deadline), "data": hexutil.Encode(erc2771.Record(id)),
		},
	}
	hash, _, err := apitypes.TypedDataAndHash(data)
	require.NoError(t, err)
	signature, err := crypto.Sign(hash, wallet.Key)
	require.NoError(t, err)
	signature[64] += 27
	post := func(signature []byte) (int, []byte) {
		return p.call(0, http.MethodPost, "/api/v1/relay/gasless", map[string]any{"transactionId": "gasless", "signature": hexutil.Encode(signature), "request": map[string]any{
			"from": wallet.Address, "to": p.info.Chain.Recipient, "gas": 500_000, "nonce": json.Number(next.Nonce), "deadline": deadline, "data": data.Message["data"],
		}})
	}
	forged := bytes.Clone(signature)
	forged[5] ^= 1
	status, answer = post(forged)
	require.Equal(t, http.StatusBadRequest, status, "%s", answer)
	status, answer = post(signature)
	require.Equal(t, http.StatusAccepted, status, "%s", answer)
	eventually(t, 2*patience, func() bool {
		var tx transaction
		status, answer = p.call(1, http.MethodGet, "/api/v1/relay/status/gasless", nil)
		return status == http.StatusOK && json.Unmarshal(answer, &tx) == nil && tx.Status == "confirmed"
	}, "the request is confirmed")
	sender, err := erc2771.SenderOf(t.Context(), p.chain, common.HexToAddress(p.info.Chain.Recipient), nil, id)
	require.NoError(t, err)
	require.Equal(t, wallet.Address, sender)
}
