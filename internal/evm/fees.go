package evm

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Speed is how soon a transaction should be mined.
type Speed int

// Speeds, slowest first.
const (
	SafeLow Speed = iota
	Average
	Fast
	Fastest
	speeds = iota
)

const (
	feeBlocks = 10          // blocks of fee history to read
	feeAge    = time.Minute // how long fees are used without a new head
)

// feePercentiles are, for each speed, the percentile among the tips that recent blocks' gas paid.
var feePercentiles = []float64{30, 50, 85, 99}

// Fees are the current fees to offer, in wei. They are shared: callers must not change them.
type Fees struct {
	// EIP1559 reports whether the chain has a base fee. Without it only GasPrice is set.
	EIP1559 bool
	BaseFee *big.Int // of the next block; nil without EIP1559
	// Tips are the priority fees for each Speed, non-decreasing; nil without EIP1559.
	Tips [speeds]*big.Int
	// GasPrice is the node's suggestion for legacy transactions.
	GasPrice *big.Int
	Head     Header // the block that the fees were read at
}

// Price returns the gas price of a legacy transaction: the base fee plus the speed's tip, or the node's suggestion.
// From Average on it is at least that suggestion.
func (f Fees) Price(s Speed) *big.Int {
	if !f.EIP1559 {
		return f.GasPrice
	}
	price := new(big.Int).Add(f.BaseFee, f.Tips[s])
	if s >= Average && price.Cmp(f.GasPrice) < 0 {
		return f.GasPrice
	}
	return price
}

// feeCache holds the fees until the next head.
type feeCache struct {
	loading chan struct{} // full while one caller reads the fees; a channel, so that other callers can stop waiting
	once    sync.Once

	mu   sync.Mutex
	fees Fees
	head common.Hash // newest known head when the fees were read
	at   time.Time
}

func (fc *feeCache) get(head common.Hash) (Fees, bool) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	return fc.fees, !fc.at.IsZero() && fc.head == head && time.Since(fc.at) < feeAge
}

// Fees returns the current fees. They are read once per head, by the first caller. While no endpoint answers, Fees
// returns those of the last minute.
func (c *Client) Fees(ctx context.Context) (Fees, error) {
	fc := &c.fees
	fc.once.Do(func() { fc.loading = make(chan struct{}, 1) })
	if fees, ok := fc.get(c.Head().Hash); ok {
		return fees, nil
	}
	select {
	case fc.loading <- struct{}{}:
		defer func() { <-fc.loading }()
	case <-ctx.Done():
		return Fees{}, fmt.Errorf("read fees: %w", context.Cause(ctx))
	}
	head := c.Head().Hash
	if fees, ok := fc.get(head); ok {
		return fees, nil
	}
	fees, err := c.readFees(ctx)
	fc.mu.Lock()
	defer fc.mu.Unlock()
	if err != nil && !fc.at.IsZero() && time.Since(fc.at) < feeAge {
		return fc.fees, nil
	}
	if err != nil {
		return Fees{}, fmt.Errorf("read fees: %w", err)
	}
	fc.fees, fc.head, fc.at = fees, head, time.Now()
	return fees, nil
}

// feeMethods are the methods that fees are read with, except for the suggested tip, which is optional.
var feeMethods = []string{headMethod, "eth_gasPrice", "eth_feeHistory"}

// readFees reads the fees at one endpoint. If none has a fee history, it returns an endpoint's own suggestion.
func (c *Client) readFees(ctx context.Context) (Fees, error) {
	var fees Fees
	err := c.each(ctx, feeMethods, func(ctx context.Context, ep *endpoint) error {
		f, err := ep.readFees(ctx)
		if err == nil || fees.GasPrice == nil {
			fees = f
		}
		return err
	})
	if err != nil && fees.GasPrice != nil {
		c.log.Debug("no history of fees, the node's suggestion is used", "err", err)
		return fees, nil
	}
	return fees, err
}

