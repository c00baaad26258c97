package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Submission is a transaction to be sent.
type Submission struct {
	RelayerID string // see [Info]
	// IdempotencyKey is sent if it is not empty.
	IdempotencyKey string
	// Scope is the idempotency scope that the relayer must have; "" for any.
	Scope string
	// Network is the network that a relayer without a scope must have, by its own name for it; "" for any.
	Network string

	To       *common.Address // nil creates a contract
	Data     []byte
	Value    *big.Int // wei; nil is 0
	GasLimit uint64   // 0: the relayer estimates it
	Speed    string   // "" is the relayer's default
	// Traceparent is the W3C trace context; "" for none.
	Traceparent string
}

// Outcome is the outcome of a submission. The package's documentation maps responses to outcomes.
type Outcome uint8

// The outcomes. The zero value is Unknown, so that a forgotten result is never taken for more than it proves.
const (
	Unknown Outcome = iota
	Accepted
	Rejected
	NotDone
)

// String returns the outcome's name for logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Accepted:
		return "accepted"
	case Rejected:
		return "rejected"
	case NotDone:
		return "not done"
	default:
		return "unknown"
	}
}

// Result is the result of a submission.
type Result struct {
	Outcome Outcome
	// Transaction is the accepted one. Its id is set. Its status may be missing or unknown; its hash often follows later.
	Transaction Transaction
	Code        int    // the HTTP status; 0 without a response
	Reason      string // why it was not accepted: bounded, printable, without secrets
	// RetryAfter is the pause that the relayer asked for, bounded; 0: none.
	RetryAfter time.Duration
	// Fault reports that the relayer, or the network between, is at fault, whatever the request. A circuit breaker counts
	// it.
	Fault bool
	// Busy reports that the relayer accepts no request for RetryAfter, or for a moment.
	Busy bool
	// Stale reports that the caller's [Info] of the relayer is out of date.
	Stale bool
	// KeyReused reports that the idempotency key was used with another request. It is a bug of the caller.
	KeyReused bool
	// Took is the time from the call to its result.
	Took time.Duration
}

// Submit submits a transaction once.
func (c *Client) Submit(ctx context.Context, s Submission) (result Result) {
	began := time.Now()
	defer func() { result.Took = time.Since(began) }()
	r, err := submitRequest(&s)
	if err != nil {
		return Result{Outcome: Rejected, Reason: clip(err.Error())}
	}
	limited, cancel := context.WithTimeout(ctx, c.cfg.SubmitTimeout)
	defer cancel()
	if s.Scope == "" && s.Network != "" {
		// A scope is of one chain, and its relayer compares it. Any other relayer is asked for its network, on the connection that the
		// submission is to use: one that was restarted with another network has ended that.
		c = c.pinned()
		defer c.http.CloseIdleConnections()
		if _, err := c.Confirm(limited, Info{RelayerID: s.RelayerID, Network: s.Network}); err != nil {
			return unconfirmed(ctx, err)
		}
	}
	resp, err := c.do(limited, r)
	if err != nil {
		failed, _ := errors.AsType[*callError](err)
		return submitFailed(ctx, limited, failed, len(r.body))
	}
	result = c.classify(&s, resp)
	if result.Outcome != Accepted && errors.Is(ctx.Err(), context.Canceled) {
		result.Fault = false // the body was cut by the caller
	}
	return result
}

func submitRequest(s *Submission) (*request, error) {
	switch {
	case !ValidID(s.RelayerID):
		return nil, errors.New("relayer id: is missing or invalid")
	case s.Value != nil && (s.Value.Sign() < 0 || s.Value.BitLen() > 256):
		return nil, errors.New("value: must be 0 to 2^256-1")
	case !visible(s.IdempotencyKey) || len(s.IdempotencyKey) > maxID:
		return nil, fmt.Errorf("idempotency key: has more than %d characters, or others than visible ASCII", maxID)
	case !visible(s.Scope) || !visible(s.Traceparent):
		return nil, errors.New("idempotency scope and trace context: must be visible ASCII")
	}
	b := submissionBody{To: s.To, Value: "0x0", GasLimit: s.GasLimit, Speed: s.Speed}
	if s.Value != nil {
		b.Value = "0x" + s.Value.Text(16)
	}
	if len(s.Data) > 0 {
		b.Data = hexutil.Encode(s.Data)
	}
	body, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode the submission: %w", err)
	}
	header := http.Header{}
	for name, value := range map[string]string{headerKey: s.IdempotencyKey, headerScope: s.Scope, "Traceparent": s.Traceparent} {
		if value != "" {
			header[name] = []string{value}
		}
	}
	return &request{method: http.MethodPost, path: transactionsPath(s.RelayerID), header: header, body: body}, nil
}

