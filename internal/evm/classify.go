package evm

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Nodes report errors as text, each client in its own words. All texts that any code depends on are in this file, with
// their sources.

// row recognizes an error by a part of its message, in lower case, or by its code if the text is empty. The first row
// that matches decides. So texts come before codes, which clients use for different errors. Longer texts come before
// those that they contain.
type row[T any] struct {
	text   string
	begins bool // the message begins with the text, or with "Error: " and the text
	code   int
	means  T
	source string // repository and file, or page, that has these words
}

func match[T any](rows []row[T], e *RPCError, otherwise T) T {
	text := strings.ToLower(words(e))
	for _, r := range rows {
		if r.matches(text, e.Code) {
			return r.means
		}
	}
	return otherwise
}

func (r row[T]) matches(text string, code int) bool {
	switch {
	case r.text == "":
		return code == r.code
	case r.begins:
		return strings.HasPrefix(strings.TrimPrefix(text, "error: "), r.text)
	default:
		return strings.Contains(text, r.text)
	}
}

// words returns the text of an error. Besu, Conflux and Parity give a general message, and the cause as text in the data.
func words(e *RPCError) string {
	var cause string
	if json.Unmarshal(e.Data, &cause) != nil || strings.HasPrefix(cause, "0x") {
		return e.Message
	}
	return e.Message + " " + cause
}

// Sources.
const (
	gethPool   = "ethereum/go-ethereum core/txpool/errors.go"
	gethCore   = "ethereum/go-ethereum core/error.go"
	gethLegacy = "ethereum/go-ethereum core/txpool/legacypool/legacypool.go"
	gethAPI    = "ethereum/go-ethereum internal/ethapi/api.go"
	gethRPC    = "ethereum/go-ethereum rpc/errors.go"
	gethLogs   = "ethereum/go-ethereum eth/filters/api.go"
	gethBlocks = "ethereum/go-ethereum eth/api_backend.go"
	gethTypes  = "ethereum/go-ethereum core/types/transaction.go"
	gethSign   = "ethereum/go-ethereum core/types/transaction_signing.go"
	gethVM     = "ethereum/go-ethereum core/vm/errors.go"

	netherPool = "NethermindEth/nethermind src/Nethermind/Nethermind.TxPool/TxPoolErrorMessages.cs"
	netherTx   = "NethermindEth/nethermind src/Nethermind/Nethermind.Core/Messages/TxErrorMessages.cs"
	netherOld  = "NethermindEth/nethermind src/Nethermind/Nethermind.TxPool/AcceptTxResult.cs, before there was TxPoolErrorMessages.cs"

	besu     = "hyperledger/besu ethereum/api/src/main/java/org/hyperledger/besu/ethereum/api/jsonrpc/internal/response/RpcErrorType.java"
	erigon   = "erigontech/erigon txnprovider/txpool/txpoolcfg/txpoolcfg.go"
	erigonIn = "erigontech/erigon txnprovider/txpool/pool_txn_parser.go"
	reth     = "paradigmxyz/reth crates/rpc/rpc-eth-types/src/error/mod.rs"
	proxyd   = "ethereum-optimism/infra proxyd/backend.go"
	arbitrum = "smartcontractkit/chainlink core/chains/evm/client/errors.go, of the Arbitrum sequencer"

	anvil     = "foundry-rs/foundry crates/anvil/src/eth/error.rs"
	celo      = "smartcontractkit/chainlink-evm pkg/client/errors.go, of Celo"
	conflux   = "Conflux-Chain/conflux-documentation its page cfx_sendTransaction-errors"
	cosmos    = "cosmos/cosmos-sdk types/errors/errors.go"
	ethermint = "evmos/ethermint x/evm/keeper/utils.go and app/ante"
	filecoin  = "filecoin-project/lotus chain/messagepool/messagepool.go"
	frontier  = "polkadot-evm/frontier client/rpc/src/eth/format.rs, for Moonbeam and Astar; before, the pool's own words"
	ganache   = "trufflesuite/ganache, and ethereumjs/ethereumjs-monorepo packages/vm/src/runTx.ts"
	hardhat   = "NomicFoundation/edr crates/edr_provider/src/error.rs and crates/edr_mem_pool; before, hardhat-core's node.ts"
	harmony   = "harmony-one/harmony core/tx_pool.go"
	hedera    = "hiero-ledger/hiero-json-rpc-relay packages/relay/src/lib/errors/JsonRpcError.ts, and Hedera's ResponseCodeEnum"
	kaia      = "kaiachain/kaia blockchain/error.go"
	monad     = "category-labs/monad-bft monad-eth-txpool-types/src/lib.rs"
	parity    = "openethereum/openethereum crates/rpc/src/v1/helpers/errors.rs"
	polyEdge  = "0xPolygon/polygon-edge state/executor.go"
	revm      = "bluealloy/revm crates/context/interface/src/result.rs"
	rootstock = "rsksmart/rskj rskj-core/src/main/java/co/rsk/core/bc/TransactionPoolImpl.java"
	sei       = "smartcontractkit/chainlink-evm pkg/client/errors.go, of Sei"
	tron      = "tronprotocol/java-tron actuator/src/main/java/org/tron/core"
	zkEVM     = "smartcontractkit/chainlink-evm pkg/client/errors.go, of Polygon zkEVM and X Layer"
	zkSync    = "matter-labs/zksync-era core/node/api_server/src/tx_sender/result.rs"
)

