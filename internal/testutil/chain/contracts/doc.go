// Package contracts holds the contract that tests call: it counts calls by id, and fails in every possible way.
//
// Counter.bin and Counter.abi.json are evm.bytecode.object and abi of the output of solc 0.8.30+commit.73712a01 for
// Counter.sol, with --standard-json and the settings {"optimizer": {"enabled": true, "runs": 200}, "evmVersion":
// "cancun", "metadata": {"bytecodeHash": "none", "appendCBOR": false}}.
//
// Tests of the relayer deploy it.
package contracts
