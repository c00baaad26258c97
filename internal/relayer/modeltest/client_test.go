package modeltest

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// client is a process's access to the world. Each use passes a gate.
type client struct {
	world *world
	gate  gate
	// second reports, at each use, whether it goes to the second node.
	second func() bool
}

var (
	_ sender.Chain  = (*client)(nil)
	_ tracker.Chain = (*client)(nil)
	_ service.Chain = (*client)(nil)
)

// gate lets a step happen or not: do is called at most once. An error means that the process did not receive the
// result.
type gate interface {
	pass(s step, do func()) error
}

// open is a gate without faults.
type open struct{}

func (open) pass(_ step, do func()) error { do(); return nil }

func (c *client) node() *node {
	if c.second() {
		return c.world.nodes[1]
	}
	return c.world.nodes[0]
}

// look reads from a node.
func (c *client) look(do func(*node) error) (err error) {
	struck := c.gate.pass(stepLook, func() {
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		err = do(c.node())
	})
	return errors.Join(struck, err)
}

// SendToAll is Send: there is one node.
func (c *client) SendToAll(ctx context.Context, txs []evm.Raw) []evm.Result { return c.Send(ctx, txs) }

func (c *client) Send(_ context.Context, txs []evm.Raw) []evm.Result {
	results, late := make([]evm.Result, len(txs)), make([]evm.Result, len(txs))
	asked := false
	err := c.gate.pass(stepSend, func() {
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		asked = true
		n := c.node()
		for i, raw := range txs {
			late[i] = evm.Result{Endpoint: "memory", Outcome: c.world.take(n, raw)}
			if late[i].Outcome != evm.Accepted {
				late[i].Err = errors.New(late[i].Outcome.String())
			}
		}
	})
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	if err == nil {
		return append(results[:0], late...)
	}
	outcome := evm.NotSent
	// A client without an answer cannot always distinguish a lost request from a lost answer.
	if asked || errors.Is(err, errLate) || len(txs)%2 == 0 {
		outcome = evm.Unknown
	}
	for i := range results {
		results[i] = evm.Result{Outcome: outcome, Err: err}
	}
	return results
}

// take is send for relayers, and records their transactions.
func (w *world) take(n *node, raw evm.Raw) evm.Outcome {
	tx := new(types.Transaction)
	if err := tx.UnmarshalBinary(raw.Bytes); err != nil || tx.Hash() != raw.Hash {
		return evm.Refused
	}
	w.taken[raw.Hash] = tx
	if w.forgets > 0 && tx.Nonce() >= n.head.nonces[w.sender(tx)] {
		w.forgets--
		return evm.Accepted
	}
	return w.send(n, raw.Bytes)
}

func (c *client) TransferGas(context.Context, common.Address, common.Address, bool) uint64 {
	return 21_000
}

func (c *client) MaxTransferGas() uint64 { return 30_000_000 }

func (c *client) Fees(context.Context) (f evm.Fees, err error) {
	err = c.look(func(n *node) error {
		f = evm.Fees{EIP1559: true, BaseFee: baseFee, GasPrice: big.NewInt(2_000_000_000), Head: n.head.Header}
		for i := range f.Tips {
			// Never the same twice, so that signing at another time signs other bytes.
			c.world.asked++
			f.Tips[i] = big.NewInt(int64(i+1)*1_000_000 + c.world.asked)
		}
		return nil
	})
	return f, err
}

func (c *client) EstimateGas(context.Context, evm.Message) (uint64, error) {
	return 50_000, c.look(func(*node) error { return nil })
}

func (c *client) Balances(_ context.Context, addrs []common.Address) ([]*big.Int, error) {
	balances := make([]*big.Int, len(addrs))
	for i := range balances {
		balances[i] = new(big.Int).Lsh(big.NewInt(1), 80)
	}
	return balances, c.look(func(*node) error { return nil })
}

func (c *client) Head() evm.Header {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	return c.world.nodes[0].head.Header
}

func (c *client) Status() evm.Status {
	return evm.Status{ChainID: c.world.chainID, Endpoints: []evm.EndpointStatus{{Endpoint: "memory", OK: true, ChainID: c.world.chainID}}}
}

func (c *client) CountsWithin(ctx context.Context, _ time.Duration, block common.Hash, addrs []common.Address) []evm.Counts {
	return c.Counts(ctx, block, addrs)
}

func (c *client) Counts(ctx context.Context, block common.Hash, addrs []common.Address) []evm.Counts {
	n := evm.Counts{Endpoint: "memory"}
	v := new(view{c: c})
	n.Err = c.look(func(n *node) error {
		for v.node, v.block = n, n.head; block != (common.Hash{}) && v.block.Hash != block; v.block = v.block.up {
			if v.block.up == nil {
				return evm.ErrStale
			}
		}
		return nil
	})
	if n.Err == nil {
		n.Mined, n.Err = v.Nonces(ctx, addrs)
	}
	if n.Err == nil {
		n.Pending, n.Err = v.PendingNonces(ctx, addrs)
	}
	return []evm.Counts{n}
}

func (c *client) Next(ctx context.Context, after common.Hash) (evm.Header, error) {
	for {
		c.world.mu.Lock()
		head, moved := c.world.nodes[0].head, c.world.moved
		c.world.mu.Unlock()
		if head.Hash != after {
			return head.Header, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return evm.Header{}, context.Cause(ctx)
		}
	}
}

