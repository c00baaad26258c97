// Package directoryfile writes and reads a file with all services of the directory and their owners. "rollcall services
// export" writes it and "rollcall services import" reads it: admin and internal/cli call it. It calls the contract alone.
//
// # Format
//
// The file is text of one JSON object a line:
//
//	{"rollcall":"services","version":1,"cluster":"…","epoch":7,"index":120,"exported":"2026-11-23T17:00:00Z","owners":1,"services":2}
//	{"owner":"gateway/edge-1","incarnation":1763916000000000000}
//	{"id":"oz-relayer-1","kind":"relayer","url":"http://10.0.0.5:3000","node":"host-1","labels":{"zone":"a"},"owner":"gateway/edge-1"}
//	{"id":"signer-1","kind":"signer","url":"tcp://10.0.0.6:7000","owner":"operator"}
//	{"sha256":"…"}
//
// The first line is the header. It has the format's version, the source, and the number of the lines that follow. Then
// come the gateways, ordered by name, each with its newest incarnation. Then come the services, ordered by id. Each one
// has its owner: "gateway/ID", "operator" or "static". The last line has the SHA-256 of all bytes before it.
//
// A reader refuses another version, an unknown field, a line out of order and a file that is cut or altered.
package directoryfile
