package main

import (
	"context"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
)

const (
	relayPath = "/api/v1/relay/"
	batchSize = 20
	pace      = 100 * time.Millisecond // of a batch's posts
	early     = 5                      // transactions that precede a fault
	// soon is the limit where nothing has to wait for a timeout.
	soon = 30 * time.Second
	// lease is the limit where a relayer or a consumer stops responding: a relayer has 10 s to answer, a consumer's
	// submissions are its own for 15 s, and its queue entries for a minute.
	lease = 80 * time.Second
	// blindAfter is how long a consumer without Redis goes on with the relayers that it knows, and a little more.
	blindAfter = 62 * time.Second
)

var (
	apis      = []string{"api-1", "api-2"}
	consumers = []string{"consumer-1", "consumer-2"}
)

// api returns a request to an API of the relay path.
func (d *drill) api(service, method, path, body string) *http.Request {
	req := d.request(service, method, relayPath+path, body)
	key, err := os.ReadFile("build/compose/client.api-key")
	d.check(err)
	_, secret, _ := strings.Cut(strings.TrimSpace(string(key)), ":")
	req.Header.Set("x-api-key", secret)
	return req
}

// transaction holds the fields that the drill reads from the answers of APIs.
type transaction struct {
	TransactionID, Status string
	Error                 any
}

// relay posts a transaction that the API must accept. On the chain it records its id, which is also its transactionId.
func (d *drill) relay(api string, id common.Hash) {
	var tx transaction
	_, recipient := erc2771.Addresses()
	body := fmt.Sprintf(`{"to": %q, "data": %q, "gasLimit": 150000, "transactionId": %q}`, recipient, hexutil.Encode(erc2771.Record(id)), id)
	if code := d.send(d.api(api, http.MethodPost, "direct", body), &tx); code != http.StatusAccepted || tx.TransactionID != id.Hex() {
		d.check(fmt.Errorf("%s: %d %s %v", api, code, tx.TransactionID, tx.Error))
	}
}

func (d *drill) relayStatus(api string, id common.Hash) string {
	var tx transaction
	if code := d.send(d.api(api, http.MethodGet, "status/"+id.Hex(), ""), &tx); code != http.StatusOK {
		d.check(fmt.Errorf("%s: %d %v", api, code, tx.Error))
	}
	return tx.Status
}

// newIDs returns ids that nothing has recorded.
func newIDs(n int) []common.Hash {
	ids, first := make([]common.Hash, n), time.Now().UnixNano()
	for i := range ids {
		ids[i] = common.BigToHash(big.NewInt(first + int64(i)))
	}
	return ids
}

// batch is the transactions that are posted during a fault.
type batch struct {
	ids      []common.Hash
	accepted chan struct{} // a value for each accepted one; closed at the end
	slowest  time.Duration // from a transaction's first post to its 202
	err      error         // why not all were accepted
}

// post posts the transactions to the APIs in turn. One that an API does not accept is posted to the other one, under the same
// transactionId, until one of them accepts it or the limit has passed.
func (b *batch) post(d drill, limit time.Duration) {
	defer close(b.accepted)
	for i, id := range b.ids {
		start := time.Now()
		for try := i; ; try++ {
			if b.err = d.attempt(func() { d.relay(apis[try%len(apis)], id) }); b.err == nil {
				break
			}
			if time.Since(start) > limit {
				return
			}
			time.Sleep(pace)
		}
		b.slowest = max(b.slowest, time.Since(start))
		b.accepted <- struct{}{}
		time.Sleep(pace)
	}
}

// relayed posts transactions, has the fault happen after the first of them, and undone once all are confirmed. It prints
// rows about their acceptance, their confirmation, and their number on the chain.
func (d *drill) relayed(step string, limit time.Duration, fault, undo func()) {
	b := &batch{ids: newIDs(batchSize), accepted: make(chan struct{}, batchSize)}
	d.relayedIDs = append(d.relayedIDs, b.ids...)
	go b.post(drill{containers: d.containers}, limit) // a copy, because check is not for concurrent use
	count := 0
	for ; count < early; count++ {
		<-b.accepted
	}
	d.begin()
	fault()
	for range b.accepted {
		count++
	}
	seen := fmt.Sprintf("%d accepted, the slowest in %.1f s", count, b.slowest.Seconds())
	if b.err != nil {
		seen += ", then " + b.err.Error()
	}
	d.row(step, fmt.Sprintf("%d accepted", batchSize), seen, limit, b.err == nil)
	d.awaitRelayed(limit, b.ids)
	undo()
	d.await("  everything then", fmt.Sprint(relayers), time.Minute, d.serving)
	d.awaitRecorded(b.ids)
}

// awaitRelayed waits until the APIs report the transactions as confirmed.
func (d *drill) awaitRelayed(limit time.Duration, ids []common.Hash) {
	looks, expected := 0, fmt.Sprintf("%d confirmed", len(ids))
	d.await("  the transactions", expected, limit, func() string {
		for looks++; len(ids) > 0; ids = ids[1:] {
			if status := d.relayStatus(apis[looks%len(apis)], ids[0]); status != "confirmed" {
				return fmt.Sprintf("%s is %s, %d to go", ids[0], status, len(ids))
			}
		}
		return expected
	})
}

