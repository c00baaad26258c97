package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// newAddress returns an address that has received nothing.
func newAddress() string { return fmt.Sprintf("0x%040x", time.Now().UnixNano()) }

const (
	pool         = "/api/v1/relayers/pool"
	confirmation = 10 * time.Second // of a transaction: two blocks, a second each, and some overhead
)

// payment returns a request for a payment of one wei.
func (d *drill) payment(relayer, idempotencyKey, to string) *http.Request {
	req := d.request(relayer, http.MethodPost, pool+"/transactions", fmt.Sprintf(`{"to": %q, "value": 1}`, to))
	req.Header.Set("Idempotency-Key", idempotencyKey)
	return req
}

// accepted sends a payment that the relayer must accept, and returns the transaction's id.
func (d *drill) accepted(payment *http.Request) string {
	a := d.call(payment)
	if a.code != http.StatusOK {
		d.check(fmt.Errorf("%d %v", a.code, a.Error))
	}
	return a.Data.ID
}

// awaitConfirmed waits until a relayer reports all transactions as confirmed.
func (d *drill) awaitConfirmed(step, relayer string, limit time.Duration, ids ...string) {
	expected := fmt.Sprintf("%d confirmed, as reported by %s", len(ids), relayer)
	d.await(step, expected, limit, func() string {
		for ; len(ids) > 0; ids = ids[1:] {
			tx := d.call(d.request(relayer, http.MethodGet, pool+"/transactions/"+ids[0], "")).Data
			if tx.Status != "confirmed" {
				return fmt.Sprintf("%s is %s, %d to go", ids[0], tx.Status, len(ids))
			}
		}
		return expected
	})
}

// awaitPaid waits until an address has received exactly the given number of payments, by a relayer's node.
func (d *drill) awaitPaid(relayer, to string, payments int) {
	balance := fmt.Sprintf(`{"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": [%q, "latest"]}`, to)
	d.await("  the wei paid", fmt.Sprintf("%#x", payments), confirmation, func() string {
		a := d.call(d.request(relayer, http.MethodPost, pool+"/rpc", balance))
		return cmp.Or(a.Result, fmt.Sprint(a.code, a.Error))
	})
}

// awaitHealth waits until each relayer answers /health, which the leader reads, with the code and the reason.
func (d *drill) awaitHealth(step, expected string, limit time.Duration, services ...string) {
	for _, r := range services {
		d.awaitThat(step+", /health of "+r, expected, limit, func() (string, bool) {
			a := d.call(d.request(r, http.MethodGet, "/health", ""))
			seen := fmt.Sprintf("%d %s", a.code, a.Reason)
			return seen, strings.HasPrefix(seen, expected)
		})
	}
}

// transactionsMined posts to each relayer, and reads the status from another one.
func (d *drill) transactionsMined() {
	to := newAddress()
	for i, r := range relayers {
		other := relayers[(i+1)%len(relayers)]
		id := d.accepted(d.payment(r, to+r, to))
		d.awaitConfirmed("post to "+r, other, confirmation, id)
		repeated := func() string { return d.accepted(d.payment(other, to+r, to)) }
		d.await("  the same Idempotency-Key at "+other, id, time.Second, repeated)
	}
	d.awaitPaid(relayers[0], to, len(relayers))
}

// relayerKilled kills a relayer while it accepts transactions. Other relayers finish the transactions that it accepted.
// The drill repeats unanswered posts under the same idempotency keys.
func (d *drill) relayerKilled() {
	const victim, other, burst, limit = "oz-relayer-0", "oz-relayer-2", 30, 30 * time.Second
	to := newAddress()
	requests := make([]*http.Request, burst)
	for i := range requests {
		requests[i] = d.payment(victim, fmt.Sprint(to, i), to)
	}
	ids, results := make([]string, burst), make(chan bool, burst)
	var posts sync.WaitGroup
	for i := range requests {
		posts.Go(func() {
			post := new(drill) // check is not for concurrent use
			err := post.attempt(func() { ids[i] = post.accepted(requests[i]) })
			results <- err == nil
		})
	}
	for range burst {
		if <-results {
			break
		}
	}
	d.act("kill", victim)
	posts.Wait()
	known := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == "" })
	seen := fmt.Sprintf("%d of %d accepted", len(known), burst)
	d.row("kill "+victim+" as it takes transactions", "at least one accepted", seen, 0, len(known) > 0)
	d.awaitConfirmed("  what it had accepted", other, limit, known...)
	d.await("  all again, under their keys, at "+other, "the same transactions", limit, func() string {
		for i, was := range ids {
			id := d.accepted(d.payment(other, fmt.Sprint(to, i), to))
			if id != cmp.Or(was, id) {
				return fmt.Sprintf("%s became %s", was, id)
			}
			ids[i] = id
		}
		return "the same transactions"
	})
	d.awaitConfirmed("  these", other, limit, ids...)
	d.awaitPaid(other, to, burst)
	d.act("start", victim)
	d.awaitHealth("start", "200", startLimit, victim)
	d.await("  the set", fmt.Sprint(relayers), interval+time.Second, d.active)
}

// storeStopped stops PostgreSQL. Meanwhile the relayers accept nothing and report the reason. Earlier accepted
// transactions are finished afterwards.
func (d *drill) storeStopped() {
	to := newAddress()
	before := d.accepted(d.payment(relayers[0], to+"before", to))
	d.act(stop, "postgres")
	d.begin() // it may wait for its clients
	d.awaitHealth("stop PostgreSQL", "503 database", 10*time.Second, relayers...)
	d.await("  a transaction then", "503", time.Second, func() string {
		return fmt.Sprint(d.call(d.payment(relayers[1], to+"during", to)).code)
	})
	d.await("  the set", fmt.Sprint([]string{}), interval+time.Second, d.active)
	d.act("start", "postgres")
	d.awaitHealth("start PostgreSQL", "200", startLimit, relayers...)
	d.await("  the set", fmt.Sprint(relayers), interval+time.Second, d.active)
	after := d.accepted(d.payment(relayers[1], to+"during", to))
	d.awaitConfirmed("  the transactions before, and refused then", relayers[2], 30*time.Second, before, after)
	d.awaitPaid(relayers[2], to, 2)
}
