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
	feeBlocks = 10          // looked back upon
	feeAge    = time.Minute // that fees are kept for without a new head
)

// feePercentiles are where each speed wants to be among what recent blocks' gas paid.
var feePercentiles = []float64{30, 50, 85, 99}

// Fees are what to offer now, in wei. They are shared: not to be changed.
type Fees struct {
	// EIP1559 says that the chain has a base fee. Without it there is only GasPrice.
	EIP1559 bool
	BaseFee *big.Int // of the next block; nil without EIP1559
	// Tips are the priority fees for each Speed, never falling; nil without EIP1559.
	Tips [speeds]*big.Int
	// GasPrice is what the node suggests for transactions of the old kind.
	GasPrice *big.Int
	Head     Header // that they are from
}

// Price for a transaction of the old kind: the base fee and the speed's tip, or what the node suggests.
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

// feeCache keeps the fees until the next head.
type feeCache struct {
	loading chan struct{} // full while somebody asks; a channel, so that others wait no longer than they want to
	once    sync.Once

	mu   sync.Mutex
	fees Fees
	head common.Hash // newest known when they were asked for
	at   time.Time
}

func (fc *feeCache) get(head common.Hash) (Fees, bool) {
	fc.mu.Lock()
	defer fc.mu.Unlock()
	return fc.fees, !fc.at.IsZero() && fc.head == head && time.Since(fc.at) < feeAge
}

// Fees to offer. They are asked for once a head, by the first who wants them. While no endpoint answers, those of the
// last minute are returned.
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

// feeMethods are those that fees are read with, except for the suggested tip, without which they are known.
var feeMethods = []string{headMethod, "eth_gasPrice", "eth_feeHistory"}

// readFees reads the fees at one endpoint. Where none has a history of fees, an endpoint's own suggestion has to do.
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

// readFees returns an error with the fees of the node's suggestion if only the history is missing.
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
	// Where blocks are empty nothing says what a tip should be but the node's own suggestion.
	suggested := new(big.Int)
	if tip, err := parseBig(answers[2].result); answers[2].err == nil && err == nil {
		suggested = tip
	} else if above := new(big.Int).Sub(f.GasPrice, head.BaseFee); above.Sign() > 0 {
		suggested = above
	}
	f.BaseFee = head.BaseFee
	for i := range f.Tips {
		f.Tips[i] = suggested
	}
	if e, ok := errors.AsType[*RPCError](answers[3].err); ok && unsupported(e) {
		return f, nil // the chain has none
	}
	if answers[3].err != nil {
		return f, answers[3].err
	}
	learnt := f
	if err := learnt.learn(answers[3].result); err != nil {
		return f, ep.transportError(true, fmt.Errorf("fee history: %w", err))
	}
	return learnt, nil
}

// learn takes the next base fee and the tips out of the answer to eth_feeHistory.
func (f *Fees) learn(raw []byte) error {
	var bases []*big.Int
	var ratios []string
	var rewards [][]*big.Int
	err := fields(raw, func(key string, value []byte) error {
		if isNull(value) {
			return nil
		}
		switch key {
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
	if len(bases) == len(ratios)+1 { // one more than blocks: that of the next
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
