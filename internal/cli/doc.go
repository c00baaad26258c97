// Package cli holds the operator's commands, and the parts that all command lines share: flags, output, the texts of
// errors, exit codes.
//
// cmd/rollcall and cmd/rollcall-dev call it. It calls the gateway's client for the cluster, admin for a pool of keys, the stores and
// the queue for transactions, and mirror for Redis.
package cli
