// Package cli holds the operator's commands, and the parts that all command lines share: flags, output, the texts of
// errors, exit codes.
//
// cmd/rollcall and cmd/rollcall-dev call it. It calls the admin packages of discovery, for the cluster and Redis, and of the
// relayer, for a pool of keys, and of the escrow monitor; and the stores and the queue for transactions.
package cli
