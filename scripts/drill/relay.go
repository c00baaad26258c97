package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// pool is the id of the relayers' pool in deploy/compose.yaml.
const pool = "pool"

// answer is an answer of a relayer's API.
type answer struct {
	code  int
	Data  json.RawMessage `json:"data"`
	Error any             `json:"error"`
	// Result is the node's answer, at /rpc.
	Result string `json:"result"`
}

// transaction holds the fields of a transaction in the API.
type transaction struct {
	ID     string
	Status string
}

// health is a relayer's answer at /health.
type health struct {
	code   int
	Reason string `json:"reason"`
}

// url returns a relayer's URL, at the port that Docker publishes on loopback; the port changes with each start.
func (c *cluster) url(ctx context.Context, relayer string) (string, error) {
	id, err := c.container(ctx, relayer)
	if err != nil {
		return "", err
	}
	port, err := docker(ctx, "port", id, "3000/tcp")
	if err == nil && port == "" {
		err = fmt.Errorf("%s does not run", relayer)
	}
	return "http://" + port, err
}

// client is the HTTP client for the relayers. It keeps no connections, because a port may belong to another container
// later.
var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// call sends an authorized request for a path of the relayers' pool.
func (c *cluster) call(ctx context.Context, relayer, method, path, idempotency string, body any) (a answer, err error) {
	url, err := c.url(ctx, relayer)
	if err != nil {
		return a, err
	}
	return c.callAt(ctx, url, relayer, method, path, idempotency, body)
}

func (c *cluster) callAt(ctx context.Context, url, relayer, method, path, idempotency string, body any) (a answer, err error) {
	key, err := os.ReadFile(filepath.Join(c.secrets, relayer+".api-key"))
	if err != nil {
		return a, err
	}
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return a, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url+"/api/v1/relayers/"+pool+path, content)
	if err != nil {
		return a, err
	}
	_, bearer, _ := strings.Cut(strings.TrimSpace(string(key)), ":")
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Content-Type", "application/json")
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	a.code = res.StatusCode
	return a, json.NewDecoder(res.Body).Decode(&a)
}

// health reads a relayer's health like the leader does.
func (c *cluster) health(ctx context.Context, relayer string) (h health, err error) {
	url, err := c.url(ctx, relayer)
	if err != nil {
		return h, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return h, err
	}
	res, err := client.Do(req)
	if err != nil {
		return h, err
	}
	defer res.Body.Close()
	h.code = res.StatusCode
	return h, json.NewDecoder(res.Body).Decode(&h)
}

// payment returns the body of a transaction of one wei.
func payment(to string) map[string]any { return map[string]any{"to": to, "value": 1} }

// post submits a payment, and fails unless it is accepted.
func (c *cluster) post(ctx context.Context, relayer, idempotency, to string) (tx transaction, err error) {
	a, err := c.call(ctx, relayer, http.MethodPost, "/transactions", idempotency, payment(to))
	return a.transaction(relayer, err)
}

func (a answer) transaction(relayer string, err error) (tx transaction, _ error) {
	if err == nil && a.code != http.StatusOK {
		err = fmt.Errorf("%s: %d %v", relayer, a.code, a.Error)
	}
	if err == nil {
		err = json.Unmarshal(a.Data, &tx)
	}
	return tx, err
}

func (c *cluster) transaction(ctx context.Context, relayer, id string) (transaction, error) {
	a, err := c.call(ctx, relayer, http.MethodGet, "/transactions/"+id, "", nil)
	return a.transaction(relayer, err)
}

// balance returns the balance of an address in wei, from a relayer's node.
func (c *cluster) balance(ctx context.Context, relayer, address string) (*big.Int, error) {
	a, err := c.call(ctx, relayer, http.MethodPost, "/rpc", "", map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": []string{address, "latest"},
	})
	if err != nil {
		return nil, err
	}
	n, ok := new(big.Int).SetString(strings.TrimPrefix(a.Result, "0x"), 16)
	if !ok {
		return nil, fmt.Errorf("balance at %s: %d %v %q", relayer, a.code, a.Error, a.Result)
	}
	return n, nil
}

