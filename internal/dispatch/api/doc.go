// Package api serves the relay path over HTTP: clients post transactions and read their statuses, and relayers post webhooks.
// The command calls it; it calls the store and, for gasless requests, the forwarder. Every path under /api/v1 is served without
// that prefix, too.
//
// A 202 means that the transaction is stored and queued: it is not lost from then on. A repeated id or idempotency key of
// one client with an equal request gets the stored transaction; with another request it gets a 422. A 503 means that nothing was
// stored, and a 504 that this is unknown: the client repeats the request with the same key.
//
// All transactions are for the chain of the database. A request that names another one is refused.
//
// A request with an unknown or repeated member, or a bad value, gets a 400 that names the member, the value and the remedy. Errors
// are JSON of this API's own. A client whose Accept names application/problem+json gets them as in RFC 9457.
//
// A client sees its own transactions only. A webhook needs a valid signature over its raw body; otherwise it gets a 401 and
// changes nothing. Any client can send one, so that the bodies share a budget of memory until they are verified. A body is not read
// without a signature's header, above its limit, or for longer than five seconds.
//
// Rates are limited for each process and client; they are not shared between processes. A process answers four lists of
// transactions at once. A list that waits for a second gets a 429.
package api
