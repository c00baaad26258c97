// Package modeltest holds the property test of the relayer: every accepted transaction is mined exactly once. Any step
// between claim, sign, commit, broadcast and record may fail, and any process may die or freeze there. The package has
// tests only.
//
// # What runs
//
// Processes of one pool, assembled of the real pool, sender, tracker and store, run on a real Postgres and a chain in
// memory. Every external effect of a process passes a named gate, called a step: a statement, named by its purpose, the
// commit after it, a signature, a broadcast, a read of the chain. At a gate a fault may strike:
//
//	fail before      the step does not happen, and the process gets an error: the connection breaks, nothing was sent
//	fail after       it happens, and the process gets the same error
//	die before       nothing that the process does from then on has an effect
//	die after        the same, but for this step
//	freeze before    the process stops, and resumes much later, when other processes have taken over
//	freeze after     the same, once the step has happened
//	late             the process gets an error at once, and the step happens some time later
//
// Statements are identified on the wire. There connections are cut before the server has read a request or after it has
// executed it, so a commit can be lost in both ways.
//
// # What is tested
//
// TestFaults makes a fault strike a step, at its first, second or third time, in one fixed history. All combinations
// take some minutes; without -modeltest.all it runs a selection. TestSeeds runs random histories with random faults,
// derived from a seed. The goroutine scheduler and the database are not deterministic, so a failing seed may have to be
// repeated:
//
//	go test ./internal/relayer/modeltest -run TestSeeds -modeltest.seed=7 -modeltest.seeds=20
//
// Each history ends alike: faults stop, frozen processes resume, a new process joins, every request without an answer
// is repeated, and blocks are sealed until no transaction is open. Then the invariants must hold; see verify.
//
// # The chain
//
// The chain in memory is faster than go-ethereum's and injects faults by name. To keep it faithful, both pass the same
// suite, TestConformance. It has no gas, no balances and no contracts: transactions are counted by their data.
package modeltest