// Sources of words about queries of logs.
const (
	alchemy       = "smartcontractkit/chainlink-evm pkg/client/errors_test.go, of Alchemy; BobTheBuidler/dank_mids issue 772"
	chainlinkLogs = "smartcontractkit/chainlink-evm pkg/client/errors_test.go"
	frontierLogs  = "polkadot-evm/frontier client/rpc/src/eth/filter.rs, for Moonbeam and Astar"
	hyperindex    = "enviodev/hyperindex codegenerator/cli/npm/envio/src/sources/RpcSource.res"
	infura        = "docs.metamask.io eth_getLogs, constraints"
	netherLogs    = "NethermindEth/nethermind src/Nethermind/Nethermind.JsonRpc.Test/Modules/Eth/EthRpcModuleTests.cs"
	ponder        = "ponder-sh/ponder packages/utils/src/getLogsRetryHelper.ts"
	publicNode    = "PublicNode; erpc/erpc architecture/evm/error_normalizer.go"
	quickNode     = "smartcontractkit/chainlink-evm pkg/client/errors_test.go, of QuickNode"
	rethLogs      = "paradigmxyz/reth crates/rpc/rpc/src/eth/filter.rs"
	zkSyncLogs    = "matter-labs/zksync-era core/lib/web3_decl/src/error.rs"
)

// revertRows are the errors of an execution that reverted. The contract's own text may follow these, so they come before all
// other rows. The bare word is none: a node may fail to revert changes of its database.
var revertRows = []row[bool]{
	{text: "execution reverted", means: true, source: gethVM}, // also Nethermind, Besu, Erigon, Reth, Anvil, zkSync, Hedera
	{text: "execution was reverted", means: true, source: polyEdge},
	{text: "vm exception while processing transaction: revert", means: true, source: hardhat}, // reverted with …; also Ganache, Moonbeam
	{text: "vm execution error. revert", means: true, source: parity},                         // Reverted 0x…; also Nethermind
	{text: "vm execution error: transaction reverted", means: true, source: "rsksmart/rskj RskJsonRpcRequestException.java"},
	{text: "transaction reverted", begins: true, means: true, source: hardhat},
	{text: "revert opcode executed", means: true, source: tron},
	{text: "contract_revert_executed", means: true, source: hedera},
	{text: "revert reason=[", means: true, source: filecoin}, // message execution failed (exit=[33], …
}

// minedRows are the errors of development nodes that mine a transaction at once and report the failure of its execution
// as the failure of the send. A contract's own text, in another node's error, may contain the same words.
var minedRows = []row[bool]{
	{text: "vm exception while processing transaction: revert", begins: true, means: true, source: hardhat}, // also Ganache
	{text: "vm exception while processing transaction: invalid opcode", begins: true, means: true, source: hardhat},
	{text: "vm exception while processing transaction: out of gas", begins: true, means: true, source: hardhat},
	{text: "transaction reverted", begins: true, means: true, source: hardhat}, // … without a reason string, …: function call to a non-contract account
	{text: "transaction ran out of gas", begins: true, means: true, source: hardhat},
}

// fundsTexts are the words for a key that cannot pay, in any method, with their sources.
var fundsTexts = []struct{ text, source string }{
	// Also Nethermind, Erigon, Reth, Anvil, Arbitrum, Optimism, Mantle, Celo, zkSync, Kaia, Moonbeam, Parity, Hedera, Rootstock,
	// Avalanche, Fantom, Polygon, Cosmos.
	{"insufficient funds", gethCore},
	{"insufficientfunds", netherOld},
	{"insufficient balance", gethVM}, // … for transfer; also zkSync; Parity: … for transaction; Monad: Signer had …
	{"upfront cost exceeds account balance", besu},
	{"exceeds transaction sender account balance", "hyperledger/besu ethereum/core/src/main/java/org/hyperledger/besu/ethereum/mainnet/MainnetTransactionValidator.java"},
	{"not enough funds", arbitrum}, // … for gas; also Filecoin; Polygon Edge: … to cover gas costs
	{"not enough balance to cover", zkSync},
	{"doesn't have enough funds", hardhat}, // Sender … to send tx; also Ganache
	{"lack of funds", revm},
	{"would cause overdraft", "ethereum/go-ethereum core/txpool/legacypool/legacypool.go, from 1.11 to 1.12; BNB Smart Chain"},
	{"insufficient_payer_balance", hedera},
	{"insufficient_account_balance", hedera},
	{"sender balance < tx cost", ethermint},
	{"invalidtransaction::payment", frontier},
	{"out of balance", conflux}, // … is discarded due to …
	{"balance is not sufficient", tron},
	{"account resource insufficient", tron},
	{"err_out_of_fund", "aurora-is-near/aurora-engine engine/src/engine.rs"},
}

// fundsRows returns a row for each of fundsTexts.
func fundsRows[T any](means T) []row[T] {
	rows := make([]row[T], len(fundsTexts))
	for i, f := range fundsTexts {
		rows[i] = row[T]{text: f.text, means: means, source: f.source}
	}
	return rows
}

