package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// call is one JSON-RPC call. encoding/json must be able to encode the parameters.
type call struct {
	method string
	params []any
	// answers reports whether an error of this call is an answer that a healthy endpoint may give. Nil: no error is.
	// All other errors count against the endpoint for the method, and the next endpoint is asked.
	answers func(*RPCError) bool
	// decode decodes a result; nil accepts every result. Its error replaces the answer, and counts against the endpoint for
	// the method. So it must reject only results that no healthy endpoint returns.
	decode func(result []byte) error
	// mayExceed makes an answer that is too large an answer, a *LogsLimitError. Otherwise it counts against the endpoint.
	mayExceed bool
}

// key returns the key of the call in an endpoint's health: its method. A call for the pending state has its own key,
// because nodes without a pool fail only that. The newest block has its own key, because nodes without old blocks
// answer only that.
func (c call) key() string {
	switch {
	case slices.Contains(c.params, any("pending")):
		return c.method + pendingKey
	case c.method == "eth_getBlockByNumber" && slices.Contains(c.params, any("latest")):
		return headMethod
	}
	return c.method
}

const (
	pendingKey = " pending"
	// headMethod is the key of the call that reads heads.
	headMethod = "eth_getBlockByNumber latest"
)

// sends reports whether the call sends a transaction.
func (c call) sends() bool { return c.method == sendMethod }

func (c call) isAnswer(e *RPCError) bool { return c.answers != nil && c.answers(e) }

// answer is an endpoint's answer to one call: a result, which is raw JSON, or an error.
type answer struct {
	result []byte
	err    error // *RPCError, errMissing, *LogsLimitError, or the *TransportError of a result that call.decode rejects
}

// errMissing marks a call whose answer is missing from a batch.
var errMissing = errors.New("the answer is missing from the batch")

// conn sends calls to one endpoint. Its errors are about the request as a whole: *TransportError, *RateLimitError, or
// *batchRefusedError.
type conn interface {
	// do sends calls, as a batch or as one single call, and returns an answer for each.
	do(ctx context.Context, calls []call, batch bool) ([]answer, error)
	close()
}

// batchRefusedError is a single error returned for a whole batch.
type batchRefusedError struct {
	*RPCError
	unread bool // the endpoint has read none of its calls
}

// identity is the part of an endpoint that errors contain: its name and a redactor.
type identity struct {
	name   string
	redact *strings.Replacer
}

func (id identity) rpcError(method string, code int, message string, data json.RawMessage) *RPCError {
	const longest = 1000 // providers answer with whole pages
	if message = id.redact.Replace(message); len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "") + "…"
	}
	if data != nil {
		data = json.RawMessage(id.redact.Replace(string(data)))
	}
	return &RPCError{Endpoint: id.name, Method: method, Code: code, Message: message, Data: data}
}

// transportError returns a *TransportError without the parts of err that may contain the URL.
func (id identity) transportError(sent bool, err error) *TransportError {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL
	}
	if text := err.Error(); id.redact.Replace(text) != text {
		err = errors.New(id.redact.Replace(text))
	}
	return &TransportError{Endpoint: id.name, Sent: sent, Err: err}
}

// httpConn sends each request as one POST over keep-alive connections.
type httpConn struct {
	identity
	url    string
	client *http.Client
	limit  int64
}

