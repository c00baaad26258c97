// Package crashtest tests the relay path between an API's answer and a relayer's, with real parts: processes of an API and of
// consumers, a Redis and a Postgres. Relayers are stand-ins, so that a test can stop at the moment when a relayer has accepted a
// transaction and its consumer does not know it. It holds no code of the product.
//
// Package e2e has the whole path, with relayers and a chain.
package crashtest
