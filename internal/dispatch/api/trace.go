package api

import "net/http"

// traceparent returns a request's W3C trace context; "" if there is none, or more than one.
func traceparent(h http.Header) string {
	values := h["Traceparent"]
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
