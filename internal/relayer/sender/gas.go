package sender

import (
	"context"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// gasLimit returns the gas limit of the attempt after last, the latest at the same nonce; nil if there is none. A caller's
// transaction has its own. A no-op gets what nodes estimate for a transfer, a top-up at least that, and both get twice as much
// as nodes last refused for having too little gas, up to [chain.MaxTransferGas].
func (s *Sender) gasLimit(ctx context.Context, tx *relayer.Transaction, purpose relayer.Purpose, last *relayer.Attempt) uint64 {
	to := tx.From
	switch {
	case purpose == relayer.PurposeNoop:
	case tx.Kind == relayer.KindTopUp && last != nil:
		to = *tx.To
	default:
		return tx.GasLimit
	}
	if last != nil && last.Purpose != purpose {
		last = nil
	}
	gas := s.cfg.Chain.TransferGas(ctx, tx.From, to, last != nil && refusedFor(tx, chain.IntrinsicGas))
	if purpose != relayer.PurposeNoop {
		gas = max(gas, tx.GasLimit)
	}
	if last == nil {
		return gas
	}
	was := gasOf(last)
	switch {
	case refusedFor(tx, chain.IntrinsicGas):
		gas = max(gas, 2*min(was, chain.MaxTransferGas))
	case refusedFor(tx, chain.ExceedsBlockGas), refusedFor(tx, chain.InsufficientFunds), refusedFor(tx, chain.FeeCapExceeded):
		// A false estimate may have been too high.
	default:
		gas = max(gas, was)
	}
	return min(gas, chain.MaxTransferGas)
}

// lacksGas reports whether nodes refused the last attempt for too little gas, and the next one has more.
func lacksGas(tx *relayer.Transaction, purpose relayer.Purpose, last *relayer.Attempt, gas uint64) bool {
	return last.Purpose == purpose && refusedFor(tx, chain.IntrinsicGas) && gasOf(last) < gas
}

// refusedFor reports whether no node took the latest attempt, and that was the reason.
func refusedFor(tx *relayer.Transaction, o chain.Outcome) bool {
	return tx.Status == relayer.Allocated && tx.StatusReason == o.String()
}

// gasOf returns the gas limit of an attempt; 0 for bytes that cannot be read, which are never stored.
func gasOf(a *relayer.Attempt) uint64 {
	signed := new(types.Transaction)
	if signed.UnmarshalBinary(a.Raw) != nil {
		return 0
	}
	return signed.Gas()
}
