// Package pgserver runs a private PostgreSQL without administration, in its own folder, on a loopback port, for as long
// as the process that started it runs.
//
// # The folder
//
//	Dir/data           PostgreSQL's own; made as data.new and renamed, so that it is whole or absent
//	Dir/password       of the superuser, random, mode 0600
//	Dir/postgres.log   the server's log; the previous one in postgres.log.old
//
// # Access
//
// Clients connect with the password, by TCP on 127.0.0.1 (scram-sha-256). There is no Unix socket, because its name
// would be too long in a deep folder. There is no trust authentication, because other users of the machine reach its
// loopback ports too.
//
// # Durability
//
// fsync and synchronous_commit stay on, so committed data survives Kill, a crash and a power failure. Settings may
// disable them for tests that do not need this.
//
// # Termination
//
// On Linux the kernel kills the server when the process that started it ends for any reason; its backends detect that
// and end, too. On other systems a server outlives a parent that was killed. The next Start in its folder then reports
// ErrRunning with its pid.
//
// # Root
//
// PostgreSQL refuses to run as root. If root calls Start, the server runs as the user postgres, or nobody if there is
// none, and that user becomes the owner of the folder. The user must be able to access it: Folder finds one that it can
// access.
package pgserver
