// Package clusterport is the one TCP port of a coordinator, shared by Raft and gRPC.
//
// Each accepted connection is identified in its own goroutine, so that a silent connection delays no other. Without
// TLS its first sixteen bytes decide: the preface of HTTP/2, or the preface of our Raft dialer. With TLS the ALPN
// protocol decides, and every peer presents a certificate of the cluster's CA.
//
// # Who may do what
//
// A certificate contains its [Role] as one of its DNS names. The handshake refuses Raft to all peers except
// coordinators; a gRPC handler calls [HasRole]. Clients require the coordinator's role name from a server, whatever
// address they dialed, so addresses may change without a new certificate. Without TLS peers are unauthenticated and
// every peer has every role, so such a port belongs on a trusted network.
//
// # Failure
//
// The port closes a connection that does not identify its protocol within a second, uses another protocol or fails its
// handshake. Other connections are unaffected. If too many connections are being identified, the port closes the
// oldest of them. A failed accept, for example when there are no file descriptors left, is retried with backoff.
// Certificates are reloaded when their files change. The port reports invalid new ones and keeps the old ones. Open
// connections are not closed when a certificate expires or is replaced.
package clusterport