// serving returns the first service that does not serve, or else the active set.
func (d *drill) serving() string {
	for _, group := range []struct {
		services []string
		url      string
	}{
		{apis, "http://127.0.0.1:8080/ready"},
		{consumers, "http://127.0.0.1:9090/ready"},
		{relayers, "http://127.0.0.1:3000/health"},
		{coordinators, readyURL},
	} {
		for _, s := range group.services {
			if seen := d.answers(s, group.url); seen != "answers" {
				return s + " " + seen
			}
		}
	}
	return d.active()
}

// awaitRecorded waits until the contract has recorded each id exactly once.
func (d *drill) awaitRecorded(ids []common.Hash) {
	_, recipient := erc2771.Addresses()
	expected := fmt.Sprintf("each of %d once", len(ids))
	d.await("  on the chain", expected, confirmation, func() string {
		counts, err := erc2771.Counts(context.Background(), node{d}, recipient, nil, ids...)
		d.check(err)
		if i := slices.IndexFunc(counts, func(n uint64) bool { return n != 1 }); i >= 0 {
			return fmt.Sprintf("%s %d times", ids[i], counts[i])
		}
		return expected
	})
}

// node reads the chain through a relayer.
type node struct{ *drill }

// CallContract calls a contract as of the latest block.
func (n node) CallContract(_ context.Context, msg ethereum.CallMsg, _ *big.Int) ([]byte, error) {
	const call = `{"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{"to": %q, "input": %q}, "latest"]}`
	a := n.call(n.request(relayers[0], http.MethodPost, pool+"/rpc", fmt.Sprintf(call, msg.To, hexutil.Encode(msg.Data))))
	if a.Error != nil {
		return nil, fmt.Errorf("%d %v", a.code, a.Error)
	}
	return hexutil.Decode(a.Result)
}

// relayPathSurvives breaks each part of the relay path, and those that it depends on, while clients post.
func (d *drill) relayPathSurvives() {
	d.acceptedOnce()
	nothing := func() {}
	do := func(command string, services ...string) func() { return func() { d.act(command, services...) } }
	cut := func(network string) string { return "network disconnect " + project + "_" + network }
	connect := func(network string) string { return "network connect " + project + "_" + network }

	d.relayed("kill oz-relayer-0", lease, do("kill", relayers[0]), do("start", relayers[0]))
	d.relayed("pause oz-relayer-1", lease, do("pause", relayers[1]), do("unpause", relayers[1]))
	d.relayed("kill consumer-1", lease, do("kill", consumers[0]), do("start", consumers[0]))
	d.relayed("pause consumer-1", lease, do("pause", consumers[0]), do("unpause", consumers[0]))
	d.relayed("cut consumer-2 off PostgreSQL", lease, do(cut("queue"), consumers[1]), do(connect("queue"), consumers[1]))
	d.relayed("cut consumer-2 off the relayers", lease, do(cut("submit"), consumers[1]), do(connect("submit"), consumers[1]))

	d.act("kill", consumers[1])
	d.act(cut("readers"), consumers[0])
	blind := d.start.Add(blindAfter)
	d.relayed("consumer-1 is alone and cut off Redis", soon, nothing, do("start", consumers[1]))

	// Meanwhile consumer-1 continues with the relayers that it knows, and is ready.
	d.relayed("kill api-1", soon, do("kill", apis[0]), do("start", apis[0]))
	var old meta
	d.relayed("  meanwhile", soon, func() { old = d.meta(); d.depose("kill", "kill", old) }, func() { d.act("start", old.Leader) })
	d.relayed("restart Redis empty", soon, func() { d.act("kill", "redis"); d.act("start", "redis") }, nothing)
	d.relayed("kill PostgreSQL for 3 s", lease, func() {
		d.act("kill", "postgres")
		time.Sleep(3 * time.Second)
		d.each([]string{"postgres"}, "start")
	}, nothing)

	time.Sleep(time.Until(blind))
	d.relayed("consumer-1 is cut off Redis for a minute", lease, nothing, do(connect("readers"), consumers[0]))

	// Again, because a repeated submission may arrive late.
	d.awaitRecorded(d.relayedIDs)
	_, recipient := erc2771.Addresses()
	d.await("  the contract's total", fmt.Sprint(len(d.relayedIDs)), confirmation, func() string {
		total, err := erc2771.Total(context.Background(), node{d}, recipient, nil)
		d.check(err)
		return fmt.Sprint(total)
	})
}

// acceptedOnce posts one transaction to both APIs. The status is the same at each.
func (d *drill) acceptedOnce() {
	ids := newIDs(1)
	d.relayedIDs = append(d.relayedIDs, ids...)
	for i, api := range apis {
		step := []string{"POST to " + api, "  the same transactionId to " + api}[i]
		d.await(step, "accepted", time.Second, func() string { d.relay(api, ids[0]); return "accepted" })
	}
	for _, api := range apis {
		d.await("  its status at "+api, "confirmed", confirmation, func() string { return d.relayStatus(api, ids[0]) })
	}
	d.awaitRecorded(ids)
}
