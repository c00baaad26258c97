package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
)

// Presence is where an endpoint has a transaction.
type Presence int

// Presences.
const (
	Absent  Presence = iota // neither in the pool nor mined: it was never there, was dropped or replaced
	Pending                 // in the pool
	Mined                   // in a block of the endpoint's chain now, which need not lead to the View's
)

// String returns the name in lower case.
func (p Presence) String() string { return [...]string{"absent", "pending", "mined"}[p] }

// Transactions returns where the endpoint has each transaction now, in the order of the hashes.
func (v *View) Transactions(ctx context.Context, hashes []common.Hash) ([]Presence, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	calls, found := make([]call, len(hashes)), make([]Presence, len(hashes))
	for i, h := range hashes {
		calls[i] = call{method: "eth_getTransactionByHash", params: []any{h}, decode: func(result []byte) (err error) {
			found[i], err = presenceOf(result)
			return err
		}}
	}
	answers, err := v.ep.askPatiently(ctx, calls)
	if err != nil {
		return nil, fmt.Errorf("look for transactions: %w", err)
	}
	for i, a := range answers {
		if a.err != nil {
			return nil, fmt.Errorf("look for transaction %s: %w", hashes[i], a.err)
		}
	}
	return found, nil
}

// presenceOf returns where an endpoint has the transaction that it returned, or null.
func presenceOf(result []byte) (Presence, error) {
	if isNull(result) {
		return Absent, nil
	}
	found := Pending
	err := fields(result, func(key string, value []byte) error {
		if key == "blockHash" && !isNull(value) {
			found = Mined
		}
		return nil
	})
	return found, err
}

