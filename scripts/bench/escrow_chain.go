package main

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

const (
	// perTransaction is how many events a transaction emits.
	perTransaction = 100
	// bareBlocks is the range of a query of the bare loop: 10,000 events, as many as providers return.
	bareBlocks = 100
	// documentBlocks is the range that the documents read at a time, and chunkSize is how many contracts a query names. They have a query for
	// each contract.
	documentBlocks, chunkSize = 10, 1_000
)

// factoryChain is a node that seals a block for each transaction, and an emitter that plays the factory. Its methods are for one goroutine.
type factoryChain struct {
	node    *chain.Node
	factory common.Address
	nonce   uint64
	escrows int    // so far
	first   uint64 // block with events
}

func (t *trial) startFactoryChain() *factoryChain {
	c := &factoryChain{node: t.startGeth(nil, "--dev.period", "0")}
	var err error
	c.factory, err = escrowchain.DeployEmitter(t.ctx, c.node.Client(), c.node.Accounts[0].Key)
	t.check(err)
	c.nonce, err = c.node.Client().NonceAt(t.ctx, c.node.Accounts[0].Address, nil)
	t.check(err)
	c.first = c.head(t) + 1
	return c
}

func (c *factoryChain) head(t *trial) uint64 {
	head, err := c.node.Client().BlockNumber(t.ctx)
	t.check(err)
	return head
}

// escrowAddress returns the address of an escrow of a number.
func escrowAddress(n int) common.Address {
	return common.BigToAddress(new(big.Int).Add(new(big.Int).Lsh(common.Big1, 152), big.NewInt(int64(n))))
}

// transaction returns a signed transaction that emits an event for each of n escrows from a number on.
func (c *factoryChain) transaction(t *trial, from, n int) *types.Transaction {
	tx, err := types.SignNewTx(c.node.Accounts[0].Key, types.LatestSignerForChainID(big.NewInt(chain.ChainID)), &types.DynamicFeeTx{
		ChainID: big.NewInt(chain.ChainID), Nonce: c.nonce, To: &c.factory, Data: escrowchain.EmitDeployed(escrowAddress(from), n),
		Gas: 1_000_000, GasFeeCap: fee, GasTipCap: tip,
	})
	t.check(err)
	c.nonce++
	return tx
}

// create creates n escrows in one transaction and block.
func (c *factoryChain) create(t *trial, n int) {
	t.check(c.node.Client().SendTransaction(t.ctx, c.transaction(t, c.escrows, n)))
	c.escrows += n
	c.sealed(t)
}

// createAll creates n escrows, 100 in each block.
func (c *factoryChain) createAll(t *trial, n int) {
	for range n / perTransaction {
		c.create(t, perTransaction)
	}
}

// createEachSecond creates an escrow a second, each in a block of its own.
func (c *factoryChain) createEachSecond(t *trial, blocks int) {
	for began, n := time.Now(), 1; n <= blocks; n++ {
		c.create(t, 1)
		t.pause(time.Until(began.Add(time.Duration(n) * time.Second)))
	}
}

// rewrite replaces the newest blocks by others with an event each, and adds one.
func (c *factoryChain) rewrite(t *trial, depth int) {
	c.node.SetHead(c.head(t) - uint64(depth))
	sender := c.node.Accounts[0].Address
	t.until(minedLimit, func(ctx context.Context) error { // the pool follows later
		mined, err := c.node.Client().NonceAt(ctx, sender, nil)
		if err != nil {
			return err
		}
		if pending, err := c.node.Client().PendingNonceAt(ctx, sender); err != nil || pending != mined {
			return fmt.Errorf("%d transactions are mined, and the pool returns the nonce %d: %w", mined, pending, err)
		}
		c.nonce = mined
		return nil
	})
	for range depth + 1 {
		c.create(t, 1)
	}
}

// sealed waits until all transactions are in blocks.
func (c *factoryChain) sealed(t *trial) {
	t.until(minedLimit, func(ctx context.Context) error {
		mined, err := c.node.Client().NonceAt(ctx, c.node.Accounts[0].Address, nil)
		if err == nil && mined < c.nonce {
			err = fmt.Errorf("%d of %d transactions are in blocks", mined, c.nonce)
		}
		return err
	})
}

// emit sends transactions that emit another event for each of n escrows from a number on. It does not wait for blocks.
func (c *factoryChain) emit(t *trial, from, n int) {
	batch := make([]rpc.BatchElem, 0, n/perTransaction)
	for at := from; at < from+n; at += perTransaction {
		raw, err := c.transaction(t, at, perTransaction).MarshalBinary()
		t.check(err)
		batch = append(batch, rpc.BatchElem{Method: "eth_sendRawTransaction", Args: []any{hexutil.Encode(raw)}, Result: new(common.Hash)})
	}
	t.check(c.node.Client().Client().BatchCallContext(t.ctx, batch))
	for _, tx := range batch {
		t.check(tx.Error)
	}
}

