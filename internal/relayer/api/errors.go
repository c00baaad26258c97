package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// httpError is a rejection by the API itself.
type httpError struct {
	code    int
	message string
}

func (e *httpError) Error() string { return e.message }

func notImplemented(instead string) error {
	return &httpError{http.StatusNotImplemented, "not supported by this relayer: " + instead}
}

// refusal is the response to an error.
type refusal struct {
	code       int
	message    string
	field      string // of an invalid request; "" for the whole
	body       any    // in OpenZeppelin's format
	retryAfter int64  // seconds; 0: no header
	// internal reports that an operator has to look into it. The error is logged, and its text is not for the caller.
	internal bool
}

// fundsRetry is in seconds. It is long because ether has to be sent first.
const fundsRetry = 30

// mapError maps errors to responses. Its cases begin with errors that must not be mistaken for others.
func mapError(err error, c *exchange) refusal {
	refused := func(code int, message string) refusal {
		return refusal{code: code, message: message, body: openzeppelin.Failed(message)}
	}

	if own, ok := errors.AsType[*httpError](err); ok {
		return refused(own.code, own.message)
	}
	// ErrUnavailable reports that nothing was stored, even if a deadline is the cause.
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if errors.Is(err, relayer.ErrUnknown) || late && !errors.Is(err, relayer.ErrUnavailable) {
		r := refused(http.StatusGatewayTimeout, unknownMessage(c))
		r.retryAfter, r.internal = 1, true
		return r
	}
	if invalid, ok := errors.AsType[*relayer.InvalidError](err); ok {
		r := refused(http.StatusBadRequest, invalid.Error())
		r.field = invalid.Field
		return r
	}
	if revert, ok := errors.AsType[*relayer.RevertError](err); ok {
		return refused(http.StatusBadRequest, clip(revert.Error(), 1024))
	}
	if state, ok := errors.AsType[*relayer.StateError](err); ok {
		return refused(http.StatusBadRequest, state.Error())
	}
	if limit, ok := errors.AsType[*relayer.LimitError](err); ok {
		after := max(1, int64((limit.After+time.Second-1)/time.Second))
		r := refused(http.StatusTooManyRequests, fmt.Sprintf("%s: try again in %d s", limit.Limit, after))
		r.retryAfter, r.body = after, openzeppelin.TooManyRequests(r.message, after)
		return r
	}
	if funds, ok := errors.AsType[*relayer.FundsError](err); ok {
		r := refused(http.StatusServiceUnavailable, funds.Error())
		r.retryAfter, r.internal = fundsRetry, true // an operator needs this in the log
		return r
	}
	switch {
	case errors.Is(err, relayer.ErrNotFound):
		return refused(http.StatusNotFound, notFoundMessage(c))
	case errors.Is(err, relayer.ErrDisabled):
		return refused(http.StatusForbidden, "Relayer disabled")
	case errors.Is(err, relayer.ErrPaused):
		return refused(http.StatusForbidden, "Relayer paused")
	case errors.Is(err, relayer.ErrSigningOff):
		return refused(http.StatusForbidden, "this relayer signs no messages: RELAYER_ALLOW_MESSAGE_SIGNING is off, or auto with RELAYER_ALLOWED_RECEIVERS listed")
	case errors.Is(err, relayer.ErrKeyReused):
		return refused(http.StatusUnprocessableEntity, "this Idempotency-Key has been used with another body")
	case errors.Is(err, relayer.ErrOtherScope):
		return refused(http.StatusPreconditionFailed, "the Idempotency-Scope of this relayer and API key is another one, and its Idempotency-Keys are not those of the relayer that you mean; nothing was stored")
	case errors.Is(err, relayer.ErrForgotten):
		return refused(http.StatusGone, "this Idempotency-Key has been used, and what became of its transaction is no longer known")
	case errors.Is(err, relayer.ErrUnavailable):
		r := refused(http.StatusServiceUnavailable, unavailableMessage(c))
		r.retryAfter, r.internal = 1, true
		return r
	}
	r := refused(http.StatusInternalServerError, "internal error: the relayer's log has it under request "+c.requestID)
	r.internal = true
	return r
}

func unavailableMessage(c *exchange) string {
	const what = "the relayer is not ready; see /health"
	if c.reads() {
		return what + ": try again"
	}
	return what + "; nothing was stored: try again once it is there"
}

// reads reports whether a call only reads.
func (e *exchange) reads() bool { return e.r.Method == http.MethodGet || e.r.Method == http.MethodHead }

func unknownMessage(c *exchange) string {
	switch {
	case c.reads():
		return "no answer in time: try again"
	case !c.route.idempotent:
		return "the outcome is unknown; check before retrying"
	case c.r.Header.Get(idempotencyKey) == "":
		return "it may have been accepted or not: look for it among the transactions before you ask again, " +
			"and send an Idempotency-Key the next time"
	default:
		return "it may have been accepted or not: ask again with the same Idempotency-Key"
	}
}

func notFoundMessage(c *exchange) string {
	id := clip(c.r.PathValue("relayer_id"), 128)
	if tx := c.r.PathValue("transaction_id"); tx != "" {
		return fmt.Sprintf("transaction %s of relayer %s not found", clip(tx, 128), id)
	}
	if nonce := c.r.PathValue("nonce"); nonce != "" {
		return fmt.Sprintf("transaction with nonce %s of relayer %s not found", clip(nonce, 128), id)
	}
	return fmt.Sprintf("relayer %s not found", id)
}

// fail responds with an error.
func (e *exchange) fail(err error) {
	r := mapError(err, e)
	if r.internal {
		e.err = err
	}
	if r.retryAfter > 0 {
		e.Header().Set("Retry-After", strconv.FormatInt(r.retryAfter, 10))
	}
	e.refuse(r.code, r.message, r.field, r.body)
}

// refuse responds to a request that failed, with a body in OpenZeppelin's format, or a problem if the client asks for one.
func (e *exchange) refuse(code int, message, field string, body any) {
	if httpserver.WantsProblem(e.r.Header) {
		problem := httpserver.NewProblem(code, message)
		problem.Field = field
		e.Header()["Content-Type"] = problemType
		body = problem
	}
	e.answer(code, body)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
