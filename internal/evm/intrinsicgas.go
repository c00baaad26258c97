package evm

import (
	"bytes"

	"github.com/ethereum/go-ethereum/params"
)

// IntrinsicGasOf returns the gas that a transaction without an access list costs before it runs: the base cost and its data (EIP-2028, and
// EIP-3860 where it creates a contract), or the floor for its data (EIP-7623) where that is higher. On older chains some transactions
// cost less, see LeastGasOf. It overflows only above 2^58 bytes of data.
//
// go-ethereum's core has the same rules, and brings its virtual machine and database along.
func IntrinsicGasOf(data []byte, createsContract bool) uint64 {
	gas, zeros, others := LeastGasOf(data, createsContract), zeroBytes(data), uint64(len(data))-zeroBytes(data)
	if createsContract {
		gas += (uint64(len(data)) + 31) / 32 * params.InitCodeWordGas
	}
	floor := params.TxGas + (zeros+others*params.TxTokenPerNonZeroByte)*params.TxCostFloorPerToken
	return max(gas, floor)
}

// LeastGasOf is IntrinsicGasOf on a chain that has neither EIP-3860 nor EIP-7623.
func LeastGasOf(data []byte, createsContract bool) uint64 {
	gas, zeros := params.TxGas, zeroBytes(data)
	if createsContract {
		gas = params.TxGasContractCreation
	}
	return gas + zeros*params.TxDataZeroGas + (uint64(len(data))-zeros)*params.TxDataNonZeroGasEIP2028
}

func zeroBytes(data []byte) uint64 { return uint64(bytes.Count(data, []byte{0})) }
