package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// posts are requests to one server over keep-alive connections, one at a time on each. The requests are prepared bytes,
// and the answers are hardly parsed, because the clients share the machine's cores with the measured process.
type posts struct {
	addr        string
	connections int
	// request returns the bytes of the n-th request; they are not changed.
	request func(n int) []byte
	// done is a part of the body of each successful answer.
	done string
}

// postRequest returns a whole request with a JSON body.
func postRequest(path, headers, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		path, headers, len(body), body)
}

// posted is the result of posts.
type posted struct {
	began, ended time.Time // of the first request, of the last answer
	p50, p99     time.Duration
}

// send sends n requests, in order except between connections. With a rate, each is due at its time, and its latency
// counts from that time, regardless of when a connection was free. With 0 all are due at once, and the latency counts
// from the send.
func (p posts) send(ctx context.Context, n int, rate float64) (posted, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]*postConn, p.connections)
	for i := range conns {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", p.addr)
		if err != nil {
			return posted{}, err
		}
		defer raw.Close()
		conns[i] = &postConn{conn: raw, reader: bufio.NewReader(raw)}
	}
	// When ctx ends, a waiting read ends.
	defer context.AfterFunc(ctx, func() {
		for _, c := range conns {
			c.conn.Close()
		}
	})()
	var (
		wg        sync.WaitGroup
		next      atomic.Int64
		latencies = make([]float64, n)
		out       = posted{began: time.Now()}
	)
	for _, c := range conns {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				from := time.Now()
				if rate > 0 {
					from = out.began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
					if wait := time.Until(from); wait > 0 {
						pause(ctx, wait)
					}
				}
				if err := c.post(p.request(i), p.done); err != nil {
					cancel(fmt.Errorf("request %d: %w", i, err))
					return
				}
				latencies[i] = float64(time.Since(from))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return posted{}, err
	}
	out.ended = time.Now()
	out.p50, out.p99 = time.Duration(quantile(latencies, 0.5)), time.Duration(quantile(latencies, 0.99))
	return out, nil
}

type postConn struct {
	conn   net.Conn
	reader *bufio.Reader
	body   bytes.Buffer
}

func (c *postConn) post(request []byte, done string) error {
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.body.Reset()
	if _, err := io.Copy(&c.body, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !bytes.Contains(c.body.Bytes(), []byte(done)) {
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(c.body.Bytes()))
	}
	if resp.Close {
		return errors.New("the server does not keep connections")
	}
	return nil
}
