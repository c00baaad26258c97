package upstreamtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// Key is the default API key.
const Key = "api-key-of-the-stand-in-0123456789abcdef"

// Options configure a stand-in.
type Options struct {
	// ID is the relayer's id. Default "relayer-1".
	ID string
	// Key is the accepted API key. Default Key.
	Key string
	// Scope makes the relayer idempotent, and is its Idempotency-Scope. Stand-ins with one scope and one Pool are
	// processes of one pool.
	Scope string
	// Pool holds the transactions; stand-ins may share it. Default: one of its own.
	Pool *Pool
	// Network is the relayer's network. Default "dev", or with a scope "evm:" and the chain.
	Network string
	// ChainID is the chain of the relayer's node. Default 1337.
	ChainID uint64
	// With are relayers that the same process serves. They are listed first.
	With []*Relayer
	// NewestFirst lists the newest transactions first.
	NewestFirst bool
	// Mine is how long a transaction takes from acceptance to mined; it is submitted after a tenth of that. Zero: only
	// Advance changes it.
	Mine time.Duration
	// Now is the relayer's clock. Default time.Now.
	Now func() time.Time
}

// Transaction is a transaction of a stand-in.
type Transaction struct {
	ID                   string
	RelayerID            string
	To, Data             string // lower case, "" for none
	Value                *big.Int
	GasLimit             uint64
	Speed                string
	IdempotencyKey       string
	Traceparent          string
	Status               string
	Hash                 string // "" until it is submitted
	CreatedAt            time.Time
	SentAt, ConfirmedAt  time.Time
	Canceled             bool
	Forgotten            bool // accepted, and never sent
	hash                 [32]byte
	submittedAt, minedAt time.Time // when it advances by itself; zero: never
}

// Pool holds transactions.
type Pool struct {
	mu   sync.Mutex
	txs  []*Transaction
	keys map[string]*Transaction
}

// NewPool returns an empty pool.
func NewPool() *Pool { return &Pool{keys: map[string]*Transaction{}} }

// Op is an operation of the API.
type Op string

// The operations.
const (
	Submit Op = "submit"
	Get    Op = "get"    // of a transaction
	List   Op = "list"   // of transactions
	Cancel Op = "cancel" // of a transaction
	Find   Op = "find"   // of relayers
	Status Op = "status" // of a relayer
	RPC    Op = "rpc"    // of a relayer's node
)

// Call is a request to which a fault responds.
type Call struct {
	http.ResponseWriter
	Request *http.Request
	// Do executes the operation, and writes its response unless the fault has wrapped the writer.
	Do func(http.ResponseWriter)
	// Accept stores a submission without a response. Nil for other operations.
	Accept func() *Transaction

	relayer *Relayer
}

// Fault responds to a request instead of the relayer.
type Fault func(c *Call)

// Relayer is a stand-in.
type Relayer struct {
	o    Options
	addr string

	mu       sync.Mutex
	server   *http.Server
	faults   map[Op]Fault
	calls    map[Op]int
	paused   bool
	disabled bool
	gone     bool // its id is not known
	zero     bool // reports 0 pending
	running  sync.WaitGroup
	stop     chan struct{} // ends requests that hang
}

// Start starts a stand-in, which stops when the test ends.
func Start(t testing.TB, o Options) *Relayer {
	t.Helper()
	o.ID, o.Key, o.ChainID = cmp.Or(o.ID, "relayer-1"), cmp.Or(o.Key, Key), cmp.Or(o.ChainID, 1337)
	if o.Network == "" && o.Scope != "" {
		o.Network = fmt.Sprintf("evm:%d", o.ChainID)
	}
	o.Network = cmp.Or(o.Network, "dev")
	if o.Pool == nil {
		o.Pool = NewPool()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Relayer{o: o, faults: map[Op]Fault{}, calls: map[Op]int{}}
	// While it refuses connections, no outgoing connection may take its port. Another process may take the port before it listens.
	for attempt := 1; ; attempt++ {
		port, err := testproc.FreePort()
		require.NoError(t, err)
		r.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = r.listen(); err == nil {
			break
		}
		require.Less(t, attempt, 20, "%v", err)
	}
	t.Cleanup(r.Refuse)
	return r
}

func (r *Relayer) listen() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", r.addr)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addr, r.stop = l.Addr().String(), make(chan struct{})
	r.server = &http.Server{Handler: r.handler(), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	server := r.server
	r.running.Go(func() { _ = server.Serve(l) })
	return nil
}

// URL returns the base URL.
func (r *Relayer) URL() string { return "http://" + r.addr }

// ID returns the relayer's id.
func (r *Relayer) ID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.o.ID
}

