package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 1 << 20

// exchange is a request and the writer of its response.
type exchange struct {
	w                 http.ResponseWriter
	r                 *http.Request
	route             *route      // never nil; empty until one is found
	caller            string      // the name of the API key; "" for public routes
	role              apikey.Role // the role of that key
	requestID         string
	scopeErr          error // why a handler must not run: the request requires another idempotency scope
	code              int
	err               error // the relayer's failure, for the log
	scratch           *bytes.Buffer
	slowReaderTimeout time.Duration // of the response's reader; 0: the server's
}

// Header returns the response's header.
func (e *exchange) Header() http.Header { return e.w.Header() }

// WriteHeader begins the response.
func (e *exchange) WriteHeader(code int) {
	if e.code == 0 {
		e.code = code
	}
	e.w.WriteHeader(code)
}

// Write continues the response.
func (e *exchange) Write(p []byte) (int, error) {
	if e.code == 0 {
		e.code = http.StatusOK
	}
	return e.w.Write(p)
}

// Unwrap returns the writer for [http.ResponseController].
func (e *exchange) Unwrap() http.ResponseWriter { return e.w }

// bufferPool holds buffers for a request's body and its response. A buffer that has grown large is not returned to it.
var bufferPool = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (e *exchange) buffer() *bytes.Buffer {
	if e.scratch == nil {
		e.scratch, _ = bufferPool.Get().(*bytes.Buffer)
	}
	e.scratch.Reset()
	return e.scratch
}

func (e *exchange) release() {
	if e.scratch != nil && e.scratch.Cap() <= 64<<10 {
		bufferPool.Put(e.scratch)
	}
	e.scratch = nil
}

// body reads the request's body, which must be JSON and is bounded. The result is valid until the response.
func (e *exchange) body() ([]byte, error) {
	if e.r.ContentLength > maxBody {
		e.Header().Set("Connection", "close") // instead of reading it all
		return nil, errTooLarge
	}
	if ct := e.r.Header.Get("Content-Type"); ct != "" && ct != "application/json" {
		if media, params, err := mime.ParseMediaType(ct); err != nil ||
			media != "application/json" && (media != "application/merge-patch+json" || e.r.Method != http.MethodPatch) ||
			params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
			return nil, &httpError{http.StatusUnsupportedMediaType, "send application/json in UTF-8"}
		}
	}
	if ce := e.r.Header.Get("Content-Encoding"); ce != "" && ce != "identity" {
		return nil, &httpError{http.StatusUnsupportedMediaType, "send the body as it is, without Content-Encoding"}
	}
	b := e.buffer()
	if _, err := b.ReadFrom(http.MaxBytesReader(e.w, e.r.Body, maxBody)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, errTooLarge
		}
		return nil, &httpError{http.StatusBadRequest, "the body ended early"}
	}
	return b.Bytes(), nil
}

var errTooLarge = &httpError{http.StatusRequestEntityTooLarge, "the body must not have more than " + strconv.Itoa(maxBody) + " bytes"}

// ok responds with data in its envelope.
func (e *exchange) ok(v any) error {
	e.answer(http.StatusOK, v)
	return nil
}

// answer writes v as JSON.
func (e *exchange) answer(code int, v any) {
	b := e.buffer()
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// The relayer's own values always encode, but a node's response might not.
		e.err = errors.Join(e.err, err)
		b.Reset()
		code = http.StatusInternalServerError
		_ = enc.Encode(openzeppelin.Failed("internal error: the answer can't be encoded"))
	}
	e.write(code, bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
}

func (e *exchange) write(code int, body []byte) {
	h := e.Header()
	if h["Content-Type"] == nil {
		h["Content-Type"] = jsonType
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	if e.slowReaderTimeout > 0 {
		_ = http.NewResponseController(e.w).SetWriteDeadline(time.Now().Add(e.slowReaderTimeout)) // the server's applies if this fails
	}
	e.WriteHeader(code)
	_, _ = e.Write(body) // the client may have gone; there is no one to report an error to
}

// These are shared values of headers, which must not be changed.
var (
	jsonType    = []string{"application/json"}
	problemType = []string{httpserver.ProblemType}
	textType    = []string{"text/plain; charset=utf-8"}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
)

var _ io.Writer = (*exchange)(nil)
