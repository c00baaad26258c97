package clusterport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

// Roles returns the roles of the peer behind ctx, the context of a gRPC handler: those that its certificate
// names, all on a port without TLS, none for anything else.
func Roles(ctx context.Context) []pki.Role {
	p, ok := peer.FromContext(ctx)
	if !ok || p.AuthInfo == nil {
		return nil
	}
	switch info := p.AuthInfo.(type) {
	case credentials.TLSInfo:
		return certificateRoles(info.State)
	default:
		if info.AuthType() == insecure.NewCredentials().Info().SecurityProtocol {
			return pki.AllRoles()
		}
		return nil
	}
}

// HasRole reports whether the peer behind ctx has at least one of roles; see [Roles].
func HasRole(ctx context.Context, roles ...pki.Role) bool {
	return slices.ContainsFunc(Roles(ctx), func(r pki.Role) bool { return slices.Contains(roles, r) })
}

func certificateRoles(state tls.ConnectionState) []pki.Role {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	return leafRoles(state.PeerCertificates[0])
}

func leafRoles(leaf *x509.Certificate) []pki.Role {
	return slices.DeleteFunc(pki.AllRoles(), func(r pki.Role) bool { return !slices.Contains(leaf.DNSNames, string(r)) })
}

// ServerCredentials returns the credentials for a grpc.Server on [Port.GRPC]. They provide peers to handlers, because
// the port has done the handshake itself.
func (p *Port) ServerCredentials() credentials.TransportCredentials {
	if p.cfg.TLS == nil {
		return insecure.NewCredentials()
	}
	return serverCredentials{}
}

type serverCredentials struct{}

func (serverCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a connection of the cluster port")
	}
	return conn, credentials.TLSInfo{
		State:          secured.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of the cluster port are for servers only")
}

func (serverCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c serverCredentials) Clone() credentials.TransportCredentials { return c }
func (serverCredentials) OverrideServerName(string) error           { return nil }
