package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassify_ClientMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		client, message string
		code            int
		want            Outcome
	}{
		{"geth", "already known", -32000, AlreadyKnown},
		{"geth", "nonce too low: next nonce 7, tx nonce 3", -32000, NonceTooLow},
		{"geth", "nonce too high: tx nonce 9, gapped nonce 7", -32000, NonceTooHigh},
		{"geth", "replacement transaction underpriced", -32000, ReplacementUnderpriced},
		{"geth", "replacement transaction underpriced: new tx gas fee cap 1 <= 1 queued", -32000, ReplacementUnderpriced},
		{"geth", "transaction underpriced", -32000, Underpriced},
		{"geth", "transaction gas price below minimum: gas tip cap 0, minimum needed 1", -32000, Underpriced},
		{"geth", "max fee per gas less than block base fee: address 0x0, maxFeePerGas: 1, baseFee: 7", -32000, FeeCapTooLow},
		{"geth", "insufficient funds for gas * price + value: balance 0, tx cost 21000, overshot 21000", -32000, InsufficientFunds},
		{"geth", "insufficient funds for gas * price + value: balance 9, queued cost 8, tx cost 2, overshot 1", -32000, InsufficientFunds},
		{"geth", "intrinsic gas too low: gas 20999, minimum needed 21000", -32000, IntrinsicGas},
		{"geth", "insufficient gas for floor data gas cost: gas 21000, minimum needed 22000", -32000, IntrinsicGas},
		{"geth", "exceeds block gas limit", -32000, ExceedsBlockGas},
		{"geth", "transaction gas limit too high (cap: 16777216, tx: 16777217)", -32000, ExceedsBlockGas},
		{"geth", "max priority fee per gas higher than max fee per gas: address 0x0", -32000, TipAboveCap},
		{"geth", "txpool is full", -32000, PoolFull},
		{"geth", "account limit exceeded: pooled 16 txs", -32000, PoolFull},
		{"geth", "in-flight transaction limit reached for delegated accounts", -32000, PoolFull},
		{"geth", "gapped-nonce tx from delegated accounts", -32000, PoolFull},
		{"geth", "future transaction tries to replace pending", -32000, PoolFull},
		{"geth", "invalid sender: invalid chain id for signer: have 1 want 1337", -32000, WrongChain},
		{"geth", "only replay-protected (EIP-155) transactions allowed over RPC", -32000, WrongChain},
		{"geth", "oversized data: transaction size 140000, limit 131072", -32000, Oversized},
		{"geth", "tx fee (1.20 ether) exceeds the configured cap (1.00 ether)", -32000, FeeCapExceeded},
		{"geth", "rlp: element is larger than containing list", -32000, Refused},
		{"geth", "the method eth_sendRawTransaction does not exist/is not available", -32601, NotSent},
		{"geth", "request timed out", -32002, Unknown},
		{"geth", "pool already terminated", -32000, Unknown},

		{"Nethermind", "AlreadyKnown", -32010, AlreadyKnown},
		{"Nethermind", "OldNonce, Current nonce: 5, nonce of rejected tx: 4", -32010, NonceTooLow},
		{"Nethermind", "NonceGap, Future nonce. Expected nonce: 5", -32010, NonceTooHigh},
		{"Nethermind", "FeeTooLow, MaxFeePerGas too low. MaxFeePerGas: 1, BaseFee: 7", -32010, Underpriced},
		{"Nethermind", "FeeTooLowToCompete", -32010, Underpriced},
		{"Nethermind", "ReplacementNotAllowed", -32010, ReplacementUnderpriced},
		{"Nethermind", "InsufficientFunds, Account balance: 0, cumulative cost: 1", -32010, InsufficientFunds},
		{"Nethermind", "GasLimitExceeded, Gas limit: 1, gas limit of rejected tx: 2", -32010, ExceedsBlockGas},
		{"Nethermind", "FailedToResolveSender", -32010, WrongChain},
		{"Nethermind", "transaction invalid, InvalidTxChainId: Expected 1, got 5.", -32010, WrongChain},
		{"Nethermind", "transaction invalid, intrinsic gas too low", -32010, IntrinsicGas},
		{"Nethermind", "transaction invalid, NonceTooHigh: Nonce exceeds max nonce", -32010, Refused},
		{"Nethermind", "transaction invalid, something else", -32010, Refused},
		{"Nethermind", "delegation nonce gap", -32010, PoolFull},
		{"Nethermind", "nonce too far in future", -32010, NonceTooHigh},
		{"Nethermind", "transaction too large", -32010, Oversized},

		{"Besu", "Known transaction", -32000, AlreadyKnown},
		{"Besu", "Nonce too low", -32001, NonceTooLow},
		{"Besu", "Nonce too high", -32006, NonceTooHigh},
		{"Besu", "Transaction nonce is too distant from current sender nonce", -32000, NonceTooHigh},
		{"Besu", "Replacement transaction underpriced", -32000, ReplacementUnderpriced},
		{"Besu", "Gas price below configured minimum gas price", -32009, Underpriced},
		{"Besu", "Gas price below current base fee", -32009, FeeCapTooLow},
		{"Besu", "Upfront cost exceeds account balance", -32004, InsufficientFunds},
		{"Besu", "Intrinsic gas exceeds gas limit", -32003, IntrinsicGas},
		{"Besu", "Transaction gas limit exceeds block gas limit", -32005, ExceedsBlockGas},
		{"Besu", "Max priority fee per gas exceeds max fee per gas", -32000, TipAboveCap},
		{"Besu", "Wrong chainId", -32000, WrongChain},
		{"Besu", "Invalid signature", -32002, WrongChain},
		{"Besu", "Transaction fee cap exceeded", -32000, FeeCapExceeded},
		{"Besu", "Sender account not authorized to send transactions", -32007, Refused},
		{"Besu", "Timeout expired", -32603, Unknown},

		{"Erigon", "ALREADY_EXISTS: already known", -32000, AlreadyKnown},
		{"Erigon", "INTERNAL_ERROR: existing txn with same hash", -32000, AlreadyKnown},
		{"Erigon", "FEE_TOO_LOW: underpriced", -32000, Underpriced},
		{"Erigon", "INVALID: could not replace existing tx", -32000, ReplacementUnderpriced},
		{"Erigon", "INTERNAL_ERROR: nonce too low", -32000, NonceTooLow},
		{"Erigon", "INTERNAL_ERROR: insufficient funds", -32000, InsufficientFunds},
		{"Erigon", "INTERNAL_ERROR: pending sub-pool is full", -32000, PoolFull},
		{"Erigon", "INTERNAL_ERROR: IntrinsicGas", -32000, IntrinsicGas},
		{"Erigon", "INTERNAL_ERROR: RLPTooLong", -32000, Oversized},
		{"Erigon", "invalid chain id, expected: 1 got: 5", -32000, WrongChain},
		{"Erigon", "INTERNAL_ERROR: not set", -32000, Unknown},
		{"Erigon", "rlp parse transaction: unknown transaction type: 5", -32000, Refused},

		{"Reth", "nonce too low: next nonce 7, tx nonce 3", -32000, NonceTooLow},
		{"Reth", "insufficient funds for gas * price + value: have 0 want 1", -32003, InsufficientFunds},
		{"Reth", "transaction priority fee below minimum required priority fee 1", -32003, Underpriced},
		{"Reth", "invalid chain ID", -32000, WrongChain},
		{"Reth", "intrinsic gas too high", -32000, ExceedsBlockGas},
		{"Reth", "exceeds max transaction gas limit", -32000, ExceedsBlockGas},
		{"Reth", "txpool is full", -32003, PoolFull},
		{"Reth", "sender is not an EOA", -32003, Refused},
		{"Reth", "internal eth error", -32603, Unknown},

		{"Arbitrum", "queue full", -32000, PoolFull},
		{"Arbitrum", "sequencer pending tx pool full, please try again", -32000, PoolFull},
		{"Arbitrum", "nonce too high: address 0x0, tx: 9 state: 7", -32000, NonceTooHigh},
		{"Arbitrum", "max fee per gas less than block base fee: address 0x0", -32000, FeeCapTooLow},
		{"Arbitrum", "forbidden sender address", -32000, Refused},
		{"Optimism", "sender is over rate limit", -32017, RateLimited},
		{"Optimism", "over rate limit", -32016, RateLimited},
		{"Infura", "project ID request rate exceeded", -32005, RateLimited},
		{"Infura", "daily request count exceeded, request rate limited", -32005, RateLimited},
		{"Alchemy", "Your app has exceeded its compute units per second capacity.", 429, RateLimited},
		{"QuickNode", "50/second request limit reached - reduce calls per second or upgrade your account", -32007, RateLimited},
		{"geth", "insufficient funds for transfer", -32000, InsufficientFunds},
		{"geth", "insufficient balance for transfer", -32000, InsufficientFunds},
		{"BNB", "transaction would cause overdraft", -32000, InsufficientFunds},
		{"Nethermind", "InsufficientFunds, Balance is 1 less than sending value + gas 2", -32010, InsufficientFunds},
		{"Nethermind", "OwnNonceAlreadyUsed", -32010, ReplacementUnderpriced},
		{"Besu", "transaction invalid transaction up-front cost 0x2 exceeds transaction sender account balance 0x1", -32004, InsufficientFunds},
		{"Reth", "lack of funds (1) for max fee (2)", -32003, InsufficientFunds},
		{"Reth", "gas price is less than basefee", -32003, FeeCapTooLow},
		{"Reth", "priority fee is greater than max fee", -32003, TipAboveCap},
		{"Reth", "call gas cost (53000) exceeds the gas limit (21000)", -32003, IntrinsicGas},
		{"Reth", "caller gas limit exceeds the block gas limit", -32003, ExceedsBlockGas},
		{"Arbitrum", "not enough funds for gas", -32000, InsufficientFunds},
		{"Arbitrum", "transaction rejected: insufficient funds for gas * price + value", -32000, InsufficientFunds},
		{"Arbitrum", "nonce too low: address 0x0, tx: 8089 state: 8090", -32000, NonceTooLow},
		{"Arbitrum", "tx dropped due to L2 congestion", -32000, PoolFull},
		{"Arbitrum", "execution reverted: insufficient funds", -32000, Refused},
		{"Arbitrum", "execution reverted: TimelockController: underlying transaction reverted", -32000, Refused},
		{"Arbitrum", "execution reverted: VM Exception while processing transaction: revert", -32000, Refused},
		{"Optimism", "invalid transaction: insufficient funds for gas * price + value", -32000, InsufficientFunds},
		{"Optimism", "invalid transaction: nonce too low", -32000, NonceTooLow},
		{"Mantle", "failed to forward tx to sequencer, please try again. Error message: 'insufficient funds for gas * price + value'", -32000, InsufficientFunds},
		{"Mantle", "failed to forward tx to sequencer, please try again. Error message: 'nonce too low'", -32000, NonceTooLow},
		{"Mantle", "failed to forward tx to sequencer, please try again. Error message: 'already known'", -32000, AlreadyKnown},
		{"Metis", "gas price too low: 18000000000 wei, use at least tx.gasPrice = 19500000000 wei", -32000, Underpriced},
		{"Celo", "insufficient funds for gas * price + value + gatewayFee", -32000, InsufficientFunds},
		{"Celo", "gasprice is less than gas price minimum floor 100000000", -32000, Underpriced},
		{"Celo", "tx fee (1.10 of currency celo) exceeds the configured cap (1.00 celo)", -32000, FeeCapExceeded},
		{"Avalanche", "nonce too low: address 0x0 current nonce (5833) > tx nonce (5511)", -32000, NonceTooLow},
		{"Polygon", "transaction gas price below minimum: gas tip cap 1, minimum needed 25000000000", -32000, Underpriced},
		{"Polygon Edge", "not enough funds to cover gas costs", -32000, InsufficientFunds},
		{"Polygon zkEVM", "failed to add tx to the pool: not enough step counters to continue the execution", -32000, Refused},
		{"Polygon zkEVM", "RPC error response: failed to add tx to the pool: out of counters at node level (Steps)", -32000, Refused},
		{"Fantom", "insufficient funds for gas * price + value", -32000, InsufficientFunds},

		{"zkSync", "insufficient funds for gas + value. balance: 1, fee: 2, value: 3", 3, InsufficientFunds},
		{"zkSync", "insufficient balance for transfer", 3, InsufficientFunds},
		{"zkSync", "not enough balance to cover the fee. error message: x", 3, InsufficientFunds},
		{"zkSync", "nonce too low. allowed nonce range: 427 - 447, actual: 426", 3, NonceTooLow},
		{"zkSync", "nonce too high. allowed nonce range: 427 - 477, actual: 527", 3, NonceTooHigh},
		{"zkSync", "known transaction. transaction with hash 0x6013…3053 is already in the system", 3, AlreadyKnown},
		{"zkSync", "insertion of another transaction with the same nonce is in progress", 3, PoolFull},
		{"zkSync", "virtual machine entered unexpected state. please contact developers and provide transaction details that caused this error. Error description: The operator included transaction with an unacceptable gas price", 3, FeeCapTooLow},
		{"zkSync", "failed to validate the transaction. reason: Validation revert: virtual machine entered unexpected state. Error description: Assertion error: Fair pubdata price too high", 3, FeeCapTooLow},
		{"zkSync", "failed to validate the transaction. reason: Validation revert: Account validation error: Not enough gas for transaction validation", 3, IntrinsicGas},
		{"zkSync", "failed to validate the transaction. reason: Validation revert: Failed to pay for the transaction: Failed to pay the fee to the operator", 3, IntrinsicGas},
		{"zkSync", "failed to validate the transaction. reason: Validation revert: Account validation error: Error function_selector = 0x, data = 0x", 3, Refused},
		{"zkSync", "invalid sender. can't start a transaction from a non-account", 3, Refused},
		{"zkSync", "Failed to serialize transaction: max fee per gas higher than 2^64-1", 3, Refused},
		{"zkSync", "Failed to serialize transaction: oversized data. max: 1; actual: 2", 3, Oversized},

		{"Hedera", "[Request ID: 2e952947] Insufficient funds for transfer", -32000, InsufficientFunds},
		{"Hedera", "[Request ID: 2e952947] Error invoking RPC: transaction 0.0.3@1.6 failed precheck with status INSUFFICIENT_PAYER_BALANCE", -32603, InsufficientFunds},
		{"Hedera", "[Request ID: 2e952947] Nonce too low. Provided nonce: 15, current nonce: 15", 32001, NonceTooLow},
		{"Hedera", "[Request ID: 2e952947] Nonce too high. Provided nonce: 16, current nonce: 15", 32002, NonceTooHigh},
		{"Hedera", "[Request ID: 2e952947] Gas price '830000000000' is below configured minimum gas price '950000000000'", -32009, Underpriced},
		{"Hedera", "Transaction gas limit provided '100' is insufficient of intrinsic gas required '200'", -32003, IntrinsicGas},
		{"Hedera", "Transaction gas limit '100' exceeds max gas per sec limit '50'", -32005, ExceedsBlockGas},
		{"Hedera", "Error invoking RPC: transaction 0.0.4@1.9 failed precheck with status INVALID_SIGNATURE", -32603, WrongChain},
		{"Hedera", "IP Rate limit exceeded on eth_sendRawTransaction", -32605, RateLimited},
		{"Hedera", "Error invoking RPC: Transaction execution returns a null value for transaction", -32603, Unknown},

		{"Monad", "Signer had insufficient balance", -32000, InsufficientFunds},
		{"Monad", "Transaction nonce too low", -32000, NonceTooLow},
		{"Monad", "Transaction fee too low", -32000, Underpriced},
		{"Monad", "An existing transaction had higher priority", -32000, ReplacementUnderpriced},
		{"Monad", "Transaction pool is full", -32000, PoolFull},
		{"Monad", "Transaction pool is not ready", -32000, PoolFull},
		{"Monad", "Gas limit too low", -32000, IntrinsicGas},
		{"Monad", "Exceeds transaction gas limit", -32000, ExceedsBlockGas},
		{"Monad", "Transaction signature is invalid", -32000, WrongChain},

		{"Kaia", "insufficient funds of the sender for value ", -32000, InsufficientFunds},
		{"Kaia", "there is another tx which has the same nonce in the tx pool", -32000, ReplacementUnderpriced},
		{"Kaia", "max fee per gas higher than max priority fee per gas", -32000, TipAboveCap},
		{"Kaia", "invalid gas fee cap. It must be set to value greater than or equal to baseFee", -32000, FeeCapTooLow},

		{"Parity", "Insufficient funds. The account you tried to send transaction from does not have enough funds. Required 2 and got: 1.", -32010, InsufficientFunds},
		{"Parity", "Insufficient balance for transaction. Balance=100.25, Cost=200.50", -32010, InsufficientFunds},
		{"Parity", "Transaction nonce is too low. Try incrementing the nonce.", -32010, NonceTooLow},
		{"Parity", "Transaction with the same hash was already imported.", -32010, AlreadyKnown},
		{"Parity", "Transaction gas price 100wei is too low. There is another transaction with same nonce in the queue with gas price: 150wei. Try increasing the gas price or incrementing the nonce.", -32010, ReplacementUnderpriced},
		{"Parity", "Transaction gas price is too low. It does not satisfy your node's minimal gas price (minimal: 100, got: 50). Try increasing the gas price.", -32010, Underpriced},
		{"Parity", "Transaction max gas price is lower then the required base fee (gas_price: 1, base_fee: 2). Try increasing the max gas price.", -32010, FeeCapTooLow},
		{"Parity", "There are too many transactions in the queue. Your transaction was dropped due to limit. Try increasing the fee.", -32010, PoolFull},
		{"Parity", "Transaction gas is too low. There is not enough gas to cover minimal cost of the transaction (minimal: 100, got: 50). Try increasing supplied gas.", -32010, IntrinsicGas},
		{"Parity", "Transaction cost exceeds current gas limit. Limit: 50, got: 100. Try decreasing supplied gas.", -32010, ExceedsBlockGas},
		{"Parity", "Supplied gas is beyond limit.", -32010, ExceedsBlockGas},
		{"Parity", "Sender is banned in local queue.", -32010, Refused},
		{"Parity", "Transaction is not permitted.", -32010, Refused},
		{"Parity", "Transaction is too big, see chain specification for the limit.", -32010, Oversized},
		{"Parity", "Invalid RLP data: x", -32010, Refused},

		{"Hardhat", "Sender doesn't have enough funds to send tx. The max upfront cost is: 2 and the sender's balance is: 1.", -32000, InsufficientFunds},
		{"Hardhat", "sender doesn't have enough funds to send tx. The max upfront cost is: 2 and the sender's account only has: 1", -32000, InsufficientFunds},
		{"Hardhat", "Nonce too low. Expected nonce to be 1 but got 0. Note that transactions can't be queued when automining.", -32000, NonceTooLow},
		{"Hardhat", "Nonce too high. Expected nonce to be 1 but got 2. Note that transactions can't be queued when automining.", -32000, NonceTooHigh},
		{"Hardhat", "Known transaction: 0x01", -32000, AlreadyKnown},
		{"Hardhat", "Transaction maxFeePerGas (1) is too low for the next block, which has a baseFeePerGas of 2", -32000, FeeCapTooLow},
		{"Hardhat", "Transaction gas price is 1, which is below the minimum of 2", -32000, Underpriced},
		{"Hardhat", "Transaction requires at least 21000 gas but got 1", -32000, IntrinsicGas},
		{"Hardhat", "Transaction gas limit is 2 and exceeds block gas limit of 1", -32000, ExceedsBlockGas},
		{"Hardhat", "Transaction gas limit is 2 and exceeds transaction gas cap of 1", -32000, ExceedsBlockGas},
		{"Hardhat", "Trying to send an incompatible EIP-155 transaction, signed for another chain.", -32000, WrongChain},
		{"Hardhat, which has mined it", "Error: VM Exception while processing transaction: reverted with reason string 'insufficient funds'", -32603, AlreadyKnown},
		{"Hardhat, which has mined it", "Error: Transaction reverted without a reason string", -32603, AlreadyKnown},
		{"Ganache, which has mined it", "VM Exception while processing transaction: revert nonce too low", -32000, AlreadyKnown},
		{"Ganache", "sender doesn't have enough funds to send tx. The upfront cost is: 2 and the sender's account only has: 1", -32000, InsufficientFunds},
		{"Ganache", "the tx doesn't have the correct nonce. account has nonce of: 1 tx has nonce of: 0", -32000, NonceTooLow},
		{"Anvil", "Insufficient funds for gas * price + value", -32003, InsufficientFunds},
		{"Anvil", "Tx: [0x01] already Imported", -32003, AlreadyKnown},
		{"Anvil", "Tx: [0x01] insufficient gas price to replace existing transaction", -32003, ReplacementUnderpriced},
		{"Anvil", "Transaction gas limit is greater than the block gas limit, gas_limit: 2, cap: 1", -32003, ExceedsBlockGas},

		{"Moonbeam", "gas price less than block base fee", -32603, FeeCapTooLow},
		{"Moonriver", "submit transaction to pool failed: Pool(Stale)", -32603, NonceTooLow},
		{"Moonriver", "submit transaction to pool failed: Pool(AlreadyImported)", -32603, AlreadyKnown},
		{"Moonriver", "submit transaction to pool failed: Pool(TooLowPriority { old: 1, new: 0 })", -32603, ReplacementUnderpriced},
		{"Moonriver", "submit transaction to pool failed: Pool(InvalidTransaction(InvalidTransaction::Payment))", -32603, InsufficientFunds},
		{"Harmony", "transaction already finalized", -32000, NonceTooLow},
		{"Harmony", "`to` address of transaction in blacklist", -32000, Refused},
		{"Harmony", "invalid shard", -32000, Refused},
		{"Rootstock", "insufficient funds to pay for pending and new transactions", -32010, InsufficientFunds},
		{"Rootstock", "gas price not enough to bump transaction", -32010, ReplacementUnderpriced},
		{"Filecoin", "mpool push: not enough funds: 1 < 2", -32000, InsufficientFunds},
		{"Aurora", "ERR_OUT_OF_FUND", -32000, InsufficientFunds},
		{"Tron", "Contract validate error : Validate TransferContract error, balance is not sufficient.", -32000, InsufficientFunds},
		{"Evmos", "failed to check sender balance: sender balance < tx cost (1aevmos < 2aevmos): insufficient funds", -32000, InsufficientFunds},
		{"Evmos", "invalid nonce; got 3, expected 5: invalid sequence", -32000, NonceTooLow},
		{"Sei", "tx already exists in cache", -32000, AlreadyKnown},
		{"Sei", "insufficient fee", -32000, Underpriced},
		{"Sei", "Tx too large. Max size is 2048576, but got 2097431", -32000, Oversized},
		{"Conflux", "txpool is full", -32000, PoolFull},

		{"anybody", "", -32000, Unknown},
		{"anybody", "internal error", -32603, Unknown},
		{"anybody", "something new", -32099, Unknown},
	} {
		e := &RPCError{Message: test.message, Code: test.code}
		require.Equal(t, test.want, Classify(fmt.Errorf("send: %w", e)), "%s: %s (%d)", test.client, test.message, test.code)
	}
}

