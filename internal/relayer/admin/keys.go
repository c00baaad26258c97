package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// UnknownKeyError reports an address that the pool has no key for.
type UnknownKeyError struct {
	Address common.Address
	Pool    string
}

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("pool %q has no key %s", e.Pool, e.Address)
}

// Is reports whether target is [relayer.ErrNotFound].
func (e *UnknownKeyError) Is(target error) bool { return target == relayer.ErrNotFound }

// Keys returns the given keys, or all if none is given. It fails with an [UnknownKeyError] if the pool lacks one.
func (a *Admin) Keys(ctx context.Context, addresses ...common.Address) ([]*relayer.Key, error) {
	all, err := a.Store.Keys(ctx)
	if err != nil || len(addresses) == 0 {
		return all, asRefused(err)
	}
	var keys []*relayer.Key
	for _, address := range addresses {
		i := slices.IndexFunc(all, func(k *relayer.Key) bool { return k.Address == address })
		if i < 0 {
			return nil, &UnknownKeyError{Address: address, Pool: a.Store.Pool}
		}
		keys = append(keys, all[i])
	}
	return keys, nil
}

// CountMined returns how many transactions of each key are mined, as of one block that a node has.
func CountMined(ctx context.Context, nodes *evm.Client, keys []*relayer.Key) ([]uint64, error) {
	view, err := nodes.Latest(ctx)
	if err != nil {
		return nil, err
	}
	addresses := make([]common.Address, len(keys))
	for i, k := range keys {
		addresses[i] = k.Address
	}
	return view.Nonces(ctx, addresses)
}

// Pause stops new transactions of a key, or, with false, allows them again. It also ends a drain. It returns the key before and after
// that: a resumed one may be unusable for another reason. It fails with [relayer.ErrNotFound].
func (a *Admin) Pause(ctx context.Context, key common.Address, paused bool) (was, is *relayer.Key, err error) {
	return a.Store.PauseKey(ctx, key, paused)
}

// ErrResumed means that the key was resumed while it was drained.
var ErrResumed = refused{errors.New("the key was resumed while it was drained")}

// Drain stops new transactions of a key, and checks once what is left. If over is false, [Admin.AwaitDrained] has to wait.
// If only the check fails, the key is paused, and the error's text reports that.
func (a *Admin) Drain(ctx context.Context, key common.Address) (left store.Load, over bool, err error) {
	if _, err := a.Store.ChangeKey(ctx, key, store.KeyChange{Paused: new(true), Draining: new(true)}); err != nil {
		return left, false, err
	}
	if left, over, err = a.left(ctx, key); err != nil {
		err = fmt.Errorf("after the key was paused: %w", err)
	}
	return left, over, err
}

// NotDrainedError reports that the wait ended before all transactions of a key were final. The key stays paused.
type NotDrainedError struct {
	Key  common.Address
	Left store.Load
	Err  error // why the wait ended
}

func (e *NotDrainedError) Error() string {
	left := "1 transaction"
	if n := e.Left.Pending + e.Left.Mined; n != 1 {
		left = fmt.Sprintf("%d transactions", n)
	}
	return fmt.Sprintf("%s is paused, with %s not final yet", strings.ToLower(e.Key.Hex()), left)
}

func (e *NotDrainedError) Unwrap() []error { return []error{e.Err, errRefused} }

// AwaitDrained returns when no transaction of a key can change any more: all are mined, and deep enough. It calls progress
// whenever the rest differs from the previous one, at first from was, the result of [Admin.Drain]. If it fails, the key
// stays paused, except with [ErrResumed]. If ctx ends first, it fails with a [NotDrainedError].
func (a *Admin) AwaitDrained(ctx context.Context, key common.Address, was store.Load, progress func(store.Load)) error {
	for {
		if err := pause(ctx, poll); err != nil {
			return &NotDrainedError{Key: key, Left: was, Err: err}
		}
		left, over, err := a.left(ctx, key)
		switch {
		case err != nil && ctx.Err() != nil && !errors.Is(err, ErrResumed):
			return &NotDrainedError{Key: key, Left: was, Err: err}
		case err != nil:
			return err
		}
		if left != was {
			progress(left)
			was = left
		}
		if over {
			return nil
		}
	}
}

