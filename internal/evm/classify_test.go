package evm

import (
	"context"
	"errors"
	"fmt"
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
		{"anybody", "", -32000, Unknown},
		{"anybody", "internal error", -32603, Unknown},
		{"anybody", "something new", -32099, Unknown},
	} {
		e := &RPCError{Message: test.message, Code: test.code}
		require.Equal(t, test.want, Classify(fmt.Errorf("send: %w", e)), "%s: %s (%d)", test.client, test.message, test.code)
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
