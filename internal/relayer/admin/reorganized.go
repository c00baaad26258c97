package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Reorganized is the plan to follow a chain that was reorganized deeper than the blocks that count as final.
type Reorganized struct {
	Known store.Chain // recorded by the store
	// Anchor is the block to recognize the chain by from now on. It is the recorded one if the nodes still have it.
	Anchor store.Block
	Head   uint64 // newest block of the node that was read
	// Behind reports that Head is below the recorded anchor. The node is syncing, or the chain became shorter.
	Behind bool
	// Vanished counts the transactions whose blocks are gone, by key; keys without any are left out.
	Vanished []Vanished
}

// Vanished counts the transactions of a key whose blocks are gone.
type Vanished struct {
	Pool    string
	Address common.Address
	Final   int // reported as final
	Mined   int // mined, and not final
}

// Reorganized plans to follow the chain's current history, for all pools on it. It changes nothing. It fails if the nodes
// have another genesis block, if they disagree, and if one does not respond.
func (a *Admin) Reorganized(ctx context.Context, client *evm.Client) (*Reorganized, error) {
	plan, view, err := a.present(ctx, client)
	if err != nil {
		return nil, err
	}
	err = a.vanished(ctx, plan, view, func(key common.Address, gone []store.Placed) error {
		i := len(plan.Vanished) - 1
		if i < 0 || plan.Vanished[i].Address != key {
			plan.Vanished = append(plan.Vanished, Vanished{Pool: gone[0].Pool, Address: key})
			i++
		}
		for _, p := range gone {
			if p.Final {
				plan.Vanished[i].Final++
			} else {
				plan.Vanished[i].Mined++
			}
		}
		return nil
	})
	if err != nil {
		return nil, refused{err}
	}
	return plan, nil
}

// TakeBack makes transactions pending again whose blocks are gone, and then moves the anchor, so that relayers continue. It
// returns how many it took back. After a failure or an interruption, a repetition finishes the work. The outcome of a failure after
// the first transaction is [Unknown]. It reads nodes and store again, and fails as [Admin.Reorganized] does.
func (a *Admin) TakeBack(ctx context.Context, client *evm.Client, plan *Reorganized) (taken int, err error) {
	now, view, err := a.present(ctx, client)
	switch {
	case err != nil:
		return 0, err
	case now.Known.Genesis != plan.Known.Genesis || now.Known.Generation != plan.Known.Generation:
		return 0, refused{store.ErrChainChanged}
	case now.Behind && !plan.Behind:
		return 0, refused{fmt.Errorf("the node that was asked has no block %d any more: look at the nodes, and repeat the command", now.Known.Anchor.Number)}
	}
	err = a.vanished(ctx, now, view, func(key common.Address, gone []store.Placed) error {
		n, err := a.Store.TakeBack(ctx, now.Known, key, gone)
		taken += n
		return err
	})
	// The anchor comes last: until it moves nothing is sent, and a repetition finds the remaining transactions.
	if err == nil && now.Anchor != now.Known.Anchor {
		err = a.Store.Reanchor(ctx, now.Known, now.Anchor)
	}
	if err != nil && taken > 0 {
		err = partly{err}
	}
	return taken, err
}

