package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
)

// maxBody limits the size of a body from either side.
const maxBody = 256 << 20

// ServeHTTP forwards one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		reset(w)
		return
	}
	defer p.work.Done()
	switch {
	case p.down.Load():
		reset(w)
	case websocket.IsWebSocketUpgrade(r):
		p.serveWebsocket(w, r)
	case p.idle():
		p.pass(w, r)
	default:
		p.meddle(w, r)
	}
}

// pass forwards bytes unchanged.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request) {
	response, err := p.post(r.Context(), r.Body, r.ContentLength)
	if err != nil {
		reset(w)
		return
	}
	defer response.Body.Close()
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body) // the caller or the node disconnected
}

func (p *Proxy) post(ctx context.Context, body io.Reader, length int64) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.node.Load().http, body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = length
	request.Header.Set("Content-Type", "application/json")
	return p.client.Do(request)
}

// call sends calls to the node. It does not end with the caller's request, so a sent call arrives.
func (p *Proxy) call(calls []*message, batch bool) ([]*message, int, error) {
	body := encode(calls, batch)
	response, err := p.post(p.ctx, bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, 0, err
	}
	if len(bytes.TrimSpace(answer)) == 0 { // there were only notifications
		return nil, response.StatusCode, nil
	}
	answers, answerBatch, err := parse(answer)
	if err != nil || answerBatch != batch {
		return nil, 0, fmt.Errorf("the node answered %d with %.100q", response.StatusCode, answer)
	}
	return answers, response.StatusCode, nil
}

// meddle forwards the calls that the rules allow, and applies faults to the answer.
func (p *Proxy) meddle(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		reset(w)
		return
	}
	calls, batch, err := parse(body)
	if err != nil { // the node answers with an error
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		p.pass(w, r)
		return
	}
	var (
		lagged  = p.newView(p.lagging())
		onward  []*message
		refused []*message
		omit    = map[string]bool{}
		changed = map[string]Fault{}
		delay   time.Duration
		after   Kind // fault of the whole answer
	)
	for _, c := range calls {
		v := p.selectFault(c, len(calls))
		delay += v.delay
		switch v.fault.Kind {
		case Status:
			if v.fault.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(v.fault.RetryAfter))
			}
			http.Error(w, "injected", orDefault(v.fault.Code, http.StatusServiceUnavailable))
			return
		case Cut:
			reset(w)
			return
		case Reject:
			whole := &message{Version: "2.0", ID: json.RawMessage("null")}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(orDefault(v.fault.Status, http.StatusOK))
			_, _ = w.Write(encode([]*message{whole.refusal(v.fault)}, false))
			return
		case Refuse, Answer, Forget:
			refused = append(refused, c.refusal(v.fault))
			continue
		case Omit:
			omit[string(c.ID)] = true
		case Lose, Hang, Garble, Truncate:
			after = v.fault.Kind
		case Change:
			changed[string(c.ID)] = v.fault
		}
		onward = append(onward, lagged.question(c.change(v.fault)))
	}
	if !p.wait(delay) {
		reset(w)
		return
	}
	answers, status := []*message(nil), http.StatusOK
	if len(onward) > 0 {
		if answers, status, err = p.call(onward, batch); err != nil {
			reset(w)
			return
		}
	}
	kept := answers[:0]
	for _, a := range answers {
		if !omit[string(a.ID)] {
			kept = append(kept, lagged.answer(a).alter(changed[string(a.ID)]))
		}
	}
	switch after {
	case Lose:
		reset(w)
		return
	case Hang:
		select {
		case <-r.Context().Done():
		case <-p.ctx.Done():
		}
		reset(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(spoil(encode(append(kept, refused...), batch), after)) // a disconnected caller needs no answer
}

func orDefault(code, otherwise int) int {
	if code == 0 {
		return otherwise
	}
	return code
}

// reset closes the connection without an answer.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset instead of an orderly close
	}
	_ = conn.Close()
}
