package api

import (
	"encoding/hex"
	"net/http"
	"strings"
)

// traceparent returns a request's W3C trace context; "" if there is none, or a malformed one, which the standard has a
// receiver ignore.
func traceparent(h http.Header) string {
	values := h["Traceparent"]
	if len(values) != 1 {
		return ""
	}
	parts := strings.Split(values[0], "-")
	if len(parts) != 4 || parts[0] != "00" {
		return ""
	}
	for i, size := range []int{1, 16, 8, 1} {
		b, err := hex.DecodeString(parts[i])
		if err != nil || len(b) != size || parts[i] != strings.ToLower(parts[i]) {
			return ""
		}
	}
	if strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" {
		return ""
	}
	return values[0]
}
