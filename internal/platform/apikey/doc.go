// Package apikey reads, checks and recognizes the keys of an API's callers. Keys have a name and a role; several keys of one
// name are one caller, so that a key can be rotated. A [Set] holds only hashes of keys, and compares in constant time.
//
// The APIs of the relayer and of the relay path use it. It calls the standard library alone.
package apikey
