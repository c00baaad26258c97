package status

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// BenchmarkStatus measures /status with a fleet of 10,000 over HTTP. As on a follower, the leader's encoded answer is
// decoded; the client reads the whole response. The limit of the 99th percentile is 50 ms, of the wall clock on a quiet
// machine. On a busy one the processor time is reliable.
func BenchmarkStatus(b *testing.B) {
	raw, err := proto.Marshal(many(10_000))
	require.NoError(b, err)
	s := newServer(Config{Logger: slog.New(slog.DiscardHandler)})
	s.Start(Cluster{
		Directory: fsm.New(), Led: func() bool { return true },
		Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
			a := new(rollcallv1.GetStatusResponse)
			return a, proto.Unmarshal(raw, a)
		},
	})
	defer s.started.Load().source.close()
	server := httptest.NewServer(s.routes())
	defer server.Close()
	var wall, processor []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began, used := time.Now(), processorTime(b)
		resp, err := http.Get(server.URL + "/status")
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(b, err)
		require.NoError(b, resp.Body.Close())
		wall, processor = append(wall, time.Since(began)), append(processor, processorTime(b)-used)
	}
	for name, durations := range map[string][]time.Duration{"p99-ms": wall, "p99-cpu-ms": processor} {
		slices.Sort(durations)
		b.ReportMetric(float64(durations[len(durations)*99/100].Microseconds())/1000, name)
	}
}

func processorTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
