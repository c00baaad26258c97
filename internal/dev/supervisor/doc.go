// Package supervisor is the supervisor of rollcall-dev: a whole cluster on one machine, for trials.
//
// Coordinators, relayers, their chain and the gateway are child processes of rollcall, and of rollcall-dev for the chain, so that a kill is a real
// kill. PostgreSQL and Redis are private servers of the installed programs, unless a Redis is configured. Redis stores nothing on disk.
// All files are in one data folder, which a second run continues from:
//
//	dev.json          all addresses, for scripts; exists while the whole cluster serves; readable by its owner only
//	ports.json        the ports chosen at the first run
//	lock              held by the supervisor
//	coordinator-1/ …  Raft's stores
//	gateway/          the gateway's state
//	postgres/         the relayers' store; for root maybe below /var/tmp, where PostgreSQL's user has access; then until the end
//	secrets/          the relayers' keys, their API keys, and the URL of their store; see Secrets
//	services/         definition files that the gateway reads; the user may add more
//	logs/             the log of each process, JSON lines
//
// The chain is in memory. Each run has another one, and empties the relayers' store, whose transactions do not exist on
// the new chain. Within a run the store is never emptied automatically. A chain that was killed and started is another
// one, too. The relayers refuse it until an operator resyncs them, or until the next run.
//
// A killed process, by "rollcall-dev kill" or otherwise, stays stopped until "rollcall-dev start", so that the user can
// watch the cluster's reaction. The children end with the supervisor, even if it is killed (on Linux; on other systems
// the user has to end them then).
package supervisor
