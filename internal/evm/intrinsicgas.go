package evm

import (
	"bytes"

	"github.com/ethereum/go-ethereum/params"
)

// IntrinsicGasOf returns the gas that a transaction without an access list costs before it runs: the base cost and its data (EIP-2028, and
// EIP-3860 where it creates a contract), or the floor for its data (EIP-7623) where that is higher. On older chains some transactions
// cost less; callers ask for more in practice. It overflows only above 2^58 bytes of data.
//
// go-ethereum's core has the same rules, and brings its virtual machine and database along.
func IntrinsicGasOf(data []byte, createsContract bool) uint64 {
	zeros := uint64(bytes.Count(data, []byte{0}))
	others := uint64(len(data)) - zeros
	gas := params.TxGas
	if createsContract {
		words := (uint64(len(data)) + 31) / 32
		gas = params.TxGasContractCreation + words*params.InitCodeWordGas
	}
	gas += zeros*params.TxDataZeroGas + others*params.TxDataNonZeroGasEIP2028
	floor := params.TxGas + (zeros+others*params.TxTokenPerNonZeroByte)*params.TxCostFloorPerToken
	return max(gas, floor)
}
