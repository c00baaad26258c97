// Package statuscache keeps the API's answers about transactions in Redis, so that reads of statuses do not load the database.
// The API calls it; it calls Redis, one round trip for the reads of concurrent requests.
//
// # Order
//
// An entry has the revision of its transaction, and a script replaces it by a higher one only. The process that applies a
// relayer's report stores the new revision without an answer, which hides the older one. A process that has read the older row
// from the database and writes it later, or one that was paused, changes nothing.
//
// Changes that a consumer makes do not reach the cache: the entry of a transaction that no relayer has lives for one to two seconds.
// Once a relayer has it, its webhooks announce the changes; an entry lives for five to ten seconds, which is how old a status can be
// if the webhook was lost or Redis failed. Final ones live for up to an hour, since they never change.
//
// # When Redis fails
//
// The cache is optional, and its failures cost 50 ms at most: the API reads the database, and tries Redis again a second later.
package statuscache
