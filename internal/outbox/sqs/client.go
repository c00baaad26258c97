package sqs

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
)

func newTransport(l location, credentials aws.CredentialsProvider) *Transport {
	t := &Transport{location: l, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout:   5 * time.Second,
			ForceAttemptHTTP2:     true,
			MaxIdleConnsPerHost:   4 * concurrent,
			IdleConnTimeout:       time.Minute,
			ResponseHeaderTimeout: longPoll + requestTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	options := awssqs.Options{
		Region: l.region, Credentials: credentials, HTTPClient: httpClient{t.http},
		// The callers retry with longer pauses, and report the outage.
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = 2, 200*time.Millisecond }),
	}
	if l.endpoint != "" {
		options.BaseEndpoint = &l.endpoint
	}
	t.api = awssqs.New(options)
	return t
}

// httpClient hides from net/http that the SDK's request body is an io.WriterTo. The SDK closes the body once SQS answers. WriteTo of a
// closed body fails (smithy-go 1.28), while Read returns io.EOF. On a busy machine net/http may ask for the end of the body only then. It
// would close the connection after such a failure, and the answer to a request that SQS has executed would be lost.
type httpClient struct{ *http.Client }

func (c httpClient) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.Client.Do(r)
}

// refusedError means that SQS refused an entry of a batch.
type refusedError struct{ operation, code string }

func (e *refusedError) Error() string {
	return e.operation + ": SQS answered " + e.code + " for a message"
}

// readable returns an error for people, without secrets: the SDK's errors contain URLs, addresses of requests and their own retries.
func readable(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(reason(err))
}

func reason(err error) string {
	doing, service := "", "SQS"
	if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		doing = op.OperationName + ": "
		// The request for the credentials, of which the error is the reason.
		if inner, ok := errors.AsType[*smithy.OperationError](op.Err); ok && !errors.Is(err, ErrNoCredentials) {
			doing, service = inner.OperationName+": ", inner.Service()
		}
	}
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		return doing + service + " answered " + answer.ErrorCode()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return doing + op.Error()
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return doing + lookup.Error()
	}
	if errors.Is(err, ErrNoCredentials) {
		return doing + ErrNoCredentials.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return doing + "no answer in time"
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.Error()
	}
	return doing + "the request failed"
}
