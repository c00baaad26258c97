package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// description is the API's description, with the parts that have occurred in responses.
type description struct {
	Paths      map[string]map[string]operationDoc `json:"paths"`
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`
	seen map[string]bool
}

type operationDoc struct {
	ID         string `json:"operationId"`
	Parameters []struct{ Name, In string }
	Responses  map[string]struct {
		Content map[string]struct{ Schema map[string]any }
		Headers map[string]any
	}
	RequestBody *struct {
		Content map[string]struct{ Schema map[string]any }
	}
	Security []map[string][]string
}

func readDescription(t testing.TB, raw []byte) *description {
	t.Helper()
	d := &description{seen: map[string]bool{}}
	require.NoError(t, json.Unmarshal(raw, d))
	return d
}

// operation returns the operation of a request, nil for one that is not described.
func (d *description) operation(r *http.Request) *operationDoc {
	path := strings.Split(strings.TrimRight(r.URL.Path, "/"), "/")
	var best *operationDoc
	literal := -1
	for pattern, methods := range d.Paths {
		segments := strings.Split(pattern, "/")
		op, ok := methods[strings.ToLower(r.Method)]
		if !ok || len(segments) != len(path) {
			continue
		}
		same := 0
		for i, s := range segments {
			if s == path[i] {
				same++
			} else if !strings.HasPrefix(s, "{") {
				same = -len(path)
			}
		}
		if same > literal {
			best, literal = &op, same
		}
	}
	return best
}

// check compares a response with the description: its status code, its headers and every field.
func (d *description) check(t testing.TB, r *http.Request, w *httptest.ResponseRecorder) {
	t.Helper()
	require.NotEmpty(t, w.Header().Get("X-Request-Id"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	op := d.operation(r)
	if op == nil {
		require.Contains(t, []int{401, 404, 405, 501}, w.Code, "%s %s", r.Method, r.URL)
		return
	}
	response, ok := op.Responses[strconv.Itoa(w.Code)]
	require.True(t, ok, "%s answered %d, which is not described: %s", op.ID, w.Code, w.Body)
	d.seen[op.ID+" "+strconv.Itoa(w.Code)] = true
	for name := range response.Headers {
		require.NotEmpty(t, w.Header().Get(name), "%s %d %s", op.ID, w.Code, name)
	}
	media, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	content, ok := response.Content[media]
	require.True(t, ok, "%s %d is of type %s", op.ID, w.Code, media)
	if media == "text/plain" {
		return
	}
	decoder := json.NewDecoder(strings.NewReader(w.Body.String()))
	decoder.UseNumber()
	var value any
	require.NoError(t, decoder.Decode(&value))
	require.NoError(t, d.validate(op.ID, content.Schema, value), "%s %d: %s", op.ID, w.Code, w.Body)
}

// validate implements the part of JSON Schema that the description uses. An undescribed field is an error.
func (d *description) validate(at string, schema map[string]any, value any) error {
	if name, ok := schema["$ref"].(string); ok {
		name = strings.TrimPrefix(name, "#/components/schemas/")
		return d.validate(name, d.Components.Schemas[name], value)
	}
	if want, ok := schema["const"]; ok && want != value {
		return fmt.Errorf("%s is %v, not %v", at, value, want)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, value) {
		return fmt.Errorf("%s is %v, not of %v", at, value, enum)
	}
	if choice, ok := schema["oneOf"].([]any); ok {
		var last error
		for _, c := range choice {
			if last = d.validate(at, c.(map[string]any), value); last == nil {
				return nil
			}
		}
		return fmt.Errorf("%s is none of its choices: %w", at, last)
	}
	kinds, ok := schema["type"].([]any)
	if kind, one := schema["type"].(string); one {
		kinds, ok = []any{kind}, true
	}
	if ok && !slices.Contains(kinds, any(kindOf(value))) {
		return fmt.Errorf("%s is %v, not %v", at, value, kinds)
	}
	switch value := value.(type) {
	case []any:
		items, _ := schema["items"].(map[string]any)
		for _, v := range value {
			if err := d.validate(at+"[]", items, v); err != nil {
				return err
			}
		}
	case map[string]any:
		return d.validateObject(at, schema, value)
	}
	return nil
}

func (d *description) validateObject(at string, schema map[string]any, value map[string]any) error {
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			return fmt.Errorf("%s lacks %v", at, name)
		}
	}
	for name, v := range value {
		property, ok := properties[name].(map[string]any)
		if !ok {
			if property, ok = schema["additionalProperties"].(map[string]any); !ok {
				if properties == nil {
					continue // any object
				}
				return fmt.Errorf("%s has %s, which is not described", at, name)
			}
		}
		d.seen[at+"."+name] = true
		if err := d.validate(at+"."+name, property, v); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		if strings.ContainsAny(value.String(), ".eE") {
			return "number"
		}
		return "integer"
	case []any:
		return "array"
	default:
		return "object"
	}
}
