// Package supervisor is the supervisor behind "rollcall dev": a whole cluster on one machine, to try things out.
//
// Coordinators, relayers, their chain and the gateway are child processes of the same binary, so that a kill is a real
// kill, and PostgreSQL is one of its own. Redis is a miniredis in the supervisor, on a real port, unless one is given.
// Everything lives in one data folder, which a second run continues from:
//
//	dev.json          where everything is, for scripts; there from when everything serves until the cluster stops, and its owner's only
//	ports.json        the ports chosen at the first run
//	lock              held by the supervisor
//	coordinator-1/ …  Raft's stores
//	gateway/          the gateway's state
//	postgres/         the relayers' store; root's may be below /var/tmp, where PostgreSQL's user can reach it, until the cluster stops
//	secrets/          the relayers' keys, their API keys, and the URL of their store; see Secrets
//	services/         definition files the gateway reads; more may be put beside ours
//	logs/             what each process says, JSON lines
//
// The chain lives in memory. Each run has another one, and empties the relayers' store, whose transactions mean nothing
// there. Within a run it is nobody's place to forget them: a chain that was killed and started is another one, too, and
// the relayers refuse it, until an operator's word or the next run.
//
// A process that is killed, by "rollcall dev kill" or otherwise, stays dead until "rollcall dev start": what a
// cluster does meanwhile is what there is to see. The children die with the supervisor, also when that is killed
// (on Linux; elsewhere they have to be ended by hand then).
package supervisor
