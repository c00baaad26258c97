package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// These are the facts that OpenZeppelin Relayer publishes of its EVM API: its openapi.json together with the responses of
// version 1.8.0. That document is at info.version 1.3.0 to 1.5.0, because it lags behind the program. The form is this
// test's own.

// theirRoutes are OpenZeppelin's routes, and the status codes that are published for each.
var theirRoutes = map[string]string{
	"GET /api/v1/relayers":                                               "200 400 401 429 500",
	"GET /api/v1/relayers/{relayer_id}":                                  "200 400 401 404 429 500",
	"PATCH /api/v1/relayers/{relayer_id}":                                "200 400 401 404 429 500",
	"GET /api/v1/relayers/{relayer_id}/status":                           "200 400 401 404 429 500",
	"GET /api/v1/relayers/{relayer_id}/balance":                          "200 400 401 404 429 500",
	"POST /api/v1/relayers/{relayer_id}/transactions":                    "200 400 401 404 429 500",
	"GET /api/v1/relayers/{relayer_id}/transactions":                     "200 400 401 404 429 500",
	"GET /api/v1/relayers/{relayer_id}/transactions/{transaction_id}":    "200 400 401 404 429 500",
	"PUT /api/v1/relayers/{relayer_id}/transactions/{transaction_id}":    "200 400 401 404 429 500",
	"DELETE /api/v1/relayers/{relayer_id}/transactions/{transaction_id}": "200 400 401 404 429 500",
	"GET /api/v1/relayers/{relayer_id}/transactions/by-nonce/{nonce}":    "200 400 401 404 429 500",
	"DELETE /api/v1/relayers/{relayer_id}/transactions/pending":          "200 400 401 404 429 500",
	"POST /api/v1/relayers/{relayer_id}/sign":                            "200 400 401 404 429 500",
	"POST /api/v1/relayers/{relayer_id}/sign-typed-data":                 "200 400 401 404 429 500",
	"POST /api/v1/relayers/{relayer_id}/rpc":                             "200 400 401 404 429 500",
	"GET /api/v1/health":                                                 "200",
	"GET /api/v1/ready":                                                  "200 503",
	"POST /api/v1/relayers":                                              "501",
	"DELETE /api/v1/relayers/{relayer_id}":                               "501",
	"POST /api/v1/relayers/{relayer_id}/sign-transaction":                "501",
	"POST /api/v1/relayers/{relayer_id}/transactions/sponsored/quote":    "501",
	"POST /api/v1/relayers/{relayer_id}/transactions/sponsored/build":    "501",
	"GET /api/v1/signers":                                                "501",
	"GET /api/v1/signers/{id}":                                           "501",
	"GET /api/v1/notifications":                                          "501",
	"GET /api/v1/notifications/{id}":                                     "501",
	"GET /api/v1/networks":                                               "501",
	"GET /api/v1/networks/{id}":                                          "501",
	"POST /api/v1/plugins/{id}/call":                                     "501",
	"GET /api/v1/plugins":                                                "501",
	"GET /api/v1/api-keys":                                               "501",
	"GET /api/v1/api-keys/{id}/permissions":                              "501",
}

// theirFields are the fields of OpenZeppelin's responses: a JSON type, ? if it may be null, - if it may be omitted, and the
// values of an enum after a colon. A JSON integer of 128 bits is one here too.
var theirFields = map[string]string{
	"Transaction": `id string, hash string?, status string:canceled|pending|sent|submitted|mined|confirmed|failed|expired,
		status_reason string?, created_at string, sent_at string?, confirmed_at string?, gas_price string?, gas_limit integer?,
		nonce integer?, value string, from string, to string?, relayer_id string, data string?, max_fee_per_gas string?,
		max_priority_fee_per_gas string?, signature Signature?, speed string?:fastest|fast|average|safeLow, is_canceled boolean?`,
	"Signature": `r string, s string, v integer, sig string`,
	"Relayer": `id string, name string, network string, network_type string:evm|solana|stellar, paused boolean, policies Policies-,
		signer_id string, notification_id string-, custom_rpc_urls array-, address string?, system_disabled boolean?,
		disabled_reason DisabledReason-`,
	"Policies": `min_balance integer, gas_limit_estimation boolean, gas_price_cap integer-, whitelist_receivers array-,
		eip1559_pricing boolean-, private_transactions boolean-, include_revert_data boolean-`,
	"DisabledReason": `type string:NonceSyncFailed|RpcValidationFailed|BalanceCheckFailed|SequenceSyncFailed|Multiple, details string`,
	"Status": `network_type string:evm|solana|stellar, balance string-, pending_transactions_count integer-,
		last_confirmed_transaction_timestamp string?-, system_disabled boolean, paused boolean, nonce string`,
	"Balance":         `balance integer, unit string:wei`,
	"CanceledPending": `queued_for_cancellation_transaction_ids array, failed_to_queue_transaction_ids array, total_processed integer`,
	"Pagination":      `current_page integer, per_page integer, total_items integer`,
	"RPCResponse":     `jsonrpc string, result any-, error RPCError-, id any-`,
	"RPCError":        `code integer, message string, description string, data any-`,
	"Refused":         `success boolean, code integer, error string, message string, after integer-`,
	// OpenZeppelin's components are system, redis, queue and plugins; this relayer has its own.
	"Readiness": `ready boolean, status string:healthy|degraded|unhealthy, reason string-, components object, timestamp string`,
}

