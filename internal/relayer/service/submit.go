package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/params"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Submit implements [relayer.Service].
func (s *Service) Submit(ctx context.Context, in relayer.Submission) (*relayer.Transaction, error) {
	v, err := s.submit(ctx, in)
	s.cfg.Metrics.submitted(ctx, v.Replayed, err)
	if limit, ok := errors.AsType[*relayer.LimitError](err); ok {
		s.cfg.Log.InfoContext(ctx, "request met a limit", "limit", limit.Limit, "caller", in.Caller, "trader", in.Request.Metadata.Trader, "after", limit.After)
	}
	return v.Tx, err
}

func (s *Service) submit(ctx context.Context, in relayer.Submission) (v store.AcceptResult, err error) {
	key, err := s.target(in.RelayerID)
	if err != nil {
		return v, err
	}
	identity, err := s.requireScope(ctx, in)
	if err != nil {
		return v, err
	}
	// A repeated request must get its transaction even if it would fail by now. Otherwise storing it finds the first one,
	// so that most requests, which are new, need no lookup. Without a gas limit the lookup comes first, which saves the
	// simulation.
	looked := false
	if in.IdempotencyKey != "" && in.Request.GasLimit == 0 {
		looked = true
		if v, err = s.replay(ctx, in); err != nil || v.Tx != nil {
			return v, err
		}
	}
	if v, err = s.admit(ctx, key, identity, in); err == nil || in.IdempotencyKey == "" || looked {
		return v, err
	}
	first, missed := s.replay(ctx, in)
	switch {
	case first.Tx != nil:
		return first, nil
	case missed != nil && !errors.Is(err, relayer.ErrUnknown): // ErrUnknown stays: the lookup has not decided the outcome
		return v, missed
	}
	return v, err
}

// replay returns the transaction of a request's idempotency key; an empty result if the key is new.
func (s *Service) replay(ctx context.Context, in relayer.Submission) (store.AcceptResult, error) {
	tx, err := s.cfg.Store.Replay(ctx, in.Caller, in.IdempotencyKey, in.BodyHash)
	return store.AcceptResult{Tx: tx, Replayed: tx != nil}, unavailable(err)
}

// admit checks a request and stores it.
func (s *Service) admit(ctx context.Context, key common.Address, identity uuid.UUID, in relayer.Submission) (v store.AcceptResult, err error) {
	if !s.cfg.Enabled {
		return v, fmt.Errorf("%w: RELAYER_ENABLED is false", relayer.ErrDisabled)
	}
	if err := s.cfg.Ready(); err != nil {
		return v, fmt.Errorf("%w: %w", relayer.ErrUnavailable, err)
	}
	if s.cfg.Guard != nil {
		if err := s.cfg.Guard.Admit(ctx, in.Caller, &in.Request); err != nil {
			return v, err
		}
	}
	if key, err = s.prepare(ctx, key, &in.Request); err != nil {
		return v, err
	}
	reserve, err := s.reserve(ctx, &in.Request)
	if err != nil {
		return v, err
	}
	target := s.cfg.ID
	if key != (common.Address{}) {
		target = strings.ToLower(key.Hex())
	}
	v, err = s.accept(ctx, &store.NewTransaction{
		ID: uuid.Must(uuid.NewV7()), Target: target, Key: key, Caller: in.Caller, Kind: relayer.KindTransaction, Request: in.Request,
		Reserve: reserve, IdempotencyKey: in.IdempotencyKey, BodyHash: in.BodyHash, Identity: identity,
	})
	if _, poor := errors.AsType[*relayer.FundsError](err); poor && s.exceedsBalance(ctx, key, in.Request.Value) {
		return v, errValueExceedsBalance
	}
	return v, err
}

// reserve returns the maximum gas cost of a request at the fees that would be offered now. If the fees are unavailable, it
// fails only if there are budgets.
func (s *Service) reserve(ctx context.Context, r *relayer.Request) (*big.Int, error) {
	fees, err := s.cfg.Chain.Fees(ctx)
	switch {
	case err != nil && s.cfg.Store.Budgets == (store.Budgets{}):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: ask for fees: %w", relayer.ErrUnavailable, err)
	}
	reserve := new(big.Int).SetUint64(r.GasLimit)
	reserve.Mul(reserve, sender.Price(r, fees, s.cfg.MaxFee).MaxFee)
	if reserve.BitLen() > 256 {
		return nil, relayer.Invalidf("", "gas limit times gas price is more than 2^256 wei")
	}
	return reserve, nil
}

