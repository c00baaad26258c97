// Package openzeppelin defines the JSON data of OpenZeppelin Relayer's HTTP API (v1.8, EVM): its clients' requests and the
// responses. It decodes requests strictly and exactly. It writes responses with the names, enums and nulls that clients of
// that relayer expect. It contains no HTTP: package api serves it, package events sends it in webhooks.
//
// # Differences from OpenZeppelin's API
//
//   - Amounts (value, fees) are integers, decimal strings or 0x hex, exact to 2^256-1. OpenZeppelin's integers end at
//     2^64-1, and strings are best written as hex. Responses are the same: value in 0x hex, fees as decimal strings.
//   - A mixed-case address must have the checksum of EIP-55.
//   - Unknown fields are ignored, as in OpenZeppelin's: in v1.8 EvmTransactionRequest and the requests to sign derive
//     serde's Deserialize without deny_unknown_fields. UpdateRelayerRequestRaw has it, so that a patch with an unknown
//     field is rejected here too. A name given twice is rejected, and one that differs from a known name only in case,
//     because its value would be missing silently.
//   - A request may have the additional object metadata: method, orderbook, trader, request_id, trace_id, by which
//     transactions can be listed. An unknown name in it is rejected. Responses and webhooks return it.
//   - from is empty until a key has been chosen for a transaction that was posted to a pool.
//   - gas_price, max_fee_per_gas and max_priority_fee_per_gas are the request's, however often it was outbid. If it set
//     none of them, they are those of the attempt that hash names, and null before there is one. In OpenZeppelin's, each
//     new price replaces the requested one.
//   - signature is always null: a transaction may have several, one per attempt.
package openzeppelin
