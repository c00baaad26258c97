package sqs

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/require"
)

// busyConn is a connection of a machine that continues with a request's writer only when its reader waits for the body of the answer.
type busyConn struct {
	net.Conn
	writes, reads atomic.Int32
	waits         chan struct{}
	closed        chan struct{}
	close         func()
}

func (c *busyConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.writes.Add(1) == 2 { // the header is the first one
		<-c.waits
	}
	return n, err
}

func (c *busyConn) Read(p []byte) (int, error) {
	if c.reads.Add(1) == 2 {
		close(c.waits)
	}
	return c.Conn.Read(p)
}

func (c *busyConn) Close() error {
	c.close()
	return c.Conn.Close()
}

func TestReceive_AnsweredBeforeTheWriterEnds_KeepsTheAnswer(t *testing.T) {
	t.Parallel()
	conn := &busyConn{waits: make(chan struct{}), closed: make(chan struct{})}
	conn.close = sync.OnceFunc(func() { close(conn.closed) })
	const answer = `{"Messages":[{"MessageId":"one","ReceiptHandle":"1","Body":"{}"}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.(http.Flusher).Flush()
		select {
		case <-conn.closed:
		case <-time.After(100 * time.Millisecond): // nothing shows that the connection will not be closed
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	tr := newTransport(location{region: "us-east-1", endpoint: server.URL, queue: server.URL + "/1/queue"}, credentials.NewStaticCredentialsProvider("a", "b", ""))
	defer tr.http.CloseIdleConnections()
	tr.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		conn.Conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return conn, err
	}
	messages, err := tr.receive(t.Context(), 1, 0)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.EqualValues(t, 2, conn.writes.Load())
}