// sendRows are the errors of eth_sendRawTransaction. Where clients share geth's text, only geth is named.
var sendRows = slices.Concat([]row[Outcome]{
	// These come before rows below that they contain.
	{text: "execution reverted", means: Refused, source: arbitrum},  // simulated before it is sequenced; the contract's own text follows
	{text: "unknown transaction", means: Refused, source: erigonIn}, // … type
	{text: "can't start a transaction from a non-account", means: Refused, source: zkSync},
	{text: "transaction nonce is too low", means: NonceTooLow, source: parity},
	{text: "another transaction with same nonce", means: ReplacementUnderpriced, source: parity},
	{text: "tx with same nonce already inserted", means: ReplacementUnderpriced, source: conflux},

	// The node has it.
	{text: "already known", means: AlreadyKnown, source: gethPool}, // also Nethermind, Erigon, Reth
	{text: "known transaction", means: AlreadyKnown, source: besu},
	{text: "existing txn with same hash", means: AlreadyKnown, source: erigon},
	{text: "alreadyknown", means: AlreadyKnown, source: netherOld},
	{text: "already imported", means: AlreadyKnown, source: parity}, // also Anvil
	{text: "alreadyimported", means: AlreadyKnown, source: frontier},
	{text: "tx already exist", means: AlreadyKnown, source: conflux}, // Sei: … exists in cache
	{text: "tx already in mempool", means: AlreadyKnown, source: cosmos},

	// Nonces.
	{text: "nonce too low", means: NonceTooLow, source: gethCore}, // also Nethermind, Besu, Erigon, Reth, Arbitrum
	{text: "oldnonce", means: NonceTooLow, source: netherOld},
	{text: "invalid transaction nonce", means: NonceTooLow, source: arbitrum}, // or too high: look; so the next three
	{text: "the tx doesn't have the correct nonce", means: NonceTooLow, source: ganache},
	{text: "invalid nonce; got", means: NonceTooLow, source: ethermint},
	{text: "incorrect account sequence", means: NonceTooLow, source: cosmos},
	{text: "transaction already finalized", means: NonceTooLow, source: harmony},
	{text: "pool(stale)", means: NonceTooLow, source: frontier},
	{text: "invalidtransaction::stale", means: NonceTooLow, source: frontier},
	{text: "too stale nonce", means: NonceTooLow, source: conflux},
	{text: "noncetoohigh: nonce exceeds max nonce", means: Refused, source: netherTx},
	{text: "nonce has max value", means: Refused, source: gethCore},
	{text: "nonce too high", means: NonceTooHigh, source: gethCore}, // also Nethermind, Besu, Reth, Arbitrum
	{text: "nonce too far in future", means: NonceTooHigh, source: netherPool},
	{text: "too distant future", means: NonceTooHigh, source: conflux},
	{text: "invalidtransaction::future", means: NonceTooHigh, source: frontier},
	{text: "unfulfilled nonce gap", means: NonceTooHigh, source: filecoin},
	{text: "noncegap", means: NonceTooHigh, source: netherOld},
	{text: "noncetoofarinfuture", means: NonceTooHigh, source: netherOld},
	{text: "transaction nonce is too distant from current sender nonce", means: NonceTooHigh, source: besu},
	{text: "an invalid transaction with a lower nonce exists", means: NonceTooHigh, source: besu},

	// Fees.
	{text: "replacement transaction underpriced", means: ReplacementUnderpriced, source: gethPool}, // also all others
	{text: "could not replace existing tx", means: ReplacementUnderpriced, source: erigon},
	{text: "replaced by transaction with higher tip", means: ReplacementUnderpriced, source: erigon},
	{text: "replacementnotallowed", means: ReplacementUnderpriced, source: netherOld},
	{text: "ownnoncealreadyused", means: ReplacementUnderpriced, source: netherOld},
	{text: "another tx which has the same nonce", means: ReplacementUnderpriced, source: kaia},
	{text: "insufficient gas price to replace existing transaction", means: ReplacementUnderpriced, source: anvil},
	{text: "gas price not enough to bump transaction", means: ReplacementUnderpriced, source: rootstock},
	{text: "existing transaction had higher priority", means: ReplacementUnderpriced, source: monad},
	{text: "newer transaction had higher priority", means: ReplacementUnderpriced, source: monad},
	{text: "pool(toolowpriority", means: ReplacementUnderpriced, source: frontier},
	{text: "replace by fee has too low gaspremium", means: ReplacementUnderpriced, source: filecoin},
	{text: "max fee per gas less than block base fee", means: FeeCapTooLow, source: gethCore}, // also Reth, Arbitrum, zkSync
	{text: "gas price less than block base fee", means: FeeCapTooLow, source: frontier},
	{text: "gas price is less than basefee", means: FeeCapTooLow, source: revm},
	{text: "lower then the required base fee", means: FeeCapTooLow, source: parity},
	{text: "must be set to value greater than or equal to basefee", means: FeeCapTooLow, source: kaia},
	{text: "too low for the next block, which has a basefeepergas of", means: FeeCapTooLow, source: hardhat},
	{text: "unacceptable gas price", means: FeeCapTooLow, source: zkSync},
	{text: "fair pubdata price too high", means: FeeCapTooLow, source: zkSync},
	{text: "fee cap less than base fee", means: FeeCapTooLow, source: gethTypes},
	{text: "gas price below current base fee", means: FeeCapTooLow, source: besu},
	{text: "max priority fee per gas higher than max fee per gas", means: TipAboveCap, source: gethCore}, // also Reth
	{text: "max priority fee per gas exceeds max fee per gas", means: TipAboveCap, source: besu},
	{text: "invalidmaxpriorityfeepergas", means: TipAboveCap, source: netherTx},
	{text: "max fee per gas higher than max priority fee per gas", means: TipAboveCap, source: kaia}, // so it says
	{text: "max priority fee too high", means: TipAboveCap, source: monad},
	{text: "priority fee is greater than max fee", means: TipAboveCap, source: revm},
	{text: "`max_priority_fee_per_gas` greater than `max_fee_per_gas`", means: TipAboveCap, source: anvil},
	{text: "per gas higher than 2^64-1", means: Refused, source: zkSync},
	{text: "per pubdata byte higher than 2^64-1", means: Refused, source: zkSync},
	{text: "max priority fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "max fee per gas higher than 2^256-1", means: Refused, source: gethCore},
	{text: "exceeds the configured cap", means: FeeCapExceeded, source: gethAPI}, // tx fee (… ether), --rpc.txfeecap; also Erigon, Reth
	{text: "transaction fee cap exceeded", means: FeeCapExceeded, source: besu},
	{text: "transaction gas price below minimum", means: Underpriced, source: gethPool},
	{text: "gas price below configured minimum gas price", means: Underpriced, source: besu},
	{text: "transaction priority fee below minimum required priority fee", means: Underpriced, source: reth},
	{text: "fee too low", means: Underpriced, source: erigon},
	{text: "feetoolow", means: Underpriced, source: netherOld},        // and FeeTooLowToCompete
	{text: "gas price too low", means: Underpriced, source: arbitrum}, // also Metis, Hedera
	{text: "does not satisfy your node's minimal gas price", means: Underpriced, source: parity},
	{text: "less than gas price minimum floor", means: Underpriced, source: celo},
	{text: "is below configured minimum gas price", means: Underpriced, source: hedera},
	{text: "insufficient_tx_fee", means: Underpriced, source: hedera},
	{text: "which is below the minimum of", means: Underpriced, source: hardhat}, // Transaction gas price is …
	{text: "provided fee < minimum global fee", means: Underpriced, source: ethermint},
	{text: "insufficient fee", means: Underpriced, source: sei},
	{text: "underpriced", means: Underpriced, source: gethPool}, // transaction …; Erigon: FEE_TOO_LOW: underpriced

}, fundsRows(InsufficientFunds), []row[Outcome]{
	// Gas.
	{text: "intrinsic gas too low", means: IntrinsicGas, source: gethCore}, // also Nethermind, Reth
	{text: "insufficient gas for floor data gas cost", means: IntrinsicGas, source: gethCore},
	{text: "intrinsic gas exceeds gas limit", means: IntrinsicGas, source: besu},
	{text: "intrinsicgas", means: IntrinsicGas, source: erigon},
	{text: "not enough gas to cover minimal cost", means: IntrinsicGas, source: parity},
	{text: "is insufficient of intrinsic gas required", means: IntrinsicGas, source: hedera},
	{text: "transaction requires at least", means: IntrinsicGas, source: hardhat},
	{text: "base fee exceeds gas limit", means: IntrinsicGas, source: ganache},
	{text: "call gas cost", means: IntrinsicGas, source: revm}, // … exceeds the gas limit
	{text: "gas limit too low", means: IntrinsicGas, source: monad},
	{text: "not enough gas for transaction validation", means: IntrinsicGas, source: zkSync},
	{text: "failed to pay the fee to the operator", means: IntrinsicGas, source: zkSync},
	{text: "not enough gas to publish compressed bytecodes", means: IntrinsicGas, source: zkSync},
	{text: "exceeds block gas limit", means: ExceedsBlockGas, source: gethPool}, // also Besu, Reth
	{text: "gas limit too high", means: ExceedsBlockGas, source: gethCore},      // also Reth
	{text: "gas limit is too high", means: ExceedsBlockGas, source: erigon},
	{text: "exceeds max transaction gas limit", means: ExceedsBlockGas, source: reth},
	{text: "intrinsic gas too high", means: ExceedsBlockGas, source: reth},
	{text: "gas limit reached", means: ExceedsBlockGas, source: netherPool},
	{text: "gaslimitexceeded", means: ExceedsBlockGas, source: netherOld},
	{text: "txgaslimitcapexceeded", means: ExceedsBlockGas, source: netherTx},
	{text: "transaction cost exceeds current gas limit", means: ExceedsBlockGas, source: parity},
	{text: "supplied gas is beyond limit", means: ExceedsBlockGas, source: parity},
	{text: "exceeds max gas per sec limit", means: ExceedsBlockGas, source: hedera},
	{text: "exceeds transaction gas limit", means: ExceedsBlockGas, source: monad},
	{text: "exceeds transaction gas cap", means: ExceedsBlockGas, source: hardhat},
	{text: "is greater than the block gas limit", means: ExceedsBlockGas, source: anvil},
	{text: "exceeds the block gas limit", means: ExceedsBlockGas, source: revm},

	// Pool capacity.
	{text: "pool is full", means: PoolFull, source: gethLegacy}, // txpool …; also Reth; Erigon: … sub-pool …; Monad, Conflux: transaction pool …
	{text: "pool is not ready", means: PoolFull, source: monad},
	{text: "too many transactions in the queue", means: PoolFull, source: parity},
	{text: "tx dropped due to l2 congestion", means: PoolFull, source: arbitrum},
	{text: "account exceeds quota", means: PoolFull, source: rootstock},
	{text: "pool(temporarilybanned)", means: PoolFull, source: frontier},
	{text: "insertion of another transaction with the same nonce is in progress", means: PoolFull, source: zkSync},
	{text: "sequencer pending tx pool full", means: PoolFull, source: arbitrum},
	{text: "queue full", means: PoolFull, source: arbitrum},
	{text: "out of capacity", means: PoolFull, source: gethPool},
	{text: "account limit exceeded", means: PoolFull, source: gethPool},
	{text: "in-flight transaction limit reached for delegated accounts", means: PoolFull, source: gethPool},
	{text: "gapped-nonce tx from delegated accounts", means: PoolFull, source: gethLegacy},
	{text: "delegation nonce gap", means: PoolFull, source: netherPool},
	{text: "delegation authority has pending transaction", means: PoolFull, source: netherPool},
	{text: "future transaction tries to replace pending", means: PoolFull, source: gethLegacy},
	{text: "authority already reserved", means: PoolFull, source: gethLegacy}, // also Erigon
	{text: "address already reserved", means: PoolFull, source: gethPool},     // also Reth
	{text: "pending transaction type conflict", means: PoolFull, source: netherPool},
	{text: "pendingtxsofconflictingtype", means: PoolFull, source: netherOld},
	{text: "spammer", means: PoolFull, source: erigon},
	{text: "node is syncing", means: PoolFull, source: netherPool},
	{text: "initial sync is still in progress", means: PoolFull, source: besu},
	{text: "transaction pool not enabled", means: PoolFull, source: besu},

	// Signatures.
	{text: "invalid sender", means: WrongChain, source: gethPool},   // also Erigon, Reth
	{text: "invalid chain id", means: WrongChain, source: gethSign}, // … for signer; also Erigon, Reth
	{text: "wrong chainid", means: WrongChain, source: besu},
	{text: "chainid is required", means: WrongChain, source: besu},
	{text: "chainid not supported", means: WrongChain, source: besu},
	{text: "invalidtxchainid", means: WrongChain, source: netherTx},
	{text: "only replay-protected (eip-155) transactions allowed", means: WrongChain, source: gethAPI},
	{text: "invalid transaction v, r, s values", means: WrongChain, source: gethTypes},
	{text: "invalid signature", means: WrongChain, source: besu},
	{text: "invalidtxsignature", means: WrongChain, source: netherTx},
	{text: "invalid transaction signature", means: WrongChain, source: reth},
	{text: "failed to recover sender", means: WrongChain, source: netherPool},
	{text: "failedtoresolvesender", means: WrongChain, source: netherOld},
	{text: "incompatible eip-155 transaction", means: WrongChain, source: hardhat}, // also Anvil
	{text: "transaction signature is invalid", means: WrongChain, source: monad},
	{text: "status invalid_signature", means: WrongChain, source: hedera},

	// Size.
	{text: "oversized data", means: Oversized, source: gethPool}, // also Erigon, Reth
	{text: "transaction too large", means: Oversized, source: netherPool},
	{text: "maxtxsizeexceeded", means: Oversized, source: netherOld},
	{text: "rlptoolong", means: Oversized, source: erigon},
	{text: "transaction is too big", means: Oversized, source: parity},
	{text: "tx too large", means: Oversized, source: cosmos},
	{text: "encoded length limit exceeded", means: Oversized, source: monad},

	// The rate limit of one sender, which does not affect other senders through the same endpoint.
	{text: "sender is over rate limit", means: RateLimited, source: proxyd},

	// Permanent.
	{text: "transaction type not supported", means: Refused, source: gethTypes}, // also Reth
	{text: "unsupported transaction type", means: Refused, source: netherPool},
	{text: "invalidtxtype", means: Refused, source: netherTx},
	{text: "invalid transaction type", means: Refused, source: besu},
	{text: "fork supporting this transaction type is not activated yet", means: Refused, source: erigon},
	{text: "typed transaction too short", means: Refused, source: gethTypes},
	{text: "rlp: ", means: Refused, source: "ethereum/go-ethereum rlp/decode.go"},
	{text: "failed to decode signed transaction", means: Refused, source: reth},
	{text: "empty transaction data", means: Refused, source: reth},
	{text: "sender not an eoa", means: Refused, source: gethCore}, // also Nethermind
	{text: "sender is not an eoa", means: Refused, source: reth},
	{text: "senderiscontract", means: Refused, source: netherOld},
	{text: "sender account not authorized to send transactions", means: Refused, source: besu},
	{text: "forbidden sender address", means: Refused, source: arbitrum},
	{text: "invalid message format", means: Refused, source: arbitrum},
	{text: "max initcode size exceeded", means: Refused, source: gethVM}, // also Nethermind, Reth
	{text: "initcode too large", means: Refused, source: erigon},
	{text: "gas uint64 overflow", means: Refused, source: gethCore}, // also Reth
	{text: "gasuintoverflow", means: Refused, source: erigon},
	{text: "transaction cost overflow", means: Refused, source: netherPool},
	{text: "int256overflow", means: Refused, source: netherOld},
	{text: "negative value", means: Refused, source: gethPool}, // also Erigon, Reth
	{text: "plugin has marked the transaction as invalid", means: Refused, source: besu},
	{text: "is banned in local queue", means: Refused, source: parity},
	{text: "transaction is not permitted", means: Refused, source: parity},
	{text: "transaction type is not enabled", means: Refused, source: parity},
	{text: "invalid rlp", means: Refused, source: parity},
	{text: "invalid shard", means: Refused, source: harmony},
	{text: "staking message does not match directive message", means: Refused, source: harmony},
	{text: "address of transaction in blacklist", means: Refused, source: harmony},
	{text: "value can't be non-zero and less than", means: Refused, source: hedera},
	{text: "init code size limit exceeded", means: Refused, source: monad},
	{text: "failed to serialize transaction", means: Refused, source: zkSync},
	{text: "too many factory dependencies", means: Refused, source: zkSync},
	{text: "failed to validate the transaction", means: Refused, source: zkSync},
	{text: "counters to continue the execution", means: Refused, source: zkEVM},
	{text: "out of counters at node level", means: Refused, source: zkEVM},
	{text: "transaction invalid", means: Refused, source: netherPool}, // followed by more, looked for above
	{code: -32601, means: NotSent, source: "JSON-RPC 2.0, method not found"},
})

// ofNode reports whether an error matches the rows, which are errors of the endpoint. The words of a contract that reverted are
// none, whatever they are.
func ofNode(rows []row[bool], e *RPCError) bool { return !reverted(e) && match(rows, e, false) }

// reverted reports whether the error is a contract's revert. Its data decide, if they are revert data, whatever the words and
// the code. Otherwise the words do.
func reverted(e *RPCError) bool {
	return isRevertData(revertData(e.Data)) || match(revertRows, e, false)
}

// limitRows are errors of an endpoint that executed nothing because of a rate limit.
var limitRows = []row[bool]{
	// Besu and Hedera return -32005 for these, too.
	{text: "exceeds block gas limit", means: false, source: besu},
	{text: "exceeds max gas per sec limit", means: false, source: hedera},
	{text: "exceeds maximum rpc range limit", means: false, source: besu},
	{text: "number of requests exceeds max batch size", means: false, source: besu},
	{text: "sender is over rate limit", means: false, source: proxyd}, // no limit for other senders

	{text: "over rate limit", means: true, source: proxyd},
	{text: "rate limit exceeded", means: true, source: hedera},
	{text: "backend is over capacity", means: true, source: proxyd},
	{text: "/second request limit reached", means: true, source: "QuickNode, code -32007, which is Besu's for an unauthorized sender"},
	{code: -32005, means: true, source: "EIP-1474, limit exceeded; docs.infura.io/api/networks/ethereum/how-to/avoid-rate-limiting"},
	{code: 429, means: true, source: "alchemy.com/docs/reference/throughput; quicknode.com/docs/ethereum/error-references"},
}

func rateLimited(e *RPCError) bool { return logsLimitOf(e) == 0 && ofNode(limitRows, e) }

// logsRows are errors of an endpoint for which a query of logs is too large. Several come with codes and words of rate limits.
var logsRows = []row[LogsLimit]{
	{text: "exceed max addresses or topics per search position", means: LimitAddresses, source: gethLogs},
	{text: "specify less number of address", means: LimitAddresses, source: publicNode},
	{text: "specify an address in your request", means: LimitNoAddress, source: publicNode}, // code -32701

	// The query's time.
	{text: "query timeout exceeded", means: LimitTime, source: infura},
	{text: "query timeout of", means: LimitTime, source: frontierLogs}, // … 10 seconds exceeded
	{text: "log query timed out", means: LimitTime, source: "Arbitrum's public endpoints"},
	{text: "request timed out", means: LimitTime, source: gethRPC},  // code -32002; also Chainstack
	{text: "request timeout", means: LimitTime, source: zkSyncLogs}, // also dRPC: … on the free tier, with HTTP status 408
	{text: "timeout expired", means: LimitTime, source: besu},

	// The number of logs.
	{text: "query returned more than", means: LimitResults, source: infura},            // … 10000 results; also zkSync, Moonbeam, Polygon zkEVM, Zeta, Aurora
	{text: "query exceeds max results", means: LimitResults, source: rethLogs},         // … 20000, retry with the range 1-2; also dRPC, Base
	{text: "too many logs requested", means: LimitResults, source: netherLogs},         // … Max logs per response is 20000.
	{text: "logs matched by query exceeds limit", means: LimitResults, source: ponder}, // … of 10000; Arbitrum
	{text: "log response size exceeded", means: LimitResults, source: alchemy},         // … this block range should work: [0x0, 0x133e71]

	// The bytes of the answer.
	{text: "response too large", means: LimitSize, source: gethRPC}, // also proxyd: backend …
	{text: "response is too big", means: LimitSize, source: "paritytech/jsonrpsee types/src/error.rs, for Reth, zkSync and Moonbeam"},
	{text: "response size should not greater than", means: LimitSize, source: ponder}, // 1RPC

	// The number of blocks.
	{text: "exceed maximum block range", means: LimitRange, source: "ethereum/go-ethereum eth/filters/filter.go"}, // also BNB Smart Chain, PublicNode
	{text: "exceeded maximum block range", means: LimitRange, source: hedera},
	{text: "timestamp range by the lower and upper bounds", means: LimitRange, source: "hiero-ledger/hiero-json-rpc-relay issue 2399"},
	{text: "exceeds maximum rpc range limit", means: LimitRange, source: besu},
	{text: "block range exceeds server limit", means: LimitRange, source: "erigontech/erigon pull request 20424"},
	{text: "query exceeds max block range", means: LimitRange, source: rethLogs}, // also dRPC, Hyperliquid
	{text: "you can make eth_getlogs requests with up to", means: LimitRange, source: alchemy},
	{text: "try with this block range", means: LimitRange, source: ponder},           // Infura, Tenderly
	{text: "exceeds limit of", means: LimitRange, source: "INFURA/infura issue 237"}, // range 1000000 …
	{text: "eth_getlogs is limited to", means: LimitRange, source: quickNode},        // … a 10,000 range; also 1RPC, BlockPI, Monad
	{text: "eth_newfilter are limited to", means: LimitRange, source: ponder},        // QuickNode, earlier
	{text: "logs are limited to", means: LimitRange, source: "0xPolygonHermez/zkevm-node state/errors.go"},
	{text: "block range is limited to", means: LimitRange, source: "docs.xplorer.tech rpc-methods-restrict"},
	{text: "block range is too wide", means: LimitRange, source: ponder}, // Ankr; Moonbeam: … (maximum 1024)
	{text: "too wide blocks range", means: LimitRange, source: chainlinkLogs},
	{text: "requested too many blocks", means: LimitRange, source: chainlinkLogs},           // Avalanche, dRPC
	{text: "max range:", means: LimitRange, source: ponder},                                 // Cloudflare
	{text: "maximum allowed number of requested blocks", means: LimitRange, source: ponder}, // thirdweb
	{text: "exceeds the range allowed for your plan", means: LimitRange, source: ponder},    // BlastAPI
	{text: "block range limit exceeded", means: LimitRange, source: "Chainstack; " + ponder},
	{text: "limit the query to at most", means: LimitRange, source: ponder}, // Coinbase
	{text: "blocks are not supported on", means: LimitRange, source: "dRPC, code 35: ranges over 10000 … free plan"},
	{text: "block range greater than", means: LimitRange, source: ponder},        // Swell
	{text: "block range exceeds", means: LimitRange, source: ponder},             // Somnia; Polygon: … configured limit
	{text: "range is too large", means: LimitRange, source: ponder},              // Optimism, Merkle: …, max is 1k blocks
	{text: "range too large", means: LimitRange, source: hyperindex},             // Base; Sei: … (2000), maximum allowed is 1000 blocks; Arc
	{text: "query must be smaller than size", means: LimitRange, source: ponder}, // Harmony
	{text: "blocks distance", means: LimitRange, source: ponder},                 // Ankr: maximum [from, to] …: 10000
	{text: "larger than max block range", means: LimitRange, source: "enviodev/hyperindex issue 605, Morph"},
	{text: "block range is bigger than maxblockrange", means: LimitRange, source: "scroll-tech/go-ethereum pull request 529"},
	{text: "block range too high", means: LimitRange, source: "AlphaWallet/alpha-wallet-ios issue 5277, Candle"},
}

// logsLimitOf returns in what a query of logs is too large for the endpoint, and 0 for another error.
func logsLimitOf(e *RPCError) LogsLimit {
	if e.Method != logsMethod {
		return 0
	}
	return match(logsRows, e, 0)
}

var (
	// suggestedRange matches the first and the last block that an error suggests.
	suggestedRange = regexp.MustCompile(`(?:\[|range )(0x[0-9a-f]+|\d+)(?:, *|-)(0x[0-9a-f]+|\d+)`)
	// largestRange matches the number of blocks that an error allows, in the words of logsRows.
	largestRange = regexp.MustCompile(`(?:limited to (?:a |0 - )?|up to an? |maximum |maximum block range:? |maximum is set to |` +
		`maximum allowed is |requested blocks is |max block range(?: =)? |max range: |max is |narrow your filter: |exceeds limit of |` +
		`ranges over |at most |limit is |\(\d+ > |greater than |range exceeds |smaller than size |blocks distance: )(\d[\d,.]*)(k?)`)
)

// suggestedBlocks returns how many blocks an error suggests for the query that it refuses, and 0 if it suggests none. Nodes count the
// blocks of a range differently. This number is never too high.
func suggestedBlocks(e *RPCError, limit LogsLimit) uint64 {
	text := strings.ToLower(words(e))
	if m := suggestedRange.FindStringSubmatch(text); m != nil && limit != LimitAddresses && limit != LimitNoAddress {
		from, err1 := strconv.ParseUint(m[1], 0, 64)
		to, err2 := strconv.ParseUint(m[2], 0, 64)
		if err1 == nil && err2 == nil && from <= to {
			return to - from + 1
		}
	}
	if m := largestRange.FindStringSubmatch(text); m != nil && limit == LimitRange {
		n, err := strconv.ParseUint(strings.NewReplacer(",", "", ".", "").Replace(m[1]), 10, 32)
		if err == nil && m[2] == "k" {
			n *= 1000
		}
		return n
	}
	return 0
}

// staleRows are errors of an endpoint that does not know the requested block, no longer has it on its chain, or has no
// state of it.
var staleRows = []row[bool]{
	{text: "is not currently canonical", means: true, source: gethBlocks}, // also Erigon
	{text: "header for hash not found", means: true, source: gethBlocks},
	{text: "header not found", means: true, source: gethBlocks},
	{text: "block body not found", means: true, source: gethBlocks},
	{text: "block body is missing", means: true, source: gethBlocks},
	{text: "block not found", means: true, source: reth}, // also Besu
	{text: "unknown block", means: true, source: besu},
	{text: "world state unavailable", means: true, source: besu},
	{text: "missing trie node", means: true, source: "ethereum/go-ethereum trie/errors.go"},
	{code: -32001, means: true, source: "EIP-1898, resource not found"},
}

func blockUnknown(e *RPCError) bool { return ofNode(staleRows, e) }

// rangeRows are errors of an endpoint that does not know all blocks of a range.
var rangeRows = []row[bool]{
	{text: "block range extends beyond current head block", means: true, source: gethLogs}, // also Reth, Ethrex
	{text: "invalid block range params", means: true, source: gethLogs},                    // of a range that begins after the head
	{text: "block is out of range", means: true, source: proxyd},
}

// logsUnknown reports whether the endpoint does not know the block of a query of logs, or not all blocks.
func logsUnknown(e *RPCError) bool { return blockUnknown(e) || ofNode(rangeRows, e) }

// noTag reports whether the endpoint has no block of a tag, or does not support the tag. A plan limit and an internal error
// are neither: another endpoint may have the block.
func noTag(e *RPCError) bool { return blockUnknown(e) || unsupported(e) || match(tagRows, e, false) }

// tagRows are errors of an endpoint that does not support the tag of a block.
var tagRows = []row[bool]{
	{code: -32604, means: true, source: "EIP-1474, method not supported"},
	{code: -39001, means: true, source: "ethereum/execution-apis BlockTag, unknown block"},
}

// pendingRows are errors of an endpoint that has no pending state.
var pendingRows = []row[bool]{
	{text: "pending state is not available", means: true, source: gethBlocks},
	{text: "pending block is not available", means: true, source: gethBlocks},
	{code: -32602, means: true, source: "JSON-RPC 2.0, invalid params"},
}

func noPending(e *RPCError) bool { return ofNode(pendingRows, e) || blockUnknown(e) }

// batchRows are errors for a call in a batch that is too big.
var batchRows = []row[bool]{
	{text: "batch too large", means: true, source: gethRPC},
	{text: "response too large", means: true, source: gethRPC}, // also proxyd
	{text: "number of requests exceeds max batch size", means: true, source: besu},
	{text: "too many rpc calls in batch request", means: true, source: proxyd},
}

func batchTooBig(e *RPCError) bool { return ofNode(batchRows, e) }

// failure is the kind of error of a simulated call.
type failure int

const (
	failureOther failure = iota // an error of the node, not of the call
	failureRevert
	failureFunds
	failureGas
	failureCall // another error that every node would report
)

// callRows are the errors of eth_estimateGas and eth_call, except for those that are known as reverts.
var callRows = slices.Concat(fundsRows(failureFunds), []row[failure]{
	{text: "gas required exceeds allowance", means: failureGas, source: "ethereum/go-ethereum eth/gasestimator/gasestimator.go"},
	{text: "gas required exceeds", means: failureGas, source: reth},

	// Executions that end without a revert.
	{text: "out of gas", means: failureCall, source: gethVM},
	{text: "max call depth exceeded", means: failureCall, source: gethVM},
	{text: "contract address collision", means: failureCall, source: gethVM},
	{text: "max code size exceeded", means: failureCall, source: gethVM},
	{text: "max initcode size exceeded", means: failureCall, source: gethVM},
	{text: "invalid jump destination", means: failureCall, source: gethVM},
	{text: "write protection", means: failureCall, source: gethVM},
	{text: "return data out of bounds", means: failureCall, source: gethVM},
	{text: "gas uint64 overflow", means: failureCall, source: gethVM},
	{text: "invalid code: must not begin with 0xef", means: failureCall, source: gethVM},
	{text: "nonce uint64 overflow", means: failureCall, source: gethVM},
	{text: "stack underflow", means: failureCall, source: gethVM},
	{text: "stack limit reached", means: failureCall, source: gethVM},
	{text: "invalid opcode", means: failureCall, source: gethVM},
	{text: "evm error", means: failureCall, source: reth},

	// Calls that cannot start.
	{text: "intrinsic gas too low", means: failureCall, source: gethCore},
	{text: "insufficient gas for floor data gas cost", means: failureCall, source: gethCore},
	{text: "intrinsic gas exceeds gas limit", means: failureCall, source: besu},
	{text: "exceeds block gas limit", means: failureCall, source: gethPool},
	{text: "sender not an eoa", means: failureCall, source: gethCore},
	{text: "transaction requires at least", means: failureCall, source: hardhat},
	{text: "immature records", means: failureOther, source: hedera}, // code -32015
	{code: -32602, means: failureCall, source: "JSON-RPC 2.0, invalid params"},

	// Executions that clients report by their codes, in words of their own.
	{code: 3, means: failureRevert, source: "ethereum/go-ethereum internal/ethapi/errors.go"},
	{code: -32015, means: failureRevert, source: "NethermindEth/nethermind issue 4761, execution error; " + parity},
})

// failureOf returns the kind of error of a simulated call.
func failureOf(e *RPCError) failure {
	switch {
	case reverted(e):
		return failureRevert
	case rateLimited(e):
		return failureOther
	default:
		return match(callRows, e, failureOther)
	}
}

// answersCall reports whether an error of a simulated call, or of one that a caller composed, is about that call.
func answersCall(e *RPCError) bool { return failureOf(e) != failureOther }

// unsupported reports whether the endpoint does not support the method or this form of its parameters.
func unsupported(e *RPCError) bool {
	switch e.Code {
	case -32601, -32602: // JSON-RPC 2.0: method not found, invalid params
		return true
	}
	return false
}

// notOffered reports whether the endpoint does not support a method, or not on the current plan, until that is changed.
func notOffered(e *RPCError) bool {
	switch e.Code {
	case -32600, -32604: // JSON-RPC 2.0: invalid request, which providers return for a plan limit; EIP-1474: method not supported
		return true
	}
	return unsupported(e)
}
