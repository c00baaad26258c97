package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// relayConnections is how many clients post concurrently, to the relayer and to the bare node.
const relayConnections = 128

const (
	relayRow      = "POST to mined, 16 keys, 128 connections"
	idempotentRow = relayRow + ", each with an Idempotency-Key"
	waitingRow    = relayRow + ", with 10,000 waiting for another key"
	bareMinedRow  = "geth alone: signed beforehand, sent to mined, 128 connections"
	bareTakenRow  = "geth alone: signed beforehand, accepted, 128 connections"
	fullPostRow   = "POST at full load"
	halfPostRow   = "POST at half of that load"
	deliveredRow  = "webhooks delivered at half of that load"
	backlogRow    = "webhooks that wait, more than before half of that load"
	walRow        = "written to Postgres' log for each transaction, until it is final and its webhooks are delivered"
	headRow       = "head to recorded, 50 transactions a second"
)

// headRate is the number of transactions a second while the recording of heads is measured: a modest load.
const headRate = 50

// settling is how long it takes until earlier transactions are final: the relayer waits for 12 blocks, of a second
// each.
const settling = 14 * time.Second

// relay measures a relayer, its Postgres, a webhook target and a node, from POST to mined, and the node alone.
func relay(ctx context.Context, s *suite) error {
	ring, err := newRing(relayerKeys)
	if err != nil {
		return err
	}
	oneMore, err := newRing(relayerKeys + 1)
	if err != nil {
		return err
	}
	err = s.inRounds(ctx,
		func(ctx context.Context) error { return s.bareNode(ctx, ring) },
		s.onRelayed(ring, s.plain),
		s.onRelayed(ring, s.idempotent),
		s.onRelayed(oneMore, s.waiting),
	)
	if err != nil {
		return err
	}
	s.report(relayRow, "/s").beside(s, bareMinedRow).atLeast(0.65)
	s.report(idempotentRow, "/s").beside(s, bareMinedRow)
	s.report(waitingRow, "/s").beside(s, relayRow).atLeast(0.8)
	s.report(bareMinedRow, "/s")
	s.report(bareTakenRow, "/s")
	s.report(halfPostRow+", p50", "ms").beside(s, floorCommitRow+", p50").atMost(1.5)
	s.report(halfPostRow+", p99", "ms").beside(s, floorCommitRow+", p99").atMost(2)
	s.report(deliveredRow, "/s")
	s.report(backlogRow, "")
	s.report(walRow, "KB").within(8)
	s.report(syncsRow(relayRow), "")
	for _, row := range []string{floorCommitRow, floorHTTPRow} {
		s.report(row+", p50", "ms")
		s.report(row+", p99", "ms")
	}
	s.report(fullPostRow+", p50", "ms")
	s.report(fullPostRow+", p99", "ms")
	s.report(headRow+", p50", "ms")
	s.report(headRow+", p99", "ms").within(100)
	for _, row := range []string{relayRow, idempotentRow, waitingRow} {
		for _, who := range []string{"relayer", "Postgres", "geth", "clients"} {
			s.report(cpuRow(row, who), "µs")
		}
	}
	s.report(cpuRow(bareMinedRow, "geth"), "µs")
	s.report(cpuRow(bareMinedRow, "clients"), "µs")
	return nil
}

func syncsRow(of string) string { return of + ": fsyncs of Postgres' log each" }

func cpuRow(of, who string) string { return of + ": processor time each, " + who }

