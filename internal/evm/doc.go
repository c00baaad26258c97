// Package evm talks to the nodes of one EVM chain over JSON-RPC.
//
// # Whom it asks
//
// A Client has several endpoints in order of preference. Every one has to name the configured chain before it is used,
// again each minute and after each failure; one of another chain is never asked for anything else, nor sent to. A call
// goes to the first endpoint that is well; one that lags more blocks than configured behind the best comes after those
// that do not, one that failed lately after them, and one that asked to be left alone is left alone.
//
// Only the lack of an answer lets a call go on to the next endpoint: no connection, a timeout, 5xx, an answer that is
// cut short or that is not JSON, a refusal for the rate, or a JSON-RPC error about the node instead of the call. An
// endpoint that hangs costs one timeout, or its share of the time that the caller gave; then it is out of the way.
//
// A JSON-RPC error is an answer if every healthy node would give it: a revert, insufficient funds, a gas allowance, invalid
// parameters of the caller's, and what eth_sendRawTransaction refuses of the bytes. Any other counts against the endpoint
// for that method (methods.go). Other endpoints are preferred for the method during a pause that grows with each failure
// in a row. The endpoint is still asked for its other methods, and for this one where no other endpoint is well.
//
// # What may be concluded
//
// Two endpoints, or one asked twice, may be at different blocks. Values that are compared are read through a
// View: one endpoint, one block, by hash where the node can (EIP-1898), otherwise with the block looked at again
// afterwards. ErrStale and errors without an answer say nothing about the chain; whoever gets one decides nothing. A View
// never asks another endpoint: its reads would not agree. The caller starts over with a new View, which is another
// endpoint's if the last one failed to answer.
//
// # Sending
//
// Outcomes are three: the node has the transaction (Accepted, AlreadyKnown), it certainly has not, or that is Unknown.
// Nodes say which in words only; classify.go has all of them. An unrecognized answer is Unknown. Sending the same bytes
// again is always harmless. How several endpoints' words are put together stands at Client.Send.
//
// # Heads
//
// Run learns heads from a subscription if there is one, from polls of the preferred endpoint otherwise, while the
// subscription is away and when it has been silent for long. A head is a hint to look.
//
// # Secrets
//
// Endpoints' URLs hold keys. Nothing of them but the host shows in errors, logs, metrics or Status, and what nodes
// repeat of them is cut out of their messages.
package evm