// Refuse closes all connections, and refuses new ones until Resume.
func (r *Relayer) Refuse() {
	r.mu.Lock()
	server, stop := r.server, r.stop
	r.server = nil
	r.mu.Unlock()
	if server == nil {
		return
	}
	close(stop)
	_ = server.Close()
	r.running.Wait()
}

// Resume ends Refuse, at the same address.
func (r *Relayer) Resume(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return r.listen() == nil }, 2*time.Minute, 10*time.Millisecond, "listen again at %s", r.addr)
}

// Fail sets the fault of an operation; nil ends it.
func (r *Relayer) Fail(op Op, f Fault) { r.set(func() { r.faults[op] = f }) }

// Pause pauses the relayer, or ends the pause.
func (r *Relayer) Pause(paused bool) { r.set(func() { r.paused = paused }) }

// Disable disables the relayer, or enables it.
func (r *Relayer) Disable(disabled bool) { r.set(func() { r.disabled = disabled }) }

// Forget makes the relayer's id unknown, or known again.
func (r *Relayer) Forget(gone bool) { r.set(func() { r.gone = gone }) }

// ReportZero makes the relayer report no pending transactions, whatever it has.
func (r *Relayer) ReportZero(zero bool) { r.set(func() { r.zero = zero }) }

// Rename changes the relayer's id.
func (r *Relayer) Rename(id string) { r.set(func() { r.o.ID = id }) }

// Rescope changes the relayer's idempotency scope.
func (r *Relayer) Rescope(scope string) { r.set(func() { r.o.Scope = scope }) }

// Move gives the relayer another network, as when another process is started at its address.
func (r *Relayer) Move(network string, chainID uint64) {
	r.set(func() { r.o.Network, r.o.ChainID = network, chainID })
}

func (r *Relayer) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// Calls returns how many requests an operation got, including those that a fault responded to.
func (r *Relayer) Calls(op Op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[op]
}

// Transactions returns the transactions of the pool in the order of acceptance.
func (r *Relayer) Transactions() []Transaction {
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Transaction, len(p.txs))
	for i, tx := range p.txs {
		r.advance(tx)
		out[i] = *tx
	}
	return out
}

// Advance sets a transaction's status, and its hash from submitted on.
func (r *Relayer) Advance(t testing.TB, id, status string) {
	t.Helper()
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.txs, func(tx *Transaction) bool { return tx.ID == id })
	require.GreaterOrEqual(t, i, 0, "no transaction %s", id)
	r.reach(p.txs[i], status)
}

// AdvanceAll advances every open transaction by one status: pending, sent, submitted, mined, confirmed.
func (r *Relayer) AdvanceAll() {
	steps := []string{"pending", "sent", "submitted", "mined", "confirmed"}
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tx := range p.txs {
		if i := slices.Index(steps, tx.Status); !tx.Forgotten && i >= 0 && i < len(steps)-1 {
			r.reach(tx, steps[i+1])
		}
	}
}

// Remove deletes a transaction, as the relayer does some time after its end.
func (r *Relayer) Remove(id string) {
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txs = slices.DeleteFunc(p.txs, func(tx *Transaction) bool { return tx.ID == id })
}

// Add stores a transaction as if it had been accepted at a time.
func (r *Relayer) Add(tx Transaction) Transaction {
	id, p := r.ID(), r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	tx.ID, tx.RelayerID, tx.Status = cmp.Or(tx.ID, uuid.NewString()), id, cmp.Or(tx.Status, "pending")
	if tx.Value == nil {
		tx.Value = new(big.Int)
	}
	p.txs = append(p.txs, &tx)
	return tx
}

