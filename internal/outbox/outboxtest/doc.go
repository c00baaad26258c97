// Package outboxtest is the conformance kit of package outbox, on a real PostgreSQL.
//
// [Run] runs a kind of table through order, fairness, operators' functions and faults: a worker that dies before or after each of
// its requests, lost answers, a listener that is cut silently, a paused holder that wakes, clocks that differ, and a long backlog
// with plans of an empty table. A domain runs it on its own table and migrations. [RunTransport] runs a transport through the
// contract of outbox.Transport, and [RunDeliveryLimit] one whose broker removes messages by its own limit. [Broker] is a transport in memory that can lose, repeat and reorder messages.
//
// Faults pass through a proxy between the driver and the server, so the engine has no hooks for them.
package outboxtest
