// Package deadletter shows operators the entries of an outbox, above all those that were given up, and repeats or drops them. It is the
// same for each kind of entries: a domain describes its table by a [Source].
//
// The admin packages of the domains, and the command line, call it.
package deadletter
