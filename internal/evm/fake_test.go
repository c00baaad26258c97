package evm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake is a node that returns the answers that a test sets. Without any it is a healthy node of the simulated chain's
// id, which makes no blocks and accepts all transactions.
type fake struct {
	t   *testing.T
	srv *httptest.Server
	// release ends handlers that hang.
	release chan struct{}

	mu      sync.Mutex
	chainID uint64
	head    uint64
	hash    byte // chain byte of all block hashes
	answers map[string]func(params []json.RawMessage) (result string, err string)
	whole   func(w http.ResponseWriter, calls []fakeCall, batch bool) bool // returns true if it has answered
	seen    []fakeCall
	batches []int // sizes
}

type fakeCall struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{
		t: t, release: make(chan struct{}), chainID: simulatedID, head: 100, hash: 1,
		answers: map[string]func([]json.RawMessage) (string, string){},
	}
	f.srv = httptest.NewServer(f)
	t.Cleanup(func() {
		close(f.release)
		f.srv.Close()
	})
	return f
}

func (f *fake) url() string { return f.srv.URL }

// on sets the answer to a method: a JSON result, or a JSON error object.
func (f *fake) on(method string, answer func(params []json.RawMessage) (result string, err string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[method] = answer
}

func (f *fake) always(method, result, err string) {
	f.on(method, func([]json.RawMessage) (string, string) { return result, err })
}

// onRequest sets a handler that receives each whole request first.
func (f *fake) onRequest(whole func(w http.ResponseWriter, calls []fakeCall, batch bool) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.whole = whole
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// count returns how often a method was called.
func (f *fake) count(method string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.seen {
		if c.Method == method {
			n++
		}
	}
	return n
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	batch := body[0] == '['
	var calls []fakeCall
	if batch {
		require.NoError(f.t, json.Unmarshal(body, &calls))
	} else {
		calls = make([]fakeCall, 1)
		require.NoError(f.t, json.Unmarshal(body, &calls[0]))
	}
	f.mu.Lock()
	f.seen = append(f.seen, calls...)
	if batch {
		f.batches = append(f.batches, len(calls))
	}
	whole := f.whole
	f.mu.Unlock()
	if whole != nil && whole(w, calls, batch) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, f.answer(calls, batch))
}

func (f *fake) answer(calls []fakeCall, batch bool) string {
	text := ""
	for i := range calls {
		c := calls[len(calls)-1-i] // JSON-RPC allows any order
		if text != "" {
			text += ","
		}
		text += f.answerOne(c)
	}
	if batch {
		return "[" + text + "]"
	}
	return text
}

func (f *fake) answerOne(c fakeCall) string {
	f.mu.Lock()
	answer := f.answers[c.Method]
	chainID, head, hash := f.chainID, f.head, f.hash
	f.mu.Unlock()
	result, failure := "null", ""
	switch {
	case answer != nil:
		result, failure = answer(c.Params)
	case c.Method == "eth_chainId":
		result = fmt.Sprintf(`"%#x"`, chainID)
	case c.Method == "eth_getBlockByNumber":
		result = blockJSON(numberOf(c.Params[0], head), hash)
	case c.Method == "eth_sendRawTransaction":
		result = `"0x` + fmt.Sprintf("%064x", 1) + `"`
	case c.Method == "eth_getTransactionCount":
		result = `"0x7"`
	}
	if failure != "" {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, c.ID, failure)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, c.ID, result)
}

// numberOf returns the block number of a block parameter.
func numberOf(param json.RawMessage, head uint64) uint64 {
	if string(param) == `"latest"` {
		return head
	}
	n, _ := parseUint(param)
	return n
}

// blockJSON returns block n of the chain with the given byte.
func blockJSON(n uint64, chain byte) string {
	return fmt.Sprintf(`{"number":"%#x","hash":"0x%02x%062x","parentHash":"0x%02x%062x","timestamp":"%#x","transactions":[]}`,
		n, chain, n, chain, n-1, 12*n)
}
