package health

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fleet serves /health on as many hosts as asked for, all of them names of the loopback interface.
func fleet(tb testing.TB, n int) []string {
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(tb, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})}
	go func() { _ = srv.Serve(ln) }()
	tb.Cleanup(func() { _ = srv.Close() })
	urls := make([]string, n)
	for i := range urls {
		urls[i] = fmt.Sprintf("http://127.%d.%d.1:%d", 1+i/250, 1+i%250, ln.Addr().(*net.TCPAddr).Port)
	}
	return urls
}

const (
	benchHosts   = 1024
	benchCallers = burst
)

// BenchmarkChecks is what the checker does when there is always another target to check.
func BenchmarkChecks(b *testing.B) {
	c, err := New(Config{})
	require.NoError(b, err)
	for i, url := range fleet(b, benchHosts) {
		c.Set(Target{ID: fmt.Sprintf("relayer-%d", i), Kind: "relayer", URL: url})
	}
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(b.Context()) })
	b.Cleanup(running.Wait)

	var results []Result
	var ids []string
	failed := 0
	again := func() (n int) {
		<-c.Ready()
		results = c.Take(results[:0])
		ids = ids[:0]
		for _, r := range results {
			ids = append(ids, r.ID)
			if r.Verdict != Up {
				failed++
			}
		}
		c.CheckNow(ids...)
		return len(ids)
	}
	for n := 0; n < benchHosts; { // all connected
		n += again()
	}
	b.ResetTimer()
	start := time.Now()
	for n := 0; n < b.N; {
		n += again()
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "checks/s")
	require.Zero(b, failed)
}

// BenchmarkBareClient is the same work done by net/http's client alone.
func BenchmarkBareClient(b *testing.B) {
	client := &http.Client{
		Timeout:   500 * time.Millisecond,
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true},
	}
	b.Cleanup(client.CloseIdleConnections)
	urls := fleet(b, benchHosts)
	get := func(url string) {
		resp, err := client.Get(url + "/health")
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	var callers sync.WaitGroup
	var n atomic.Int64
	round := func(more func() bool) {
		for mine := range slices.Chunk(urls, benchHosts/benchCallers) {
			callers.Go(func() {
				for {
					for _, url := range mine {
						get(url)
						if !more() {
							return
						}
					}
				}
			})
		}
		callers.Wait()
	}
	round(func() bool { return n.Add(1) < benchHosts }) // all connected
	n.Store(0)
	b.ResetTimer()
	start := time.Now()
	round(func() bool { return n.Add(1) < int64(b.N) })
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "checks/s")
}
