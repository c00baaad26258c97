package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// connections is how many clients post concurrently, to the relayer and to the bare node.
const connections = 128

// post sends n requests to one server over keep-alive connections, one at a time on each, in order except between
// connections. request returns prepared bytes, and the answers are hardly parsed, because the clients share the machine's
// cores with the measured process. done is a part of the body of each successful answer.
func (t *trial) post(addr string, n int, rate float64, request func(n int) []byte, done string) result {
	return t.postWith(connections, addr, n, rate, request, done)
}

// postWith is post with another number of connections.
func (t *trial) postWith(connections int, addr string, n int, rate float64, request func(n int) []byte, done string) result {
	conns := make([]*postConn, connections)
	for i := range conns {
		raw, err := new(net.Dialer).DialContext(t.ctx, "tcp", addr)
		t.check(err)
		defer raw.Close()
		// When ctx ends, a waiting read ends.
		defer context.AfterFunc(t.ctx, func() { raw.Close() })()
		conns[i] = &postConn{conn: raw, reader: bufio.NewReader(raw)}
	}
	return t.run(load{Callers: connections, Count: n, Rate: rate}, func(_ context.Context, caller, n int) (int, error) {
		return 1, conns[caller].post(request(n), done)
	})
}

// postRequest returns a whole request with a JSON body.
func postRequest(path, headers, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		path, headers, len(body), body)
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
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted || !bytes.Contains(c.body.Bytes(), []byte(done)) {
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(c.body.Bytes()))
	}
	return nil
}
