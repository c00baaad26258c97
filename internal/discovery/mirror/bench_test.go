package mirror_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// BenchmarkScripts measures how long one write keeps Redis busy, by Redis's own count.
func BenchmarkScripts(b *testing.B) {
	const fleet = 10_000
	ids := make([]mirror.Member, fleet)
	for i := range ids {
		ids[i] = mirror.Member{ID: fmt.Sprintf("oz-relayer-%d", i), URL: fmt.Sprintf("http://oz-relayer-%d:3000", i)}
	}
	status := make([]mirror.StatusChange, 500)
	for i := range status {
		status[i] = mirror.StatusChange{ID: ids[i].ID, Fields: []string{
			"id", ids[i].ID, "kind", "relayer", "url", ids[i].URL, "status", "healthy",
			"lastCheck", "2026-01-02T03:04:05.678Z", "latencyMs", "12", "failures", "0", "reason", "", "epoch", "1",
		}}
	}
	for name, change := range map[string]func(i int) mirror.Write{
		"List10000": func(i int) mirror.Write {
			if i%2 == 1 {
				return mirror.Write{Op: mirror.OpChange, Sets: []mirror.SetChange{{Kind: "relayer", Remove: ids}}}
			}
			return mirror.Write{Op: mirror.OpChange, Sets: []mirror.SetChange{{Kind: "relayer", Add: ids}}}
		},
		"Hash500":   func(int) mirror.Write { return mirror.Write{Op: mirror.OpStatus, Status: status} },
		"Heartbeat": func(int) mirror.Write { return mirror.Write{Op: mirror.OpHeartbeat} },
	} {
		b.Run(name, func(b *testing.B) {
			s := testredis.Start(b)
			client, err := redisclient.New(redisclient.Options{URL: s.URL() + patient})
			require.NoError(b, err)
			defer client.Close()
			store := mirror.NewStore(client, "")
			ctx := context.Background()
			held := mirror.Token{}
			i := 0
			for b.Loop() {
				w := change(i)
				i++
				w.Cluster, w.Leader, w.NotAfter = "c", "n", time.Now().Add(time.Minute)
				w.Base, w.Token = held, mirror.Token{Epoch: 1, Seq: held.Seq + 1}
				r, err := store.Write(ctx, w)
				require.NoError(b, err)
				require.Equal(b, mirror.Applied, r.Outcome)
				held = w.Token
			}
			info, err := s.Client().InfoMap(ctx, "commandstats").Result()
			require.NoError(b, err)
			var calls, us int
			var each float64
			_, err = fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d,usec=%d,usec_per_call=%f", &calls, &us, &each)
			require.NoError(b, err)
			b.ReportMetric(each/1000, "redis-ms/op")
		})
	}
}