// unavailable returns the caller's error for a failed database.
func unavailable(err error) error {
	switch {
	case err == nil, errors.Is(err, relayer.ErrKeyReused), errors.Is(err, relayer.ErrNotFound), errors.Is(err, relayer.ErrUnavailable),
		errors.Is(err, relayer.ErrUnknown):
		return err
	}
	if _, ok := errors.AsType[*relayer.StateError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*relayer.LimitError](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", relayer.ErrUnavailable, err)
}

// prepare checks a request against policies and the chain, and fills in omitted fields. It returns the only key that may
// send it, zero for any. No nonce has been taken yet.
func (s *Service) prepare(ctx context.Context, key common.Address, r *relayer.Request) (only common.Address, err error) {
	if err := s.check(r); err != nil {
		return key, err
	}
	if r.GasLimit != 0 {
		if err := s.checkGas(r, evm.LeastGasOf(r.Data, r.To == nil)); err != nil {
			return key, err
		}
		return key, s.checkByNode(ctx, key, r)
	}
	if key, err = s.estimate(ctx, key, r); err != nil {
		return key, err
	}
	return key, s.checkGas(r, 0) // the chain's own rules for data may be cheaper
}

// check checks the parts of a request that need no node.
func (s *Service) check(r *relayer.Request) error {
	if !r.ValidUntil.IsZero() && !r.ValidUntil.After(time.Now()) {
		return relayer.Invalidf("valid_until", "is in the past")
	}
	if s.cfg.Receivers != nil {
		switch {
		case r.To == nil:
			return relayer.Invalidf("to", "is missing: this relayer sends to its receivers only, and creates no contracts")
		case !slices.Contains(s.cfg.Receivers, *r.To) && !slices.Contains(s.allocation.Held, *r.To):
			return relayer.Invalidf("to", "%s is not among the receivers that this relayer sends to", r.To)
		}
	}
	if err := s.checkFees(r); err != nil {
		return err
	}
	if len(r.Data) > s.cfg.MaxData {
		return relayer.Invalidf("data", "has %d bytes, and nodes take %d at most (RELAYER_MAX_DATA)", len(r.Data), s.cfg.MaxData)
	}
	return nil
}

// checkByNode has a node check a request with a gas limit that not every chain accepts. Ethereum's newest rules charge more for data
// than older ones, and bound the code of new contracts.
func (s *Service) checkByNode(ctx context.Context, key common.Address, r *relayer.Request) error {
	if r.GasLimit >= evm.IntrinsicGasOf(r.Data, r.To == nil) && (r.To != nil || len(r.Data) <= params.MaxInitCodeSize) {
		return nil
	}
	from := key
	if from == (common.Address{}) {
		from = s.allocation.Held[0]
	}
	gas, err := s.simulate(ctx, from, r)
	switch {
	case err != nil:
		return s.refusal(ctx, key, r, err)
	case gas > r.GasLimit:
		return relayer.Invalidf("gas_limit", "%d is less than the %d that nodes estimate for the transaction", r.GasLimit, gas)
	}
	return nil
}

// checkGas checks a request's gas limit, which must not be below least.
func (s *Service) checkGas(r *relayer.Request, least uint64) error {
	most := s.maxGas()
	switch {
	case r.GasLimit < least:
		return relayer.Invalidf("gas_limit", "%d is less than the %d that the transaction costs before it runs", r.GasLimit, least)
	case r.GasLimit > most:
		return relayer.Invalidf("gas_limit", "%d is more than the %d that one transaction may use", r.GasLimit, most)
	}
	return nil
}

// maxGas returns the largest gas limit of a transaction: that of the newest block, or MaxGas if it is less. A block's limit
// of 0 does not count, because it means that the node omits the limit.
func (s *Service) maxGas() uint64 {
	most := uint64(math.MaxInt64)
	if limit := s.cfg.Chain.Head().GasLimit; limit != 0 {
		most = limit
	}
	if s.cfg.MaxGas != 0 {
		most = min(most, s.cfg.MaxGas)
	}
	return most
}

func (s *Service) checkFees(r *relayer.Request) error {
	if limit := s.cfg.MaxFee; limit != nil {
		for _, fee := range []struct {
			field string
			over  bool
		}{
			{"gas_price", r.GasPrice != nil && r.GasPrice.Cmp(limit) > 0},
			{"max_fee_per_gas", r.MaxFee != nil && r.MaxFee.Cmp(limit) > 0},
			{"max_priority_fee_per_gas", r.MaxPriorityFee != nil && r.MaxPriorityFee.Cmp(limit) > 0},
		} {
			if fee.over {
				return relayer.Invalidf(fee.field, "is above the relayer's cap of %s wei", limit)
			}
		}
	}
	if r.MaxFee != nil && r.MaxPriorityFee != nil && r.MaxPriorityFee.Cmp(r.MaxFee) > 0 {
		return relayer.Invalidf("max_priority_fee_per_gas", "is above max_fee_per_gas")
	}
	return nil
}
