package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	relayRow       = "POST to mined, 16 keys, 128 connections"
	idempotentRow  = relayRow + ", each with an Idempotency-Key"
	waitingRow     = relayRow + ", with many waiting for another key"
	bareMinedRow   = "geth alone: signed beforehand, sent to mined, 128 connections"
	halfPostRow    = "POST at half of that load"
	deliveredRow   = "webhooks delivered at half of that load"
	backlogRow     = "webhooks that wait, more than before half of that load"
	walRow         = "written to Postgres' log for each transaction, until it is final and its webhooks are delivered"
	headRow        = "head to recorded, 50 transactions a second, p99"
	floorCommitRow = "one row inserted and committed, beside half of that load"
)

const (
	// headRate is the number of transactions a second while the recording of heads is measured: a modest load.
	headRate = 50
	// floorRate is the number of commits a second that measure a lower bound.
	floorRate = 40
)

// relay measures a relayer, its Postgres, a webhook target and a node, from POST to mined, and the node alone.
func relay(t *trial) {
	t.inRounds(bareNode,
		func(t *trial) { t.startRelayed(relayerKeys).plain() },
		func(t *trial) { t.startRelayed(relayerKeys).full(idempotentRow, true) },
		func(t *trial) {
			r := t.startRelayed(relayerKeys + 1)
			r.fillQueue()
			r.full(waitingRow, false)
		})
	t.versus(bareMinedRow, relayRow, "/s")
	t.report(idempotentRow, "/s")
	t.report(waitingRow, "/s").beside(relayRow, median(t.samples[relayRow])).atLeast(0.8)
	t.versus(floorCommitRow+", p50", halfPostRow+", p50", "ms")
	t.versus(floorCommitRow+", p99", halfPostRow+", p99", "ms").valueAtMost(100)
	t.report(deliveredRow, "/s").valueAtLeast(1000)
	t.report(backlogRow, "").valueAtMost(100)
	t.report(walRow, "KB").valueAtMost(8)
	t.report(headRow, "ms").valueAtMost(100)
	for _, process := range []string{"relayer", "Postgres", "geth", "clients"} {
		t.report(relayRow+": processor time each, "+process, "µs")
	}
}

// bareNode measures a node with transactions that were signed beforehand.
func bareNode(t *trial) {
	ring, _ := t.newRing(relayerKeys)
	addresses := ring.Addresses()
	node := t.startGeth(addresses)
	requests := make([][]byte, t.burst)
	for i := range requests {
		signer, _ := ring.Signer(addresses[i%len(addresses)])
		signed, err := signTransfer(t.ctx, signer, uint64(i/len(addresses)))
		t.check(err)
		requests[i] = postRequest("/", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["%s"]}`,
			hexutil.Encode(signed.Raw)))
	}
	posts := t.post(strings.TrimPrefix(node.URL(), "http://"), t.burst, 0, func(n int) []byte { return requests[n] }, `"result":"0x`)
	mined := t.mined(node, addresses, uint64(t.burst))
	t.sample(bareMinedRow, float64(t.burst)/mined.Sub(posts.Began).Seconds(), "/s")
}

// full posts as fast as possible, until all are mined, and returns the number per second.
func (r *relayed) full(row string, idempotent bool) (rate float64) {
	t := r.t
	used := t.processorTime(map[string]processor{
		"relayer": processorOf(r.relayer.PID()), "Postgres": processorOf(r.db.PID()), "geth": processorOf(r.node.PID()), "clients": ownProcessor,
	}, func() {
		posts, mined := r.send(t, t.burst, 0, idempotent)
		rate = float64(t.burst) / mined.Sub(posts.Began).Seconds()
	})
	for process, time := range used {
		t.sample(row+": processor time each, "+process, float64(time.Microseconds())/float64(t.burst), "µs")
	}
	t.sample(row, rate, "/s")
	return rate
}

// plain measures the delay of recorded heads, then full load, and then half of that load.
func (r *relayed) plain() {
	t := r.t
	r.settle()
	heads := r.headLags()
	r.send(t, int(headRate*t.paced.Seconds()), headRate, false)
	t.sample(headRow, 1000*quantileSince(heads, r.headLags(), 0.99), "ms")

	logged := r.logged()
	rate := r.full(relayRow, false)
	r.settle()
	t.sample(walRow, (r.logged()-logged)/float64(t.burst)/1000, "KB")
	r.half(rate / 2)
}

// half measures a POST at a rate, and meanwhile its lower bound on this machine at that load: a small row, inserted and
// committed alone.
func (r *relayed) half(rate float64) {
	const insert = "INSERT INTO floor DEFAULT VALUES"
	t := r.t
	_, err := r.conn.Exec(t.ctx, "CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT now())")
	t.check(err)
	// As many as there are posting clients. Each has inserted one row.
	conns := make([]*pgx.Conn, connections)
	for i := range conns {
		conns[i] = t.connect(r.conn.Config().ConnString())
		_, err := conns[i].Exec(t.ctx, insert)
		t.check(err)
	}
	delivered, waiting, began := r.deliveredWebhooks(), r.waitingWebhooks(), time.Now()
	var commits result
	var floor errgroup.Group
	floor.Go(func() (err error) {
		commits, err = load{Callers: len(conns), Rate: floorRate, Window: t.paced}.run(t.ctx, func(ctx context.Context, caller, _ int) (int, error) {
			_, err := conns[caller].Exec(ctx, insert)
			return 1, err
		})
		return err
	})
	posts, _ := r.send(t, int(rate*t.paced.Seconds()), rate, false)
	t.check(floor.Wait())
	took := time.Since(began)
	for row, res := range map[string]result{halfPostRow: posts, floorCommitRow: commits} {
		t.sample(row+", p50", ms(res.P50), "ms")
		t.sample(row+", p99", ms(res.P99), "ms")
	}
	t.sample(deliveredRow, (r.deliveredWebhooks()-delivered)/took.Seconds(), "/s")
	t.sample(backlogRow, r.waitingWebhooks()-waiting, "")
}
