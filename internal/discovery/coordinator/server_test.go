package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

func TestIntercept_EveryCall_HasADeadline(t *testing.T) {
	for asked, most := range map[time.Duration]time.Duration{0: callLimit, time.Second: time.Second, time.Hour: longestCall} {
		ctx := t.Context()
		if asked > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, asked)
			defer cancel()
		}
		_, err := new(Node).intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/rollcall.v1.DiscoveryService/Ping"}, func(ctx context.Context, _ any) (any, error) {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.LessOrEqual(t, time.Until(deadline), most)
			return nil, nil
		})
		require.NoError(t, err)
	}
}
