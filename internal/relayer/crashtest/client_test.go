package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

const (
	poolID = "torture"
	apiKey = "torture-torture-torture-torture-torture"

	transactionsPath = "/api/v1/relayers/" + poolID + "/transactions"

	watchedShare = 5                     // one in this many transactions is polled
	pollers      = 3                     // number of clients that poll
	pollInterval = 25 * time.Millisecond // of each poller
)

// web is the transport of all clients, without the limit of two idle connections per host.
var web = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Second}}

// healthy reports whether a relayer's /health answers 200.
func healthy(t testing.TB, url string) bool {
	code, _ := health(t, url)
	return code == http.StatusOK
}

func health(t testing.TB, url string) (code int, body string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
	defer cancel()
	code, answer, err := call(ctx, http.MethodGet, url+"/health", "", nil)
	if err != nil {
		return 0, err.Error()
	}
	return code, string(answer)
}

// call sends one request, with an idempotency key unless it is empty.
func call(ctx context.Context, method, url, idempotency string, body []byte) (code int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+apiKey)
	request.Header.Set("Content-Type", "application/json")
	if idempotency != "" {
		request.Header.Set("Idempotency-Key", idempotency)
	}
	response, err := web.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// hit is one transaction to send: a call of the counter with its own id.
type hit struct {
	id      common.Hash
	request map[string]any
	body    []byte // the request
	// hasty hits are posted once, with a short timeout: their clients do not learn whether they were stored.
	hasty bool
	// cancelAfter is how long after its acceptance the client cancels it; 0: it does not.
	cancelAfter time.Duration
	// validFor is how long after its first POST it is valid; 0: always.
	validFor time.Duration

	tx    string // its id, once it was accepted
	late  bool   // it was rejected as expired
	posts int
}

// write sets the body of the request.
func (h *hit) write(t testing.TB) {
	var err error
	if h.body, err = json.Marshal(h.request); err != nil {
		t.Errorf("write %v: %v", h.request, err)
	}
}

func (h *hit) key() string { return h.id.Hex() }

// load is a stream of hits, posted by several clients that alternate between processes.
type load struct {
	t       testing.TB
	fleet   fleet
	hits    []*hit
	clients int
	pace    time.Duration // between the starts of two hits
	reports *reportLog    // records the answers that clients get

	cancels sync.WaitGroup

	mu        sync.Mutex
	watched   []string // transactions that clients poll
	outcomes  map[string]int
	latencies []time.Duration // of POSTs that were answered 200
}

// newLoad returns n hits of a counter. Every second one has no gas limit, so that it is estimated; one in twenty is
// hasty.
func newLoad(t testing.TB, f fleet, counter common.Address, n int, random *rand.Rand) *load {
	t.Helper()
	l := &load{t: t, fleet: f, reports: newReportLog(), outcomes: map[string]int{}}
	for i := range n {
		h := &hit{hasty: random.IntN(20) == 0}
		for j := range h.id {
			h.id[j] = byte(random.Uint32())
		}
		request := map[string]any{"to": counter, "value": 0, "data": hexutil.Bytes(contracts.Hit(h.id)), "speed": "fast"}
		if i%2 == 0 {
			request["gas_limit"] = contracts.HitGas
		}
		h.request = request
		h.write(t)
		l.hits = append(l.hits, h)
	}
	return l
}

// withdraw makes clients cancel one in eight hits, and makes another one in eight expire soon. Of the first all hits, one
// half is canceled and the other one expires.
func (l *load) withdraw(random *rand.Rand, all int) {
	for i, h := range l.hits {
		wait := time.Duration(random.IntN(2000)) * time.Millisecond
		of := 8
		if i < all {
			of = 2
		}
		switch random.IntN(of) {
		case 0:
			h.cancelAfter = wait + time.Millisecond
		case 1:
			h.validFor = time.Second + wait
		}
	}
}

// run posts all hits, and returns when each has been accepted or given up. It ends early with ctx.
func (l *load) run(ctx context.Context, random *rand.Rand) {
	next := make(chan *hit)
	var clients sync.WaitGroup
	for range l.clients {
		own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		clients.Go(func() {
			for h := range next {
				l.post(ctx, h, own)
			}
		})
	}
	tick := time.NewTicker(l.pace)
	defer tick.Stop()
	for _, h := range l.hits {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		next <- h
	}
	close(next)
	clients.Wait()
	l.cancels.Wait()
}