// nobody returns a random address, which has received nothing.
func nobody() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	return "0x" + hex.EncodeToString(b[:])
}

// confirmation is how long a transaction may take: two blocks, a second each, and some overhead.
const confirmation = 10 * time.Second

// awaitConfirmed waits until a relayer reports all transactions as confirmed.
func (d *drill) awaitConfirmed(ctx context.Context, step, relayer string, ids []string, limit time.Duration) error {
	open := slices.Clone(ids)
	expected := fmt.Sprintf("%d confirmed, says %s", len(ids), relayer)
	return d.await(ctx, step, expected, limit, nil, func() (seen string, ok bool, err error) {
		for len(open) > 0 {
			tx, err := d.cluster.transaction(ctx, relayer, open[0])
			if err != nil {
				return "", false, err
			}
			if tx.Status != "confirmed" {
				return fmt.Sprintf("%s is %s, %d to go", tx.ID, tx.Status, len(open)), false, nil
			}
			open = open[1:]
		}
		return fmt.Sprintf("%d confirmed", len(ids)), true, nil
	})
}

// awaitPaid waits until an address has received exactly the given number of payments.
func (d *drill) awaitPaid(ctx context.Context, relayer, to string, payments int) error {
	return d.await(ctx, "  what was paid", fmt.Sprintf("%d wei", payments), confirmation, nil, func() (string, bool, error) {
		wei, err := d.cluster.balance(ctx, relayer, to)
		if err != nil {
			return "", false, err
		}
		return wei.String() + " wei", wei.Cmp(big.NewInt(int64(payments))) == 0, nil
	})
}

// awaitHealth waits until a relayer answers with the code and the reason at /health.
func (d *drill) awaitHealth(ctx context.Context, step, relayer string, code int, reason string, limit time.Duration) error {
	expected := strings.TrimSpace(fmt.Sprintf("/health %d %s", code, reason))
	return d.await(ctx, step, expected, limit, nil, d.lookAtHealth(ctx, relayer, code, reason))
}

func (d *drill) lookAtHealth(ctx context.Context, relayer string, code int, reason string) func() (string, bool, error) {
	return func() (string, bool, error) {
		h, err := d.cluster.health(ctx, relayer)
		return strings.TrimSpace(fmt.Sprintf("/health %d %s", h.code, h.Reason)), h.code == code && strings.Contains(h.Reason, reason), err
	}
}

// transactionsMined posts to each relayer, and reads the status from another one.
func (d *drill) transactionsMined(ctx context.Context) error {
	to := nobody()
	for i, r := range relayers {
		other := relayers[(i+1)%len(relayers)]
		tx, err := d.cluster.post(ctx, r, to+r, to)
		if err != nil {
			return err
		}
		if err := d.awaitConfirmed(ctx, "post to "+r, other, []string{tx.ID}, confirmation); err != nil {
			return err
		}
		err = d.await(ctx, "  the same Idempotency-Key at "+other, "the same transaction", time.Second, nil, func() (string, bool, error) {
			again, err := d.cluster.post(ctx, other, to+r, to)
			same := again.ID == tx.ID
			return map[bool]string{true: "the same transaction", false: "another one: " + again.ID}[same], same, err
		})
		if err != nil {
			return err
		}
	}
	return d.awaitPaid(ctx, relayers[0], to, len(relayers))
}

