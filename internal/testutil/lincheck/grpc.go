package lincheck

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// GRPC is the directory of real coordinators, for one client, which calls the reported leader. Calls own relayers as
// gateways named after Call.Owner.
type GRPC struct {
	IDs    []string // of the coordinators
	Client func(id string) rollcallv1.DiscoveryServiceClient
	// Timeout of one attempt.
	Timeout time.Duration

	at string
}

// client returns a client for the coordinator to try.
func (g *GRPC) client() rollcallv1.DiscoveryServiceClient {
	if g.at == "" {
		g.at = g.IDs[0]
	}
	return g.Client(g.at)
}

// elsewhere waits a moment and follows the leader hint of an error, or tries the next coordinator.
func (g *GRPC) elsewhere(ctx context.Context, err error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
	}
	for _, d := range status.Convert(err).Details() {
		if nl, ok := d.(*rollcallv1.NotLeader); ok && nl.Leader != nil {
			g.at = nl.Leader.Node
			return
		}
	}
	g.at = g.IDs[(slices.Index(g.IDs, g.at)+1)%len(g.IDs)]
}

// Write implements Directory.
func (g *GRPC) Write(ctx context.Context, c Call) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	var to peer.Peer
	a, err := g.write(ctx, c, grpc.Peer(&to))
	switch code := status.Code(err); {
	case err == nil:
		return a, nil
	case code == codes.AlreadyExists || code == codes.PermissionDenied:
		return Answer{}, ErrConflict
	case code == codes.FailedPrecondition, code == codes.Unavailable && len(status.Convert(err).Details()) > 0:
		g.elsewhere(ctx, err) // a coordinator reports that nothing was done
		return Answer{}, ErrNotDone
	case to.Addr == nil:
		g.elsewhere(ctx, err) // it was never sent, without a connection
		return Answer{}, ErrNotDone
	case code == codes.Unavailable, code == codes.Unknown, code == codes.DeadlineExceeded, code == codes.Canceled:
		g.elsewhere(ctx, err)
		return Answer{}, ErrUnknown
	default:
		return Answer{}, err
	}
}

func (g *GRPC) write(ctx context.Context, c Call, opts ...grpc.CallOption) (Answer, error) {
	w := &rollcallv1.Writer{
		Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: c.Owner},
		Incarnation: 1, Seq: c.Seq,
	}
	if c.Kind == Deregister {
		req := &rollcallv1.DeregisterServicesRequest{Writer: w}
		for id := range c.Values {
			req.Ids = append(req.Ids, id)
		}
		resp, err := g.client().DeregisterServices(ctx, req, opts...)
		return Answer{Removed: int(resp.GetRemoved())}, err
	}
	req := &rollcallv1.RegisterServicesRequest{Writer: w, FullSet: c.Kind == Replace, AllowEmpty: true}
	for id, url := range c.Values {
		req.Services = append(req.Services, &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: url}})
	}
	resp, err := g.client().RegisterServices(ctx, req, opts...)
	return Answer{Registered: int(resp.GetRegistered()), Unchanged: int(resp.GetUnchanged()), Removed: int(resp.GetRemoved())}, err
}

// List implements Directory.
func (g *GRPC) List(ctx context.Context, ids []string) (map[string]Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	resp, err := g.client().ListServices(ctx, &rollcallv1.ListServicesRequest{Ids: ids})
	if err != nil {
		g.elsewhere(ctx, err)
		return nil, err
	}
	found := make(map[string]Entry)
	for _, r := range resp.Records {
		found[r.Service.Id] = Entry{Owner: r.Owner.Id, Value: r.Service.WorkerRef.Url}
	}
	return found, nil
}