// advance applies the changes that are due by the clock.
func (r *Relayer) advance(tx *Transaction) {
	now := r.o.Now()
	if tx.Forgotten || tx.submittedAt.IsZero() {
		return
	}
	if tx.Status == "pending" && !now.Before(tx.submittedAt) {
		r.reach(tx, "submitted")
	}
	if tx.Status == "submitted" && !now.Before(tx.minedAt) {
		r.reach(tx, "mined")
	}
}

func (r *Relayer) reach(tx *Transaction, status string) {
	now := r.o.Now()
	tx.Status = status
	switch status {
	case "submitted", "mined", "confirmed":
		if tx.Hash == "" {
			sum := sha256.Sum256([]byte(tx.ID))
			tx.Hash, tx.SentAt = "0x"+hex.EncodeToString(sum[:]), now
		}
	}
	if status == "confirmed" {
		tx.ConfirmedAt = now
	}
}

func (r *Relayer) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, route := range map[string]struct {
		op Op
		do func(*Relayer, http.ResponseWriter, *http.Request)
	}{
		"GET /api/v1/relayers":                           {Find, (*Relayer).relayers},
		"GET /api/v1/relayers/{id}":                      {Find, (*Relayer).relayer},
		"GET /api/v1/relayers/{id}/status":               {Status, (*Relayer).status},
		"POST /api/v1/relayers/{id}/rpc":                 {RPC, (*Relayer).rpc},
		"POST /api/v1/relayers/{id}/transactions":        {Submit, (*Relayer).submit},
		"GET /api/v1/relayers/{id}/transactions":         {List, (*Relayer).list},
		"GET /api/v1/relayers/{id}/transactions/{tx}":    {Get, (*Relayer).transaction},
		"DELETE /api/v1/relayers/{id}/transactions/{tx}": {Cancel, (*Relayer).cancel},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			for _, other := range r.o.With {
				if req.PathValue("id") == other.ID() {
					other.handler().ServeHTTP(w, req)
					return
				}
			}
			w.Header().Set("Date", r.o.Now().UTC().Format(http.TimeFormat))
			r.mu.Lock()
			r.calls[route.op]++
			fault, gone, id, scope := r.faults[route.op], r.gone, r.o.ID, r.o.Scope
			r.mu.Unlock()
			body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
			if err != nil {
				fail(w, http.StatusRequestEntityTooLarge, "the body is too large or incomplete")
				return
			}
			req.Body = io.NopCloser(strings.NewReader(string(body)))
			if auth := req.Header["Authorization"]; len(auth) != 1 || auth[0] != "Bearer "+r.o.Key {
				write(w, http.StatusUnauthorized, map[string]any{"success": false, "code": 401, "error": "Unauthorized", "message": "Unauthorized"})
				return
			}
			if scope != "" {
				w.Header().Set("Idempotency-Scope", scope)
				if required := req.Header.Get("Idempotency-Scope"); required != "" && required != scope {
					fail(w, http.StatusPreconditionFailed, "another Idempotency-Scope")
					return
				}
			}
			if named := req.PathValue("id"); named != "" && (gone || named != id) {
				fail(w, http.StatusNotFound, "relayer "+named+" not found")
				return
			}
			do := func(w http.ResponseWriter) { route.do(r, w, req) }
			if fault == nil {
				do(w)
				return
			}
			c := &Call{ResponseWriter: w, Request: req, Do: do, relayer: r}
			if route.op == Submit {
				c.Accept = func() *Transaction {
					tx, code, why := r.accept(req)
					if tx == nil {
						panic(fmt.Sprintf("the stand-in refused a submission with %d: %s", code, why))
					}
					return tx
				}
			}
			fault(c)
		})
	}
	return mux
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func ok(w http.ResponseWriter, data any) {
	write(w, http.StatusOK, map[string]any{"success": true, "data": data, "error": nil})
}

func fail(w http.ResponseWriter, code int, message string) {
	write(w, code, map[string]any{"success": false, "data": nil, "error": message})
}