// present compares the nodes with the recorded chain. The returned view is of the chain to follow.
func (a *Admin) present(ctx context.Context, client *evm.Client) (*Reorganized, *evm.View, error) {
	known, err := a.Store.Chain(ctx)
	if err != nil {
		return nil, nil, refused{err}
	}
	anchors, genesis, err := history(ctx, client, known)
	if err != nil {
		return nil, nil, err
	}
	if genesis != known.Genesis {
		return nil, nil, refused{fmt.Errorf("the nodes have genesis block %s, not %s: that is another chain, and no reorganization; "+
			"if it is meant, use `rollcall keys resync --new-chain`", genesis, known.Genesis)}
	}
	view, err := client.Latest(ctx)
	if err != nil {
		return nil, nil, refused{err}
	}
	plan := &Reorganized{Known: known, Head: view.Header().Number}
	plan.Behind = plan.Head < known.Anchor.Number
	number := known.Anchor.Number
	if plan.Behind {
		number = plan.Head / 2 // as the tracker does on a young chain
	}
	headers, err := view.Headers(ctx, number, number)
	if err != nil {
		return nil, nil, refused{err}
	}
	plan.Anchor = store.Block{Number: number, Hash: headers[0].Hash}
	for _, anchor := range anchors {
		if plan.Behind && anchor.Block.Hash == known.Anchor.Hash {
			return nil, nil, refused{fmt.Errorf("%s is at block %d and has no block %d, but %s has the recorded one: nothing was reorganized; "+
				"wait until the former has synced, or name only the latter with --rpc-urls", view.Endpoint(), plan.Head, known.Anchor.Number, anchor.Endpoint)}
		}
		if !plan.Behind && anchor.Block.Hash != plan.Anchor.Hash {
			has := "no such block"
			if !anchor.Block.IsZero() {
				has = anchor.Block.Hash.Hex()
			}
			return nil, nil, refused{fmt.Errorf("the nodes disagree about block %d: %s has %s, %s has %s; wait until they agree, "+
				"or name only those to follow with --rpc-urls", number, view.Endpoint(), plan.Anchor.Hash, anchor.Endpoint, has)}
		}
	}
	return plan, view, nil
}

// placedLimit is how many transactions of a key are compared at once.
const placedLimit = 500

// vanished calls take with transactions of one key, of any pool, whose blocks do not lead to the view's. It reads each
// key's transactions from the highest nonce down, until a whole page of them is on the chain. Lower nonces were mined
// before.
func (a *Admin) vanished(ctx context.Context, plan *Reorganized, view *evm.View, take func(key common.Address, gone []store.Placed) error) error {
	addresses, err := a.Store.Addresses(ctx)
	if err != nil {
		return err
	}
	blocks := map[uint64]common.Hash{}
	for _, key := range addresses {
		for below := uint64(math.MaxUint64); ; {
			page, err := a.Store.Placed(ctx, key, below, placedLimit)
			if err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			below = page[len(page)-1].Nonce
			if err := read(ctx, view, page, blocks); err != nil {
				return err
			}
			var gone []store.Placed
			there := 0
			for _, p := range page {
				hash, known := blocks[p.Block.Number]
				switch {
				case p.Block.Hash == (common.Hash{}):
				case known && hash == p.Block.Hash:
					there++
				case known, plan.Anchor != plan.Known.Anchor: // otherwise the node may not have that block yet
					gone = append(gone, p)
				}
			}
			if len(gone) > 0 {
				if err := take(key, gone); err != nil {
					return err
				}
			}
			if there == len(page) {
				break
			}
		}
	}
	return nil
}

// maxRange bounds how many headers are read at once, maxGap how many consecutive ones among them are not needed.
const maxRange, maxGap = 200, 10

// read adds the view's hashes of the blocks that transactions are recorded in. It adds none for blocks above the view's.
func read(ctx context.Context, view *evm.View, page []store.Placed, blocks map[uint64]common.Hash) error {
	missing := map[uint64]bool{}
	for _, p := range page {
		if _, known := blocks[p.Block.Number]; !known && p.Block.Hash != (common.Hash{}) && p.Block.Number <= view.Header().Number {
			missing[p.Block.Number] = true
		}
	}
	numbers := slices.Sorted(maps.Keys(missing))
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n]-numbers[n-1] <= maxGap && numbers[n]-numbers[0] < maxRange {
			n++
		}
		headers, err := view.Headers(ctx, numbers[0], numbers[n-1])
		if errors.Is(err, evm.ErrMissing) {
			return fmt.Errorf("%s keeps no block as old as the transactions: name a node that does with --rpc-urls: %w", view.Endpoint(), err)
		}
		if err != nil {
			return err
		}
		for _, h := range headers {
			blocks[h.Number] = h.Hash
		}
		numbers = numbers[n:]
	}
	return nil
}
