package sender

import (
	"errors"
	"math/big"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// FeeBid is the fee that a transaction offers per unit of gas, wei.
type FeeBid struct {
	// MaxFee is the gas price of a legacy transaction.
	MaxFee *big.Int
	// Tip is nil for a legacy transaction.
	Tip *big.Int
}

// FeeBidOf returns the fee of an attempt.
func FeeBidOf(a *relayer.Attempt) FeeBid { return FeeBid{MaxFee: a.MaxFee, Tip: a.MaxPriorityFee} }

var speeds = map[relayer.Speed]evm.Speed{
	relayer.SafeLow: evm.SafeLow, relayer.Average: evm.Average, relayer.Fast: evm.Fast, relayer.Fastest: evm.Fastest,
}

// baseFeeRoom is the factor by which the base fee may grow before a transaction has to be bumped: six full blocks.
const baseFeeRoom = 2

// Price returns the fee to offer for a request: the request's own, or else by its speed and the chain's fees. limit, if not
// nil, bounds the latter; the former were checked when the request was accepted.
func Price(r *relayer.Request, fees evm.Fees, limit *big.Int) FeeBid {
	switch {
	case r.GasPrice != nil:
		return FeeBid{MaxFee: r.GasPrice}
	case r.MaxFee != nil:
		o := FeeBid{MaxFee: r.MaxFee, Tip: r.MaxPriorityFee}
		if o.Tip == nil {
			o.Tip = new(big.Int)
			if fees.EIP1559 {
				o.Tip = fees.Tips[speed(r.Speed)]
			}
		}
		return o.capped(r.MaxFee)
	case !fees.EIP1559:
		return FeeBid{MaxFee: fees.Price(speed(r.Speed))}.capped(limit)
	}
	tip := fees.Tips[speed(r.Speed)]
	if r.MaxPriorityFee != nil {
		tip = r.MaxPriorityFee
	}
	most := new(big.Int).Mul(fees.BaseFee, big.NewInt(baseFeeRoom))
	return FeeBid{MaxFee: most.Add(most, tip), Tip: tip}.capped(limit)
}

// MarketFee returns the chain's current fee for a speed, for a legacy (old) or a dynamic-fee transaction.
func MarketFee(s relayer.Speed, old bool, fees evm.Fees, limit *big.Int) FeeBid {
	if old {
		return FeeBid{MaxFee: fees.Price(speed(s))}.capped(limit)
	}
	return Price(&relayer.Request{Speed: s}, fees, limit)
}

func speed(s relayer.Speed) evm.Speed {
	if known, ok := speeds[s]; ok {
		return known
	}
	return evm.Fast
}

func (b FeeBid) capped(limit *big.Int) FeeBid {
	if limit == nil {
		return b
	}
	if b.MaxFee.Cmp(limit) > 0 {
		b.MaxFee = limit
	}
	if b.Tip != nil && b.Tip.Cmp(b.MaxFee) > 0 {
		b.Tip = b.MaxFee
	}
	return b
}

// ErrAtCap means that a replacement would need a fee above the cap.
var ErrAtCap = errors.New("the next replacement would be above the cap")

// Bump returns the fee of a replacement: the chain's current fee, and at least a tenth more than before in both parts.
// Nodes require that (geth: legacypool's PriceBump). It fails with [ErrAtCap].
func Bump(before, now FeeBid, limit *big.Int) (FeeBid, error) {
	next := FeeBid{MaxFee: larger(bumpTenPercent(before.MaxFee), now.MaxFee)}
	if before.Tip != nil {
		next.Tip = bumpTenPercent(before.Tip)
		if now.Tip != nil {
			next.Tip = larger(next.Tip, now.Tip)
		}
		next.MaxFee = larger(next.MaxFee, next.Tip)
	}
	if limit == nil || next.MaxFee.Cmp(limit) <= 0 {
		return next, nil
	}
	// The chain's fee may be above the cap although a tenth more is not.
	next.MaxFee = limit
	if least := bumpTenPercent(before.MaxFee); limit.Cmp(least) < 0 {
		return FeeBid{}, ErrAtCap
	}
	if next.Tip != nil && next.Tip.Cmp(limit) > 0 {
		if next.Tip = limit; limit.Cmp(bumpTenPercent(before.Tip)) < 0 {
			return FeeBid{}, ErrAtCap
		}
	}
	return next, nil
}

// headroom returns the highest price that two bumps of a tenth keep at or below the limit; nil for no limit.
func headroom(limit *big.Int) *big.Int {
	if limit == nil {
		return nil
	}
	room := new(big.Int).Set(limit)
	for range 2 {
		room.Mul(room, big.NewInt(100)).Div(room, big.NewInt(110))
	}
	return room
}

// bumpTenPercent returns n plus a tenth, rounded up, and at least n+1.
func bumpTenPercent(n *big.Int) *big.Int {
	more := new(big.Int).Mul(n, big.NewInt(110))
	more.Add(more, big.NewInt(99)).Div(more, big.NewInt(100))
	if more.Cmp(n) <= 0 {
		more.Add(n, big.NewInt(1))
	}
	return more
}

// atLeast returns the larger of both fees.
func atLeast(before, now FeeBid) FeeBid {
	next := FeeBid{MaxFee: larger(before.MaxFee, now.MaxFee), Tip: before.Tip}
	if before.Tip != nil && now.Tip != nil {
		next.Tip = larger(before.Tip, now.Tip)
	}
	return next
}

func larger(a, b *big.Int) *big.Int {
	if a.Cmp(b) >= 0 {
		return a
	}
	return b
}

// build returns the transaction to be signed.
func build(tx *relayer.Transaction, purpose relayer.Purpose, gas uint64, offer FeeBid, chainID *big.Int) *types.Transaction {
	to, value, data := tx.To, tx.Value, tx.Data
	if purpose == relayer.PurposeNoop {
		to, value, data = new(tx.From), new(big.Int), nil
	}
	if value == nil {
		value = new(big.Int)
	}
	if offer.Tip == nil {
		return types.NewTx(&types.LegacyTx{
			Nonce: *tx.Nonce, To: to, Value: value, Data: data, Gas: gas, GasPrice: offer.MaxFee,
		})
	}
	return types.NewTx(&types.DynamicFeeTx{
		ChainID: chainID, Nonce: *tx.Nonce, To: to, Value: value, Data: data, Gas: gas, GasFeeCap: offer.MaxFee, GasTipCap: offer.Tip,
	})
}
