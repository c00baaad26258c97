// Package batch groups concurrent calls, so that one statement and one commit serve many of them. A call that finds no batch
// in progress runs at once, and alone. Calls that arrive meanwhile form the next batch. So batches grow with the load, and no
// call waits for a timer.
//
// The stores of the relay path use it. It calls the standard library alone.
package batch
