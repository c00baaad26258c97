// Package crashtest tests the escrow monitor with real parts: processes of it, a Postgres and a geth. The topic is Google's fake, in the
// process of the test. It holds no code of the product.
//
// # The claim
//
// Whichever process dies, is paused, or loses its nodes, its topic or its database, the topic gets every event of the chain, those of an
// escrow in the order of their sequences. A message is sent again only if it was in flight at a fault of the
// instance that had sent it, and then with the same content.
// Another process stores the next block within 15 seconds, and within 10 in half of the cases. A process that is told to stop hands over
// within a second. The chain is read from geth at the end, and compared with what the topic has.
//
// # Forms
//
// The tests run each fault once or a few times. They allow five times the limits, for machines that are busy with other tests. `make soak`
// runs many faults, and asserts the limits as they are. Both log the measured times.
package crashtest
