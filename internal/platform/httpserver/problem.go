package httpserver

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// ProblemType is the media type of a [Problem].
const ProblemType = "application/problem+json"

// Problem is the response to a request that failed, in the format of RFC 9457, for clients that ask for it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code,omitempty"`  // the API's own code of the error
	Field  string `json:"field,omitempty"` // the path of the invalid field
}

// NewProblem returns a Problem without a type of its own, whose title is that of its status.
func NewProblem(status int, detail string) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// WantsProblem reports whether a request asks for a [Problem]: its header Accept names the type, and does not prefer
// application/json.
func WantsProblem(h http.Header) bool {
	weights := map[string]float64{}
	for _, accept := range h["Accept"] {
		for part := range strings.SplitSeq(accept, ",") {
			media, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			weight := 1.0
			if q, ok := params["q"]; ok {
				if weight, err = strconv.ParseFloat(q, 64); err != nil {
					continue
				}
			}
			weights[media] = max(weights[media], weight)
		}
	}
	return weights[ProblemType] > 0 && weights[ProblemType] >= weights["application/json"]
}