// left returns what a drained key has left; if that is nothing, it ends the drain.
func (a *Admin) left(ctx context.Context, key common.Address) (left store.Load, over bool, err error) {
	if left, err = a.Store.LoadOf(ctx, key); err != nil {
		return left, false, asRefused(err)
	}
	keys, err := a.Keys(ctx, key)
	switch {
	case err != nil:
		return left, false, err
	case !keys[0].Paused:
		return left, false, ErrResumed
	case left.Pending+left.Mined > 0:
		return left, false, nil
	}
	_, _, err = a.Pause(ctx, key, true)
	return left, true, err
}

// NewChain is the plan to start over on a chain with another genesis block.
type NewChain struct {
	Genesis common.Hash // of the nodes
	Known   store.Chain // the store's record, which is replaced
	Doomed  []store.DropPreview
}

// ErrSameChain means that the nodes have the recorded history.
var ErrSameChain = refused{errors.New("the nodes have the very history that transactions were sent on: there is nothing to start over")}

// ErrSameGenesis means that the nodes have the recorded genesis block. Bytes signed before are still valid, so a
// transaction reported as dropped could be mined.
var ErrSameGenesis = refused{errors.New("the nodes have the genesis block that transactions were sent on, so these can still be mined, " +
	"and none may be dropped: after a reorganization, use `rollcall keys resync --reorganized`")}

// NewChain plans to start over. It fails with [ErrSameChain] or [ErrSameGenesis], and if the nodes disagree or one does not
// respond, because that one may have the recorded history.
func (a *Admin) NewChain(ctx context.Context, client *evm.Client) (*NewChain, error) {
	known, err := a.Store.Chain(ctx)
	if err != nil {
		return nil, refused{err}
	}
	anchors, genesis, err := history(ctx, client, known)
	if err != nil {
		return nil, err
	}
	if genesis == known.Genesis {
		for _, anchor := range anchors {
			if anchor.Genesis == genesis && anchor.Block.Hash == known.Anchor.Hash {
				return nil, ErrSameChain
			}
		}
		return nil, ErrSameGenesis
	}
	n := &NewChain{Known: known, Genesis: genesis}
	n.Doomed, err = a.Store.PreviewDrop(ctx)
	return n, asRefused(err)
}

// history queries all nodes for the recorded anchor's block and for their genesis block, on which they must agree.
func history(ctx context.Context, client *evm.Client, known store.Chain) (anchors []evm.Anchor, genesis common.Hash, err error) {
	anchors = client.Anchors(ctx, known.Anchor.Number, 0)
	for _, anchor := range anchors {
		switch {
		case anchor.Err != nil:
			return nil, genesis, refused{fmt.Errorf("%s does not tell its history, and may have the known one: %w", anchor.Endpoint, anchor.Err)}
		case anchor.Genesis == (common.Hash{}): // the node does not keep its genesis block
		case genesis != (common.Hash{}) && anchor.Genesis != genesis:
			return nil, genesis, refused{fmt.Errorf("the nodes disagree about the genesis block: %s and %s", genesis, anchor.Genesis)}
		default:
			genesis = anchor.Genesis
		}
	}
	if genesis == (common.Hash{}) {
		return nil, genesis, refused{errors.New("no node keeps the genesis block")}
	}
	return anchors, genesis, nil
}

// StartOver accepts the chain's current history, drops the transactions pending on the previous one, and returns how many.
// It checks the nodes again, because time may have passed since the plan. Nodes that were only syncing have the recorded
// chain by then, and would mine dropped transactions. It fails as [Admin.NewChain] does, and if the plan has changed.
func (a *Admin) StartOver(ctx context.Context, client *evm.Client, plan *NewChain) (dropped int, err error) {
	now, err := a.NewChain(ctx, client)
	if err != nil {
		return 0, err
	}
	if now.Known != plan.Known {
		return 0, refused{store.ErrChainChanged}
	}
	if now.Genesis != plan.Genesis {
		return 0, refused{fmt.Errorf("the nodes have genesis block %s by now, not %s", now.Genesis, plan.Genesis)}
	}
	dropped, err = tracker.StartOver(ctx, client, a.Store, plan.Known)
	if errors.Is(err, store.ErrChainChanged) {
		return 0, refused{err}
	}
	return dropped, err
}
