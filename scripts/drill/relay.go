package main

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// newAddress returns a random address, which has received nothing.
func newAddress() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	return "0x" + hex.EncodeToString(b[:])
}

// confirmation is how long a transaction may take: two blocks, a second each, and some overhead.
const confirmation = 10 * time.Second

// awaitConfirmed waits until a relayer reports all transactions as confirmed.
func (d *drill) awaitConfirmed(step, relayer string, ids []string, limit time.Duration) {
	open := slices.Clone(ids)
	d.await(step, fmt.Sprintf("%d confirmed, says %s", len(ids), relayer), limit, nil, func() (seen string, ok bool, err error) {
		for ; len(open) > 0; open = open[1:] {
			tx, err := accepted(d.call("", relayer, http.MethodGet, "/transactions/"+open[0], "", ""))
			if err != nil || tx.Status != "confirmed" {
				return fmt.Sprintf("%s is %s, %d to go", tx.ID, tx.Status, len(open)), false, err
			}
		}
		return fmt.Sprintf("%d confirmed", len(ids)), true, nil
	})
}

// awaitPaid waits until an address has received exactly the given number of payments, by a relayer's node.
func (d *drill) awaitPaid(relayer, to string, payments int) {
	d.await("  what was paid", fmt.Sprintf("%d wei", payments), confirmation, nil, func() (string, bool, error) {
		a, err := d.call("", relayer, http.MethodPost, "/rpc", "",
			fmt.Sprintf(`{"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": [%q, "latest"]}`, to))
		wei, ok := new(big.Int).SetString(strings.TrimPrefix(a.Result, "0x"), 16)
		if !ok {
			return fmt.Sprintf("%d %v %q", a.code, a.Error, a.Result), false, err
		}
		return wei.String() + " wei", wei.Cmp(big.NewInt(int64(payments))) == 0, err
	})
}

// awaitHealth waits until a relayer answers with the code and the reason at /health, as the leader reads it.
func (d *drill) awaitHealth(start time.Time, step, relayer string, code int, reason string, limit time.Duration) {
	format := func(code int, reason string) string {
		return strings.TrimSpace(fmt.Sprintf("/health %d %s", code, reason))
	}
	d.awaitSince(start, step, format(code, reason), limit, func() (string, bool, error) {
		var health struct{ Reason string }
		got, err := d.get(relayer, "3000", "/health", &health)
		return format(got, health.Reason), got == code && strings.Contains(health.Reason, reason), err
	})
}

// transactionsMined posts to each relayer, and reads the status from another one.
func (d *drill) transactionsMined() {
	to := newAddress()
	for i, r := range relayers {
		other := relayers[(i+1)%len(relayers)]
		tx, err := accepted(d.post("", r, to+r, to))
		d.check(err)
		d.awaitConfirmed("post to "+r, other, []string{tx.ID}, confirmation)
		d.await("  the same Idempotency-Key at "+other, "the same transaction", time.Second, nil, func() (string, bool, error) {
			again, err := accepted(d.post("", other, to+r, to))
			same := again.ID == tx.ID
			return map[bool]string{true: "the same transaction", false: "another one: " + again.ID}[same], same, err
		})
	}
	d.awaitPaid(relayers[0], to, len(relayers))
}

// relayerKilled kills a relayer while it accepts transactions. Other relayers finish the transactions that it accepted.
// The drill repeats unanswered posts under the same idempotency keys.
func (d *drill) relayerKilled() {
	const victim, other, burst, limit = "oz-relayer-0", "oz-relayer-2", 30, 30 * time.Second
	url, err := d.url(victim, "3000")
	d.check(err)
	to := newAddress()
	answered := make([]string, burst) // ids, if it answered
	first := make(chan struct{}, burst)
	var posts sync.WaitGroup
	for i := range burst {
		posts.Go(func() {
			if tx, err := accepted(d.post(url, victim, fmt.Sprint(to, i), to)); err == nil {
				answered[i] = tx.ID
				first <- struct{}{}
			}
		})
	}
	select {
	case <-first:
	case <-time.After(10 * time.Second):
		d.check(fmt.Errorf("%s accepted nothing", victim))
	}
	start := time.Now()
	d.must("kill", victim)
	posts.Wait()
	known := slices.DeleteFunc(slices.Clone(answered), func(id string) bool { return id == "" })
	d.row("kill "+victim+" as it takes transactions", "at least one accepted", fmt.Sprintf("%d of %d accepted", len(known), burst),
		time.Since(start), len(known) > 0)
	d.awaitConfirmed("  what it had accepted", other, known, limit)
	var ids []string
	d.await("  all again, under their keys, at "+other, "the same transactions", limit, nil, func() (string, bool, error) {
		ids = nil
		for i, was := range answered {
			tx, err := accepted(d.post("", other, fmt.Sprint(to, i), to))
			if err != nil || tx.ID != cmp.Or(was, tx.ID) {
				return fmt.Sprintf("%s became %s", was, tx.ID), false, err
			}
			ids = append(ids, tx.ID)
		}
		return "the same transactions", true, nil
	})
	d.awaitConfirmed("  these", other, ids, limit)
	d.awaitPaid(other, to, burst)
	d.must("start", victim)
	d.awaitHealth(time.Now(), "start "+victim, victim, http.StatusOK, "", 10*time.Second)
	d.awaitSet("  the set", relayers, d.interval+time.Second, nil)
}

// storeStopped stops PostgreSQL. Meanwhile the relayers accept nothing and report the reason. Earlier accepted
// transactions are finished afterwards.
func (d *drill) storeStopped() {
	to := newAddress()
	before, err := accepted(d.post("", relayers[0], to+"before", to))
	d.check(err)
	d.must(stop, "postgres")
	for _, r := range relayers {
		d.awaitHealth(time.Now(), "stop PostgreSQL, "+r, r, http.StatusServiceUnavailable, "database", 10*time.Second)
	}
	d.await("  a transaction then", "503", time.Second, nil, func() (string, bool, error) {
		a, err := d.post("", relayers[1], to+"during", to)
		return fmt.Sprintf("%d %v", a.code, a.Error), a.code == http.StatusServiceUnavailable, err
	})
	d.awaitSet("  the set", nil, d.interval+time.Second, nil)
	d.must("start", "postgres")
	for _, r := range relayers {
		d.awaitHealth(time.Now(), "start PostgreSQL, "+r, r, http.StatusOK, "", 20*time.Second)
	}
	d.awaitSet("  the set", relayers, d.interval+time.Second, nil)
	after, err := accepted(d.post("", relayers[1], to+"during", to))
	d.check(err)
	d.awaitConfirmed("  the transactions before, and refused then", relayers[2], []string{before.ID, after.ID}, 30*time.Second)
	d.awaitPaid(relayers[2], to, 2)
}