// bareNode measures a node with transactions that were signed beforehand.
func (s *suite) bareNode(ctx context.Context, ring *signer.Ring) error {
	addresses := ring.Addresses()
	node, err := s.startGeth(ctx, addresses)
	if err != nil {
		return err
	}
	defer node.close()
	tip, fee, err := node.offer(ctx)
	if err != nil {
		return err
	}
	requests := make([][]byte, s.burst)
	for i := range requests {
		signer, _ := ring.Signer(addresses[i%len(addresses)])
		signed, err := signTransfer(ctx, signer, uint64(i/len(addresses)), tip, fee)
		if err != nil {
			return err
		}
		requests[i] = postRequest("/", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["%s"]}`,
			hexutil.Encode(signed.Raw)))
	}
	used, err := s.processorTime(map[string]cpuReader{"geth": node.cpu, "clients": ownCPU})
	if err != nil {
		return err
	}
	sent, err := posts{
		addr: node.addr, connections: relayConnections, request: func(n int) []byte { return requests[n] }, done: `"result":"0x`,
	}.send(ctx, s.burst, 0)
	if err != nil {
		return err
	}
	mined, err := node.mined(ctx, addresses, uint64(s.burst))
	if err != nil {
		return err
	}
	s.sample(bareTakenRow, float64(s.burst)/sent.ended.Sub(sent.began).Seconds(), "/s")
	s.sample(bareMinedRow, float64(s.burst)/mined.Sub(sent.began).Seconds(), "/s")
	return used(bareMinedRow, s.burst)
}

// relayed is a new, empty relayer with everything that it needs.
type relayed struct {
	relayer *relayerProcess
	db      *database
	node    *geth
	hooks   *webhookProcess
	keys    []common.Address
	total   int // posted so far
}

// onRelayed returns a step that has its own new relayer.
func (s *suite) onRelayed(ring *signer.Ring, measure func(context.Context, *relayed) error) step {
	return onCluster("relayer", func(ctx context.Context) (*relayed, error) { return s.startRelayed(ctx, ring) }, measure)
}

