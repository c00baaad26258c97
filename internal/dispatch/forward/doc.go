// Package forward verifies ERC-2771 forward requests and builds the transactions that execute them. A signer without gas
// signs a request (EIP-712). A relayer pays for a transaction to a forwarder contract, which checks the signature and calls
// the target with the signer appended to the call data.
//
// The relay API calls it before it accepts a request. It calls the chain's nodes through [Nodes], an evm.Client. It works
// with each contract that has the interface of OpenZeppelin Contracts' ERC2771Forwarder, version 5. The contract is
// authoritative: it checks everything again when the transaction is mined, except the margin before the deadline.
//
// # Verification
//
// [Forwarder.Verify] checks these, in this order. Each failure has its own type, and errors.Is(err, [ErrRefused]) is true for
// all of them. Any other error means that the chain could not be read, and the request may be valid.
//
//   - [*FieldError]: the contract could not accept the value of a field, or no transaction could carry it.
//   - [*DomainError]: the caller names another chain, forwarder, name or version than the configured one.
//   - [*ExpiredError]: the deadline is past, or nearer than Config.DeadlineMargin, in which the transaction has to be mined.
//   - [*SignatureError]: the signature is malformed, or has the higher s of two, which the contract rejects.
//   - [*SignerError]: the signature is of another account. The same results from a signature over other fields, such as
//     another chain, forwarder or nonce than stated, because a signature recovers to some account in each case.
//   - [*NonceError]: the nonce is used, or is after the next one.
//
// [Verify] and the other functions check parts of it without a node. A signature has 65 bytes with v 27, 28, 0 or 1, or 64
// bytes (EIP-2098). The contract accepts only the first form, so [Calldata] converts the signature to it.
//
// # False and lagging nodes
//
// [Forwarder.Nonce] asks all nodes and takes the upper median: the only answer, the higher of two, the middle one of three.
// With three nodes or more, one false or lagging node decides nothing. The maximum would let one false node have all
// requests of a signer refused. The minimum, or the first answer, would let one lagging node have a replay accepted. Two
// nodes that disagree cannot be judged. The higher answer is the better one of theirs, because a replay costs gas, and a
// refusal costs the signer a retry. With one node that answers, that node decides.
//
// A replay that passes because of lagging nodes reverts on chain, and the request is not executed again. The relayer then
// pays for the failed transaction. A store that holds each request's signer and nonce once can refuse it before.
//
// [Forwarder.Domain] and [Forwarder.CheckTarget] use the answer that a strict majority of the answering nodes gives. Without
// one they fail. The domain is read once. Its chain id and contract must be the configured ones, whatever the nodes answer.
//
// # Gas
//
// [Gas] returns the gas limit of the transaction:
//
//	G = base + calldata + hashing + requested + ceil(requested / 63)
//
// and at least the floor of EIP-7623, 21,000 + 10 for each zero byte + 40 for each other byte.
//
//   - base is Config.BaseGas, 80,000 by default: the 21,000 of each transaction, and the forwarder's own work. The first
//     request of a signer needs at most 58,000 in total with the Forwarder of package erc2771 (22,100 for the nonce, 3,000 for
//     the signature, the call of isTrustedForwarder, and the event). A target behind a proxy takes about 7,000 more for
//     isTrustedForwarder. Other chains have other prices. Unused gas is not paid for, and too little fails the transaction.
//   - 9,000 more if the request has a value, which is the price of a call with one.
//   - calldata is 4 for each zero byte and 16 for each other byte.
//   - hashing is 18 w + w^2/128 for w words of data: the forwarder copies them to memory twice and hashes them once.
//   - requested/63: a call receives at most 63/64 of the gas that is left (EIP-150). So 64/63 of the requested gas must be
//     left when the forwarder calls the target. Afterwards the forwarder requires that at least 1/63 of the requested gas is
//     left. Otherwise it fails with all gas used, because a relayer could make the target fail by sending too little.
//
// A limit above that of a block or of a transaction (16,777,216 since EIP-7825) is the caller's to refuse.
//
// # What is not guaranteed
//
// A verified request can still fail on chain: its deadline can pass in the queue, another relayer can execute it or another
// request with its nonce first, and the target can revert. If the target reverts, the whole transaction reverts, the nonce
// stays unused, and anyone who has the request can execute it until its deadline. The nonce orders the requests of one
// signer strictly: of two requests that are sent at once, the second fails if it is mined first.
//
// Signatures of contract accounts (ERC-1271) are refused, as by the contract.
package forward