func (r *Relayer) describe() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]any{
		"id": r.o.ID, "name": r.o.ID, "network": r.o.Network, "network_type": "evm", "paused": r.paused, "signer_id": "local",
		"system_disabled": r.disabled, "address": "0x742d35cc6634c0532925a3b844bc454e4438f44e",
	}
}

func (r *Relayer) relayers(w http.ResponseWriter, _ *http.Request) {
	list := []any{}
	for _, other := range r.o.With {
		list = append(list, other.describe())
	}
	r.mu.Lock()
	gone := r.gone
	r.mu.Unlock()
	if !gone {
		list = append(list, r.describe())
	}
	write(w, http.StatusOK, map[string]any{
		"success": true, "data": list, "error": nil,
		"pagination": map[string]any{"current_page": 1, "per_page": 10, "total_items": len(list)},
	})
}

func (r *Relayer) relayer(w http.ResponseWriter, _ *http.Request) { ok(w, r.describe()) }

// rpc responds to eth_chainId.
func (r *Relayer) rpc(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused || r.disabled {
		fail(w, http.StatusForbidden, "Relayer paused or disabled")
		return
	}
	write(w, http.StatusOK, map[string]any{"jsonrpc": "2.0", "id": 1, "result": fmt.Sprintf("%#x", r.o.ChainID), "error": nil})
}

func (r *Relayer) status(w http.ResponseWriter, _ *http.Request) {
	pending := 0
	for _, tx := range r.Transactions() {
		switch tx.Status {
		case "pending", "sent", "submitted":
			pending++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.zero {
		pending = 0
	}
	ok(w, map[string]any{
		"network_type": "evm", "balance": "1000000000000000000", "pending_transactions_count": pending,
		"last_confirmed_transaction_timestamp": nil, "system_disabled": r.disabled, "paused": r.paused, "nonce": "0",
	})
}

func (r *Relayer) submit(w http.ResponseWriter, req *http.Request) {
	tx, code, why := r.accept(req)
	if tx == nil {
		fail(w, code, why)
		return
	}
	ok(w, r.body(tx))
}

// accept stores a submission, or returns why not.
func (r *Relayer) accept(req *http.Request) (tx *Transaction, code int, why string) {
	r.mu.Lock()
	id, paused, disabled, idempotent := r.o.ID, r.paused, r.disabled, r.o.Scope != ""
	r.mu.Unlock()
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, http.StatusBadRequest, "the body ended early"
	}
	var b struct {
		To       *string  `json:"to"`
		Value    *string  `json:"value"` // hex, as this project sends it
		Data     *string  `json:"data"`
		GasLimit *uint64  `json:"gas_limit"`
		Speed    string   `json:"speed"`
		Fee      *big.Int `json:"max_fee_per_gas"`
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, http.StatusBadRequest, "invalid JSON: " + err.Error()
	}
	added := &Transaction{
		ID: uuid.NewString(), RelayerID: id, Status: "pending", Speed: cmp.Or(b.Speed, "fast"), CreatedAt: r.o.Now(),
		IdempotencyKey: req.Header.Get("Idempotency-Key"), Traceparent: req.Header.Get("Traceparent"), hash: sha256.Sum256(raw),
	}
	if b.To != nil {
		added.To = strings.ToLower(*b.To)
	}
	if b.Data != nil && *b.Data != "0x" {
		added.Data = strings.ToLower(*b.Data)
	}
	if b.GasLimit != nil {
		added.GasLimit = *b.GasLimit
	}
	var valid bool
	if b.Value != nil {
		digits, hex := strings.CutPrefix(*b.Value, "0x")
		added.Value, valid = big.NewInt(0).SetString(digits, 16)
		valid = valid && hex && added.Value.BitLen() <= 256
	}
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if idempotent && added.IdempotencyKey != "" {
		if earlier := p.keys[added.IdempotencyKey]; earlier != nil {
			if earlier.hash != added.hash {
				return nil, http.StatusUnprocessableEntity, "this Idempotency-Key has been used with another body"
			}
			return earlier, 0, ""
		}
	}
	switch {
	case paused:
		return nil, http.StatusForbidden, "Relayer paused"
	case disabled:
		return nil, http.StatusForbidden, "Relayer disabled"
	case !valid:
		return nil, http.StatusBadRequest, "value: must be 0x hex below 2^256"
	case added.To == "" && added.Data == "":
		return nil, http.StatusBadRequest, "both to and data are missing"
	case added.GasLimit != 0 && added.GasLimit < 21_000:
		return nil, http.StatusBadRequest, "gas_limit: is below the intrinsic gas"
	}
	if r.o.Mine > 0 {
		added.submittedAt, added.minedAt = added.CreatedAt.Add(r.o.Mine/10), added.CreatedAt.Add(r.o.Mine)
	}
	p.txs = append(p.txs, added)
	if idempotent && added.IdempotencyKey != "" {
		p.keys[added.IdempotencyKey] = added
	}
	return added, 0, ""
}

// body returns a transaction in OpenZeppelin's format.
func (r *Relayer) body(tx *Transaction) map[string]any {
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return r.render(tx)
}

// render is body under the lock of the pool.
func (r *Relayer) render(tx *Transaction) map[string]any {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	at := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return t.UTC().Format("2006-01-02T15:04:05.000000+00:00")
	}
	gas := any(tx.GasLimit)
	if tx.GasLimit == 0 {
		gas = nil
	}
	return map[string]any{
		"id": tx.ID, "hash": null(tx.Hash), "status": tx.Status, "status_reason": nil, "created_at": at(tx.CreatedAt),
		"sent_at": at(tx.SentAt), "confirmed_at": at(tx.ConfirmedAt), "gas_price": nil, "gas_limit": gas, "nonce": nil,
		"value": "0x" + tx.Value.Text(16), "from": "0x742d35cc6634c0532925a3b844bc454e4438f44e", "to": null(tx.To),
		"relayer_id": tx.RelayerID, "data": null(tx.Data), "max_fee_per_gas": nil, "max_priority_fee_per_gas": nil,
		"signature": nil, "speed": tx.Speed, "is_canceled": tx.Canceled,
	}
}