func newHTTPConn(id identity, u *url.URL, limit int64) *httpConn {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	transport.MaxIdleConns = 0
	transport.MaxConnsPerHost = 256
	transport.DisableCompression = isLocal(u)
	return &httpConn{identity: id, url: u.String(), limit: limit, client: &http.Client{
		Transport: transport,
		// A redirected POST turns into a GET, and may send the key to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *httpConn) close() { c.client.CloseIdleConnections() }

func (c *httpConn) do(ctx context.Context, calls []call, batch bool) ([]answer, error) {
	body, err := encode(calls, batch)
	if err != nil {
		return nil, c.transportError(false, err)
	}
	// Once there is a connection, bytes may have reached the node.
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, c.transportError(false, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, c.transportError(sent.Load(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := c.read(resp)
	if resp.StatusCode == http.StatusTooManyRequests {
		if answers, err := c.decode(calls, text, batch); err == nil {
			return answers, nil // about something else than the endpoint as a whole
		}
		return nil, c.limited(resp.Header, text)
	}
	if err != nil {
		return nil, c.transportError(true, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return c.decode(calls, text, batch)
	}
	// Some nodes answer a bad call with 400 and describe the error in the body. After a 5xx the outcome is unknown.
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		switch resp.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout:
		default:
			if answers, err := c.decode(calls, text, batch); err == nil || isBatchRefused(err) || isRateLimit(err) {
				return answers, err
			}
			if batch && (resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusRequestEntityTooLarge) {
				return nil, &batchRefusedError{RPCError: c.rpcError(calls[0].method, 0, "HTTP status "+resp.Status, nil), unread: true}
			}
		}
	}
	// Some gateways answer a call that reverts, or logs that are too many, with a 5xx. No fault of a node has revert data or the words
	// of these.
	if !batch && !calls[0].sends() {
		if answers, err := c.decode(calls, text, batch); err == nil {
			if e, ok := errors.AsType[*RPCError](answers[0].err); ok && (reverted(e) || logsLimitOf(e) != 0) {
				return answers, nil
			}
		}
	}
	return nil, c.transportError(true, statusError(resp.StatusCode))
}

// statusError is an HTTP status without a usable answer.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(e)) }

// read returns the body, or an error if it is too long or truncated.
func (c *httpConn) read(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > c.limit {
		return nil, fmt.Errorf("%w: %d bytes, above the limit of %d", ErrTooLarge, resp.ContentLength, c.limit)
	}
	var buf bytes.Buffer
	if resp.ContentLength > 0 {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, c.limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if n > c.limit {
		return nil, fmt.Errorf("%w: above the limit of %d bytes", ErrTooLarge, c.limit)
	}
	return buf.Bytes(), nil
}

func (c *httpConn) limited(h http.Header, text []byte) *RateLimitError {
	e := &RateLimitError{Endpoint: c.name, Reason: "HTTP status 429"}
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s >= 0 {
		e.RetryAfter = time.Duration(min(s, 3600)) * time.Second
	} else if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		e.RetryAfter = min(max(0, time.Until(at)), time.Hour)
	}
	if _, rpcErr, err := c.envelope(text, "request"); err == nil && rpcErr != nil {
		e.Reason = rpcErr.Message
	}
	return e
}

// encode returns the request body. Ids start at 1.
func encode(calls []call, batch bool) ([]byte, error) {
	size := 0
	for _, c := range calls {
		size += 80 + len(c.method)
		for _, p := range c.params {
			switch p := p.(type) {
			case hexutil.Bytes:
				size += 2*len(p) + 5
			case json.RawMessage:
				size += len(p)
			default:
				size += 70
			}
		}
	}
	b := make([]byte, 0, size)
	if batch {
		b = append(b, '[')
	}
	for i, c := range calls {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"jsonrpc":"2.0","id":`...)
		b = strconv.AppendInt(b, int64(i+1), 10)
		b = append(b, `,"method":`...)
		b = appendQuoted(b, c.method)
		b = append(b, `,"params":[`...)
		for k, p := range c.params {
			if k > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendParam(b, p); err != nil {
				return nil, fmt.Errorf("encode parameter %d of %s: %w", k+1, c.method, err)
			}
		}
		b = append(b, "]}"...)
	}
	if batch {
		b = append(b, ']')
	}
	return b, nil
}

func appendQuoted(b []byte, s string) []byte {
	text, _ := json.Marshal(s) // strings can be marshaled
	return append(b, text...)
}

func appendParam(b []byte, p any) ([]byte, error) {
	switch p := p.(type) {
	case hexutil.Bytes:
		return appendHex(b, p), nil
	case common.Hash:
		return appendHex(b, p[:]), nil
	case common.Address:
		return appendHex(b, p[:]), nil
	case bool:
		return strconv.AppendBool(b, p), nil
	}
	text, err := json.Marshal(p)
	return append(b, text...), err
}

func appendHex(b, data []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, `"0x`...)
	for _, c := range data {
		b = append(b, hex[c>>4], hex[c&15])
	}
	return append(b, '"')
}

// decode parses the response and orders the answers by id.
func (c *httpConn) decode(calls []call, text []byte, batch bool) ([]answer, error) {
	text = bytes.TrimSpace(text)
	answers := make([]answer, len(calls))
	if !batch {
		result, rpcErr, err := c.envelope(text, calls[0].method)
		if err != nil {
			return nil, c.transportError(true, err)
		}
		answers[0].result = result
		if rpcErr != nil {
			answers[0].err = rpcErr
		}
		return c.extractRateLimit(calls, answers)
	}
	if len(text) > 0 && text[0] == '{' {
		_, rpcErr, err := c.envelope(text, calls[0].method)
		switch {
		case err != nil:
			return nil, c.transportError(true, err)
		case rpcErr == nil:
			return nil, c.transportError(true, errors.New("a batch got a single answer"))
		case rateLimited(rpcErr):
			return nil, &RateLimitError{Endpoint: c.name, Method: onlyMethod(calls), Reason: rpcErr.Message}
		}
		return nil, &batchRefusedError{RPCError: rpcErr, unread: batchTooBig(rpcErr)}
	}
	for i := range answers {
		answers[i].err = errMissing
	}
	err := elements(text, func(one []byte) error {
		i, err := answerID(one)
		if err != nil || i < 1 || i > len(calls) {
			return err // the id matches no call
		}
		result, rpcErr, err := c.envelope(one, calls[i-1].method)
		if err != nil {
			return err
		}
		answers[i-1] = answer{result: result}
		if rpcErr != nil {
			answers[i-1].err = rpcErr
		}
		return nil
	})
	if err != nil {
		return nil, c.transportError(true, err)
	}
	return c.extractRateLimit(calls, answers)
}

// extractRateLimit returns a rate limit error if all answers are one.
func (c *httpConn) extractRateLimit(calls []call, answers []answer) ([]answer, error) {
	return answers, siftLimited(c.name, calls, answers)
}

func siftLimited(endpoint string, calls []call, answers []answer) error {
	reason := ""
	for _, a := range answers {
		e, ok := errors.AsType[*RPCError](a.err)
		if !ok || !rateLimited(e) {
			return nil
		}
		reason = e.Message
	}
	return &RateLimitError{Endpoint: endpoint, Method: onlyMethod(calls), Reason: reason}
}

// answerID returns the id of an answer; 0 if it is null or not a number.
func answerID(text []byte) (id int, err error) {
	err = fields(text, func(key string, value []byte) error {
		if key == "id" {
			id, _ = strconv.Atoi(strings.Trim(string(value), `"`)) // a string from some proxies
		}
		return nil
	})
	return id, err
}

// envelope splits an answer into its result or its error.
func (c *httpConn) envelope(text []byte, method string) (result []byte, rpcErr *RPCError, err error) {
	err = fields(text, func(key string, value []byte) error {
		switch key {
		case "result":
			result = value
		case "error":
			if isNull(value) {
				return nil
			}
			var e struct {
				Code    int             `json:"code"`
				Message string          `json:"message"`
				Data    json.RawMessage `json:"data"`
			}
			if err := json.Unmarshal(value, &e); err != nil {
				// Gateways return a bare string.
				if json.Unmarshal(value, &e.Message) != nil {
					return fmt.Errorf("%w: error of unknown form", errMalformed)
				}
			}
			rpcErr = c.rpcError(method, e.Code, e.Message, e.Data)
		}
		return nil
	})
	if err == nil && rpcErr == nil && result == nil {
		err = errors.New("the answer has neither result nor error")
	}
	return result, rpcErr, err
}

func isBatchRefused(err error) bool {
	_, ok := errors.AsType[*batchRefusedError](err)
	return ok
}

func isRateLimit(err error) bool {
	_, ok := errors.AsType[*RateLimitError](err)
	return ok
}
