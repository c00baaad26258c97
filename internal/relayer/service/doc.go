// Package service accepts requests, passes them to the sender, and serves the relayer's API.
//
// cmd/rollcall makes it and passes it to package api. It calls store, sender, signer for messages, and evm for
// simulations and reads. It does not import package api.
//
// The service checks a request, and simulates it if it has no gas limit, before it passes it to the intake. The intake
// collects requests that arrive while the database is busy, and stores them as a group. The service responds when the
// group's commit is on disk: from then on the transaction is sent, even if this process dies.
package service
