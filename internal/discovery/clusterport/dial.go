package clusterport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Raft returns the stream layer for raft.NewNetworkTransport. Other coordinators dial advertise, which Addr reports.
// Closing the layer refuses further Raft connections and leaves the port open.
func (p *Port) Raft(advertise string) raft.StreamLayer {
	return &raftLayer{queue: p.raft, port: p, advertise: advertise}
}

type raftLayer struct {
	*queue
	port      *Port
	advertise string
}

func (l *raftLayer) Addr() net.Addr { return raftAddr(l.advertise) }

// Dial connects to the Raft side of another coordinator's port; timeout covers the handshake.
func (l *raftLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	raw, err := l.port.cfg.Dial(ctx, string(address))
	if err != nil {
		return nil, fmt.Errorf("dial raft at %s: %w", address, err)
	}
	conn, err := l.port.writePreface(ctx, raw)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial raft at %s: %w", address, err), raw.Close())
	}
	return conn, nil
}

// writePreface marks conn as a Raft connection, by TLS with ALPN or by the preface.
func (p *Port) writePreface(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if p.cfg.TLS != nil {
		secured := tls.Client(conn, p.cfg.TLS.ClientConfig(ALPNRaft))
		return secured, secured.HandshakeContext(ctx)
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte(raftPreface)); err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}

// raftAddr keeps a host name unresolved, because each dial resolves it again.
type raftAddr string

func (raftAddr) Network() string  { return "tcp" }
func (a raftAddr) String() string { return string(a) }

// NewClient returns a gRPC connection to the port at addr, as a coordinator. It dials on the first call.
func (p *Port) NewClient(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if p.cfg.TLS != nil {
		creds = credentials.NewTLS(p.cfg.TLS.ClientConfig(ALPNgRPC))
	}
	// passthrough leaves name resolution to Dial, which resolves again for each attempt.
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(p.cfg.Dial),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", addr, err)
	}
	return conn, nil
}
