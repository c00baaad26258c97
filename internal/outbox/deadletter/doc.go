// Package deadletter shows operators the entries of an outbox, above all those that were given up, and repeats or drops them. It is the
// same for each kind of entries: a domain describes its table by a [Source]. A [Set] has the kinds of all domains in a database.
//
// The admin packages of the domains return their kinds as a [Domain]. The command line passes these to [Open], and calls the Set.
package deadletter