// The cause may be in the data. A contract's own words are none of the node's.
func TestClassify_Data_Decide(t *testing.T) {
	t.Parallel()
	const refusal = `"0x08c379a00000000000000000000000000000000000000000000000000000000000000020000000000000000000000000000000000000000000000000000000000000000d6e6f6e636520746f6f206c6f7700000000000000000000000000000000000000"`
	for _, test := range []struct {
		message, data string
		code          int
		want          Outcome
	}{
		{"Invalid parameters: tx", `"\"Transaction 0x01 is discarded due to out of balance, needs 2 but account balance is 1\""`, -32602, InsufficientFunds},
		{"Invalid parameters: tx", `"\"Transaction 0x01 is discarded due to a too stale nonce\""`, -32602, NonceTooLow},
		{"Invalid parameters: tx", `"\"tx already exist\""`, -32602, AlreadyKnown},
		{"nonce too low", refusal, -32000, Refused},
		{"something new", refusal, -32099, Refused},
		{"over rate limit", refusal, -32005, Refused},
		{"something new", `"0x"`, -32099, Unknown},
		{"something new", `{"trace_id":"0x01"}`, -32099, Unknown},
	} {
		e := &RPCError{Message: test.message, Code: test.code, Data: json.RawMessage(test.data)}
		require.Equal(t, test.want, Classify(e), "%s: %s", test.message, test.data)
	}
}

