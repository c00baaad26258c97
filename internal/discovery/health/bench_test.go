//go:build unix

package health

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serveBench responds as cheaply as possible, because its cost is subtracted from the client's.
func serveBench(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for buf := make([]byte, 512); ; {
		if _, err := conn.Read(buf); err != nil { // small enough to arrive in one read
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

// cpu returns the processor time of this process.
func cpu(tb testing.TB) time.Duration {
	var used syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// measured reports the cost of each of b.N checks since the start. On a busy machine, only processor time is
// comparable.
func measured(b *testing.B, start time.Time, used time.Duration) {
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "checks/s")
	b.ReportMetric(float64((cpu(b)-used).Nanoseconds())/1000/float64(b.N), "cpu-us/check")
}

// fleet serves /health on n hosts, all of them names of the loopback interface.
func fleet(tb testing.TB, n int) []string {
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(tb, err)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serveBench(conn)
		}
	}()
	tb.Cleanup(func() { _ = ln.Close() })
	urls := make([]string, n)
	for i := range urls {
		urls[i] = fmt.Sprintf("http://127.%d.%d.1:%d", 1+i/250, 1+i%250, ln.Addr().(*net.TCPAddr).Port)
	}
	return urls
}

const (
	benchHosts   = 1024
	benchCallers = maxBurst
)

// BenchmarkChecks measures the checker when there is always another target to check.
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
	start, used := time.Now(), cpu(b)
	for n := 0; n < b.N; {
		n += again()
	}
	measured(b, start, used)
	require.Zero(b, failed)
}

// BenchmarkBareClient does the same work with net/http's client alone.
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
	start, used := time.Now(), cpu(b)
	round(func() bool { return n.Add(1) < int64(b.N) })
	measured(b, start, used)
}
