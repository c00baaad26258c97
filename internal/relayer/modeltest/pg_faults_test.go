package modeltest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// statements are steps with the text that identifies them; the first match applies.
var statements = []struct {
	step step
	has  string
}{
	{"claim: lock", "CASE WHEN balance_at > now()"},
	{"claim: commit", "CASE WHEN r.reserve_wei IS NOT NULL AND r.nonce IS NOT NULL"},
	{"dispatch: lock", "ORDER BY id FOR UPDATE"},
	{"dispatch: commit", "UPDATE relayer_txs t SET relayer_address = v.address"},
	{"fill: lock", "SELECT CASE WHEN filled_hour"},
	{"store attempts", "ON CONFLICT DO NOTHING RETURNING tx_id, attempt, tx_hash"},
	{"record broadcasts", "UPDATE relayer_txs t SET status = v.status"},
	{"record mined", "mined_purpose = v.purpose"},
	{"displaced", "foreigner AS"},
	{"unmine", "its block is no longer part of the chain"},
	{"confirm", "SET open = false, confirmed_at = now()"},
	{"intend", "SET intent = $5"},
	{"replace", "target = CASE WHEN t.nonce IS NULL THEN coalesce($4, t.target)"},
	{"raise", "UPDATE relayer_keys SET next_nonce = $4"},
	{"follow", "tracker_until = now() +"},
}

// commitOf maps a step to the step of its commit, which is a separate request.
var commitOf = map[step]step{
	"displaced": "displaced: commit", "unmine": "unmine: commit",
	"replace": "replace: commit", "replace: attempt": "replace: commit",
}

func stepOf(sql string) step {
	for _, s := range statements {
		if strings.Contains(sql, s.has) {
			return s.step
		}
	}
	return stepQuiet
}

// wire is a process's connection to Postgres. It parses the traffic: each request, up to the message after which the
// server answers, is a step. A fault may strike before or after it.
//
// Only one goroutine writes at a time, and one reads. The driver reads while it writes only if a write takes long.
type wire struct {
	net.Conn
	owner *mortal

	greeted  bool
	rest     []byte
	prepared map[string]step // named statements of this connection
	asked    step            // of the request that is being written
	last     step            // of the latest named one in this transaction

	arm     chan strike // the fault that strikes once the answer is complete
	answers bytes.Buffer
	err     error       // the error for the reader
	late    atomic.Bool // the last request is still in flight, and the process no longer waits for it
}

type strike struct {
	step step
	kind kind
}

func (m *mortal) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := m.await(); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, owner: m, prepared: map[string]step{}, arm: make(chan strike, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errDead
	}
	m.conns[conn] = struct{}{}
	return w, nil
}

func (w *wire) Close() error {
	w.owner.mu.Lock()
	delete(w.owner.conns, w.Conn)
	w.owner.mu.Unlock()
	if w.late.Load() {
		return nil // deliver closes it
	}
	return w.Conn.Close()
}

// Write forwards written bytes, request by request.
func (w *wire) Write(p []byte) (int, error) {
	if w.late.Load() {
		return 0, net.ErrClosed
	}
	w.rest = append(w.rest, p...)
	for {
		request, whole := w.request()
		if len(request) == 0 {
			return len(p), nil
		}
		if !whole {
			if err := w.owner.await(); err != nil {
				return 0, w.cut(err)
			}
			if _, err := w.Conn.Write(request); err != nil {
				return 0, err
			}
			continue
		}
		s := w.asked
		switch { // the same statement for another purpose
		case s == "claim: commit" && w.last == "fill: lock":
			s = "fill: commit"
		case s == "store attempts" && w.last == "replace":
			s = "replace: attempt"
		}
		if w.asked = stepQuiet; s != stepQuiet {
			w.last = s
		}
		k, err := w.owner.before(s)
		if err != nil {
			return 0, w.cut(err)
		}
		if k == late {
			w.deliver(request)
			return len(p), fmt.Errorf("%w: %q", errLate, s) // nil would mean that it never arrives
		}
		if k != none {
			w.arm <- strike{s, k}
		}
		if _, err := w.Conn.Write(request); err != nil {
			return 0, err
		}
	}
}

// deliver sends a request to the server long after the process has given up the connection.
func (w *wire) deliver(request []byte) {
	request = bytes.Clone(request)
	w.late.Store(true)
	time.AfterFunc(lateness, func() {
		defer w.Conn.Close()
		_ = w.SetDeadline(time.Now().Add(patience)) // the process's deadline may be over
		if _, err := w.Conn.Write(request); err == nil {
			_ = w.complete(strike{}, nil)
		}
	})
}

func (w *wire) cut(err error) error {
	_ = w.Conn.Close() // the server rolls back
	return err
}

// request removes messages from the written bytes, up to the end of a request, or all messages.
func (w *wire) request() (messages []byte, whole bool) {
	n := 0
	defer func() {
		messages, w.rest = w.rest[:n:n], w.rest[n:]
	}()
	for {
		head := 1
		if !w.greeted {
			head = 0 // the first message has no type
		}
		if len(w.rest) < n+head+4 {
			return nil, false
		}
		size := head + int(binary.BigEndian.Uint32(w.rest[n+head:]))
		if len(w.rest) < n+size {
			return nil, false
		}
		message := w.rest[n : n+size]
		n += size
		if !w.greeted {
			w.greeted = true
			continue
		}
		if w.read(message[0], message[5:]) {
			return nil, true
		}
	}
}

// read records a message, and reports whether it ends a request.
func (w *wire) read(kind byte, body []byte) bool {
	note := func(s step) {
		if s != stepQuiet && (w.asked == stepQuiet || s == "dispatch: lock") {
			w.asked = s
		}
	}
	switch kind {
	case 'P': // parse: name, statement
		name, sql, _ := bytes.Cut(body, []byte{0})
		w.prepared[string(name)] = stepOf(string(sql))
	case 'B': // bind: portal, name
		_, rest, _ := bytes.Cut(body, []byte{0})
		name, _, _ := bytes.Cut(rest, []byte{0})
		note(w.prepared[string(name)])
	case 'Q':
		sql := string(bytes.TrimRight(body, "\x00"))
		switch sql {
		case "begin":
			w.last = stepQuiet
		case "commit":
			note(commitOf[w.last])
		default:
			note(stepOf(sql))
		}
		return true
	case 'S':
		return true
	}
	return false
}

// ready is the end of each answer, except for the state of the transaction.
var ready = []byte{'Z', 0, 0, 0, 5}

// Read forwards answers. If a fault must strike after the request, it waits for the whole answer first.
func (w *wire) Read(p []byte) (int, error) {
	for {
		if w.late.Load() {
			return 0, net.ErrClosed
		}
		if w.err != nil {
			return 0, w.err
		}
		if w.answers.Len() > 0 {
			return w.answers.Read(p)
		}
		n, err := w.Conn.Read(p)
		select {
		case s := <-w.arm:
			w.answers.Write(p[:n])
			w.err = w.complete(s, err)
			continue
		default:
		}
		if err == nil {
			err = w.owner.await()
		}
		return n, err
	}
}

// complete waits for the end of the answer, and then the fault strikes.
func (w *wire) complete(s strike, err error) error {
	buffer := make([]byte, 8192)
	for err == nil && !bytes.HasSuffix(w.answers.Bytes()[:max(w.answers.Len()-1, 0)], ready) {
		var n int
		n, err = w.Conn.Read(buffer)
		w.answers.Write(buffer[:n])
	}
	if struck := w.owner.after(s.step, s.kind); struck != nil {
		w.answers.Reset()
		return w.cut(struck)
	}
	return err
}