// startRelayed returns when connections are open and statements prepared. The node alone needs neither.
func (s *suite) startRelayed(ctx context.Context, ring *signer.Ring) (r *relayed, err error) {
	r = &relayed{keys: ring.Addresses()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.db, err = s.startPostgres(ctx); err != nil {
		return r, err
	}
	if r.node, err = s.startGeth(ctx, r.keys); err != nil {
		return r, err
	}
	url, err := r.db.fresh(ctx, "relay")
	if err != nil {
		return r, err
	}
	if r.hooks, err = s.startWebhookTarget(ctx); err != nil {
		return r, err
	}
	if r.relayer, err = s.startRelayer(ctx, url, r.node, len(r.keys), r.hooks.url); err != nil {
		return r, err
	}
	_, _, err = r.send(ctx, s.burst/20, 0, false)
	return r, err
}

func (r *relayed) close() {
	if r.relayer != nil {
		r.relayer.close()
	}
	if r.hooks != nil {
		r.hooks.close()
	}
	if r.node != nil {
		r.node.close()
	}
	if r.db != nil {
		r.db.close()
	}
}

// transfer returns a request that posts a transfer of one wei to a relayer. headers must end with a line break, unless
// empty.
func (r *relayed) transfer(relayer, headers string) []byte {
	return postRequest("/api/v1/relayers/"+relayer+"/transactions", "Authorization: Bearer "+apiKey+"\r\n"+headers,
		fmt.Sprintf(`{"to":"%s","value":1,"data":"0x","gas_limit":%d,"speed":"fast"}`, anybody.Hex(), transferGas))
}

// posts returns transfers for the pool, with or without idempotency keys.
func (r *relayed) posts(idempotent bool) posts {
	plain, first := r.transfer(poolID, ""), r.total
	return posts{
		addr: r.relayer.addr, connections: relayConnections, done: `"success":true`,
		request: func(n int) []byte {
			if !idempotent {
				return plain
			}
			return r.transfer(poolID, "Idempotency-Key: bench-"+strconv.Itoa(first+n)+"\r\n")
		},
	}
}

// send posts n transactions and waits until they are mined.
func (r *relayed) send(ctx context.Context, n int, rate float64, idempotent bool) (posted, time.Time, error) {
	sent, err := r.posts(idempotent).send(ctx, n, rate)
	if err != nil {
		return sent, time.Time{}, err
	}
	r.total += n
	mined, err := r.node.mined(ctx, r.keys, uint64(r.total))
	return sent, mined, err
}

// full posts as fast as possible, until all are mined, and returns the number per second.
func (s *suite) full(ctx context.Context, r *relayed, row string, idempotent bool) (posted, float64, error) {
	used, err := s.processorTime(map[string]cpuReader{
		"relayer": r.relayer.cpu, "Postgres": r.db.cpu, "geth": r.node.cpu, "clients": ownCPU,
	})
	if err != nil {
		return posted{}, 0, err
	}
	syncs, err := r.syncs(ctx)
	if err != nil {
		return posted{}, 0, err
	}
	sent, mined, err := r.send(ctx, s.burst, 0, idempotent)
	if err != nil {
		return sent, 0, err
	}
	synced, err := r.syncs(ctx)
	if err != nil {
		return sent, 0, err
	}
	s.sample(syncsRow(row), (synced-syncs)/float64(s.burst), "")
	rate := float64(s.burst) / mined.Sub(sent.began).Seconds()
	s.sample(row, rate, "/s")
	return sent, rate, errors.Join(used(row, s.burst), r.tellStatements(ctx))
}

// plain measures the delay of recorded heads, then full load, and then half of that load.
func (s *suite) plain(ctx context.Context, r *relayed) error {
	if err := s.heads(ctx, r); err != nil {
		return err
	}
	before, err := r.wal(ctx)
	if err != nil {
		return err
	}
	sent, rate, err := s.full(ctx, r, relayRow, false)
	if err != nil {
		return err
	}
	if err := r.settled(ctx); err != nil {
		return err
	}
	after, err := r.wal(ctx)
	if err != nil {
		return err
	}
	s.sample(walRow, (after-before)/float64(s.burst)/1000, "KB")
	s.sample(fullPostRow+", p50", milliseconds(sent.p50), "ms")
	s.sample(fullPostRow+", p99", milliseconds(sent.p99), "ms")
	return s.withFloor(ctx, r, func(ctx context.Context) error {
		return s.withWebhooks(ctx, r, func(ctx context.Context) error {
			half, _, err := r.send(ctx, int(rate/2*s.paced.Seconds()), rate/2, false)
			if err != nil {
				return err
			}
			s.sample(halfPostRow+", p50", milliseconds(half.p50), "ms")
			s.sample(halfPostRow+", p99", milliseconds(half.p99), "ms")
			return nil
		})
	})
}

// waiting measures full load while transactions wait for another key.
func (s *suite) waiting(ctx context.Context, r *relayed) error {
	if err := r.fillQueue(ctx); err != nil {
		return err
	}
	_, _, err := s.full(ctx, r, waitingRow, false)
	return err
}

// heads measures how long the relayer takes from a block's arrival, by its subscription, until the changes are stored,
// by the relayer's own metric.
func (s *suite) heads(ctx context.Context, r *relayed) error {
	read := func() (histogram, error) {
		metrics, err := httpGet(ctx, "http://"+r.relayer.addr+"/metrics")
		if err != nil {
			return nil, err
		}
		return readHistogram(metrics, "rollcall_relayer_head_lag_seconds")
	}
	pause(ctx, settling)
	before, err := read()
	if err != nil {
		return err
	}
	if _, _, err := r.send(ctx, int(headRate*s.paced.Seconds()), headRate, false); err != nil {
		return err
	}
	after, err := read()
	if err != nil {
		return err
	}
	lags := after.since(before)
	s.sample(headRow+", p50", 1000*lags.quantile(0.5), "ms")
	s.sample(headRow+", p99", 1000*lags.quantile(0.99), "ms")
	return nil
}

func (s *suite) idempotent(ctx context.Context, r *relayed) error {
	_, _, err := s.full(ctx, r, idempotentRow, true)
	return err
}
