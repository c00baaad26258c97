package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

const (
	// maxAnswer is how many bytes of a response body are read, so that its connection can be reused. They are
	// discarded.
	maxAnswer = 64 << 10
	// maxHeader limits a response header.
	maxHeader = 64 << 10
)

// sender sends to one target.
type sender struct {
	to      destination
	client  *http.Client
	timeout time.Duration
}

func newSender(to destination, cfg Config) *sender {
	dialer := &net.Dialer{
		Resolver: cfg.tuning.resolver,
		// After the name resolution, for each address that is dialed.
		Control: func(_, address string, _ syscall.RawConn) error {
			dialed, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("address to dial: %w", err)
			}
			return checkAddress(dialed.Addr(), cfg.AllowPrivate)
		},
	}
	return &sender{to: to, timeout: cfg.Timeout, client: &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would resolve the name by itself
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.CAs},
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    to.limit,
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    cfg.Timeout,
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// failure is a failed attempt.
type failure struct {
	reason string
	// retryAfter is the pause that the target asked for; 0: it asked for none.
	retryAfter time.Duration
	// permanent: every retry would fail as well, and the target is not the cause.
	permanent bool
}

// send makes one attempt to deliver a webhook; nil means success.
func (s *sender) send(ctx context.Context, id, event string, payload any) *failure {
	at := time.Now()
	body, err := newBody(id, event, payload, at)
	if err != nil {
		return &failure{reason: err.Error(), permanent: true}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.to.url.String(), bytes.NewReader(body))
	if err != nil {
		return &failure{reason: "the request could not be made"} // err contains the URL
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "rollcall")
	signature.Sign(req.Header, s.to.keys, id, at, body)
	resp, err := s.client.Do(req)
	if err != nil {
		return &failure{reason: s.reason(ctx, err)}
	}
	// Only the status decides, not the body or whether it arrives.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return nil
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return &failure{reason: fmt.Sprintf("answered %d: redirects are not followed", resp.StatusCode)}
	default:
		return &failure{
			reason:     strings.TrimSpace(fmt.Sprintf("answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))),
			retryAfter: retryAfter(resp.Header.Get("Retry-After"), at),
		}
	}
}

// reason returns why a request failed, without the URL that net/http puts into its errors.
func (s *sender) reason(ctx context.Context, err error) string {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if refused, ok := errors.AsType[*AddressError](err); ok {
		return refused.Error()
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", s.timeout)
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "certificate: " + unknown.Error()
	}
	return err.Error()
}

// retryAfter parses the header; it returns 0 if the header has no valid value.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

func (s *sender) close() { s.client.CloseIdleConnections() }