func TestClassify_ErrorsWithoutResponse(t *testing.T) {
	t.Parallel()
	for want, errs := range map[Outcome][]error{
		Accepted:    {nil},
		RateLimited: {&RateLimitError{}, fmt.Errorf("x: %w", &RateLimitError{})},
		NotSent:     {&TransportError{Err: errors.New("refused")}, &WrongChainError{}, fmt.Errorf("x: %w", ErrNoEndpoint)},
		Unknown:     {&TransportError{Sent: true, Err: errors.New("reset")}, context.DeadlineExceeded, errMissing, errMalformed, errors.New("x")},
	} {
		for _, err := range errs {
			require.Equal(t, want, Classify(err), "%v", err)
		}
	}
}

func TestRows_EachMatchesItsOwnTextAndNamesSource(t *testing.T) {
	t.Parallel()
	checkRows(t, sendRows, Unknown)
	checkRows(t, minedRows, false)
	checkRows(t, revertRows, false)
	checkRows(t, limitRows, false)
	checkRows(t, staleRows, false)
	checkRows(t, pendingRows, false)
	checkRows(t, tagRows, false)
	checkRows(t, batchRows, false)
	checkRows(t, callRows, failureOther)
}

func checkRows[T comparable](t *testing.T, rows []row[T], otherwise T) {
	t.Helper()
	for i, r := range rows {
		require.NotEmpty(t, r.source, "%+v", r)
		require.Equal(t, strings.ToLower(r.text), r.text, "texts are compared in lower case")
		require.NotEqual(t, r.text == "", r.code == 0, "%+v: a text or a code", r)
		for _, earlier := range rows[:i] {
			require.False(t, earlier.text != "" && strings.Contains(r.text, earlier.text) && earlier.means == r.means,
				"%q says no more than %q", r.text, earlier.text)
		}
		require.Equal(t, r.means, match(rows, &RPCError{Message: strings.ToUpper(r.text), Code: r.code}, otherwise), "%+v", r)
	}
}

