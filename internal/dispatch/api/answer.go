package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

// view is the answer to a request for a transaction's status.
type view struct {
	dispatch.View
	ChainID     *uint64        `json:"chainId"` // null while the database has none
	Kind        dispatch.Kind  `json:"kind"`
	To          string         `json:"to"`
	Value       string         `json:"value"` // wei, in decimal digits
	Data        string         `json:"data"`
	GasLimit    uint64         `json:"gasLimit"`
	Speed       dispatch.Speed `json:"speed"`
	Signer      *string        `json:"signer"` // of a gasless one
	SubmittedAt *string        `json:"submittedAt"`
}

func viewOf(tx *dispatch.Transaction, chain *uint64) view {
	v := view{
		View: tx.View(), ChainID: chain, Kind: tx.Kind, To: tx.To.Hex(), Value: tx.Value.String(),
		Data: hexutil.Encode(tx.Data), GasLimit: tx.GasLimit, Speed: tx.Speed,
	}
	if tx.Forward != nil {
		v.Signer = new(tx.Forward.Signer.Hex())
	}
	if !tx.SubmittedAt.IsZero() {
		v.SubmittedAt = new(dispatch.Timestamp(tx.SubmittedAt))
	}
	return v
}

// failure is the body of an answer to a request that failed.
type failure struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Field   string `json:"field,omitempty"`
	} `json:"error"`
}

// statusError is a rejection by the API itself.
type statusError struct {
	status        int
	code, message string
}

func (e *statusError) Error() string { return e.message }

var (
	errUnauthorized = &statusError{http.StatusUnauthorized, "unauthorized", "send a valid key in the header x-api-key"}
	errRole         = &statusError{http.StatusForbidden, "forbidden", "this API key may only read"}
	errNoRoute      = &statusError{http.StatusNotFound, "not_found", "no such route: /api-docs/openapi.json lists them"}
	errStarting     = &statusError{http.StatusServiceUnavailable, "unavailable", "the API is starting, see /health; nothing was stored: try again"}
)

// answer writes v as JSON.
func answer(w http.ResponseWriter, status int, v any) { write(w, status, encode(v)) }

// encode returns v as JSON. All types of this package can be encoded.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return body
}

// write writes a body of JSON.
func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}

// fail answers a request that failed. It reports whether an operator has to look into the error.
func fail(w http.ResponseWriter, r *http.Request, err error) (status int, internal bool) {
	var f failure
	status, f.Error.Code, f.Error.Message = classify(err)
	if invalid, ok := errors.AsType[*dispatch.InvalidError](err); ok {
		f.Error.Field = invalid.Field
	}
	if limit, ok := errors.AsType[*dispatch.LimitError](err); ok {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((limit.After+time.Second-1)/time.Second)), 10))
	} else if status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
		w.Header().Set("Retry-After", "1")
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("Connection", "close") // an idle one would keep a slot that clients need
	}
	if httpserver.WantsProblem(r.Header) {
		problem := httpserver.NewProblem(status, f.Error.Message)
		problem.Code, problem.Field = f.Error.Code, f.Error.Field
		w.Header().Set("Content-Type", httpserver.ProblemType)
		answer(w, status, problem)
	} else {
		answer(w, status, f)
	}
	return status, status >= http.StatusInternalServerError
}

// classify returns the answer to an error. The text of an unexpected one is for the log alone.
func classify(err error) (status int, code, message string) {
	if own, ok := errors.AsType[*statusError](err); ok {
		return own.status, own.code, own.message
	}
	if invalid, ok := errors.AsType[*dispatch.InvalidError](err); ok {
		return http.StatusBadRequest, "invalid_request", invalid.Error()
	}
	if limit, ok := errors.AsType[*dispatch.LimitError](err); ok {
		return http.StatusTooManyRequests, "rate_limited", limit.Error() + ": try again after the seconds of Retry-After"
	}
	switch {
	case errors.Is(err, dispatch.ErrNotFound):
		return http.StatusNotFound, "not_found", dispatch.ErrNotFound.Error()
	case errors.Is(err, dispatch.ErrReused):
		return http.StatusUnprocessableEntity, "reused", dispatch.ErrReused.Error()
	case errors.Is(err, dispatch.ErrNonceTaken):
		return http.StatusConflict, "nonce_taken", dispatch.ErrNonceTaken.Error()
	case errors.Is(err, dispatch.ErrUnavailable):
		return http.StatusServiceUnavailable, "unavailable", "a dependency is not available, see /health; nothing was stored: try again"
	case errors.Is(err, dispatch.ErrUnknown):
		return http.StatusGatewayTimeout, "unknown", "it may have been stored or not: repeat the request with the same transactionId or Idempotency-Key"
	default:
		return http.StatusInternalServerError, "internal", "internal error: the API's log has it"
	}
}