func transactionsPath(relayerID string) string {
	return "/relayers/" + url.PathEscape(relayerID) + "/transactions"
}

// unconfirmed returns the result of a submission that was not sent, because its relayer's network could not be read, or is another one.
func unconfirmed(parent context.Context, err error) Result {
	r := Result{Outcome: NotDone, Reason: "not sent: " + clip(err.Error()), Fault: parent.Err() == nil}
	if failed, ok := errors.AsType[*Error](err); ok {
		r.Code, r.RetryAfter, r.Busy = failed.Code, failed.RetryAfter, failed.Code == http.StatusTooManyRequests
		r.Fault = r.Fault && !failed.exhausted && !r.Busy
		return r
	}
	r.Stale = r.Fault // another relayer answers, or none
	return r
}

// submitFailed returns the result of a submission without a response.
func submitFailed(parent, limited context.Context, failed *callError, size int) Result {
	r := Result{Outcome: Unknown, Reason: reason(limited, failed.err), Fault: !local(parent, failed.err)}
	// Encryption makes bytes more, so fewer than the body has are an incomplete body in any case.
	if failed.sent < int64(size) {
		r.Outcome = NotDone
		r.Reason = "not sent: " + r.Reason
	}
	return r
}

// classify returns the result of a response. The package's documentation explains each case.
func (c *Client) classify(s *Submission, resp *response) Result {
	e, application := decodeEnvelope(resp.body)
	if resp.bodyErr != nil {
		application = false
	}
	r := Result{Code: resp.code, Outcome: NotDone, Fault: true, RetryAfter: resp.retryAfter(time.Now())}
	r.Reason = strings.TrimSpace(fmt.Sprintf("answered %d %s", resp.code, http.StatusText(resp.code)))
	// explained reports whether the relayer's application gave a reason.
	explained := application && !*e.Success && e.text() != ""
	if explained {
		r.Reason = c.printable(e.text())
	}
	ours := s.Scope != "" || resp.scope() != ""
	switch code := resp.code; {
	case code >= 200 && code < 300:
		return c.accepted(s, resp, &e, application, r)
	case code >= 300 && code < 400:
		r.Reason += ": redirects are not followed"
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity && s.IdempotencyKey == "":
		if explained {
			r.Outcome, r.Fault = Rejected, false
		}
	case code == http.StatusUnprocessableEntity:
		r.Outcome, r.Fault, r.KeyReused = Unknown, !application, application
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusNotFound:
		r.Stale = true
	case code == http.StatusRequestTimeout, code == http.StatusConflict:
		r.Outcome = Unknown
	case code == http.StatusGone:
		r.Outcome, r.Fault = Unknown, !application
	case code == http.StatusPreconditionFailed:
		r.Stale, r.Fault = true, s.Scope == ""
	case code == http.StatusRequestEntityTooLarge:
		r.Fault = false
		if explained {
			r.Outcome = Rejected
		}
	case code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		r.Fault, r.Busy = false, true
	case code == http.StatusNotImplemented, code >= 400 && code < 500:
	case code == http.StatusServiceUnavailable && explained && ours:
		r.Fault = false // it may concern this request alone, such as a value that no key can pay now
	default:
		r.Outcome = Unknown
	}
	return r
}

// accepted returns the result of a response that reports success by its status code.
func (c *Client) accepted(s *Submission, resp *response, e *envelope, application bool, r Result) Result {
	r.Outcome = Unknown
	switch {
	case resp.code != http.StatusOK && resp.code != http.StatusCreated && resp.code != http.StatusAccepted:
		return r
	case resp.bodyErr != nil:
		r.Reason = fmt.Sprintf("answered %d, and the body is incomplete or too large", resp.code)
		return r
	case !application:
		r.Reason = fmt.Sprintf("answered %d with another body than the relayer's", resp.code)
		return r
	case !*e.Success:
		r.Reason = fmt.Sprintf("answered %d without success: %s", resp.code, r.Reason)
		return r
	}
	tx, err := c.decodeTransaction(e.Data)
	if err != nil {
		r.Reason = fmt.Sprintf("answered %d with success and without a transaction's id", resp.code)
		return r
	}
	// A relayer that ignores the required scope, or has one that the caller does not know of, has the transaction anyway. Later calls must
	// not rely on the caller's scope.
	return Result{Outcome: Accepted, Code: resp.code, Transaction: tx, Stale: resp.scope() != s.Scope}
}