// relayerKilled kills a relayer while it accepts transactions. Other relayers finish the transactions that it accepted.
// The drill repeats unanswered posts under the same idempotency keys.
func (d *drill) relayerKilled(ctx context.Context) error {
	const victim, other, burst = "oz-relayer-0", "oz-relayer-2", 30
	url, err := d.cluster.url(ctx, victim)
	if err != nil {
		return err
	}
	to := nobody()
	accepted := make([]string, burst) // ids, if it answered
	first := make(chan struct{})
	var once sync.Once
	var posts sync.WaitGroup
	for i := range burst {
		posts.Go(func() {
			a, err := d.cluster.callAt(ctx, url, victim, http.MethodPost, "/transactions", fmt.Sprint(to, i), payment(to))
			if tx, err := a.transaction(victim, err); err == nil {
				accepted[i] = tx.ID
				once.Do(func() { close(first) })
			}
		})
	}
	select {
	case <-first:
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s accepted nothing", victim)
	}
	start := time.Now()
	err = d.cluster.kill(ctx, victim)
	posts.Wait()
	if err != nil {
		return err
	}
	known := slices.DeleteFunc(slices.Clone(accepted), func(id string) bool { return id == "" })
	d.row("kill "+victim+" as it takes transactions", "at least one accepted", fmt.Sprintf("%d of %d accepted", len(known), burst),
		time.Since(start), len(known) > 0)
	if err := d.awaitConfirmed(ctx, "  what it had accepted", other, known, 30*time.Second); err != nil {
		return err
	}
	var ids []string
	err = d.await(ctx, "  all again, under their keys, at "+other, "the same transactions", 30*time.Second, nil, func() (string, bool, error) {
		ids = nil
		for i, was := range accepted {
			tx, err := d.cluster.post(ctx, other, fmt.Sprint(to, i), to)
			if err != nil {
				return "", false, err
			}
			if tx.ID != cmp.Or(was, tx.ID) {
				return fmt.Sprintf("%s became %s", was, tx.ID), false, nil
			}
			ids = append(ids, tx.ID)
		}
		return "the same transactions", true, nil
	})
	if err != nil {
		return err
	}
	if err := d.awaitConfirmed(ctx, "  these", other, ids, 30*time.Second); err != nil {
		return err
	}
	if err := d.awaitPaid(ctx, other, to, burst); err != nil {
		return err
	}
	if err := d.cluster.start(ctx, victim); err != nil {
		return err
	}
	if err := d.awaitHealth(ctx, "start "+victim, victim, http.StatusOK, "", 10*time.Second); err != nil {
		return err
	}
	return d.awaitSet(ctx, "  the set", relayers, d.interval+time.Second, nil)
}

// storeStopped stops PostgreSQL. Meanwhile the relayers accept nothing and report the reason. Earlier accepted
// transactions are finished afterwards.
func (d *drill) storeStopped(ctx context.Context) error {
	to := nobody()
	before, err := d.cluster.post(ctx, relayers[0], to+"before", to)
	if err != nil {
		return err
	}
	if err := d.cluster.stop(ctx, "postgres"); err != nil {
		return err
	}
	for _, r := range relayers {
		if err := d.awaitHealth(ctx, "stop PostgreSQL, "+r, r, http.StatusServiceUnavailable, "database", 10*time.Second); err != nil {
			return err
		}
	}
	err = d.await(ctx, "  a transaction then", "503", time.Second, nil, func() (string, bool, error) {
		a, err := d.cluster.call(ctx, relayers[1], http.MethodPost, "/transactions", to+"during", payment(to))
		return fmt.Sprintf("%d %v", a.code, a.Error), a.code == http.StatusServiceUnavailable, err
	})
	if err != nil {
		return err
	}
	if err := d.awaitSet(ctx, "  the set", nil, d.interval+time.Second, nil); err != nil {
		return err
	}
	if err := d.cluster.start(ctx, "postgres"); err != nil {
		return err
	}
	for _, r := range relayers {
		if err := d.awaitHealth(ctx, "start PostgreSQL, "+r, r, http.StatusOK, "", 20*time.Second); err != nil {
			return err
		}
	}
	if err := d.awaitSet(ctx, "  the set", relayers, d.interval+time.Second, nil); err != nil {
		return err
	}
	after, err := d.cluster.post(ctx, relayers[1], to+"during", to)
	if err != nil {
		return err
	}
	if err := d.awaitConfirmed(ctx, "  the transactions before, and refused then", relayers[2], []string{before.ID, after.ID}, 30*time.Second); err != nil {
		return err
	}
	return d.awaitPaid(ctx, relayers[2], to, 2)
}
