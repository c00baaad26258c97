package api

import (
	_ "embed"
	"net/http"
	"strconv"
	"strings"
)

// openAPI is the API's description. Its version is replaced by the program's.
//
//go:embed openapi.json
var openAPI string

// describe answers the API's description.
func (h *Handler) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(strings.Replace(openAPI, `"version": "0"`, `"version": `+strconv.Quote(h.cfg.Version), 1))) // the client may have gone
}
