package upstream

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxAttempts is how often a request is sent on connections that were closed before a byte was written.
const maxAttempts = 3

// request is one call.
type request struct {
	method, path string
	query        url.Values
	header       http.Header // additional
	body         []byte      // nil: none
}

// response is a response, with its body as far as it could be read.
type response struct {
	code    int
	header  http.Header
	body    []byte
	bodyErr error // why the body is incomplete
}

// scope returns the idempotency scope in the response; "" for none.
func (r *response) scope() string {
	scope := r.header.Get(headerScope)
	if len(scope) > maxID || !visible(scope) {
		return ""
	}
	return scope
}

// callError reports that there was no response.
type callError struct {
	err error
	// sent is how many bytes were written at most.
	sent int64
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// do sends a request and reads the response. The error is a *callError.
func (c *Client) do(ctx context.Context, r *request) (*response, error) {
	for attempts := 1; ; attempts++ {
		a := new(attempt)
		resp, err := c.roundTrip(ctx, r, a)
		if err == nil {
			return resp, nil
		}
		sent := a.seal()
		if stale := a.reused && sent == 0; stale && ctx.Err() == nil && attempts < maxAttempts {
			continue
		}
		return nil, &callError{err: err, sent: sent}
	}
}

func (c *Client) roundTrip(ctx context.Context, r *request, a *attempt) (*response, error) {
	target := c.base + "/api/v1" + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, a.trace()), r.method, target, nil)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		// Without GetBody net/http never sends the request again by itself.
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+c.cfg.Key)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "rollcall")
	maps.Copy(req.Header, r.header)
	sent := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	c.clock.observe(resp.Header, sent, time.Now())
	out := &response{code: resp.StatusCode, header: resp.Header}
	out.body, out.bodyErr = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if len(out.body) > maxBody {
		out.body, out.bodyErr = nil, ErrTooLarge
	}
	return out, nil
}

// reason returns why a call has no response, without the URL and the addresses that net/http puts into its errors: clients see it.
func reason(ctx context.Context, err error) string {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return clip("certificate: " + unknown.Error())
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "no answer in time"
	}
	if failed, ok := errors.AsType[*net.DNSError](err); ok {
		return clip("lookup: " + failed.Err)
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		return clip(failed.Op + ": " + failed.Err.Error())
	}
	return clip(err.Error())
}

// local reports whether a call failed because of this machine or its caller, not because of the relayer. A caller's deadline is before
// the relayer's.
func local(parent context.Context, err error) bool {
	return parent.Err() != nil || exhausted(err)
}

// exhausted reports whether a call failed because this machine lacked a resource.
func exhausted(err error) bool {
	for _, full := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}

// retryAfter returns the pause that a response asks for, bounded; 0 for none. A date is compared with the response's own.
func (r *response) retryAfter(now time.Time) time.Duration {
	value := strings.TrimSpace(r.header.Get("Retry-After"))
	after := time.Duration(0)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		if date, err := http.ParseTime(r.header.Get("Date")); err == nil {
			now = date
		}
		after = at.Sub(now)
	} else if e, ok := decodeEnvelope(r.body); ok {
		if seconds, err := strconv.ParseFloat(string(e.After), 64); err == nil && seconds > 0 {
			after = time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
		}
	}
	return min(max(after, 0), maxRetryAfter)
}
