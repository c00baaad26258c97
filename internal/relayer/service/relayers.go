package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

var _ relayer.Service = (*Service)(nil)

// keys returns the pool's keys that this process holds, by address.
func (s *Service) keys(ctx context.Context) ([]*relayer.Key, error) {
	keys, err := s.cfg.Store.Keys(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	return slices.DeleteFunc(keys, func(k *relayer.Key) bool { return !slices.Contains(s.allocation.Held, k.Address) }), nil
}

// Relayers implements [relayer.Service].
func (s *Service) Relayers(ctx context.Context, offset, limit int) ([]relayer.Relayer, int, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return nil, 0, err
	}
	all := []relayer.Relayer{s.describePool(keys)}
	for _, k := range keys {
		all = append(all, s.cfg.Describe(k))
	}
	first := min(offset, len(all))
	return all[first:min(first+limit, len(all))], len(all), nil
}

// Relayer implements [relayer.Service].
func (s *Service) Relayer(ctx context.Context, id string) (relayer.Relayer, error) {
	keys, key, err := s.find(ctx, id)
	switch {
	case err != nil:
		return relayer.Relayer{}, err
	case key == nil:
		return s.describePool(keys), nil
	default:
		return s.cfg.Describe(key), nil
	}
}

// find returns the keys, and the key that an id names; nil for the pool.
func (s *Service) find(ctx context.Context, id string) (keys []*relayer.Key, key *relayer.Key, err error) {
	address, err := s.target(id)
	if err != nil {
		return nil, nil, err
	}
	if keys, err = s.keys(ctx); err != nil {
		return nil, nil, err
	}
	if address == (common.Address{}) {
		return keys, nil, nil
	}
	for _, k := range keys {
		if k.Address == address {
			return keys, k, nil
		}
	}
	return nil, nil, fmt.Errorf("relayer %q: %w", id, relayer.ErrNotFound)
}

func (s *Service) describePool(keys []*relayer.Key) relayer.Relayer {
	r := relayer.Relayer{
		ID: s.cfg.ID, Network: s.cfg.network(), SignerID: "local", GasPriceCap: s.cfg.MaxFee, WhitelistReceivers: s.cfg.Receivers,
		EIP1559: true, IncludeRevertData: s.cfg.RevertData, Disabled: !s.cfg.Enabled, Paused: len(keys) > 0,
	}
	usable := false
	for _, k := range keys {
		r.Paused = r.Paused && k.Paused
		usable = usable || k.Enabled
		if least := cmp.Or(k.MinBalance, new(big.Int)); r.MinBalance == nil || least.Cmp(r.MinBalance) < 0 {
			r.MinBalance = least
		}
	}
	switch {
	case !s.cfg.Enabled:
		r.DisabledReason = switchedOff
	case !usable:
		r.Disabled, r.DisabledReason = true, "no key is enabled"
	}
	return r
}

// switchedOff is the reason of a disabled relayer while the kill switch is off.
const switchedOff = "switched off: RELAYER_ENABLED is false"

// Describe returns a key as a relayer. It uses the store's chain, the policies and the switches, and no other field.
func (c *Config) Describe(k *relayer.Key) relayer.Relayer {
	reason := k.DisabledReason
	switch {
	case c.Enabled:
	case k.Enabled:
		reason = switchedOff
	default:
		reason += "; " + switchedOff
	}
	return relayer.Relayer{
		ID: strings.ToLower(k.Address.Hex()), Network: c.network(), Address: k.Address, SignerID: "local", Paused: k.Paused,
		Disabled: !k.Enabled || !c.Enabled, DisabledReason: reason, MinBalance: k.MinBalance, GasPriceCap: c.MaxFee,
		WhitelistReceivers: c.Receivers, EIP1559: true, IncludeRevertData: c.RevertData,
	}
}

func (c *Config) network() string { return fmt.Sprintf("evm:%d", c.Store.ChainID) }

