// Package chain starts real EVM chains for tests. [Simulated] chains run in this process, seal blocks on demand and
// fork. [Geth] is a separate process, which can be killed, frozen and rewound. Both fund keys, have a contract that
// counts its calls, and end with the test.
//
// Every failure fails the test; no test is skipped.
//
// Tests of evm and of the relayer call it, and the benchmark. It calls devchain.
package chain