func TestOutcome_Each_HasNameAndRank(t *testing.T) {
	t.Parallel()
	require.Len(t, outcomeNames, int(NotSent)+1)
	require.Len(t, rank, len(outcomeNames))
	require.Len(t, precedence, len(outcomeNames))
	for o := range NotSent + 1 {
		require.NotEmpty(t, o.String())
		require.Contains(t, rank, o)
	}
}

func TestOutcome_OfSeveralEndpoints_LeastFinal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ a, b, want Outcome }{
		{Accepted, Refused, Accepted},
		{Accepted, Unknown, Accepted},
		{AlreadyKnown, Accepted, Accepted},
		{AlreadyKnown, NonceTooLow, AlreadyKnown},
		{Unknown, Refused, Unknown},
		{Unknown, NonceTooLow, Unknown},
		{NonceTooLow, InsufficientFunds, NonceTooLow},
		{RateLimited, Refused, RateLimited},
		{PoolFull, Underpriced, PoolFull},
		{NotSent, Refused, Refused},
		{PoolFull, FeeCapExceeded, PoolFull},
		{NotSent, NotSent, NotSent},
	} {
		require.Equal(t, test.want, combine(Result{Outcome: test.a}, Result{Outcome: test.b}).Outcome, "%+v", test)
		require.Equal(t, test.want, combine(Result{Outcome: test.b}, Result{Outcome: test.a}).Outcome, "%+v", test)
	}
}

