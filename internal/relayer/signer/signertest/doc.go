// Package signertest has keys and signers for tests: keys derived from a seed, keystore folders with them, a signer
// that is slow, fails or returns wrong signatures, and the suite that every [signer.Signer] passes.
//
// The keys are as public as this source. Never pay to their addresses on a chain with value.
//
// Tests of signer, sender, service and tracker call it.
package signertest
