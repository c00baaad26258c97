package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

type object = map[string]any

// mayAnswer returns the status codes of a route.
func (r *route) mayAnswer() []int {
	codes := append([]int{http.StatusOK}, r.codes...)
	if scoped(r.path) {
		codes = append(codes, http.StatusPreconditionFailed)
	}
	if !r.public {
		codes = append(codes, http.StatusBadRequest, http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// describe returns the OpenAPI document of the routes.
func describe(version string) ([]byte, error) {
	schemas := maps.Clone(requestSchemas)
	paths := map[string]object{}
	for i := range routes {
		r := &routes[i]
		if paths[r.path] == nil {
			paths[r.path] = object{}
		}
		paths[r.path][strings.ToLower(r.method)] = operation(r, schemas)
	}
	document, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "Rollcall relayer",
			"version":     cmp.Or(version, "devel"),
			"description": "A pool of funded keys that sends transactions, behind OpenZeppelin Relayer's API (v1.8, EVM).",
			"license":     object{"name": "Apache-2.0"},
		},
		"paths": paths,
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"bearer_auth": object{"type": "http", "scheme": "bearer"}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	return document, nil
}

func operation(r *route, schemas object) object {
	op := object{"operationId": r.id, "summary": r.summary}
	if !r.public {
		op["security"] = []object{{"bearer_auth": []string{}}}
	}
	var params []object
	for segment := range strings.SplitSeq(r.path, "/") {
		if name := strings.Trim(segment, "{}"); name != segment {
			params = append(params, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	for _, name := range r.query {
		params = append(params, object{"name": name, "in": "query", "required": false, "schema": queries[name]})
	}
	if r.idempotent {
		params = append(params, object{
			"name": idempotencyKey, "in": "header", "required": false,
			"schema": object{"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
		})
	}
	if scoped(r.path) {
		params = append(params, object{
			"name": idempotencyScope, "in": "header", "required": false, "schema": scopeSchema,
			"description": "The scope of an earlier response: with another one the answer is 412, and nothing is done.",
		})
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.request != "" {
		op["requestBody"] = object{"required": true, "content": jsonContent(ref(r.request))}
	}
	responses := object{}
	for _, code := range r.mayAnswer() {
		responses[strconv.Itoa(code)] = response(r, code, schemas)
	}
	op["responses"] = responses
	return op
}

func response(r *route, code int, schemas object) object {
	out := object{"description": http.StatusText(code)}
	headers := object{"X-Request-Id": object{"schema": object{"type": "string"}}}
	switch {
	case r.bare == "" && code == http.StatusOK:
		out["content"] = object{"text/plain": object{"schema": object{"type": "string"}}}
	case r.bare != nil && (code == http.StatusOK || r.public && code == http.StatusServiceUnavailable):
		schema := schemaOf(reflect.TypeOf(r.bare), schemas)
		if _, ok := r.bare.(openzeppelin.RPCResponse); ok { // a call's response or a batch's
			schema = object{"oneOf": []any{schema, object{"type": "array", "items": schema}}}
		}
		out["content"] = jsonContent(schema)
	case code == http.StatusOK:
		out["content"] = jsonContent(envelope(r, schemas))
	case code == http.StatusUnauthorized, code == http.StatusTooManyRequests:
		out["content"] = failureContent(schemaOf(reflect.TypeFor[openzeppelin.Refused](), schemas))
	default:
		out["content"] = failureContent(object{
			"type": "object", "required": []string{"success", "data", "error"},
			"properties": object{
				"success": object{"const": false}, "data": object{"type": "null"}, "error": object{"type": "string"},
			},
		})
	}
	switch code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if !r.public {
			headers["Retry-After"] = object{"schema": object{"type": "integer"}}
		}
	}
	// An unavailable relayer may not know the scope, and the response to an invalid key has none.
	if scoped(r.path) && code != http.StatusUnauthorized && code != http.StatusServiceUnavailable {
		headers[idempotencyScope] = object{
			"description": "Relayers that answer the same share this caller's Idempotency-Keys.", "schema": scopeSchema,
		}
	}
	out["headers"] = headers
	return out
}

func envelope(r *route, schemas object) object {
	data := schemaOf(reflect.TypeOf(r.data), schemas)
	required := []string{"success", "data", "error"}
	properties := object{"success": object{"const": true}, "error": object{"type": "null"}, "data": data}
	if r.list {
		required = append(required, "pagination")
		properties["data"] = object{"type": "array", "items": data}
		properties["pagination"] = schemaOf(reflect.TypeFor[openzeppelin.Pagination](), schemas)
	}
	return object{"type": "object", "required": required, "properties": properties}
}

// failureContent describes the two formats of a response to a request that failed.
func failureContent(schema object) object {
	text := object{"type": "string"}
	content := jsonContent(schema)
	content[httpserver.ProblemType] = object{"schema": object{
		"type": "object", "required": []string{"type", "title", "status", "detail"}, "description": "For clients whose Accept names this type.",
		"properties": object{"type": text, "title": text, "status": object{"type": "integer"}, "detail": text, "field": text},
	}}
	return content
}

func jsonContent(schema object) object {
	return object{"application/json": object{"schema": schema}}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemaOf returns the schema of a type of package openzeppelin by its fields' tags: json, and enum for the values of a
// string. It adds structs to schemas, by name.
func schemaOf(t reflect.Type, schemas object) object {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	case reflect.TypeFor[*big.Int]():
		return object{"type": "integer"}
	case reflect.TypeFor[relayer.APIStatus]():
		return queries["status"]
	case reflect.TypeFor[relayer.Speed]():
		return object{"type": "string", "enum": relayer.Speeds}
	}
	switch t.Kind() {
	case reflect.Pointer:
		schema := schemaOf(t.Elem(), schemas)
		if kind, ok := schema["type"].(string); ok && schema["enum"] == nil {
			schema = maps.Clone(schema)
			schema["type"] = []string{kind, "null"}
			return schema
		}
		return object{"oneOf": []any{object{"type": "null"}, schema}}
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{"type": "object"}
		}
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Struct:
		if schemas[t.Name()] == nil {
			schemas[t.Name()] = structSchema(t, schemas)
		}
		return ref(t.Name())
	default:
		panic(fmt.Sprintf("no schema for %v", t))
	}
}

func structSchema(t reflect.Type, schemas object) object {
	var required []string
	properties := object{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		schema := schemaOf(f.Type, schemas)
		if options == "omitempty" {
			if f.Type.Kind() == reflect.Pointer && f.Type != reflect.TypeFor[*big.Int]() {
				schema = schemaOf(f.Type.Elem(), schemas)
			}
		} else {
			required = append(required, name)
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			schema = object{"type": "string", "enum": strings.Split(enum, ",")}
		}
		properties[name] = schema
	}
	return object{"type": "object", "required": required, "properties": properties}
}

var queries = map[string]object{
	"page":     {"type": "integer", "minimum": 1, "maximum": maxPage, "default": 1},
	"per_page": {"type": "integer", "minimum": 1, "maximum": maxPerPage, "default": defaultPerPage},
	"status": {"type": "string", "enum": []relayer.APIStatus{
		relayer.APICanceled, relayer.APIPending, relayer.APISent, relayer.APISubmitted, relayer.APIMined, relayer.APIConfirmed,
		relayer.APIFailed, relayer.APIExpired,
	}},
	includeBalance: includeSchema, includePending: includeSchema, includeLastConfirmed: includeSchema,
	"method": metadataSchema, "orderbook": metadataSchema, "trader": metadataSchema, "request_id": metadataSchema,
	"trace_id": metadataSchema,
}

var (
	includeSchema  = object{"type": "boolean", "default": true}
	scopeSchema    = object{"type": "string", "pattern": "^[!-~]+$"}
	metadataSchema = object{"type": "string", "maxLength": relayer.MaxMetadataBytes}
	amountSchema   = object{
		"description": "0 to 2^256-1, as an integer, a decimal string or 0x hex",
		"oneOf":       []any{object{"type": "integer", "minimum": 0}, object{"type": "string", "pattern": "^([0-9]+|0[xX][0-9a-fA-F]+)$"}},
	}
	hashSchema = object{"type": "string", "pattern": "^(0x)?[0-9a-fA-F]{64}$"}
)

// requestSchemas are the schemas of the bodies that openzeppelin's decoders read.
var requestSchemas = object{
	"EvmTransactionRequest": object{
		"type": "object", "required": []string{"value"},
		"properties": object{
			"to":                       object{"type": []string{"string", "null"}, "pattern": "^(0x)?[0-9a-fA-F]{40}$"},
			"value":                    amountSchema,
			"data":                     object{"type": []string{"string", "null"}, "pattern": "^(0x)?([0-9a-fA-F]{2})*$"},
			"gas_limit":                amountSchema,
			"gas_price":                amountSchema,
			"max_fee_per_gas":          amountSchema,
			"max_priority_fee_per_gas": amountSchema,
			"speed":                    object{"type": "string", "enum": relayer.Speeds, "default": relayer.Fast},
			"valid_until":              object{"type": []string{"string", "null"}, "format": "date-time"},
			"metadata": object{
				"type": []string{"object", "null"}, "additionalProperties": false,
				"properties": object{
					"method": metadataSchema, "orderbook": metadataSchema, "trader": metadataSchema,
					"request_id": metadataSchema, "trace_id": metadataSchema,
				},
			},
		},
	},
	"UpdateRelayerRequest": object{
		"type": "object", "additionalProperties": false,
		"properties": object{
			"name": object{
				"type": []string{"string", "null"}, "maxLength": relayer.MaxMetadataBytes, "description": "the present one: it cannot be changed",
			},
			"paused": object{"type": "boolean"},
			"policies": object{
				"type": []string{"object", "null"}, "additionalProperties": false,
				"properties": object{"min_balance": object{"oneOf": []any{amountSchema, object{"type": "null"}}}},
			},
		},
	},
	"SignDataRequest": object{
		"type": "object", "required": []string{"message"}, "properties": object{"message": object{"type": "string"}},
	},
	"SignTypedDataRequest": object{
		"type": "object", "required": []string{"domain_separator", "hash_struct_message"},
		"properties": object{"domain_separator": hashSchema, "hash_struct_message": hashSchema},
	},
	"JsonRpcRequest": object{
		"oneOf": []any{ref("JsonRpcCall"), object{"type": "array", "minItems": 1, "maxItems": openzeppelin.MaxBatch, "items": ref("JsonRpcCall")}},
	},
	"JsonRpcCall": object{
		"type": "object", "required": []string{"jsonrpc", "method"},
		"properties": object{
			"jsonrpc": object{"const": "2.0"},
			"method":  object{"type": "string", "enum": slices.Sorted(maps.Keys(readMethods))},
			"params":  object{"type": []string{"array", "null"}},
			"id":      object{"type": []string{"string", "number", "null"}},
		},
	},
}
