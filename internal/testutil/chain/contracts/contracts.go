package contracts

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

var (
	//go:embed Counter.bin
	counterHex []byte
	//go:embed Counter.abi.json
	counterJSON []byte

	counterCode = mustCode()
	counterABI  = mustABI()
)

// CounterCode returns the data of a transaction without receiver that creates a Counter. DeployGas is enough for it.
func CounterCode() []byte { return bytes.Clone(counterCode) }

const (
	// DeployGas is enough for a transaction that creates a Counter, also on geth's dev chain, which needs more gas than
	// any network.
	DeployGas = 5_000_000
	// HitGas is enough for a hit, including an id's first one, likewise.
	HitGas = 300_000
	// ReadMax is how many counts one call reads.
	ReadMax = 1_000
)

// Calls of a Counter, as the data of a transaction.

// Hit counts one call with the id.
func Hit(id common.Hash) []byte { return call("hit", id) }

// Fail reverts with a reason.
func Fail(reason string) []byte { return call("fail", reason) }

// Refuse reverts with the custom error Refused(address caller, uint256 code).
func Refuse(code uint64) []byte { return call("refuse", new(big.Int).SetUint64(code)) }

// FailSilently reverts without data.
func FailSilently() []byte { return call("failSilently") }

// Overflow panics with code 0x11.
func Overflow() []byte { return call("overflow") }

// Exhaust runs out of gas at every gas limit.
func Exhaust() []byte { return call("exhaust") }

// Burn uses at least the given gas in addition to the 21,000 of any transaction; it succeeds with about 50,000 more.
func Burn(gas uint64) []byte { return call("burn", new(big.Int).SetUint64(gas)) }

// HitAfter is a hit that reverts with "not yet" until another id was hit n times.
func HitAfter(id, other common.Hash, n uint64) []byte {
	return call("hitAfter", id, other, new(big.Int).SetUint64(n))
}

// Counts reads how often each id was hit as of a block, nil for the latest, [ReadMax] ids per call. More ids are
// consistent with each other only if the block is given.
func Counts(
	ctx context.Context, chain ethereum.ContractCaller, counter common.Address, block *big.Int, ids ...common.Hash,
) ([]uint64, error) {
	counts := make([]uint64, 0, len(ids))
	for chunk := range slices.Chunk(ids, ReadMax) {
		answer, err := chain.CallContract(ctx, ethereum.CallMsg{To: &counter, Data: call("counts", chunk)}, block)
		if err != nil {
			return nil, fmt.Errorf("read counts of %v: %w", counter, err)
		}
		var chunkCounts []*big.Int
		if err := counterABI.UnpackIntoInterface(&chunkCounts, "counts", answer); err != nil {
			return nil, fmt.Errorf("read counts of %v: %w", counter, err)
		}
		for _, n := range chunkCounts {
			counts = append(counts, n.Uint64())
		}
	}
	return counts, nil
}

// Total reads how often any id was hit, as of a block, nil for the latest.
func Total(ctx context.Context, chain ethereum.ContractCaller, counter common.Address, block *big.Int) (uint64, error) {
	answer, err := chain.CallContract(ctx, ethereum.CallMsg{To: &counter, Data: call("total")}, block)
	if err != nil {
		return 0, fmt.Errorf("read total of %v: %w", counter, err)
	}
	var n *big.Int
	if err := counterABI.UnpackIntoInterface(&n, "total", answer); err != nil {
		return 0, fmt.Errorf("read total of %v: %w", counter, err)
	}
	return n.Uint64(), nil
}

// HitEvent is the event that a hit logs.
type HitEvent struct {
	ID     common.Hash
	Caller common.Address
	Count  uint64
}

// ParseHit parses a hit from a log; false if the log is another event.
func ParseHit(l *types.Log) (HitEvent, bool) {
	if len(l.Topics) != 3 || l.Topics[0] != counterABI.Events["Hit"].ID || len(l.Data) != 32 {
		return HitEvent{}, false
	}
	return HitEvent{
		ID: l.Topics[1], Caller: common.BytesToAddress(l.Topics[2][:]), Count: new(big.Int).SetBytes(l.Data).Uint64(),
	}, true
}

// RefusedSelector returns the first four bytes of Refuse's revert data.
func RefusedSelector() []byte { return counterABI.Errors["Refused"].ID.Bytes()[:4] }

// call panics if arguments do not match the method, because all of them are from this file.
func call(method string, args ...any) []byte {
	data, err := counterABI.Pack(method, args...)
	if err != nil {
		panic(err)
	}
	return data
}

func mustCode() []byte {
	code, err := hex.DecodeString(string(bytes.TrimSpace(counterHex)))
	if err != nil {
		panic(err)
	}
	return code
}

func mustABI() abi.ABI {
	parsed, err := abi.JSON(bytes.NewReader(counterJSON))
	if err != nil {
		panic(err)
	}
	return parsed
}