// Only words make a refusal unrecognized, at every endpoint that may have the transaction.
func TestResult_Unrecognized_OnlyWordsDecide(t *testing.T) {
	t.Parallel()
	words := Result{Outcome: Unknown, Err: &RPCError{Message: "something new"}, Unrecognized: true}
	for name, test := range map[string]struct {
		other Result
		want  bool
	}{
		"the same":       {words, true},
		"not sent":       {Result{Outcome: NotSent, Err: &TransportError{}}, true},
		"rate limited":   {Result{Outcome: RateLimited, Err: &RateLimitError{}}, true},
		"no answer":      {Result{Outcome: Unknown, Err: &TransportError{Sent: true}}, false},
		"another reason": {Result{Outcome: PoolFull, Err: &RPCError{}, Reached: true}, false},
		"accepted":       {Result{Outcome: Accepted, Reached: true}, false},
	} {
		require.Equal(t, test.want, combine(words, test.other).Unrecognized, name)
		require.Equal(t, test.want, combine(test.other, words).Unrecognized, name)
	}
}

func TestSend_UnknownWords_Unrecognized(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	for refusal, want := range map[string]bool{
		`{"code":-32000,"message":"something new"}`: true,
		`{"code":-32000,"message":"nonce too low"}`: false,
	} {
		f.always("eth_sendRawTransaction", "", refusal)
		require.Equal(t, want, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}})[0].Unrecognized, refusal)
	}
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
		if calls[0].Method != "eth_sendRawTransaction" {
			return false
		}
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	require.False(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}})[0].Unrecognized)
}
