// Package admin implements an operator's operations on a pool of keys, through its store. No relayer has to run, and no key
// is needed. Admin stores requests for signatures, and the relayer that tracks the chain signs them.
//
// The commands keys, tx, dead-letters and migrate call it. It calls store, events, tracker, evm and deadletter.
package admin