// Update implements [relayer.Service]: it pauses, resumes, and sets the minimum balance. A pool's patch applies to all of its
// keys.
func (s *Service) Update(ctx context.Context, id, caller string, patch relayer.Patch) (relayer.Relayer, error) {
	keys, key, err := s.find(ctx, id)
	if err != nil {
		return relayer.Relayer{}, err
	}
	if key != nil {
		keys = []*relayer.Key{key}
	}
	name := s.cfg.ID
	if key != nil {
		name = strings.ToLower(key.Address.Hex())
	}
	if patch.Name != nil && *patch.Name != name { // clients return the name that they have read
		return relayer.Relayer{}, relayer.Invalidf("name", "is the relayer's id, and cannot be changed")
	}
	change := store.KeyChange{Paused: patch.Paused}
	if patch.Paused != nil {
		change.Draining = new(false)
	}
	if patch.MinBalance.Set {
		change.MinBalance = cmp.Or(patch.MinBalance.Value, s.cfg.MinBalance, new(big.Int))
		change.OwnMinBalance = new(patch.MinBalance.Value != nil)
	}
	for _, k := range keys {
		if _, err := s.cfg.Store.ChangeKey(ctx, k.Address, change); err != nil {
			return relayer.Relayer{}, wrapUnknownOutcome(err, true) // this change or an earlier one may be stored
		}
		if change.Paused != nil {
			k.Paused = *change.Paused
		}
		k.MinBalance = cmp.Or(change.MinBalance, k.MinBalance)
	}
	s.cfg.Log.InfoContext(ctx, "relayer updated", "target", id, "caller", caller, "paused", change.Paused, "min_balance", change.MinBalance)
	if key != nil {
		return s.cfg.Describe(key), nil
	}
	return s.describePool(keys), nil
}

// Status implements [relayer.Service].
func (s *Service) Status(ctx context.Context, id string, want relayer.StatusParts) (relayer.RelayerStatus, error) {
	keys, key, err := s.find(ctx, id)
	if err != nil {
		return relayer.RelayerStatus{}, err
	}
	described := s.describePool(keys)
	if key != nil {
		keys, described = []*relayer.Key{key}, s.cfg.Describe(key)
	}
	status := relayer.RelayerStatus{Disabled: described.Disabled, Paused: described.Paused, Balance: balanceOf(keys)}
	for _, k := range keys {
		status.Pending += uint64(k.PendingCount)
	}
	var address common.Address
	if key != nil {
		status.NextNonce, address = key.NextNonce, key.Address
	}
	if want.Balance && status.Balance == nil { // no balance is stored yet at startup, but clients expect one
		if status.Balance, err = s.Balance(ctx, id); err != nil {
			return status, err
		}
	}
	if !want.Balance {
		status.Balance = nil
	}
	if want.Pending {
		waiting, err := s.waiting(ctx, address)
		if err != nil {
			return status, unavailable(err)
		}
		status.Pending += uint64(waiting)
	}
	if want.LastConfirmed {
		status.LastConfirmed, err = s.cfg.Store.LastConfirmed(ctx, address)
	}
	return status, unavailable(err)
}

// waiting counts the transactions queued for a key, or with the zero address all queued ones.
func (s *Service) waiting(ctx context.Context, key common.Address) (int, error) {
	if key == (common.Address{}) {
		return s.cfg.Store.Queued(ctx)
	}
	load, err := s.cfg.Store.LoadOf(ctx, key)
	return load.Waiting, err
}

// balanceOf returns the sum of the keys' balances; nil if one is missing, or there is no key.
func balanceOf(keys []*relayer.Key) (sum *big.Int) {
	for _, k := range keys {
		if k.Balance == nil {
			return nil
		}
		if sum == nil {
			sum = new(big.Int)
		}
		sum.Add(sum, k.Balance)
	}
	return sum
}

// Balance implements [relayer.Service].
func (s *Service) Balance(ctx context.Context, id string) (*big.Int, error) {
	key, err := s.target(id)
	if err != nil {
		return nil, err
	}
	keys := s.allocation.Held
	if key != (common.Address{}) {
		keys = []common.Address{key}
	}
	balances, err := s.cfg.RPCProxy.Balances(ctx, keys)
	if err != nil {
		return nil, unavailable(err)
	}
	sum := new(big.Int)
	for _, b := range balances {
		sum.Add(sum, b)
	}
	return sum, nil
}