// post posts a hit until it is accepted, at changing processes.
func (l *load) post(ctx context.Context, h *hit, random *rand.Rand) {
	if h.validFor > 0 {
		h.request["valid_until"] = time.Now().Add(h.validFor).UTC().Format(time.RFC3339Nano)
		h.write(l.t)
	}
	for ctx.Err() == nil {
		url := l.fleet.any(random)
		if url != "" {
			limit := 4 * time.Second
			if h.hasty {
				limit = time.Duration(1+random.IntN(200)) * time.Millisecond
			}
			began := time.Now()
			outcome, done := l.try(ctx, url, h, limit, random)
			h.posts++
			l.note(outcome, time.Since(began))
			if done || h.hasty {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+random.IntN(200)) * time.Millisecond):
		}
	}
}

func (l *load) try(ctx context.Context, url string, h *hit, limit time.Duration, random *rand.Rand) (outcome string, done bool) {
	posting, end := context.WithTimeout(ctx, limit)
	defer end()
	asked := time.Now()
	code, answer, err := call(posting, http.MethodPost, url+transactionsPath, h.key(), h.body)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time", false
	case err != nil:
		return "connection broke", false
	case code == http.StatusOK:
		tx, err := l.reports.answer("POST", asked, answer)
		if err != nil {
			l.t.Error(err)
		}
		l.accepted(h, tx)
		if h.cancelAfter > 0 {
			own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
			l.cancels.Go(func() { l.cancel(ctx, h, own) })
		}
		return "200", true
	case code == http.StatusBadRequest && h.validFor > 0 && bytes.Contains(answer, []byte("is in the past")):
		h.late = true
		return "400", true
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return fmt.Sprint(code), false
	default:
		l.t.Errorf("POST of %s answered %d: %s", h.key(), code, answer)
		return fmt.Sprint(code), true
	}
}

func (l *load) accepted(h *hit, tx string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.tx != "" && h.tx != tx {
		l.t.Errorf("idempotency key %s stands for %s and for %s", h.key(), h.tx, tx)
	}
	if h.tx == "" && h.id[0] < 256/watchedShare {
		l.watched = append(l.watched, tx)
	}
	h.tx = tx
}

// cancel cancels an accepted hit. It repeats the request, at changing processes, until it is answered.
func (l *load) cancel(ctx context.Context, h *hit, random *rand.Rand) {
	wait := h.cancelAfter
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = time.Duration(50+random.IntN(200)) * time.Millisecond
		url := l.fleet.any(random)
		if url == "" {
			continue
		}
		outcome, done := l.tryCancel(ctx, url, h)
		l.note("DELETE "+outcome, 0)
		if done {
			return
		}
	}
}

func (l *load) tryCancel(ctx context.Context, url string, h *hit) (outcome string, done bool) {
	ctx, end := context.WithTimeout(ctx, 4*time.Second)
	defer end()
	asked := time.Now()
	code, answer, err := call(ctx, http.MethodDelete, url+transactionsPath+"/"+h.tx, "", nil)
	switch {
	case err != nil:
		return "without an answer", false
	case code == http.StatusOK:
		if _, err := l.reports.answer("DELETE", asked, answer); err != nil {
			l.t.Error(err)
		}
		return "200", true
	case code == http.StatusBadRequest: // the transaction is mined, final, or being canceled
		return "400", true
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return fmt.Sprint(code), false
	default:
		l.t.Errorf("DELETE of %s answered %d: %s", h.tx, code, answer)
		return fmt.Sprint(code), true
	}
}

// poll makes clients read the status of accepted transactions, one after the other, until ctx ends.
func (l *load) poll(ctx context.Context, random *rand.Rand) {
	for tick := time.NewTicker(pollInterval); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		l.mu.Lock()
		var tx string
		if len(l.watched) > 0 {
			tx = l.watched[random.IntN(len(l.watched))]
		}
		l.mu.Unlock()
		if url := l.fleet.any(random); url != "" && tx != "" {
			l.look(ctx, url, tx)
		}
	}
}

// look reads the status of a transaction.
func (l *load) look(ctx context.Context, url, tx string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	asked := time.Now()
	code, answer, err := call(ctx, http.MethodGet, url+transactionsPath+"/"+tx, "", nil)
	switch {
	case err != nil, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
	case code == http.StatusOK:
		if _, err := l.reports.answer("GET", asked, answer); err != nil {
			l.t.Error(err)
		}
	default:
		l.t.Errorf("GET of %s answered %d: %s", tx, code, answer)
	}
}

func (l *load) note(outcome string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[outcome]++
	if outcome == "200" {
		l.latencies = append(l.latencies, took)
	}
}

// summary returns the clients' results as text.
func (l *load) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.latencies)
	at := func(q float64) time.Duration {
		if len(l.latencies) == 0 {
			return 0
		}
		return l.latencies[int(q*float64(len(l.latencies)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("POSTs: %s; accepted after p50 %v p99 %v max %v", counts(l.outcomes), at(0.5), at(0.99), at(1))
}
