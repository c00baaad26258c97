package coordinator

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// callLimit is the time limit of a call whose client set no deadline.
	callLimit = 10 * time.Second
	// longestCall is the time limit of any other call. A client with a deadline of a day must not hold its request's
	// memory that long.
	longestCall = 2 * time.Minute
)

// newServer builds the gRPC server with all services of the cluster port.
func (n *Node) newServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.Creds(n.port.ServerCredentials()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxStatus), // other responses are limited where they are built
		grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Large windows, so that a batch of 4 MiB does not wait for round trips.
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20),
		grpc.UnaryInterceptor(n.intercept),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := authorize(ss.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(srv, ss)
		}),
	)
	rollcallv1.RegisterDiscoveryServiceServer(s, discovery{Node: n})
	rollcallv1.RegisterClusterServiceServer(s, cluster{Node: n})
	rollcallv1.RegisterPeerServiceServer(s, peer{Node: n})
	n.health = health.NewServer()
	n.reportHealth()
	context.AfterFunc(n.stopping, n.health.Shutdown)
	healthpb.RegisterHealthServer(s, n.health)
	reflection.Register(s)
	return s
}

// healthPeriod is how often the gRPC health service checks whether the node is ready: often enough for load balancers,
// which poll every few seconds.
const healthPeriod = 250 * time.Millisecond

// watchHealth keeps the gRPC health service up to date until ctx ends.
func (n *Node) watchHealth(ctx context.Context) error {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			n.reportHealth()
		}
	}
}

// reportHealth sets the status of each service by name. Callers and operators need a ready node, as /readyz reports
// it. Peers need this node earlier, to elect a leader. The empty name is the status of the process itself.
func (n *Node) reportHealth() {
	ready := healthpb.HealthCheckResponse_SERVING
	if n.Ready() != nil {
		ready = healthpb.HealthCheckResponse_NOT_SERVING
	}
	n.health.SetServingStatus(rollcallv1.DiscoveryService_ServiceDesc.ServiceName, ready)
	n.health.SetServingStatus(rollcallv1.ClusterService_ServiceDesc.ServiceName, ready)
	n.health.SetServingStatus(rollcallv1.PeerService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
}

func (n *Node) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	limit := longestCall
	if _, ok := ctx.Deadline(); !ok {
		limit = callLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return handler(ctx, req)
}

// authorize restricts the peer service to coordinators, and cluster administration to coordinators and operators.
// Without TLS every caller has every role.
func authorize(ctx context.Context, method string) error {
	var allowed []pki.Role
	switch service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/"); service {
	case rollcallv1.PeerService_ServiceDesc.ServiceName:
		allowed = []pki.Role{pki.RoleCoordinator}
	case rollcallv1.ClusterService_ServiceDesc.ServiceName:
		allowed = []pki.Role{pki.RoleCoordinator, pki.RoleOperator}
	default:
		return nil
	}
	if !clusterport.HasRole(ctx, allowed...) {
		return status.Errorf(codes.PermissionDenied, "%s needs a certificate of one of the roles %v", method, allowed)
	}
	return nil
}
