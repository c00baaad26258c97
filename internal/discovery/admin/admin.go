package admin

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Admin works on one cluster. Its methods fail with the errors of gateway. It is safe for concurrent use.
type Admin struct {
	client       *gateway.Client
	coordinators []string
	timeout      time.Duration
}

// Open returns the Admin of the cluster that cfg finds. It does not connect yet. Each operation takes at most cfg.CallTimeout,
// which must be set. The transfer of a snapshot, an import and a watch may take longer: the timeout limits only the search for
// the leader.
func Open(cfg gateway.ClientConfig) (*Admin, error) {
	client, err := gateway.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Admin{client: client, coordinators: cfg.Coordinators, timeout: cfg.CallTimeout}, nil
}

// Close ends all calls.
func (a *Admin) Close() error { return a.client.Close() }

// Leader returns the leading coordinator.
func (a *Admin) Leader(ctx context.Context) (gateway.Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.client.Leader(ctx)
}

// Status returns the leader's view of the fleet: its director, its checks and its mirror.
func (a *Admin) Status(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.client.Status(ctx)
}
