// Package openzeppelin is OpenZeppelin Relayer's HTTP API (v1.8, EVM) as data: what its clients send and what they are answered,
// in JSON. It decodes requests strictly and exactly, and writes answers with the names, enums and nulls that clients of
// that relayer know. It holds no HTTP: package api serves it, package webhook sends it.
//
// # What differs from OpenZeppelin's
//
//   - Amounts (value, fees) come as integers, as decimal strings or as 0x hex, exact to 2^256-1. There, integers end at
//     2^64-1 and strings are best written as hex; answers are the same: value in 0x hex, fees as decimal strings.
//   - A mixed-case address must have the checksum of EIP-55.
//   - Fields that the API does not know are ignored, as there: in v1.8 EvmTransactionRequest and the requests to sign derive
//     serde's Deserialize without deny_unknown_fields. UpdateRelayerRequestRaw has it, so that a patch with an unknown
//     field is refused here too. A name given twice is refused.
//   - A request may have our object metadata: method, orderbook, trader, request_id, trace_id, by which transactions can
//     be listed. Its names are ours, so that an unknown one is refused. Answers and webhooks return it.
//   - from is empty as long as no key has been chosen for a transaction that was posted to a pool.
//   - gas_price, max_fee_per_gas and max_priority_fee_per_gas are what the request named, however often it was outbid. Where it
//     named none of them, they are what the attempt offers that hash names, and null before there is one. There, each new price
//     takes the place of what was asked for.
//   - signature is always null: a transaction may have several, one per attempt.
package openzeppelin