// Transactions implements [relayer.Service].
func (s *Service) Transactions(ctx context.Context, id string, f relayer.Filter, offset, limit int) ([]*relayer.Transaction, int, error) {
	key, err := s.target(id)
	if err != nil {
		return nil, 0, err
	}
	txs, total, err := s.cfg.Store.Transactions(ctx, store.Filter{
		Key: key, Statuses: f.Statuses, Signed: f.Signed, Metadata: relayer.Metadata{
			Method: f.Method, Orderbook: f.Orderbook, Trader: f.Trader, RequestID: f.RequestID, TraceID: f.TraceID,
		},
	}, offset, limit)
	return txs, total, unavailable(err)
}

// Transaction implements [relayer.Service].
func (s *Service) Transaction(ctx context.Context, id string, tx uuid.UUID) (*relayer.Transaction, error) {
	key, err := s.target(id)
	if err != nil {
		return nil, err
	}
	found, err := s.cfg.Store.Transaction(ctx, tx)
	switch {
	case err != nil:
		return nil, unavailable(err)
	case !visibleTo(found, key):
		return nil, relayer.ErrNotFound
	}
	return found, nil
}

// TransactionByNonce implements [relayer.Service].
func (s *Service) TransactionByNonce(ctx context.Context, id string, nonce uint64) (*relayer.Transaction, error) {
	key, err := s.target(id)
	switch {
	case err != nil:
		return nil, err
	case key == (common.Address{}):
		return nil, relayer.Invalidf("nonce", "belongs to a key: ask for it under one of the pool's relayers")
	}
	tx, err := s.cfg.Store.TransactionByNonce(ctx, key, nonce)
	return tx, unavailable(err)
}

// Sign implements [relayer.Service].
func (s *Service) Sign(ctx context.Context, id, caller string, message []byte) ([65]byte, error) {
	return s.sign(ctx, id, caller, [32]byte(accounts.TextHash(message)))
}

// SignTypedData implements [relayer.Service].
func (s *Service) SignTypedData(ctx context.Context, id, caller string, domainSeparator, hashStruct common.Hash) ([65]byte, error) {
	return s.sign(ctx, id, caller, crypto.Keccak256Hash([]byte{0x19, 0x01}, domainSeparator[:], hashStruct[:]))
}

func (s *Service) sign(ctx context.Context, id, caller string, digest [32]byte) (sig [65]byte, err error) {
	_, key, err := s.find(ctx, id)
	switch {
	case err != nil:
		return sig, err
	case key == nil:
		return sig, relayer.Invalidf("", "a pool does not sign: ask one of its relayers")
	case !key.Enabled || !s.cfg.Enabled:
		return sig, relayer.ErrDisabled
	case key.Paused:
		return sig, relayer.ErrPaused
	}
	if !s.cfg.Signing {
		return sig, relayer.ErrSigningOff
	}
	keySigner, ok := s.cfg.Ring.Signer(key.Address)
	if !ok {
		return sig, relayer.ErrNotFound
	}
	if sig, err = signer.Sign(ctx, keySigner, digest); err != nil {
		return sig, fmt.Errorf("%w: %s signs %s for %s: %w", relayer.ErrUnavailable, key.Address, common.Hash(digest), caller, err)
	}
	s.cfg.Log.InfoContext(ctx, "message signed", "key", key.Address, "digest", common.Hash(digest), "caller", caller)
	return sig, nil
}

// RPC implements [relayer.Service].
func (s *Service) RPC(ctx context.Context, id, method string, params json.RawMessage) (json.RawMessage, error) {
	if _, err := s.target(id); err != nil {
		return nil, err
	}
	result, err := s.cfg.RPCProxy.Call(ctx, method, params)
	if err == nil {
		return result, nil
	}
	if failed, ok := errors.AsType[*evm.RPCError](err); ok { // callers do not receive the name of the node
		return nil, &relayer.RPCError{Code: failed.Code, Message: failed.Message, Description: "the node answered with an error", Data: failed.Data}
	}
	if errors.Is(err, evm.ErrTooLarge) {
		return nil, &relayer.RPCError{Code: relayer.RPCTooLarge, Message: "response too large", Description: "the answer is too large: ask for less at once"}
	}
	return nil, unavailable(err)
}
