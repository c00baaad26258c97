// Package clusterport is the one TCP port of a coordinator, shared by Raft and gRPC.
//
// Each accepted connection is sorted in its own goroutine, so that one that stays silent holds up nobody. Without
// TLS its first sixteen bytes decide: HTTP/2's preface, or the preface that our Raft dialer writes. With TLS the
// protocol agreed on by ALPN decides, and every peer shows a certificate of the cluster's CA.
//
// # Who may do what
//
// A certificate names its [Role] among its DNS names. Raft is refused within the handshake to all but
// coordinators; a gRPC handler asks [HasRole]. Clients expect the coordinator's role name from a server, whatever
// address they dialed, so addresses may change without a new certificate. Without TLS nobody is known and
// everybody has every role: such a port belongs on a trusted network.
//
// # Failure
//
// A connection that doesn't say within a second what it wants, speaks another protocol or fails its handshake is
// closed; no other connection notices. While more than a bounded number are being sorted, the oldest of them
// makes room. A failing accept, such as for want of file descriptors, is repeated with backoff.
// Certificates are read again when their files change; bad new ones are reported and the old ones stay.
// Connections that stand are not closed when a certificate expires or is replaced.
package clusterport
