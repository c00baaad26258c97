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
func (c *exchange) Header() http.Header { return c.w.Header() }

// WriteHeader begins the response.
func (c *exchange) WriteHeader(code int) {
	if c.code == 0 {
		c.code = code
	}
	c.w.WriteHeader(code)
}

// Write continues the response.
func (c *exchange) Write(p []byte) (int, error) {
	if c.code == 0 {
		c.code = http.StatusOK
	}
	return c.w.Write(p)
}

// Unwrap returns the writer for [http.ResponseController].
func (c *exchange) Unwrap() http.ResponseWriter { return c.w }

// bufferPool holds buffers for a request's body and its response. A buffer that has grown large is not returned to it.
var bufferPool = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (c *exchange) buffer() *bytes.Buffer {
	if c.scratch == nil {
		c.scratch, _ = bufferPool.Get().(*bytes.Buffer)
	}
	c.scratch.Reset()
	return c.scratch
}

func (c *exchange) release() {
	if c.scratch != nil && c.scratch.Cap() <= 64<<10 {
		bufferPool.Put(c.scratch)
	}
	c.scratch = nil
}

// body reads the request's body, which must be JSON and is bounded. The result is valid until the response.
func (c *exchange) body() ([]byte, error) {
	if c.r.ContentLength > maxBody {
		c.Header().Set("Connection", "close") // instead of reading it all
		return nil, errTooLarge
	}
	if ct := c.r.Header.Get("Content-Type"); ct != "" && ct != "application/json" {
		if media, params, err := mime.ParseMediaType(ct); err != nil ||
			media != "application/json" && (media != "application/merge-patch+json" || c.r.Method != http.MethodPatch) ||
			params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
			return nil, &httpError{http.StatusUnsupportedMediaType, "send application/json in UTF-8"}
		}
	}
	if ce := c.r.Header.Get("Content-Encoding"); ce != "" && ce != "identity" {
		return nil, &httpError{http.StatusUnsupportedMediaType, "send the body as it is, without Content-Encoding"}
	}
	b := c.buffer()
	if _, err := b.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, maxBody)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, errTooLarge
		}
		return nil, &httpError{http.StatusBadRequest, "the body ended early"}
	}
	return b.Bytes(), nil
}

var errTooLarge = &httpError{http.StatusRequestEntityTooLarge, "the body must not have more than " + strconv.Itoa(maxBody) + " bytes"}

// ok responds with data in its envelope.
func (c *exchange) ok(v any) error {
	c.answer(http.StatusOK, v)
	return nil
}

// answer writes v as JSON.
func (c *exchange) answer(code int, v any) {
	b := c.buffer()
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// The relayer's own values always encode, but a node's response might not.
		c.err = errors.Join(c.err, err)
		b.Reset()
		code = http.StatusInternalServerError
		_ = enc.Encode(openzeppelin.Failed("internal error: the answer can't be encoded"))
	}
	c.write(code, bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
}

func (c *exchange) write(code int, body []byte) {
	h := c.Header()
	if h["Content-Type"] == nil {
		h["Content-Type"] = jsonType
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	if c.slowReaderTimeout > 0 {
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.slowReaderTimeout)) // the server's applies if this fails
	}
	c.WriteHeader(code)
	_, _ = c.Write(body) // the client may have gone; there is no one to report an error to
}

// These are shared values of headers, which must not be changed.
var (
	jsonType = []string{"application/json"}
	textType = []string{"text/plain; charset=utf-8"}
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
)

var _ io.Writer = (*exchange)(nil)
