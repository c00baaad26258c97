// Package api serves OpenZeppelin Relayer's HTTP API (v1.8, EVM), so that its clients can relay through a pool of keys.
//
// cmd/rollcall calls it, with a [relayer.Service] that package service implements. It calls openzeppelin for the formats,
// platform/apikey for callers and platform/httpserver for connections.
//
// # Routes
//
// The routes are those of OpenZeppelin's under /api/v1/relayers, /api/v1/health and /api/v1/ready, and two more. These are
// /health, which is 200 only if the relayer can relay, and /api-docs/openapi.json, the description of all routes. The table
// in routes.go is the only place where a route is declared; the description is generated from it. A route of OpenZeppelin's
// that this relayer lacks responds with 501 and names the setting to use instead. An example is creating relayers and
// signers over HTTP.
//
// # Callers
//
// Every request but the public ones carries exactly one header "Authorization: Bearer <key>". The key's name is the caller
// of the request. Keys are kept and compared as hashes. Any other request, also one to an unknown path, gets a 401, after
// which the connection is closed. A key may have a role: an operation beyond it gets a 403.
//
// # Idempotency
//
// A submission may carry an Idempotency-Key, 1 to 255 visible ASCII characters. The same key of the same caller with an
// equivalent body (see openzeppelin.CanonicalHash) returns the same transaction, whatever its status. With another body it
// is a 422. Without a key, the caller must look for the transaction after a 504.
//
// Every response to a caller's request under /api/v1/relayers carries the header Idempotency-Scope, except for a 503. It
// identifies the store, the chain, the pool and the caller. Two relayers whose responses carry an equal scope share the
// caller's keys: the same key at either is the same transaction. A failover or a restore of the database changes the
// scope, because keys may be lost with it. A request that carries Idempotency-Scope itself is done only by a relayer with
// that scope; another one responds with 412 before anything is stored.
//
// # Errors
//
// Errors have OpenZeppelin's bodies. A client whose Accept names application/problem+json gets them as in RFC 9457.
//
//	400  the request is invalid, would revert, has a value that no key owns, or is not possible for a transaction of that status
//	401  no valid API key
//	403  relayer disabled, relayer paused, it signs no messages, or beyond the API key's role
//	404  no such relayer, transaction or route; 405 with Allow: no such method
//	410  the idempotency key has been used, and the history of its transaction is no longer kept
//	412  the request requires another idempotency scope; nothing was stored
//	413  a body above 1 MiB; the rest that arrives after the response, up to 16 MiB and 3 s, is read and discarded
//	415  a body that is not JSON by its header
//	422  the idempotency key has been used with another body
//	429  a limit, with Retry-After
//	500  a bug in the relayer; the log has the details, under the request's X-Request-Id
//	501  part of OpenZeppelin's API that this relayer lacks
//	503  a dependency is unavailable, or no key can pay for the transaction now; nothing was stored; with Retry-After
//	504  the outcome is unknown: retry with the same Idempotency-Key
package api
