package httpserver

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// maxRequestID is the maximum length of a request's id, in bytes.
const maxRequestID = 256

// RequestID returns the id of a request: the first valid X-Request-Id, or a new id. A proxy may add a second header, and ids serve
// to find a request again, so that a bad one is no reason to reject the request.
func RequestID(h http.Header) string {
	for _, id := range h["X-Request-Id"] {
		if validRequestID(id) {
			return id
		}
	}
	const digits = 16
	s := strconv.FormatUint(rand.Uint64(), 16) // it need not be hard to guess
	return "0000000000000000"[:digits-len(s)] + s
}

func validRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID || !utf8.ValidString(id) {
		return false
	}
	for _, c := range id {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}
