package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

const (
	testKey  = "k3y-of-the-first-caller-0123456789abcdef"
	otherKey = "k3y-of-the-other-caller-0123456789abcdef"
	poolID   = "pool-1"
	keyID    = "0x742d35cc6634c0532925a3b844bc454e4438f44e"
	target   = "0x742d35Cc6634C0532925a3b844Bc454e4438f44e"
	maxText  = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
)

var (
	created   = time.Date(2026, 11, 5, 9, 0, 0, 123_456_000, time.UTC)
	maxAmount = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
)

// fake is a relayer in memory. It implements the contract of [Service], and fails on request.
type fake struct {
	mu         sync.Mutex
	fail       error // the error of every method; nil: none
	hang       bool  // every method blocks until the context ends
	panics     any
	txs        []*relayer.Transaction
	byKey      map[string]int // index in txs, by caller and idempotency key
	hashes     map[string][32]byte
	patch      relayer.Patch
	filter     relayer.Filter
	offset     int
	limit      int
	submission relayer.Submission
	want       relayer.StatusParts
	message    []byte
	hashed     [2]common.Hash
	signedFor  []string
	rpcErr     error
	calls      int // of RPC
	rpcResult  json.RawMessage
	health     relayer.Health
	scope      func(caller string) (string, error) // nil: by caller
}

func newFake() *fake {
	return &fake{byKey: map[string]int{}, hashes: map[string][32]byte{}, health: relayer.Health{Ready: true}, rpcResult: json.RawMessage(`"0x1"`)}
}

func (f *fake) enter(ctx context.Context, id string) (func(), error) {
	f.mu.Lock()
	fail, hang, panics := f.fail, f.hang, f.panics
	f.mu.Unlock()
	if panics != nil {
		panic(panics)
	}
	if hang {
		<-ctx.Done()
		return nil, fmt.Errorf("ask the database: %w", ctx.Err())
	}
	if fail != nil {
		return nil, fmt.Errorf("secret internals: %w", fail)
	}
	if id != "" && id != poolID && id != keyID {
		return nil, fmt.Errorf("relayer %s: %w", id, relayer.ErrNotFound)
	}
	f.mu.Lock()
	return f.mu.Unlock, nil
}

var fakeRelayers = []relayer.Relayer{
	{ID: poolID, Network: "dev", SignerID: "pool-1"},
	{
		ID: keyID, Name: "first", Network: "dev", SignerID: "local-0", Address: common.HexToAddress(target), Paused: true, Disabled: true,
		DisabledReason: "low balance", MinBalance: maxAmount, GasPriceCap: big.NewInt(5), EIP1559: true,
		WhitelistReceivers: []common.Address{common.HexToAddress(target)},
	},
}

func (f *fake) Relayers(ctx context.Context, offset, limit int) ([]relayer.Relayer, int, error) {
	leave, err := f.enter(ctx, "")
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	return part(fakeRelayers, offset, limit), len(fakeRelayers), nil
}

func part[T any](list []T, offset, limit int) []T {
	offset = min(offset, len(list))
	return list[offset:min(offset+limit, len(list))]
}

func (f *fake) Relayer(ctx context.Context, id string) (relayer.Relayer, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return relayer.Relayer{}, err
	}
	defer leave()
	if id == keyID {
		return fakeRelayers[1], nil
	}
	return fakeRelayers[0], nil
}

func (f *fake) Update(ctx context.Context, id, _ string, p relayer.Patch) (relayer.Relayer, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return relayer.Relayer{}, err
	}
	defer leave()
	f.patch = p
	return fakeRelayers[1], nil
}

func (f *fake) Status(ctx context.Context, id string, want relayer.StatusParts) (relayer.RelayerStatus, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return relayer.RelayerStatus{}, err
	}
	defer leave()
	f.want = want
	if id == poolID {
		return relayer.RelayerStatus{Balance: new(big.Int)}, nil
	}
	return relayer.RelayerStatus{Balance: maxAmount, Pending: 3, LastConfirmed: created, Disabled: true, Paused: true, NextNonce: 7}, nil
}

func (f *fake) Balance(ctx context.Context, id string) (*big.Int, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	return maxAmount, nil
}

func (f *fake) IdempotencyScope(_ context.Context, caller string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scope != nil {
		return f.scope(caller)
	}
	return "scope-of-" + caller, nil
}

func (f *fake) Submit(ctx context.Context, s relayer.Submission) (*relayer.Transaction, error) {
	leave, err := f.enter(ctx, s.RelayerID)
	if err != nil {
		return nil, err
	}
	defer leave()
	f.submission = s
	key := s.Caller + " " + s.IdempotencyKey
	if i, ok := f.byKey[key]; ok && s.IdempotencyKey != "" {
		if f.hashes[key] != s.BodyHash {
			return nil, relayer.ErrKeyReused
		}
		return f.txs[i], nil
	}
	tx := &relayer.Transaction{
		Revision: 1,
		ID:       uuid.Must(uuid.NewV7()), Status: relayer.Allocated, Target: s.RelayerID, Caller: s.Caller, Request: s.Request, CreatedAt: created,
	}
	f.byKey[key], f.hashes[key] = len(f.txs), s.BodyHash
	f.txs = append(f.txs, tx)
	return tx, nil
}

