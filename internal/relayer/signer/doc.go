// Package signer loads the relayer's private keys and signs with them.
//
// cmd/rollcall loads the keys with it; the sender and the service sign with them. It calls go-ethereum's crypto and
// keystore, and no other package of the project.
//
// # Where keys come from
//
// Keys come from exactly one of three sources, named by environment variables. An empty variable counts as not set. If
// a name occurs twice, the last value applies:
//
//   - RELAYER_PRIVATE_KEYS_JSON: a JSON array, each element a key ("0x…", 64 hex digits with or without 0x) or an object
//     {"privateKey": "0x…", "address": "0x…"}, whose address is optional and must be the key's;
//   - RELAYER_PRIVATE_KEY_0, RELAYER_PRIVATE_KEY_1, …: one key each. Numbers begin at 0 and have no gaps, so that a missing
//     key is detected;
//   - RELAYER_KEYSTORE_DIR: a folder of relayer-0.json, relayer-1.json, …, numbered likewise: Web3 secret storage, version
//     3, as geth writes it. One password opens all: RELAYER_KEYSTORE_PASSWORD, or better RELAYER_KEYSTORE_PASSWORD_FILE.
//
// The first two, and the password, can each be in a file: the variable's name with _FILE then holds the name of the
// file.
//
// RELAYER_ALLOWED_ADDRESSES is the optional allow-list: addresses between commas or spaces. A key that is not on it is
// an error. An address on it without a key is only a warning, because one list may serve several processes that each
// hold a part of the keys. An address in mixed case must have the right checksum.
//
// # Validation
//
// Read reports all problems together, in one [Error]: no key at all, more than [MaxKeys], a duplicate key, a malformed
// key, a key outside of the curve's range, or one that is not on the allow-list. For files: a missing file, one that is
// too large, or not a regular file, and a keystore file whose password function costs more than 256 MiB or some seconds.
//
// Read does not open keystore files, because that takes a second each. [Keys.Open] does, and reports, likewise together, a
// wrong password, and what Read reports about other keys.
//
// DecryptDataV3 of go-ethereum decrypts, with the checked parameters alone. DecryptKey would parse the file again: of
// {"n": 1073741824, "N": 2} it uses n, but the check has seen the value of N. It also rejects files without an id.
//
// A file that other users may write is an error, because they could choose the keys. A file that others may only read
// is a warning: Docker and Kubernetes mount secrets that way by default, into containers without other users.
//
// # Secrecy
//
// A problem contains the variable and the element, or the file, and the address once there is one. It never contains a
// character of a key or password, nor their number. A local [Signer] holds its key in a closure, which fmt,
// encoding/json, slog and other users of reflection cannot read. It passes the key by pointer only, because a panic's
// trace prints arguments. Environment variables and core dumps do contain keys: the operator has to protect these.
//
// # Signing
//
// Signatures are deterministic (RFC 6979) with s in the lower half. They and the encoding of transactions come from
// go-ethereum. In a static binary, without libsecp256k1, the implementation is pure Go, which does not run in constant
// time. Every new local signer signs once as a self-test, and its address must be recovered from the signature.
//
// The signature of another kind of Signer (a KMS) is verified before it is used. Recovering the address takes a quarter
// of a millisecond, which is small compared with its round trip. A local Signer's signature is not verified.
package signer
