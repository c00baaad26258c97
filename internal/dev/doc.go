// Package dev is the supervisor behind "rollcall dev": a whole cluster on one machine, to try things out.
//
// Coordinators, relayers and the gateway are child processes of the same binary, so that a kill is a real kill.
// Redis is a miniredis in the supervisor, on a real port, unless one is given. Everything lives in one data
// folder, which a second run continues from:
//
//	dev.json          where everything is, for scripts; there while the cluster runs
//	ports.json        the ports chosen at the first run
//	lock              held by the supervisor
//	coordinator-1/ …  Raft's stores
//	gateway/          the gateway's state
//	services/         definition files the gateway reads; more may be put beside ours
//	logs/             what each process says, JSON lines
//
// A process that is killed, by "rollcall dev kill" or otherwise, stays dead until "rollcall dev start": what a
// cluster does meanwhile is what there is to see. The children die with the supervisor, also when that is killed
// (on Linux; elsewhere they have to be ended by hand then).
package dev
