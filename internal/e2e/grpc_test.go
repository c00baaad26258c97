package e2e

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// quickReconnect limits how long a test waits for gRPC after a coordinator is started again.
var quickReconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: time.Second,
}
