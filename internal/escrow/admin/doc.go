// Package admin implements an operator's operations on the escrow monitor of a chain, through its store. No instance has to run.
//
// The commands escrow, dead-letters and migrate call it. It calls store, events, watch, evm and deadletter.
//
// Each change locks the chain's row, as the steps of the watcher do: messages of an escrow are inserted one after the other, and a change
// is refused if the chain is halted or another operator was faster.
package admin