// theirRequests are the fields that a client of OpenZeppelin's may send, all in one body except for exclusive ones.
var theirRequests = map[string][]string{
	"transactions": {
		`{"to":"` + target + `","value":1000000000000000,"data":"0x","gas_limit":21000,"gas_price":1000000000,"valid_until":"2030-01-02T15:04:05.123456789+00:00"}`,
		`{"to":null,"value":0,"data":"0x60","gas_limit":null,"gas_price":null,"speed":null,"max_fee_per_gas":2,"max_priority_fee_per_gas":1,"valid_until":null}`,
		`{"to":"` + target + `","value":"0xde0b6b3a7640000","speed":"safeLow"}`, `{"to":"` + target + `","value":0,"speed":"fastest"}`,
		`{"to":"` + target + `","value":0,"speed":"average"}`, `{"to":"` + target + `","value":0,"data":"0x","speed":"fast"}`,
	},
	"sign":            {`{"message":"hello"}`},
	"sign-typed-data": {`{"domain_separator":"` + strings.Repeat("ab", 32) + `","hash_struct_message":"` + strings.Repeat("ab", 32) + `"}`},
	"rpc":             {`{"jsonrpc":"2.0","method":"eth_getBalance","params":["` + target + `","latest"],"id":1}`},
}

// ourAdditions are fields that this relayer's responses have and OpenZeppelin's lack.
var ourAdditions = map[string]string{
	"Transaction.revision": "it orders this answer and webhooks",
	"Transaction.metadata": "what the request said about itself, by which transactions can be listed",
}

// ourDifferences are documented, with the reasons, in the packages openzeppelin and api.
var ourDifferences = map[string]string{
	"Relayer.notification_id":       "webhooks are configured, not referred to by id",
	"Relayer.custom_rpc_urls":       "a provider's URL may hold its key: it stays in the configuration",
	"Policies.private_transactions": "there is no such mode",
}

func TestRoutes_OpenZeppelin_AreDescribedOrNotImplemented(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for route, codes := range theirRoutes {
		method, path, _ := strings.Cut(route, " ")
		op, described := a.doc.Paths[path][strings.ToLower(method)]
		if codes == "501" {
			require.False(t, described, route)
			w := a.serve(method, strings.NewReplacer("{relayer_id}", poolID, "{id}", "x").Replace(path), "{}")
			require.Equal(t, 501, w.Code, route)
			continue
		}
		require.True(t, described, route)
		for code := range strings.FieldsSeq(codes) {
			require.Contains(t, op.Responses, code, route)
		}
		for _, p := range op.Parameters {
			require.True(t, p.In != "path" || strings.Contains(path, "{"+p.Name+"}"), route)
		}
	}
}

