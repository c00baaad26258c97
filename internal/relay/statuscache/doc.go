// Package statuscache keeps the API's answers about transactions in Redis, so that reads of statuses do not load the database.
// The API calls it; it calls Redis, one round trip for the reads of concurrent requests.
//
// # Order
//
// An entry has the revision of its transaction, and a script replaces it by a higher one only. The process that applies a
// relayer's report stores the new revision without an answer, which hides the older one for ten seconds. A process that has read the
// older row from the database and writes it within that time changes nothing.
//
// Only APIs announce changes: those by the webhooks that they apply. The entry of a transaction that no relayer has lives for one to
// two seconds, because consumers change it. That of one at a relayer lives for five to ten seconds. A status can be that old if the
// reconciler or an operator changed it, or if Redis failed. Final ones live for up to an hour, since they never change.
//
// # When Redis fails
//
// The cache is optional, and its failures cost 50 ms at most: the API reads the database, and tries Redis again a second later.
package statuscache