// subscribe returns a function that returns when each block since was announced, by its number.
func (c *factoryChain) subscribe(t *trial) func() map[uint64]time.Time {
	client, err := ethclient.DialContext(t.ctx, c.node.WSURL())
	t.check(err)
	heads := make(chan *types.Header)
	sub, err := client.SubscribeNewHead(t.ctx, heads)
	t.check(err)
	announced, done := make(map[uint64]time.Time), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case h := <-heads:
				announced[h.Number.Uint64()] = time.Now()
			case err := <-sub.Err():
				if err != nil { // nil at the end
					progress("escrow: heads: %v", err)
				}
				return
			}
		}
	}()
	t.Cleanup(client.Close)
	return func() map[uint64]time.Time {
		sub.Unsubscribe()
		<-done
		return announced
	}
}

// nodes returns the node under two names: two endpoints have to agree on what is stored.
func (c *factoryChain) nodes() []string {
	return []string{c.node.URL(), strings.Replace(c.node.URL(), "127.0.0.1", "localhost", 1)}
}

// peer reads events from a node and stores them in a table, without another node that confirms them.
type peer struct {
	t      *trial
	chain  *factoryChain
	client *evm.Client
	conn   *pgx.Conn
	stored int
}

func (c *factoryChain) startPeer(t *trial) *peer {
	client, err := evm.Open(evm.Config{ChainID: chain.ChainID, Endpoints: []string{c.node.URL()}, Lazy: true})
	t.check(err)
	t.Cleanup(client.Close)
	p := &peer{t: t, chain: c, client: client, conn: t.connect(t.freshDatabase(t.startPostgres(), "peer"))}
	_, err = p.conn.Exec(t.ctx, `CREATE TABLE events (
		tx bytea, log bigint, block bigint NOT NULL, contract bytea NOT NULL, topics bytea[] NOT NULL, data bytea NOT NULL, PRIMARY KEY (tx, log))`)
	t.check(err)
	return p
}

// query returns the events of contracts, or of any, in a range of blocks.
func (p *peer) query(from, to uint64, contracts ...common.Address) []evm.Log {
	logs, err := p.client.Logs(p.t.ctx, p.client.Status().Endpoints[0].Endpoint,
		evm.LogQuery{From: from, To: to, Contracts: contracts, Topics: events.BuiltIn().Topics()})
	p.t.check(err)
	p.stored += len(logs)
	return logs
}

// values returns the columns of an event.
func values(l *evm.Log) []any {
	topics := make([][]byte, len(l.Topics))
	for i := range l.Topics {
		topics[i] = l.Topics[i][:]
	}
	return []any{l.TxHash[:], int64(l.Index), int64(l.BlockNumber), l.Contract[:], topics, l.Data}
}

// bare reads by topics alone, and copies what it gets: the least that any monitor does.
func (p *peer) bare(from, to uint64) {
	logs := p.query(from, to)
	_, err := p.conn.CopyFrom(p.t.ctx, pgx.Identifier{"events"}, []string{"tx", "log", "block", "contract", "topics", "data"},
		pgx.CopyFromSlice(len(logs), func(i int) ([]any, error) { return values(&logs[i]), nil }))
	p.t.check(err)
}

// documents reads the factory and then the known escrows, in chunks. It looks for each event, and then inserts it, like the documents
// do, without the publishing in between.
func (p *peer) documents() func(from, to uint64) {
	var known []common.Address
	store := func(logs []evm.Log) {
		for i := range logs {
			var found bool
			p.t.check(p.conn.QueryRow(p.t.ctx, "SELECT EXISTS (SELECT FROM events WHERE tx = $1 AND log = $2)", values(&logs[i])[:2]...).Scan(&found))
			if !found {
				_, err := p.conn.Exec(p.t.ctx, "INSERT INTO events VALUES ($1, $2, $3, $4, $5, $6)", values(&logs[i])...)
				p.t.check(err)
			}
		}
	}
	return func(from, to uint64) {
		created := p.query(from, to, p.chain.factory)
		store(created)
		for _, l := range created {
			known = append(known, common.BytesToAddress(l.Topics[1][:]))
		}
		for some := range slices.Chunk(known, chunkSize) {
			store(p.query(from, to, some...))
		}
	}
}

// measure samples how many events a second are stored, in ranges of some blocks, up to one.
func (p *peer) measure(row string, last, blocks uint64, store func(from, to uint64)) {
	began := time.Now()
	for from := p.chain.first; from <= last; from += blocks {
		store(from, min(from+blocks-1, last))
	}
	p.t.sample(row, float64(p.stored)/time.Since(began).Seconds(), "/s")
}
