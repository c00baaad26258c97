// Package instance keeps the row of a process in relayer_instances, and reports the state of the chain and of all its instances: as metrics,
// at /health and at /status.
//
// # Heartbeats
//
// A process writes a heartbeat each three seconds, but only while its loops turn: a process whose loops hang looks like one that is gone.
// A row without a heartbeat for an hour is removed.
//
// # Two processes under one id
//
// The later one replaces the run of the row. The earlier one finds that at its next heartbeat, also if it was paused, and ends: the process
// that an orchestrator started last is the one that is to run. Until then both may work, because neither the watcher's lease nor the
// claims of messages belong to an id.
//
// # Without the database
//
// Each part repeats its attempts by itself. After five minutes the process ends with an error, so that its supervisor starts another one,
// perhaps at a place with a connection.
package instance
