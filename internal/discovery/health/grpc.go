package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpcProbe calls gRPC's health service for the server, or for the service in the URL's path. It keeps its connection
// while checks succeed. After a failure it closes the connection, because grpc-go's reconnect backoff would delay
// detection of the service's return.
type grpcProbe struct {
	*prober
	url  *url.URL
	conn *grpc.ClientConn
	// dialError is why conn could not connect, because a gRPC status loses the dial's original error.
	dialError *atomic.Pointer[error]
}

func (p *grpcProbe) check(ctx context.Context, deadline time.Time) (err error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if p.conn == nil {
		p.dialError = new(atomic.Pointer[error])
		if p.conn, err = p.connect(p.dialError); err != nil {
			return err
		}
	}
	p.dialError.Store(nil)
	if auth := p.cfg.Auth; auth.allows(p.url) {
		ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(auth.Header), auth.Value)
	}
	resp, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: strings.Trim(p.url.Path, "/")})
	if err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING {
		return nil
	}
	p.close()
	if met := p.dialError.Load(); met != nil {
		return *met
	}
	switch st := status.Convert(err); {
	case err == nil:
		return answer(fmt.Sprintf("health service reports %v", resp.GetStatus()))
	case ctx.Err() != nil:
		return p.timedOut(ctx, deadline, err)
	default:
		// The message is the service's own text, or grpc-go's text with parts of the response.
		message := p.quote(st.Message())
		switch {
		case message == "":
			message = fmt.Sprintf("health service answers %v", st.Code())
		case st.Code() != codes.Unavailable:
			message = fmt.Sprintf("health service answers %v: %s", st.Code(), message)
		}
		if st.Code() == codes.Unavailable {
			return errors.New(message)
		}
		return answer(message)
	}
}

func (p *grpcProbe) connect(dialError *atomic.Pointer[error]) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if p.url.Scheme == "grpcs" {
		creds = credentials.NewTLS(p.tls())
	}
	return grpc.NewClient("passthrough:///"+p.url.Host,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := p.dial(ctx, "tcp", address)
			if err != nil {
				dialError.Store(&err)
			}
			return conn, err
		}),
		grpc.WithAuthority(p.url.Host),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(3*p.cfg.Interval),
		grpc.WithUserAgent(userAgent),
		grpc.WithReadBufferSize(1<<10),
		grpc.WithWriteBufferSize(1<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBody)),
	)
}

func (p *grpcProbe) close() {
	if p.conn != nil {
		_ = p.conn.Close() // fails only if already closed
		p.conn = nil
	}
}