func (c *client) Anchors(_ context.Context, number uint64, _ time.Duration) []evm.Anchor {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	var anchors []evm.Anchor
	for i, n := range c.world.nodes {
		a := evm.Anchor{Endpoint: fmt.Sprintf("memory %d", i), Genesis: c.world.genesis.Hash}
		if b := n.head.at(number); b != nil {
			a.Block = b.Header
		}
		anchors = append(anchors, a)
	}
	return anchors
}

func (c *client) Transaction(_ context.Context, hash common.Hash) (tx *types.Transaction, err error) {
	err = c.look(func(n *node) error {
		if b, i := n.head.find(hash); b != nil {
			tx = b.txs[i]
		}
		for _, txs := range n.pool {
			for _, waiting := range txs {
				if waiting.Hash() == hash {
					tx = waiting
				}
			}
		}
		if tx == nil {
			return fmt.Errorf("the chain in memory has no transaction %s", hash)
		}
		return nil
	})
	return tx, err
}

func (c *client) Latest(_ context.Context, except ...string) (tracker.View, error) {
	v := &view{c: c}
	err := c.look(func(n *node) error {
		for _, v.node = range append([]*node{n}, c.world.nodes[:]...) {
			if v.block = v.node.head; !slices.Contains(except, v.Endpoint()) {
				return nil
			}
		}
		return evm.ErrNoEndpoint
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// view is one block of one node.
type view struct {
	c     *client
	node  *node
	block *block
}

func (v *view) Header() evm.Header { return v.block.Header }

func (v *view) Endpoint() string { return fmt.Sprintf("%p", v.node) }

// look reads from the view's node, as long as that has the view's block.
func (v *view) look(do func() error) error {
	return v.c.look(func(*node) error {
		if !v.block.leadsTo(v.node.head) {
			return fmt.Errorf("block %d: %w", v.block.Number, evm.ErrStale)
		}
		return do()
	})
}

func (v *view) Nonces(_ context.Context, addrs []common.Address) (counts []uint64, err error) {
	err = v.look(func() error {
		for _, a := range addrs {
			counts = append(counts, v.block.nonces[a])
		}
		return nil
	})
	return counts, err
}

func (v *view) PendingNonces(_ context.Context, addrs []common.Address) (counts []uint64, err error) {
	err = v.c.look(func(*node) error {
		for _, a := range addrs {
			counts = append(counts, v.node.pending(a))
		}
		return nil
	})
	return counts, err
}

func (v *view) Headers(_ context.Context, from, to uint64) (headers []evm.Header, err error) {
	err = v.look(func() error {
		if from > to || to > v.block.Number {
			return evm.ErrMissing
		}
		for n := from; n <= to; n++ {
			headers = append(headers, v.block.at(n).Header)
		}
		return nil
	})
	return headers, err
}

// Tagged returns ErrMissing, like nodes that tag no blocks.
func (v *view) Tagged(context.Context, string) (evm.Header, error) {
	return evm.Header{}, evm.ErrMissing
}

func (v *view) Receipts(_ context.Context, hashes []common.Hash) (receipts []*evm.Receipt, err error) {
	err = v.look(func() error {
		for _, hash := range hashes {
			var receipt *evm.Receipt
			if b, i := v.node.head.find(hash); b != nil {
				receipt = new(v.receipt(b, i))
			}
			receipts = append(receipts, receipt)
		}
		return nil
	})
	return receipts, err
}

func (v *view) Transactions(_ context.Context, hashes []common.Hash) (found []evm.Presence, err error) {
	err = v.c.look(func(*node) error {
		for _, hash := range hashes {
			is := evm.Absent
			if b, _ := v.node.head.find(hash); b != nil {
				is = evm.Mined
			} else if v.node.holds(hash) {
				is = evm.Pending
			}
			found = append(found, is)
		}
		return nil
	})
	return found, err
}

func (v *view) BlockReceipts(_ context.Context, hash common.Hash) (receipts []evm.Receipt, err error) {
	err = v.look(func() error {
		b := v.block
		for b != nil && b.Hash != hash {
			b = b.up
		}
		if b == nil {
			return evm.ErrStale
		}
		for i := range b.txs {
			receipts = append(receipts, v.receipt(b, i))
		}
		return nil
	})
	return receipts, err
}

func (v *view) receipt(b *block, i int) evm.Receipt {
	price := new(big.Int).Add(baseFee, b.txs[i].GasTipCap())
	if limit := b.txs[i].GasFeeCap(); limit.Cmp(price) < 0 {
		price = limit
	}
	return evm.Receipt{
		TxHash: b.txs[i].Hash(), BlockHash: b.Hash, BlockNumber: b.Number, Index: uint(i), Succeeded: true, GasUsed: 21_000,
		GasPrice: price, Canonical: b.leadsTo(v.block),
	}
}

func (v *view) Distrust(_ string, why error) error {
	return &evm.TransportError{Endpoint: v.Endpoint(), Sent: true, Err: why}
}

func (v *view) FindNonce(_ context.Context, addr common.Address, nonce, low uint64) (used evm.Used, err error) {
	err = v.look(func() error {
		if v.block.nonces[addr] <= nonce {
			return evm.ErrNonceUnused
		}
		for b := v.block; b != nil && b.Number >= low; b = b.up {
			for _, tx := range b.txs {
				if v.c.world.sender(tx) == addr && tx.Nonce() == nonce {
					used = evm.Used{TxHash: tx.Hash(), BlockHash: b.Hash, BlockNumber: b.Number}
					return nil
				}
			}
		}
		return evm.ErrNonceUntraced
	})
	return used, err
}
