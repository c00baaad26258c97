package forward

import (
	"bytes"
	"math"

	"github.com/ethereum/go-ethereum/params"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// DefaultBaseGas is the gas that a transaction to the forwarder needs besides the parts that Gas computes.
const DefaultBaseGas = 80_000

// Gas returns the gas limit of the transaction that executes a request, with its calldata. Package documentation has the
// formula. It returns a *FieldError if the limit is above 2^64-1.
func Gas(r *Request, calldata []byte, base uint64) (uint64, error) {
	zeros := uint64(bytes.Count(calldata, []byte{0}))
	others := uint64(len(calldata)) - zeros
	words := uint64(padded(len(r.Data))) / wordSize
	overhead := zeros*params.TxDataZeroGas + others*params.TxDataNonZeroGasEIP2028 + hashingGas(words)
	if r.Value != nil && r.Value.Sign() != 0 {
		overhead += params.CallValueTransferGas
	}
	// The most that a call can receive is 63/64 of the gas that is left (EIP-150).
	kept := r.Gas / 63
	if r.Gas%63 != 0 {
		kept++
	}
	total := r.Gas
	for _, part := range []uint64{kept, overhead, base} {
		if part > math.MaxUint64-total {
			return 0, &FieldError{Field: "gas", Problem: "exceeds 2^64-1 with the forwarder's overhead"}
		}
		total += part
	}
	return max(total, evm.IntrinsicGasOf(calldata, false)), nil
}

// hashingGas returns the gas for w words of data that the forwarder copies to memory twice and hashes once: 3 a word for each
// copy, 6 for the hash, and the price of 2 w words of memory. A compiler may use the memory of the first copy again; then it
// is less.
func hashingGas(w uint64) uint64 {
	memory := 2 * w
	return w*(2*params.CopyGas+params.Keccak256WordGas) + memory*params.MemoryGas + memory*memory/params.QuadCoeffDiv
}
