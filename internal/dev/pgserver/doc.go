// Package pgserver runs a private PostgreSQL: one that nobody administers, in a folder of its own, on a loopback port,
// for as long as the process that started it lives.
//
// # The folder
//
//	Dir/data           PostgreSQL's own; made as data.new and renamed, so that it is whole or absent
//	Dir/password       of the superuser, random, mode 0600
//	Dir/postgres.log   what the server said; the one before it in postgres.log.old
//
// # Who may connect
//
// Whoever knows the password, by TCP on 127.0.0.1 (scram-sha-256). There is no Unix socket, whose name would be too long
// in a deep folder, and no trust authentication: other users of the machine reach its loopback ports too.
//
// # What it survives
//
// fsync and synchronous_commit stay on, so that what was committed is there after Kill, a crash and a power failure.
// Settings may say otherwise, for tests that do not care.
//
// # Its end
//
// On Linux the kernel kills the server when the process that started it ends, however that ended; its backends notice
// and end, too. Elsewhere a server outlives a parent that was killed, and the next Start in its folder reports
// ErrRunning with its pid.
//
// # Root
//
// PostgreSQL refuses to run as root. Where root calls Start, the server runs as the user postgres, or nobody where
// there is none, and the folder becomes that user's. The user has to be able to reach it: Folder finds one that it can.
package pgserver