func (r *Relayer) list(w http.ResponseWriter, req *http.Request) {
	number := func(name string, fallback int) int {
		n, err := strconv.Atoi(req.URL.Query().Get(name))
		if err != nil || n < 1 {
			return fallback
		}
		return n
	}
	page, perPage := number("page", 1), number("per_page", 10)
	all := r.Transactions()
	if r.o.NewestFirst {
		slices.Reverse(all)
	}
	from := min((page-1)*perPage, len(all))
	data := []any{}
	for _, tx := range all[from:min(from+perPage, len(all))] {
		data = append(data, r.render(&tx))
	}
	write(w, http.StatusOK, map[string]any{
		"success": true, "data": data, "error": nil,
		"pagination": map[string]any{"current_page": page, "per_page": perPage, "total_items": len(all)},
	})
}

// find calls use with a transaction under the pool's lock, or responds with 404.
func (r *Relayer) find(w http.ResponseWriter, req *http.Request, use func(*Transaction)) {
	p := r.o.Pool
	p.mu.Lock()
	defer p.mu.Unlock()
	id := req.PathValue("tx")
	for _, tx := range p.txs {
		if tx.ID == id {
			r.advance(tx)
			use(tx)
			return
		}
	}
	fail(w, http.StatusNotFound, "Transaction with ID "+id+" not found")
}

func (r *Relayer) transaction(w http.ResponseWriter, req *http.Request) {
	r.find(w, req, func(tx *Transaction) { ok(w, r.render(tx)) })
}

func (r *Relayer) cancel(w http.ResponseWriter, req *http.Request) {
	r.find(w, req, func(tx *Transaction) {
		switch tx.Status {
		case "pending":
			tx.Status, tx.Canceled = "canceled", true
		case "sent", "submitted":
			tx.Canceled = true
		default:
			fail(w, http.StatusBadRequest, "a transaction that is "+tx.Status+" cannot be canceled")
			return
		}
		ok(w, r.render(tx))
	})
}