func TestSchemas_OpenZeppelinFields_AreTheSame(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for name, fields := range theirFields {
		ours := a.doc.Components.Schemas[name]
		require.NotNil(t, ours, name)
		properties, _ := ours["properties"].(map[string]any)
		required, _ := ours["required"].([]any)
		var known []string
		for field := range strings.SplitSeq(fields, ",") {
			words := strings.Fields(field)
			field := words[0]
			known = append(known, field)
			if ourDifferences[name+"."+field] != "" {
				require.NotContains(t, properties, field)
				continue
			}
			kind, enum, _ := strings.Cut(words[1], ":")
			property, ok := properties[field].(map[string]any)
			require.True(t, ok, "%s.%s is missing", name, field)
			require.Equal(t, !strings.HasSuffix(kind, "-"), slices.Contains(required, any(field)), "%s.%s", name, field)
			require.Equal(t, strings.TrimSuffix(kind, "-"), kindOfSchema(property), "%s.%s", name, field)
			if values := enumOf(property); enum != "" {
				require.NotEmpty(t, values, "%s.%s", name, field)
				for _, v := range values {
					require.Contains(t, strings.Split(enum, "|"), v, "%s.%s", name, field)
				}
				if strings.HasPrefix(field, "s") { // status and speed have all of OpenZeppelin's values
					require.Len(t, values, strings.Count(enum, "|")+1, "%s.%s", name, field)
				}
			}
		}
		for addition := range ourAdditions {
			if schema, field, _ := strings.Cut(addition, "."); schema == name {
				require.Contains(t, properties, field)
				require.NotContains(t, required, any(field))
				known = append(known, field)
			}
		}
		require.Subset(t, known, slices.Collect(maps.Keys(properties)), "%s has more fields than theirs", name)
	}
}

// kindOfSchema returns a schema in the form of theirFields.
func kindOfSchema(schema map[string]any) string {
	if ref, ok := schema["$ref"].(string); ok {
		return strings.TrimPrefix(ref, "#/components/schemas/")
	}
	if choice, ok := schema["oneOf"].([]any); ok {
		return kindOfSchema(choice[1].(map[string]any)) + "?"
	}
	switch kind := schema["type"].(type) {
	case string:
		return kind
	case []any:
		return kind[0].(string) + "?"
	default:
		return "any"
	}
}

func enumOf(schema map[string]any) (values []string) {
	if choice, ok := schema["oneOf"].([]any); ok {
		schema = choice[1].(map[string]any)
	}
	enum, _ := schema["enum"].([]any)
	for _, v := range enum {
		values = append(values, v.(string))
	}
	return values
}

func TestRoutes_OpenZeppelinRequests_AreAccepted(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for path, bodies := range theirRequests {
		for _, body := range bodies {
			require.Equal(t, 200, a.do("POST", "/api/v1/relayers/"+keyID+"/"+path, body).Code, body)
		}
	}
	for _, query := range []string{"?page=1&per_page=10", "?status=Confirmed", ""} {
		require.Equal(t, 200, a.do("GET", "/api/v1/relayers/"+keyID+"/transactions"+query, "").Code)
	}
}

// Unknown query parameters and body fields are ignored where OpenZeppelin ignores them: everywhere except in the patch of a
// relayer. In v1.8 EvmTransactionRequest, SignDataRequest, SignTypedDataRequest, PaginationQuery and StatusQuery derive
// serde's Deserialize without deny_unknown_fields; UpdateRelayerRequestRaw has it.
func TestUnknownNames_AreHandledAsByOpenZeppelin(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for path, bodies := range theirRequests {
		for _, body := range bodies {
			more := strings.TrimSuffix(body, "}") + `,"unknown":{"x":[1]},"relayer_id":"x"}`
			require.Equal(t, 200, a.do("POST", "/api/v1/relayers/"+keyID+"/"+path+"?unknown=1&unknown=2", more).Code, more)
		}
	}
	for _, path := range []string{"", "/" + keyID, "/" + keyID + "/status", "/" + keyID + "/balance", "/" + keyID + "/transactions"} {
		require.Equal(t, 200, a.do("GET", "/api/v1/relayers"+path+"?unknown=1&Page=x", "").Code, path)
	}
	w := a.do("PATCH", "/api/v1/relayers/pool-1", `{"unknown":1}`)
	require.Equal(t, 400, w.Code)
	require.Contains(t, w.Body.String(), "unknown: is unknown: paused and policies.min_balance can be changed")
}

// The envelope's null fields are present, pagination is present for lists only, and errors are envelopes too.
func TestEnvelope_HasOpenZeppelinFields(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for path, fields := range map[string][]string{
		"/api/v1/relayers":        {"data", "error", "pagination", "success"},
		"/api/v1/relayers/pool-1": {"data", "error", "success"},
		"/api/v1/relayers/absent": {"data", "error", "success"},
	} {
		var envelope map[string]json.RawMessage
		w := a.do("GET", path, "")
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &envelope))
		require.Equal(t, fields, slices.Sorted(maps.Keys(envelope)))
		require.Equal(t, strconv.FormatBool(w.Code == 200), string(envelope["success"]))
		require.Equal(t, w.Code == 200, string(envelope["error"]) == "null")
	}
}
