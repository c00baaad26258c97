// Package api serves OpenZeppelin Relayer's HTTP API (v1.8, EVM), so that its clients can relay through a pool of keys.
//
// # Routes
//
// Those of OpenZeppelin's under /api/v1/relayers, /api/v1/health and /api/v1/ready, and ours: /health, which is 200 only
// when the relayer can really relay, and /api-docs/openapi.json, the description of it all. The table in routes.go is the
// one place where a route is declared; the description is made from it. A route that OpenZeppelin has and this relayer has not,
// such as making relayers and signers over HTTP, answers 501 and names the setting to use instead.
//
// # Callers
//
// Every request but the public ones carries exactly one header "Authorization: Bearer <key>". A key has a name, which is
// the caller of what it asks for; keys are kept and compared as hashes. Anything else, unknown paths too, is a 401, after which the
// connection is closed. A key may have a role: what it may not do then is a 403.
//
// # Idempotency
//
// A submission may carry an Idempotency-Key, 1 to 255 visible ASCII characters. The same key of the same caller with a
// body that means the same (see openzeppelin.CanonicalHash) gives the same transaction, whatever became of it; with another
// body it is a 422. Without a key, a 504 leaves the caller to look for the transaction.
//
// # Errors
//
//	400  what is asked for is wrong in itself, would revert, has a value that no key owns, or is not possible for a
//	     transaction of that status
//	401  no valid API key
//	403  relayer disabled, relayer paused, it signs no messages, or beyond the API key's role
//	404  no such relayer, transaction or route; 405 with Allow: no such method
//	410  the idempotency key has been used, and the history of its transaction is no longer kept
//	413  a body above 1 MiB; what comes of it after the answer, to 16 MiB and 3 s, is read and thrown away
//	415  a body that is not JSON by its header
//	422  the idempotency key has been used with another body
//	429  a limit, with Retry-After
//	500  a mistake of ours; the log says which, under the request's X-Request-Id
//	501  part of OpenZeppelin's API that this relayer has not
//	503  what the relayer needs is away, or no key can pay for it just now; nothing was stored; with Retry-After
//	504  done or not done: ask again with the same Idempotency-Key
package api