// Transaction returns a transaction that an endpoint has in its pool or on its chain. Each endpoint is asked until one
// returns it: one may have lost it, or may not keep an index of old transactions.
func (c *Client) Transaction(ctx context.Context, hash common.Hash) (*types.Transaction, error) {
	read := call{method: "eth_getTransactionByHash", params: []any{hash}}
	var tx *types.Transaction
	err := c.each(ctx, []string{read.method}, func(ctx context.Context, ep *endpoint) error {
		answers, err := ep.ask(ctx, []call{read})
		if err != nil {
			return err
		}
		if answers[0].err != nil {
			return answers[0].err
		}
		if isNull(answers[0].result) {
			return ep.transportError(true, errors.New("it has no such transaction"))
		}
		found := new(types.Transaction)
		if err := json.Unmarshal(answers[0].result, found); err != nil {
			return ep.transportError(true, err)
		}
		if found.Hash() != hash {
			return ep.transportError(true, fmt.Errorf("it returned the transaction %s", found.Hash()))
		}
		tx = found
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read transaction %s: %w", hash, err)
	}
	return tx, nil
}

// Used is the transaction that used a nonce.
type Used struct {
	TxHash      common.Hash
	BlockHash   common.Hash
	BlockNumber uint64
	To          *common.Address // nil for one that creates a contract
	// Authorization reports that the nonce was used by an authorization of the account (EIP-7702) in a transaction of
	// any sender.
	Authorization bool
}

// probes is how many blocks are read in one batch of a search.
const probes = 15

// FindNonce returns the transaction, on the chain that leads to the View's block, that used an account's nonce in a
// block after low, where it was not used yet. A low of 0 searches the whole chain, as far as the node keeps old state.
// Errors: ErrNonceUnused, ErrNonceUntraced, ErrStale, and the node's errors about older state.
func (v *View) FindNonce(ctx context.Context, addr common.Address, nonce, low uint64) (Used, error) {
	used, err := v.findNonce(ctx, addr, nonce, low)
	if err != nil {
		return Used{}, fmt.Errorf("find nonce %d of %s: %w", nonce, addr, err)
	}
	return used, nil
}

func (v *View) findNonce(ctx context.Context, addr common.Address, nonce, low uint64) (Used, error) {
	now, err := v.Nonces(ctx, []common.Address{addr})
	if err != nil {
		return Used{}, err
	}
	if now[0] <= nonce {
		return Used{}, ErrNonceUnused
	}
	// The nonce is used at high, and not at low-1, if that block exists and the node has its state. The first points
	// are close to high, because most searches are about recent blocks.
	high := v.h.Number
	var blind error // the node's error if the state of low-1 is missing
	for first := true; low < high; first = false {
		points := spread(low, high, first)
		calls := make([]call, len(points))
		for i, n := range points {
			// A healthy node need not keep the state of an old block.
			calls[i] = call{method: "eth_getTransactionCount", params: []any{addr, hexutil.Uint64(n)}, answers: anyError}
		}
		answers, err := v.ep.askPatiently(ctx, calls)
		if err != nil {
			return Used{}, err
		}
		// From the newest point down: missing state of a point matters only if the search gets there.
		for i, point := range slices.Backward(points) {
			if answers[i].err != nil {
				low, blind = point+1, answers[i].err
				break
			}
			count, err := parseUint(answers[i].result)
			if err != nil {
				return Used{}, v.ep.transportError(true, err)
			}
			if count <= nonce {
				low, blind = point+1, nil
				break
			}
			high = point
		}
	}
	used, err := v.usedIn(ctx, addr, nonce, high)
	if blind != nil && errors.Is(err, ErrNonceUntraced) { // the nonce was used before the kept state
		err = blind
	}
	return used, err
}

// spread returns rising block numbers from low to below high. They are even, or, with near, closer to each other
// towards high.
func spread(low, high uint64, near bool) []uint64 {
	if high-low <= probes {
		points := make([]uint64, 0, probes)
		for n := low; n < high; n++ {
			points = append(points, n)
		}
		return points
	}
	points := make([]uint64, 0, probes)
	for i := range uint64(probes) {
		n := low + (high-low)/(probes+1)*(i+1)
		if near {
			back := uint64(1) << (probes - 1 - i)
			if back > high-low {
				continue
			}
			n = high - back
		}
		points = append(points, n)
	}
	return points
}

// usedIn searches for the transaction in the block, which must lead to the View's. An authorization of the nonce has
// not used it if a transaction of the account has.
func (v *View) usedIn(ctx context.Context, addr common.Address, nonce, number uint64) (Used, error) {
	answers, err := v.ask(ctx, []call{{
		method: "eth_getBlockByNumber", params: []any{hexutil.Uint64(number), true}, decode: checkHeader,
	}}, v.h.Number)
	if err != nil {
		return Used{}, err
	}
	block, err := headerOf(answers[0])
	if err != nil {
		return Used{}, err
	}
	at := Used{BlockHash: block.Hash, BlockNumber: block.Number}
	used := at
	err = fields(answers[0].result, func(key string, value []byte) error {
		if key != "transactions" {
			return nil
		}
		return elements(value, func(b []byte) error {
			var from common.Address
			var its uint64
			tx := at
			err := fields(b, func(key string, value []byte) (err error) {
				switch key {
				case "from":
					err = parseFixed(from[:], value)
				case "to":
					if !isNull(value) {
						tx.To = new(common.Address)
						err = parseFixed(tx.To[:], value)
					}
				case "nonce":
					its, err = parseUint(value)
				case "hash":
					tx.TxHash, err = parseHash(value)
				case "authorizationList":
					tx.Authorization = authorizes(value, addr, nonce)
				}
				return err
			})
			if from == addr && its == nonce {
				tx.Authorization = false
				used = tx
			} else if tx.Authorization && used == at {
				used = tx
			}
			return err
		})
	})
	if err != nil {
		return Used{}, v.ep.transportError(true, err)
	}
	if used == at {
		return used, fmt.Errorf("block %d %s: %w", number, block.Hash, ErrNonceUntraced)
	}
	return used, nil
}

// authorizes reports whether one of a transaction's authorizations uses an account's nonce.
func authorizes(list []byte, addr common.Address, nonce uint64) bool {
	var all []types.SetCodeAuthorization
	if json.Unmarshal(list, &all) != nil { // an unknown kind of transaction
		return false
	}
	return slices.ContainsFunc(all, func(a types.SetCodeAuthorization) bool {
		if a.Nonce != nonce {
			return false
		}
		by, err := a.Authority()
		return err == nil && by == addr
	})
}
