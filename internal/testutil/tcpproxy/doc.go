// Package tcpproxy forwards TCP connections to a server in tests: one client loses its server, while others keep it. It knows no
// protocol. The packages chain/proxy and memnet have faults of single calls.
package tcpproxy