// readFees returns an error together with the node's suggested fees if only the history is missing.
func (ep *endpoint) readFees(ctx context.Context) (Fees, error) {
	answers, err := ep.ask(ctx, []call{
		blockByTag("latest"),
		{method: "eth_gasPrice"},
		{method: "eth_maxPriorityFeePerGas", answers: anyError},
		{method: "eth_feeHistory", params: []any{fmt.Sprintf("%#x", feeBlocks), "latest", feePercentiles}, answers: unsupported},
	})
	if err != nil {
		return Fees{}, err
	}
	head, err := headerOf(answers[0])
	if IsNoAnswer(err) {
		return Fees{}, err
	}
	if err != nil {
		return Fees{}, ep.transportError(true, fmt.Errorf("newest block: %w", err))
	}
	f := Fees{Head: head, EIP1559: head.BaseFee != nil}
	if answers[1].err != nil {
		return Fees{}, answers[1].err
	}
	price, err := parseBig(answers[1].result)
	if err != nil {
		return Fees{}, ep.transportError(true, fmt.Errorf("gas price: %w", err))
	}
	f.GasPrice = price
	if !f.EIP1559 {
		return f, nil
	}
	// If blocks are empty, the node's suggestion is the only source for a tip.
	suggested := new(big.Int)
	if tip, err := parseBig(answers[2].result); answers[2].err == nil && err == nil {
		suggested = tip
	} else if above := new(big.Int).Sub(f.GasPrice, head.BaseFee); above.Sign() > 0 {
		suggested = above
	}
	// The head's own base fee is what blocks are checked by. Prices that contradict it lose: one below it would never be paid, and
	// a tip as high as the whole price contains the base fee.
	if above := new(big.Int).Sub(f.GasPrice, head.BaseFee); above.Sign() < 0 {
		f.GasPrice = new(big.Int).Add(head.BaseFee, suggested)
	} else if above.Sign() > 0 && suggested.Cmp(f.GasPrice) >= 0 {
		suggested = above
	}
	f.BaseFee = head.BaseFee
	for i := range f.Tips {
		f.Tips[i] = suggested
	}
	if e, ok := errors.AsType[*RPCError](answers[3].err); ok && unsupported(e) {
		return f, nil // the chain has no fee history
	}
	if answers[3].err != nil {
		return f, answers[3].err
	}
	learnt := f
	if err := learnt.learn(answers[3].result); errors.Is(err, errContradiction) {
		ep.log.Debug("history of fees is not used", "err", err)
		return f, nil
	} else if err != nil {
		return f, ep.transportError(true, fmt.Errorf("fee history: %w", err))
	}
	return learnt, nil
}

// errContradiction means that a fee history has other base fees than the blocks. Its tips are then wrong too, because nodes
// compute them from the base fees.
var errContradiction = errors.New("the history of fees contradicts the newest block's base fee")

// contradicts reports whether a fee history with these base fees, from the block oldest on, is of other blocks than the head.
// The history need not have the head, because nodes process a batch in any order. Then the next base fee has to be plausible.
func (f *Fees) contradicts(oldest *uint64, bases []*big.Int) bool {
	if oldest != nil && *oldest <= f.Head.Number && f.Head.Number-*oldest < uint64(len(bases)-1) {
		return bases[f.Head.Number-*oldest].Cmp(f.Head.BaseFee) != 0
	}
	return !f.plausible(bases[len(bases)-1])
}

// plausible reports whether a base fee may be that of the block after the head: it is between half of the head's and its double.
// Ethereum's changes by an eighth at most. Where a chain's changes by more, the head's is used, and offers are twice as high.
func (f *Fees) plausible(next *big.Int) bool {
	twice := func(n *big.Int) *big.Int { return new(big.Int).Lsh(n, 1) }
	return next.Cmp(twice(f.Head.BaseFee)) <= 0 && f.Head.BaseFee.Cmp(twice(next)) <= 0
}

// learn sets the next base fee and the tips from the answer to eth_feeHistory. It fails with errContradiction where its base fees
// are not the chain's.
func (f *Fees) learn(raw []byte) error {
	var oldest *uint64
	var bases []*big.Int
	var ratios []string
	var rewards [][]*big.Int
	err := fields(raw, func(key string, value []byte) error {
		if isNull(value) {
			return nil
		}
		switch key {
		case "oldestBlock":
			n, err := parseUint(value)
			oldest = &n
			return err
		case "baseFeePerGas":
			return elements(value, func(b []byte) error {
				base, err := parseBig(b)
				bases = append(bases, base)
				return err
			})
		case "gasUsedRatio":
			return elements(value, func(b []byte) error {
				ratios = append(ratios, string(b))
				return nil
			})
		case "reward":
			return elements(value, func(b []byte) error {
				var block []*big.Int
				err := elements(b, func(b []byte) error {
					tip, err := parseBig(b)
					block = append(block, tip)
					return err
				})
				rewards = append(rewards, block)
				return err
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(bases) > 0 && f.contradicts(oldest, bases) {
		return errContradiction
	}
	// One more than blocks: that of the next block.
	if len(bases) == len(ratios)+1 && f.plausible(bases[len(bases)-1]) {
		f.BaseFee = bases[len(bases)-1]
	}
	for s := range f.Tips {
		var tips []*big.Int
		for i, block := range rewards {
			empty := i < len(ratios) && (ratios[i] == "0" || ratios[i] == "0.0")
			if !empty && s < len(block) {
				tips = append(tips, block[s])
			}
		}
		if len(tips) > 0 {
			slices.SortFunc(tips, (*big.Int).Cmp)
			f.Tips[s] = tips[len(tips)/2]
		}
		if s > 0 && f.Tips[s].Cmp(f.Tips[s-1]) < 0 {
			f.Tips[s] = f.Tips[s-1]
		}
	}
	return nil
}
