// Package health watches the dependencies of an API or a consumer of the relay path, and reports whether it can work. The
// commands call it; it calls the store.
//
// Anyone may read the report. It has each component and the class of its problem, such as unreachable. The log has the cause, which
// may name addresses and users.
//
// A process is ready while it reaches the database. Other components that fail make it degraded: the API accepts transactions
// without the queue's broker, and a consumer without relayers waits for them.
package health
