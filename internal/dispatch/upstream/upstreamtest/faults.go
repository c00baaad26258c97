package upstreamtest

import (
	"net"
	"net/http"
	"time"
)

// AcceptAndHang stores the submission, and never responds.
func AcceptAndHang(c *Call) {
	c.Accept()
	c.hang()
}

// Hang does nothing, and never responds.
func Hang(c *Call) { c.hang() }

func (c *Call) hang() {
	select {
	case <-c.Request.Context().Done():
	case <-c.relayer.stop:
	}
}

// AcceptAndDrop stores the submission, and resets the connection.
func AcceptAndDrop(c *Call) {
	c.Accept()
	Drop(c)
}

// Drop does nothing, and resets the connection.
func Drop(c *Call) {
	conn, _, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// AcceptAndForget responds as if it accepted the submission, and never sends it.
func AcceptAndForget(c *Call) {
	tx := c.Accept()
	p := c.relayer.o.Pool
	p.mu.Lock()
	tx.Forgotten = true
	p.mu.Unlock()
	ok(c, c.relayer.body(tx))
}

// AcceptAndFail stores the submission, and responds with a status code.
func AcceptAndFail(code int) Fault {
	return func(c *Call) {
		c.Accept()
		fail(c, code, http.StatusText(code))
	}
}

// Respond responds with a status code and a body, with headers as name, value, …
func Respond(code int, body string, headers ...string) Fault {
	return func(c *Call) {
		for i := 0; i < len(headers); i += 2 {
			c.Header().Set(headers[i], headers[i+1])
		}
		c.WriteHeader(code)
		_, _ = c.Write([]byte(body))
	}
}

// Error responds at once with a status code, in the relayer's envelope.
func Error(code int) Fault {
	return func(c *Call) { fail(c, code, http.StatusText(code)) }
}

// Slow executes the operation after a while.
func Slow(d time.Duration) Fault {
	return func(c *Call) {
		late := time.NewTimer(d)
		defer late.Stop()
		select {
		case <-c.Request.Context().Done():
			return
		case <-c.relayer.stop:
			return
		case <-late.C:
			c.Do(c.ResponseWriter)
		}
	}
}
