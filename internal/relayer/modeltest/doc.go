// Package modeltest holds the property test of the relayer: every accepted transaction is mined exactly once, whatever fails
// between claim, sign, commit, broadcast and record, and whichever process dies or freezes there. It has tests only.
//
// # What runs
//
// Processes of one pool, assembled of the real pool, sender, tracker and store, on a real Postgres and a chain in memory.
// Everything that a process does to the world outside passes a gate that has a name, a step: a statement by what it does,
// the commit after it, a signature, a broadcast, a look at the chain. At a gate a fault may strike:
//
//	fail before      the step does not happen, and the process hears an error: the connection breaks, nothing was sent
//	fail after       it happens, and the process hears the same error
//	die before       nothing that the process does has an effect any more
//	die after        the same, but for this step
//	freeze before    the process stands still, and goes on much later, when others have taken over
//	freeze after     the same, once the step has happened
//	late             the process hears an error at once, and the step happens some time later
//
// Statements are told apart on the wire, where connections are cut before the server has read a request or after it has
// executed it, so that a commit can be lost in both ways.
//
// # What is proved
//
// TestFaults has a fault strike a step, at its first, second or third time, in one fixed history; all of them take some
// minutes, and without -modeltest.all it makes a choice. TestSeeds has
// random histories with random faults, which a seed makes; the scheduler of goroutines and the database have their own will,
// so that a seed that fails may have to be repeated:
//
//	go test ./internal/relayer/modeltest -run TestSeeds -modeltest.seed=7 -modeltest.seeds=20
//
// Each history ends alike: faults stop, what is frozen goes on, a fresh process joins, every request that has no answer is
// made again, and blocks are sealed until nothing is open. Then the invariants have to hold; see verify.
//
// # What the chain is
//
// The chain in memory is faster than go-ethereum's and fails by name. So that it does not lie, both pass the same suite,
// TestConformance. It has no gas, no balances and no contracts: a transaction's data is what it is counted by.
package modeltest