func (f *fake) Transactions(ctx context.Context, id string, filter relayer.Filter, offset, limit int) ([]*relayer.Transaction, int, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	f.filter, f.offset, f.limit = filter, offset, limit
	return part(f.txs, offset, limit), len(f.txs), nil
}

func (f *fake) Transaction(ctx context.Context, id string, tx uuid.UUID) (*relayer.Transaction, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	for _, t := range f.txs {
		if t.ID == tx {
			return t, nil
		}
	}
	return nil, relayer.ErrNotFound
}

func (f *fake) TransactionByNonce(ctx context.Context, id string, nonce uint64) (*relayer.Transaction, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	if nonce >= uint64(len(f.txs)) {
		return nil, relayer.ErrNotFound
	}
	tx := *f.txs[nonce]
	tx.Nonce = &nonce
	return &tx, nil
}

func (f *fake) Replace(ctx context.Context, id string, tx uuid.UUID, caller string, r relayer.Request) (*relayer.Transaction, error) {
	old, err := f.Transaction(ctx, id, tx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.submission = relayer.Submission{RelayerID: id, Caller: caller, Request: r}
	f.mu.Unlock()
	replaced := *old
	replaced.Request = r
	return &replaced, nil
}

func (f *fake) Cancel(ctx context.Context, id string, tx uuid.UUID, _ string) (*relayer.Transaction, error) {
	old, err := f.Transaction(ctx, id, tx)
	if err != nil {
		return nil, err
	}
	if old.Status.Final() {
		return nil, &relayer.StateError{Status: old.Status, Doing: "cancel"}
	}
	canceled := *old
	canceled.Intent = relayer.IntentCancel
	return &canceled, nil
}

func (f *fake) CancelPending(ctx context.Context, id, _ string) (relayer.CancelResult, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return relayer.CancelResult{}, err
	}
	defer leave()
	return relayer.CancelResult{Queued: []uuid.UUID{{1}, {2}}, Failed: []uuid.UUID{{3}}}, nil
}

func (f *fake) Sign(ctx context.Context, id, caller string, message []byte) (sig [65]byte, err error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return sig, err
	}
	defer leave()
	f.message, f.signedFor = bytes.Clone(message), append(f.signedFor, caller)
	return sig, nil
}

func (f *fake) SignTypedData(ctx context.Context, id, caller string, domain, data common.Hash) (sig [65]byte, err error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return sig, err
	}
	defer leave()
	f.hashed, f.signedFor = [2]common.Hash{domain, data}, append(f.signedFor, caller)
	return sig, nil
}

func (f *fake) RPC(ctx context.Context, id, _ string, _ json.RawMessage) (json.RawMessage, error) {
	leave, err := f.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	f.calls++
	return f.rpcResult, f.rpcErr
}

func (f *fake) Health() relayer.Health { return f.health }

// api is a handler on a fake, with its log and metrics.
type api struct {
	t testing.TB
	*fake
	handler *Handler
	log     *bytes.Buffer
	metrics *prometheus.Registry
	doc     *description
}

func setup(t testing.TB, change ...func(*Config)) *api {
	t.Helper()
	a := &api{t: t, fake: newFake(), log: new(bytes.Buffer), metrics: prometheus.NewRegistry()}
	cfg := Config{
		Service: a.fake, Keys: []apikey.Key{{Name: "first", Key: testKey}, {Name: "other", Key: otherKey}}, Registerer: a.metrics,
		Logger: slog.New(tracing.LogIDs(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug}))),
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	a.handler, err = NewHandler(cfg)
	require.NoError(t, err)
	a.doc = readDescription(t, a.handler.openAPI)
	return a
}

// do sends a request with the first caller's key; headers are name, value, …; an empty value drops a header. The response
// must match the API's description.
func (a *api) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	a.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+testKey)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header[http.CanonicalHeaderKey(headers[i])] = strings.Split(headers[i+1], "\n") // one header for each line
		}
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	if a.panics == nil && method != http.MethodHead {
		a.doc.check(a.t, r, w)
	}
	return w
}

// answer is a decoded envelope.
type answer struct {
	Success    bool            `json:"success"`
	Data       json.RawMessage `json:"data"`
	Error      *string         `json:"error"`
	Pagination json.RawMessage `json:"pagination"`
}

func read(t testing.TB, w *httptest.ResponseRecorder, code int) answer {
	t.Helper()
	require.Equal(t, code, w.Code, w.Body.String())
	var a answer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a), w.Body.String())
	require.Equal(t, code == http.StatusOK, a.Success)
	return a
}

func submission(value string) string { return `{"to":"` + target + `","value":` + value + `}` }

// submitted returns the id of a new transaction.
func (a *api) submitted() string {
	a.t.Helper()
	var tx openzeppelin.Transaction
	require.NoError(a.t, json.Unmarshal(read(a.t, a.do("POST", "/api/v1/relayers/pool-1/transactions", submission("1")), 200).Data, &tx))
	return tx.ID
}
