// Package signer loads the relayer's private keys and signs with them.
//
// # Where keys come from
//
// Exactly one of three, named by environment variables; an empty variable counts as not set, and a name that occurs
// twice has its last value:
//
//   - RELAYER_PRIVATE_KEYS_JSON: a JSON array, each element a key ("0x…", 64 hex digits with or without 0x) or an object
//     {"privateKey": "0x…", "address": "0x…"}, whose address is optional and has to be the key's;
//   - RELAYER_PRIVATE_KEY_0, RELAYER_PRIVATE_KEY_1, …: a key each. Numbers begin at 0 and have no gaps, so that a key that
//     went missing is noticed;
//   - RELAYER_KEYSTORE_DIR: a folder of relayer-0.json, relayer-1.json, …, numbered alike: Web3 secret storage, version
//     3, as geth writes it. One password opens all: RELAYER_KEYSTORE_PASSWORD, or better RELAYER_KEYSTORE_PASSWORD_FILE.
//
// The first two, and the password, can each be in a file: the variable's name with _FILE then holds the file's name.
//
// RELAYER_ALLOWED_ADDRESSES, addresses between commas or spaces, is the allow-list, if it is set: a key off it is an
// error. An address on it without a key is only a warning, because one list may serve several processes that hold a part
// of the keys each. An address in mixed case has to have the right checksum.
//
// # What is refused
//
// Everything wrong is reported together, in one [Error]: no key at all, more than [MaxKeys], one twice, one that is
// malformed or outside of the curve's range, one off the allow-list, a file that is missing, too large, or no regular
// file, a wrong password, a keystore file whose password function costs more than 256 MiB or some seconds.
//
// A file that others may write is refused, since they choose the keys then. One that others may only read is a warning:
// Docker and Kubernetes mount secrets so by default, into containers where there is nobody else.
//
// # What never shows a key
//
// A problem names the variable and the element, or the file, and the address once there is one; never a character of a
// key or password, nor how many there are. A local [Signer] holds its key in a closure, where fmt, encoding/json, slog
// and anything else that works by reflection cannot look, and passes it by pointer only, because a panic's trace prints
// arguments. Variables of the environment and core dumps do hold keys: that is for the operator to close off.
//
// # Signing
//
// Signatures are deterministic (RFC 6979) with s in the lower half: go-ethereum's. In a static binary, which has no
// libsecp256k1, that is pure Go; it does not take constant time. Every new local signer proves itself by one signature
// that its address is recovered from.
//
// The signature of another kind of Signer (a KMS) is verified before it is used. Recovering the address takes a quarter of
// a millisecond, little beside its round trip. A local Signer's signature is not verified.
package signer
