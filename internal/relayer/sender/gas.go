package sender

import (
	"context"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// gasLimit returns the gas limit of the attempt after last, the latest at the same nonce; nil if there is none. A caller's
// transaction has its own. A no-op gets the nodes' estimate for a transfer, a top-up at least that. Both get twice the
// limit that nodes last rejected as too little gas, up to the chain's MaxTransferGas.
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
	gas := s.cfg.Chain.TransferGas(ctx, tx.From, to, last != nil && refusedFor(tx, evm.IntrinsicGas))
	if purpose != relayer.PurposeNoop {
		gas = max(gas, tx.GasLimit)
	}
	if last == nil {
		return gas
	}
	was, most := gasOf(last), s.cfg.Chain.MaxTransferGas()
	switch {
	case refusedFor(tx, evm.IntrinsicGas):
		gas = max(gas, 2*min(was, most/2+1))
	case refusedFor(tx, evm.ExceedsBlockGas), refusedFor(tx, evm.InsufficientFunds), refusedFor(tx, evm.FeeCapExceeded):
		// The rejected limit may come from a wrong estimate that was too high.
	default:
		gas = max(gas, was)
	}
	return min(gas, most)
}

// lacksGas reports whether nodes rejected the last attempt for too little gas, and the next one has more.
func lacksGas(tx *relayer.Transaction, purpose relayer.Purpose, last *relayer.Attempt, gas uint64) bool {
	return last.Purpose == purpose && refusedFor(tx, evm.IntrinsicGas) && gasOf(last) < gas
}

// refusedFor reports whether no node accepted the latest attempt, for this reason.
func refusedFor(tx *relayer.Transaction, o evm.Outcome) bool {
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
